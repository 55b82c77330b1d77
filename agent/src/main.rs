//! `muster-agent`: parses the flags and runs the agent. Called as `muster-agent shim ...` it is the shim of one
//! container, and as `muster-agent health` it probes the running agent.

use std::env;
use std::process::ExitCode;

use muster_agent::config::Flags;
use muster_agent::runtime::{exec_shim, pause, shim};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    // Before anything else: a shim must use as little memory as possible.
    let first = args.next();
    if first.as_ref().is_some_and(|first| first == shim::SUBCOMMAND) {
        return shim::shim_main(args);
    }
    if first.as_ref().is_some_and(|first| first == exec_shim::SUBCOMMAND) {
        return exec_shim::exec_main(args);
    }
    if first.is_some_and(|first| first == pause::SUBCOMMAND) {
        return pause::pause_main();
    }
    if let Some(answered) = muster_rpc::health_command::run::<Flags>(env::args_os()) {
        return answered;
    }
    muster_rpc::private_dir::restrict_umask();
    let mut flags: Flags = muster_rpc::config::parse_also(muster_agent::config::kubelet_file::settings);
    flags.note_older_names(env::args_os());
    match muster_agent::run::main(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("muster-agent: {error}");
            ExitCode::FAILURE
        }
    }
}
