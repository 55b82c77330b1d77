//! VOICE: `muster`, the operator's command.
//!
//! One file per command: it asks the store or the controller and says the answer. How an answer looks is in
//! [`mod@print`], which asks nobody; what manifests mean is in [`manifest`], where to ask in [`connection`],
//! and what went wrong in [`failure`].

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
    // Before anything else: the agent in `muster up` starts containers through this very program.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == shim::SUBCOMMAND) {
        return shim::shim_main(arguments);
    }
    let command = Arguments::parse().command;
    let name = command.name();
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            terminal::complain(&failure.report(name));
            failure.code()
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Up(flags) => up::main(&flags).map_err(Failure::from),
        Command::Demo(flags) => demo::main(&flags),
        Command::Get(flags) => asking(get::run(flags)),
        Command::Describe(flags) => asking(describe::run(flags)),
        Command::Apply(flags) => asking(apply::run(flags)),
        Command::Create(flags) => asking(create::run(flags)),
        Command::Delete(flags) => asking(delete::run(flags)),
        Command::Label(flags) => asking(label::run(flags)),
        Command::Taint(flags) => asking(taint::run(flags)),
        Command::Cordon(flags) => asking(cordon::cordon(flags)),
        Command::Uncordon(flags) => asking(cordon::uncordon(flags)),
        Command::Drain(flags) => asking(drain::run(flags)),
        Command::Explain(flags) => asking(explain::run(flags)),
        Command::Fleet(flags) => asking(fleet::run(flags)),
        Command::Top(flags) => asking(top::run(flags)),
        Command::Certs(flags) => certs::run(&flags),
        Command::Doctor(flags) => doctor::run(&flags),
        Command::Config(flags) => config::run(flags),
        Command::Completion(flags) => completion::run(&flags),
        Command::Manual(flags) => manual::run(&flags),
    }
}

/// Runs a command that asks others. One thread will do: it mostly waits.
fn asking(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::new(failure::Exit::Failed, format!("this process cannot wait for answers: {error}"))
            .hint("`ulimit -a` shows what this user may have")
    })?;
    let outcome = runtime.block_on(command);
    // Whatever is still under way, such as a key that nobody will press, is not waited for.
    runtime.shutdown_background();
    outcome
}
