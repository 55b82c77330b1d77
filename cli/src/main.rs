//! VOICE: `muster`, the operator's command.
//!
//! One file per command. So far there is `up`, and it starts the store only: the
//! controller and the agent join it later.

mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Keeps the roll of a fleet of machines
#[derive(Debug, Parser)]
#[command(name = "muster", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Flags),
}

fn main() -> ExitCode {
    let Command::Up(flags) = Arguments::parse().command;
    match up::main(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("muster up: {failure}");
            if let Some(hint) = failure.hint() {
                eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_well_formed() {
        Arguments::command().debug_assert();
    }
}
