//! One look at the machine, for one status.
//!
//! Blocks on the kernel, and on the resolver where the node's address depends on it: run it off the async
//! threads.

use std::path::Path;

use crate::machine::{Machine, System};
use crate::status::{Observed, Settings, addresses};

/// What one look gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// The machine's part of what is observed; the rest is empty.
    pub observed: Observed,
    /// What could not be read, for the log.
    pub problems: Vec<String>,
}

/// Looks at the machine. `storage` is a path on the filesystem that pods write to; `system` was read at the
/// start and does not change.
pub fn survey(machine: &dyn Machine, settings: &Settings, system: &System, storage: &Path) -> Survey {
    let mut problems = Vec::new();
    let mut noted = |what: &str, error: &dyn std::error::Error| problems.push(format!("{what}: {error}"));
    let hardware = machine.hardware().map_err(|error| noted("the machine's hardware", &error)).ok();
    let storage = machine.filesystem(storage).map_err(|error| noted("the filesystem of pods", &error)).ok();
    let network = machine.network().map_err(|error| noted("the machine's interfaces", &error)).ok();
    // A name that no resolver knows is common and no problem: the default route serves.
    let lookup = if addresses::needs_lookup(settings) {
        machine.lookup(settings.name.as_str()).unwrap_or_default()
    } else {
        Vec::new()
    };
    let observed = Observed {
        system: system.clone(),
        hardware,
        storage_bytes: storage.map(|storage| storage.capacity_bytes),
        network,
        lookup,
        ..Observed::default()
    };
    Survey { observed, problems }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::IpAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::config::NodeIps;
    use crate::machine::{Filesystem, Hardware, Network, Pids};
    use crate::status::tests::settings;

    /// A machine whose disk cannot be read, and that counts how often it is asked for names.
    #[derive(Default)]
    struct Fake {
        lookups: AtomicUsize,
    }

    impl Machine for Fake {
        fn system(&self) -> System {
            System::default()
        }
        fn hardware(&self) -> io::Result<Hardware> {
            Ok(Hardware { cores: 2, ..Hardware::default() })
        }
        fn processors(&self) -> io::Result<crate::topology::cpus::Layout> {
            Ok(Default::default())
        }
        fn memory_available(&self) -> io::Result<u64> {
            Ok(0)
        }
        fn filesystem(&self, _: &Path) -> io::Result<Filesystem> {
            Err(io::ErrorKind::NotFound.into())
        }
        fn pids(&self) -> io::Result<Pids> {
            Ok(Pids::default())
        }
        fn network(&self) -> io::Result<Network> {
            Ok(Network::default())
        }
        fn lookup(&self, _: &str) -> io::Result<Vec<IpAddr>> {
            self.lookups.fetch_add(1, Ordering::Relaxed);
            Ok(vec![IpAddr::from([10, 0, 0, 5])])
        }
        fn hostname(&self) -> io::Result<String> {
            Ok("n1".to_owned())
        }
    }

    #[test]
    fn what_cannot_be_read_is_noted_and_the_rest_is_there() {
        let (machine, mut settings) = (Fake::default(), settings());
        let found = survey(&machine, &settings, &System::default(), Path::new("/"));
        assert_eq!(found.observed.hardware.map(|hardware| hardware.cores), Some(2));
        assert_eq!((found.observed.storage_bytes, found.observed.lookup.len()), (None, 1));
        assert_eq!(found.problems, ["the filesystem of pods: entity not found"]);

        settings.node.ips = NodeIps::One(IpAddr::from([10, 0, 0, 5]));
        survey(&machine, &settings, &System::default(), Path::new("/"));
        assert_eq!(machine.lookups.load(Ordering::Relaxed), 1, "an address that is given is not looked up");
    }
}
