//! `muster-controller`: parses the flags and runs. `muster-controller health` probes the running process.

use std::process::ExitCode;

use muster_controller::config::Flags;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    if let Some(answered) = muster_rpc::health_command::run::<Flags>(std::env::args_os()) {
        return answered;
    }
    let flags: Flags = muster_rpc::config::parse();
    match muster_controller::run::main(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("muster-controller: {error}");
            ExitCode::FAILURE
        }
    }
}
