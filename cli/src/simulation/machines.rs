//! Who of the simulated machines is up, and what each has been told.

use std::sync::Arc;

use tokio::sync::watch;

use super::fleet_spec::Blueprint;

/// What a machine has been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orders {
    /// Whether it runs. One that does not says nothing at all, as a machine without power.
    pub(crate) is_up: bool,
    /// How often it was told that the store's opinion of it is out of date.
    pub(crate) reports: u32,
}

/// Which machines are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    All,
    Zone(String),
    Node(String),
}

/// All machines. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Roll {
    pub(crate) blueprint: Blueprint,
    machines: Arc<[watch::Sender<Orders>]>,
    /// Counts every change, for who looks after all of them.
    changes: Arc<watch::Sender<u64>>,
}

impl Roll {
    /// Everybody is up.
    pub(crate) fn new(blueprint: Blueprint) -> Roll {
        let up = Orders { is_up: true, reports: 0 };
        let machines = (0..blueprint.nodes).map(|_| watch::Sender::new(up)).collect();
        Roll { blueprint, machines, changes: Arc::default() }
    }

    pub(crate) fn orders(&self, index: usize) -> watch::Receiver<Orders> {
        self.machines[index].subscribe()
    }

    /// Whether the machine of that name is one of ours, and if so whether it is up.
    pub(crate) fn is_up(&self, name: &str) -> Option<bool> {
        self.blueprint.index(name).map(|index| self.machines[index].borrow().is_up)
    }

    /// Somebody changed what is known of this machine.
    pub(crate) fn tell_to_report(&self, name: &str) {
        if let Some(index) = self.blueprint.index(name) {
            self.machines[index].send_modify(|orders| orders.reports = orders.reports.wrapping_add(1));
        }
    }

    /// Switches machines on or off; the names of those that were not so already come back, or `None` if none is meant.
    pub(crate) fn switch(&self, selection: &Selection, up: bool) -> Option<Vec<String>> {
        let blueprint = self.blueprint;
        let meant: Vec<usize> = match selection {
            Selection::All => (0..blueprint.nodes).collect(),
            Selection::Zone(zone) => {
                (0..blueprint.nodes).filter(|index| blueprint.zone(*index) == *zone).collect()
            }
            Selection::Node(name) => blueprint.index(name).into_iter().collect(),
        };
        if meant.is_empty() {
            return None;
        }
        let switched = meant.into_iter().filter(|index| {
            self.machines[*index].send_if_modified(|orders| {
                let is_news = orders.is_up != up;
                orders.is_up = up;
                is_news
            })
        });
        let switched: Vec<String> = switched.map(|index| Blueprint::name(index).to_string()).collect();
        self.changes.send_modify(|count| *count += 1);
        Some(switched)
    }

    /// The names of the machines that are off.
    pub(crate) fn down(&self) -> Vec<String> {
        let is_down = |index: &usize| !self.machines[*index].borrow().is_up;
        (0..self.blueprint.nodes).filter(is_down).map(|index| Blueprint::name(index).to_string()).collect()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_switched_one_by_one_by_zone_and_all_at_once() {
        let roll = Roll::new(Blueprint { nodes: 4, zones: 2 });
        let zone = |name: &str| Selection::Zone(name.to_owned());
        let node = |name: &str| Selection::Node(name.to_owned());
        for (selection, up, expected) in [
            (node("sim-1"), false, Some(vec!["sim-1"])),
            (zone("zone-1"), false, Some(vec!["sim-3"])),
            (zone("zone-9"), false, None),
            (node("sim-5"), false, None),
            (Selection::All, true, Some(vec!["sim-1", "sim-3"])),
            (Selection::All, true, Some(vec![])),
        ] {
            let switched = roll.switch(&selection, up);
            let expected: Option<Vec<String>> =
                expected.map(|names| names.into_iter().map(String::from).collect());
            assert_eq!(switched, expected, "{selection:?}");
        }
        assert_eq!(roll.is_up("sim-1"), Some(true));
        assert_eq!(roll.is_up("other"), None);
    }

    #[test]
    fn who_is_off_can_be_asked() {
        let roll = Roll::new(Blueprint { nodes: 3, zones: 1 });
        assert!(roll.down().is_empty());
        roll.switch(&Selection::Node("sim-2".to_owned()), false);
        assert_eq!(roll.down(), ["sim-2"]);
    }
}
