//! Reads what the machine is and has.
//!
//! [`Machine`] is an interface, so that the agent can be tested on a machine that does not exist; [`LinuxMachine`]
//! reads the real one, a few short files of /proc and /sys at a time. Nothing here reads single processes: an idle
//! agent must cost next to nothing.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use muster_agent_core::resources::topology::cpus::Layout;

mod linux;
mod parse;
mod routes;

pub use linux::LinuxMachine;
pub use muster_agent_core::machine::{Filesystem, Hardware, HugePages, Network, Pids, System, architecture};

/// Reads facts. Every call may block on the kernel, [`lookup`](Machine::lookup) on the network too.
pub trait Machine: Send + Sync {
    /// What the machine is; this does not change while the agent runs, so it is read once.
    fn system(&self) -> System;

    /// What the machine has.
    fn hardware(&self) -> io::Result<Hardware>;

    /// The online processors, by NUMA node; a machine without NUMA has one node.
    fn processors(&self) -> io::Result<Layout>;

    /// Bytes of memory that a new process could get without swapping or evictions.
    ///
    /// Kubernetes subtracts the working set of the root cgroup from the total. The kernel's estimate (MemAvailable)
    /// means the same and is one line of one file.
    fn memory_available(&self) -> io::Result<u64>;

    /// The filesystem that holds `path`.
    fn filesystem(&self, path: &Path) -> io::Result<Filesystem>;

    fn pids(&self) -> io::Result<Pids>;

    /// The machine's own addresses, without asking a resolver.
    fn network(&self) -> io::Result<Network>;

    /// The addresses that the name resolves to, in the resolver's order.
    fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>>;

    fn hostname(&self) -> io::Result<String>;
}
