//! Looks at a machine that answers, and at one that does not.

use std::io;
use std::net::IpAddr;
use std::sync::Condvar;
use std::sync::atomic::{AtomicUsize, Ordering};

use muster_agent_core::testing::node::settings;

use super::*;
use crate::config::NodeIps;
use crate::machine::{Filesystem, Hardware, Network, Pids};

/// A machine whose disk cannot be read, and that counts how often it is asked for names.
#[derive(Default)]
struct Fake {
    lookups: AtomicUsize,
    is_resolver_away: Mutex<bool>,
    returned: Condvar,
}

impl Fake {
    fn send_resolver(&self, is_away: bool) {
        *self.is_resolver_away.lock().unwrap() = is_away;
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
        let is_away = self.is_resolver_away.lock().unwrap();
        // Not for ever, should the test fail.
        drop(self.returned.wait_timeout_while(is_away, 30 * WAIT, |is_away| *is_away).unwrap());
        Ok(vec![IpAddr::from([10, 0, 0, 5])])
    }
    fn hostname(&self) -> io::Result<String> {
        Ok("n1".to_owned())
    }
}

fn machine_probe(machine: &Arc<Fake>, settings: Settings) -> MachineProbe {
    MachineProbe::new(Arc::clone(machine) as _, settings, System::default(), PathBuf::from("/"))
}

/// Looks until nobody is late: a machine that runs other tests too may be, for a moment.
async fn look_in_time(machine_probe: &MachineProbe) -> MachineReading {
    let looking = async {
        loop {
            let survey = machine_probe.look().await;
            if !survey.problems.iter().any(|problem| problem.contains("still count")) {
                return survey;
            }
            // A question that is open is not waited for.
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(60), looking).await.expect("who answers is heard")
}

#[tokio::test]
async fn what_cannot_be_read_is_noted_and_the_rest_is_there() {
    let (machine, mut settings) = (Arc::new(Fake::default()), settings());
    let found = look_in_time(&machine_probe(&machine, settings.clone())).await;
    assert_eq!(found.observed.hardware.map(|hardware| hardware.cores), Some(2));
    assert_eq!((found.observed.storage_bytes, found.observed.lookup.len()), (None, 1));
    assert_eq!(found.problems, ["the filesystem of pods: entity not found"]);

    let asked = machine.lookups.load(Ordering::Relaxed);
    settings.node.ips = NodeIps::One(IpAddr::from([10, 0, 0, 5]));
    look_in_time(&machine_probe(&machine, settings)).await;
    assert_eq!(machine.lookups.load(Ordering::Relaxed), asked, "an address that is given is not looked up");
}

#[tokio::test]
async fn a_resolver_that_is_late_is_waited_for_once_and_its_last_answer_counts() {
    let machine = Arc::new(Fake::default());
    let machine_probe = machine_probe(&machine, settings());
    let said = look_in_time(&machine_probe).await.observed.lookup;
    assert_eq!(said.len(), 1);

    let asked = machine.lookups.load(Ordering::Relaxed);
    machine.send_resolver(true);
    for looks in 1..=3 {
        let late = machine_probe.look().await;
        assert_eq!(late.observed.lookup, said, "look {looks}");
        assert!(late.observed.hardware.is_some(), "the machine itself answers");
        assert!(late.problems.iter().any(|problem| problem.contains("resolver")), "{:?}", late.problems);
    }
    let since = machine.lookups.load(Ordering::Relaxed) - asked;
    assert_eq!(since, 1, "it is asked no second time before it answers");
    machine.send_resolver(false);
    look_in_time(&machine_probe).await;
}
