//! Reads the machine's facts for one node status.
//!
//! The facts come from the kernel, and from the resolver where the node's address depends on it. Neither may delay the
//! node's lease: a late answer is replaced by the last one, and reported as a problem.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_agent_core::status::{Observed, Settings, addresses};

use crate::blocking_probe::{Answer, BlockingProbe};
use crate::machine::{Machine, System};

/// The facts that one reading gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineReading {
    /// The machine's part of the observation; the rest is empty.
    pub observed: Observed,
    /// What could not be read, for the log.
    pub problems: Vec<String>,
}

/// Reads the machine for each status.
pub struct MachineProbe {
    machine: Arc<dyn Machine>,
    settings: Settings,
    system: System,
    storage: PathBuf,
    kernel: BlockingProbe<MachineReading>,
    resolver: BlockingProbe<Vec<IpAddr>>,
}

impl MachineProbe {
    /// `storage` is a path on the filesystem that pods write to; `system` was read at the start and does not change.
    pub fn new(
        machine: Arc<dyn Machine>,
        settings: Settings,
        system: System,
        storage: PathBuf,
    ) -> MachineProbe {
        let (kernel, resolver) = (BlockingProbe::default(), BlockingProbe::default());
        MachineProbe { machine, settings, system, storage, kernel, resolver }
    }

    pub async fn read(&self) -> MachineReading {
        let (machine, system, storage) =
            (Arc::clone(&self.machine), self.system.clone(), self.storage.clone());
        let facts = self.kernel.ask(move || read(&*machine, &system, &storage));
        let (facts, lookup) = tokio::join!(facts, self.look_up());
        let mut reading = facts.last.unwrap_or_default();
        if facts.is_late {
            reading
                .problems
                .push("the machine's facts cannot be read in time; the last ones are used".to_owned());
        }
        if lookup.is_late {
            let problem = "the resolver does not answer in time; the addresses it last gave are used";
            reading.problems.push(problem.to_owned());
        }
        reading.observed.lookup = lookup.last.unwrap_or_default();
        reading
    }

    async fn look_up(&self) -> Answer<Vec<IpAddr>> {
        if !addresses::needs_lookup(&self.settings) {
            return Answer { last: None, is_late: false };
        }
        let (machine, name) = (Arc::clone(&self.machine), self.settings.name.clone());
        // Many node names cannot be resolved. That is not a problem: the address of the default route is used.
        self.resolver.ask(move || machine.lookup(name.as_str()).unwrap_or_default()).await
    }
}

/// Reads everything but the addresses that the node's name resolves to.
fn read(machine: &dyn Machine, system: &System, storage: &Path) -> MachineReading {
    let mut problems = Vec::new();
    let mut note = |what: &str, error: &dyn std::error::Error| problems.push(format!("{what}: {error}"));
    let hardware = machine.hardware().map_err(|error| note("the machine's hardware", &error)).ok();
    let storage = machine.filesystem(storage).map_err(|error| note("the filesystem of pods", &error)).ok();
    let network = machine.network().map_err(|error| note("the machine's interfaces", &error)).ok();
    let observed = Observed {
        system: system.clone(),
        hardware,
        storage_bytes: storage.map(|storage| storage.capacity_bytes),
        network,
        ..Observed::default()
    };
    MachineReading { observed, problems }
}

#[cfg(test)]
mod tests;
