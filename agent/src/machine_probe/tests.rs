//! Readings of a machine that answers, and of one that does not.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use muster_agent_core::testing::node::settings;
use tokio::time::timeout;

use super::*;
use crate::blocking_probe::WAIT;
use crate::config::NodeIps;
use crate::machine::{Filesystem, Hardware, Network, Pids};

/// A machine whose disk cannot be read, and that counts the lookups.
#[derive(Default)]
struct Fake {
    lookups: AtomicUsize,
    is_resolver_silent: Mutex<bool>,
    returned: Condvar,
}

impl Fake {
    fn set_resolver_silent(&self, is_silent: bool) {
        *self.is_resolver_silent.lock().unwrap() = is_silent;
        self.returned.notify_all();
    }
}

impl Machine for Fake {
    fn system(&self) -> System {
        System::default()
    }
    fn hardware(&self) -> io::Result<Hardware> {
        Ok(Hardware { cores: 2, ..Hardware::default() })
    }
    fn processors(&self) -> io::Result<muster_agent_core::resources::topology::cpus::Layout> {
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
        let is_silent = self.is_resolver_silent.lock().unwrap();
        // Bounded, in case the test fails.
        drop(self.returned.wait_timeout_while(is_silent, 30 * WAIT, |is_silent| *is_silent).unwrap());
        Ok(vec![IpAddr::from([10, 0, 0, 5])])
    }
    fn hostname(&self) -> io::Result<String> {
        Ok("n1".to_owned())
    }
}

fn machine_probe(machine: &Arc<Fake>, settings: Settings) -> MachineProbe {
    MachineProbe::new(Arc::clone(machine) as _, settings, System::default(), PathBuf::from("/"))
}

/// Reads until no answer is late: while other tests run, one may be.
async fn read_in_time(machine_probe: &MachineProbe) -> MachineReading {
    let looking = async {
        loop {
            let reading = machine_probe.read().await;
            if !reading.problems.iter().any(|problem| problem.contains("in time")) {
                return reading;
            }
            // An outstanding answer is not waited for.
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(60), looking).await.expect("an answer comes in time")
}

#[tokio::test]
async fn a_fact_that_cannot_be_read_is_a_problem_and_the_others_are_there() {
    let (machine, mut settings) = (Arc::new(Fake::default()), settings());
    let found = read_in_time(&machine_probe(&machine, settings.clone())).await;
    assert_eq!(found.observed.hardware.map(|hardware| hardware.cores), Some(2));
    assert_eq!((found.observed.storage_bytes, found.observed.lookup.len()), (None, 1));
    assert_eq!(found.problems, ["the filesystem of pods: entity not found"]);

    let asked = machine.lookups.load(Ordering::Relaxed);
    settings.node.ips = NodeIps::One(IpAddr::from([10, 0, 0, 5]));
    read_in_time(&machine_probe(&machine, settings)).await;
    assert_eq!(machine.lookups.load(Ordering::Relaxed), asked, "an address that is given is not looked up");
}

#[tokio::test]
async fn a_late_resolver_is_asked_once_and_its_last_answer_is_used() {
    let machine = Arc::new(Fake::default());
    let machine_probe = machine_probe(&machine, settings());
    let resolved = read_in_time(&machine_probe).await.observed.lookup;
    assert_eq!(resolved.len(), 1);

    let asked = machine.lookups.load(Ordering::Relaxed);
    machine.set_resolver_silent(true);
    for reading in 1..=3 {
        let late = machine_probe.read().await;
        assert_eq!(late.observed.lookup, resolved, "reading {reading}");
        assert!(late.observed.hardware.is_some(), "the machine itself answers");
        assert!(late.problems.iter().any(|problem| problem.contains("resolver")), "{:?}", late.problems);
    }
    let since = machine.lookups.load(Ordering::Relaxed) - asked;
    assert_eq!(since, 1, "it is not asked again before it answers");
    machine.set_resolver_silent(false);
    read_in_time(&machine_probe).await;
}
