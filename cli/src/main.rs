//! `muster`, the operator's command.
//!
//! One file per command: it calls the store or the controller and prints the answer. [`mod@print`] formats answers
//! and makes no calls, [`muster_manifest`] parses manifests, [`connection`] finds the servers, and [`failure`] maps errors to
//! messages, hints and exit codes.

mod api_resources;
mod apply;
mod approve;
mod arguments;
mod certs;
mod cluster_info;
mod completion;
mod config;
mod connection;
mod cordon;
mod create;
mod decisions;
mod delete;
mod demo;
mod describe;
mod diff;
mod doctor;
mod drain;
mod dry_run;
mod edit;
mod exec;
mod explain;
mod failure;
mod fleet;
mod get;
mod global_flags;
mod jsonpath;
mod kind;
mod kubeconfig;
mod label;
mod logs;
mod manifest_files;
mod manual;
mod moment;
mod print;
mod records;
mod revoke;
mod same_origin;
mod server_version;
mod simulation;
mod taint;
mod targets;
mod terminal;
mod token;
mod top;
mod ui;
mod up;
mod version;
mod wait;
mod why;
mod xdg;

#[cfg(test)]
mod samples;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use muster_agent::runtime::{exec_shim, pause, shim};

use self::arguments::{Arguments, Command};
use self::failure::Failure;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // First of all, because the agent in `muster up` starts containers by running this program as the shim.
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    if first.as_ref().is_some_and(|first| first == shim::SUBCOMMAND) {
        return shim::shim_main(arguments);
    }
    if first.as_ref().is_some_and(|first| first == exec_shim::SUBCOMMAND) {
        return exec_shim::exec_main(arguments);
    }
    if first.is_some_and(|first| first == pause::SUBCOMMAND) {
        return pause::pause_main();
    }
    completion::answer_shell();
    let arguments = global_flags::behind_the_command(std::env::args_os(), &Arguments::command());
    let command = Arguments::parse_from(arguments).command;
    let name = command.name();
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            terminal::report_failure(&failure.report(name));
            failure.code()
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Up(flags) => up::main(&flags).map_err(Failure::from),
        Command::Demo(flags) => demo::main(&flags),
        Command::Get(flags) => block_on(get::run(flags)),
        Command::Describe(flags) => block_on(describe::run(flags)),
        Command::Apply(flags) => block_on(apply::run(flags)),
        Command::Create(flags) => block_on(create::run(flags)),
        Command::Delete(flags) => block_on(delete::run(flags)),
        Command::Diff(flags) => block_on(diff::run(flags)),
        Command::Edit(flags) => block_on(edit::run(flags)),
        Command::Wait(flags) => block_on(wait::run(flags)),
        Command::Label(flags) => block_on(label::label(flags)),
        Command::Annotate(flags) => block_on(label::annotate(flags)),
        Command::Taint(flags) => block_on(taint::run(flags)),
        Command::Cordon(flags) => block_on(cordon::cordon(flags)),
        Command::Uncordon(flags) => block_on(cordon::uncordon(flags)),
        Command::Drain(flags) => block_on(drain::run(flags)),
        Command::Explain(flags) => block_on(explain::run(flags)),
        Command::Why(flags) => block_on(why::run(flags)),
        Command::Decisions(flags) => block_on(decisions::run(flags)),
        Command::Logs(flags) => block_on(logs::run(flags)),
        Command::Exec(flags) => block_on(exec::run(flags)),
        Command::Fleet(flags) => block_on(fleet::run(flags)),
        Command::Top(flags) => block_on(top::run(flags)),
        Command::Ui(flags) => block_on(ui::run(flags)),
        Command::Token(flags) => block_on(token::run(flags)),
        Command::Approve(flags) => block_on(approve::approve(flags)),
        Command::Deny(flags) => block_on(approve::deny(flags)),
        Command::Revoke(flags) => block_on(revoke::run(flags)),
        Command::Certs(flags) => certs::run(&flags),
        Command::Doctor(flags) => block_on(doctor::run(flags)),
        Command::ClusterInfo(flags) => block_on(cluster_info::run(flags)),
        Command::ApiResources(flags) => api_resources::run(&flags),
        Command::Version(flags) => block_on(version::run(flags)),
        Command::Config(flags) => config::run(flags),
        Command::Completion(flags) => completion::run(&flags),
        Command::Manual(flags) => manual::run(&flags),
    }
}

/// Runs a command that makes calls. One thread is enough, because the command mostly waits for answers.
fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::new(failure::Exit::Failed, format!("cannot start the async runtime: {error}"))
            .hint("`ulimit -a` shows the limits of this user")
    })?;
    let outcome = runtime.block_on(command);
    // Do not wait for tasks that are still running, such as the reader of key presses.
    runtime.shutdown_background();
    outcome
}
