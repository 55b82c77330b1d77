//! The `muster-store` binary: serves, backs up, restores, checks, repairs and moves; `muster-store health` probes the running store.

use std::process::ExitCode;

use muster_store::RunError;
use muster_store::config::{Command, Flags};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    if let Some(answered) = muster_rpc::health_command::run::<Flags>(std::env::args_os()) {
        return answered;
    }
    muster_rpc::private_dir::restrict_umask();
    let flags: Flags = muster_rpc::config::parse();
    let outcome = match &flags.command {
        None => muster_store::run::main(&flags),
        Some(command) => run_command(command, &flags),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("muster-store: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_command(command: &Command, flags: &Flags) -> Result<(), RunError> {
    muster_store::run::check_command(command, flags)?;
    match command {
        Command::Backup { file, store } => muster_store::backup::main(file, store.as_deref(), flags),
        Command::Check => muster_store::repair::check_main(flags),
        Command::Migrate { from, to } => muster_store::migrate::main(from, to, flags),
        Command::Repair { into } => muster_store::repair::repair_main(into, flags),
        Command::Restore { file } => muster_store::backup::restore_main(file, flags),
    }
}
