//! `muster`, the operator's command.
//!
//! One file per command: it calls the store or the controller and prints the answer. [`mod@print`] formats answers
//! and makes no calls, [`manifest`] parses manifests, [`connection`] finds the servers, and [`failure`] maps errors to
//! messages, hints and exit codes.

mod apply;
mod arguments;
mod certs;
mod completion;
mod config;
mod connection;
mod cordon;
mod create;
mod delete;
mod demo;
mod describe;
mod doctor;
mod drain;
mod explain;
mod failure;
mod fleet;
mod get;
mod kind;
mod label;
mod manifest;
mod manifest_files;
mod manual;
mod print;
mod records;
mod schema;
mod simulation;
mod taint;
mod targets;
mod terminal;
mod top;
mod up;
mod xdg;

#[cfg(test)]
mod samples;

use std::process::ExitCode;

use clap::Parser;
use muster_agent::runtime::shim;

use self::arguments::{Arguments, Command};
use self::failure::Failure;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // First of all, because the agent in `muster up` starts containers by running this program as the shim.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == shim::SUBCOMMAND) {
        return shim::shim_main(arguments);
    }
    let command = Arguments::parse().command;
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
        Command::Label(flags) => block_on(label::run(flags)),
        Command::Taint(flags) => block_on(taint::run(flags)),
        Command::Cordon(flags) => block_on(cordon::cordon(flags)),
        Command::Uncordon(flags) => block_on(cordon::uncordon(flags)),
        Command::Drain(flags) => block_on(drain::run(flags)),
        Command::Explain(flags) => block_on(explain::run(flags)),
        Command::Fleet(flags) => block_on(fleet::run(flags)),
        Command::Top(flags) => block_on(top::run(flags)),
        Command::Certs(flags) => certs::run(&flags),
        Command::Doctor(flags) => doctor::run(&flags),
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
