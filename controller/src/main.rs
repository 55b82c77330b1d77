//! `muster-controller`: flags, then run.

use std::process::ExitCode;

use muster_controller::config::Flags;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let flags: Flags = muster_rpc::config::parse();
    match muster_controller::run::main(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("muster-controller: {error}");
            ExitCode::FAILURE
        }
    }
}
