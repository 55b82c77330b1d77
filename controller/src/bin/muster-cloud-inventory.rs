//! `muster-cloud-inventory`: parses the flags and runs.

use std::process::ExitCode;

use muster_controller::cloud::inventory::{self, Flags};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let flags: Flags = muster_rpc::config::parse();
    match inventory::main(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("muster-cloud-inventory: {error}");
            ExitCode::FAILURE
        }
    }
}
