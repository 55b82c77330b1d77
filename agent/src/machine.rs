//! What the machine is and has, as small facts that can be read often.
//!
//! [`Machine`] is the face, so that everything above can be tried on a machine that does not exist;
//! [`LinuxMachine`] reads the real one, a few short files of /proc and /sys at a time. Nothing here looks at
//! single processes: an idle agent must not be felt.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use muster_agent_core::resources::topology::cpus::Layout;

mod linux;
mod parse;
mod routes;

pub use linux::LinuxMachine;
pub use muster_agent_core::machine::{Filesystem, Hardware, HugePages, Network, Pids, System, architecture};

/// Where facts come from. Every call may block on the kernel, [`lookup`](Machine::lookup) on the network too.
pub trait Machine: Send + Sync {
    /// What the machine is; does not change while the agent runs, so one reading serves.
    fn system(&self) -> System;

    /// What the machine has.
    fn hardware(&self) -> io::Result<Hardware>;

    /// The processors in use, by NUMA node; a machine without such nodes is one.
    fn processors(&self) -> io::Result<Layout>;

    /// Bytes of memory that a new process could get without anybody being pushed out.
    ///
    /// Kubernetes counts total less working set, which it adds up from the control group of the whole machine.
    /// The kernel's own estimate (MemAvailable) is meant to be the same thing and is one line of one file.
    fn memory_available(&self) -> io::Result<u64>;

    /// The filesystem that holds `path`.
    fn filesystem(&self, path: &Path) -> io::Result<Filesystem>;

    fn pids(&self) -> io::Result<Pids>;

    /// The addresses the machine has, without asking anybody else.
    fn network(&self) -> io::Result<Network>;

    /// What the resolver knows by that name, in its order.
    fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>>;

    fn hostname(&self) -> io::Result<String>;
}
