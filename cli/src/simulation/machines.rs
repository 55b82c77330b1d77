//! The shared state of the simulated machines: which of them are on, and which must report their status.

use std::sync::Arc;

use tokio::sync::watch;

use super::fleet_spec::FleetSpec;

/// The state of one machine. Its agent watches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MachineState {
    /// Whether the machine is on. A machine that is off sends nothing, like a machine without power.
    pub(crate) is_on: bool,
    /// How often a status report was requested because the store's record is out of date.
    pub(crate) report_requests: u32,
}

/// A selection of machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    All,
    Zone(String),
    Node(String),
}

/// All machines. Clones share the same state.
#[derive(Clone, Debug)]
pub(crate) struct Machines {
    pub(crate) spec: FleetSpec,
    states: Arc<[watch::Sender<MachineState>]>,
    /// Counts the power changes, for watchers of all machines.
    changes: Arc<watch::Sender<u64>>,
}

impl Machines {
    /// All machines are on.
    pub(crate) fn new(spec: FleetSpec) -> Machines {
        let on = MachineState { is_on: true, report_requests: 0 };
        let states = (0..spec.nodes).map(|_| watch::Sender::new(on)).collect();
        Machines { spec, states, changes: Arc::default() }
    }

    pub(crate) fn subscribe(&self, index: usize) -> watch::Receiver<MachineState> {
        self.states[index].subscribe()
    }

    /// Whether the machine with that name is on; `None` if it is not a simulated machine.
    pub(crate) fn is_on(&self, name: &str) -> Option<bool> {
        self.spec.index(name).map(|index| self.states[index].borrow().is_on)
    }

    /// Asks the machine's agent for a new status.
    pub(crate) fn request_status_report(&self, name: &str) {
        if let Some(index) = self.spec.index(name) {
            self.states[index]
                .send_modify(|state| state.report_requests = state.report_requests.wrapping_add(1));
        }
    }

    /// Switches machines on or off. Returns the names of the machines whose state changed, or `None` if the selection
    /// matches no machine.
    pub(crate) fn set_power(&self, selection: &Selection, on: bool) -> Option<Vec<String>> {
        let spec = self.spec;
        let selected: Vec<usize> = match selection {
            Selection::All => (0..spec.nodes).collect(),
            Selection::Zone(zone) => (0..spec.nodes).filter(|index| spec.zone(*index) == *zone).collect(),
            Selection::Node(name) => spec.index(name).into_iter().collect(),
        };
        if selected.is_empty() {
            return None;
        }
        let changed = selected.into_iter().filter(|index| {
            self.states[*index].send_if_modified(|state| {
                let is_change = state.is_on != on;
                state.is_on = on;
                is_change
            })
        });
        let changed: Vec<String> = changed.map(|index| FleetSpec::name(index).to_string()).collect();
        self.changes.send_modify(|count| *count += 1);
        Some(changed)
    }

    /// The names of the machines that are off.
    pub(crate) fn off(&self) -> Vec<String> {
        let is_off = |index: &usize| !self.states[*index].borrow().is_on;
        (0..self.spec.nodes).filter(is_off).map(|index| FleetSpec::name(index).to_string()).collect()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_switched_by_node_by_zone_and_all_at_once() {
        let machines = Machines::new(FleetSpec { nodes: 4, zones: 2 });
        let zone = |name: &str| Selection::Zone(name.to_owned());
        let node = |name: &str| Selection::Node(name.to_owned());
        for (selection, on, expected) in [
            (node("sim-1"), false, Some(vec!["sim-1"])),
            (zone("zone-1"), false, Some(vec!["sim-3"])),
            (zone("zone-9"), false, None),
            (node("sim-5"), false, None),
            (Selection::All, true, Some(vec!["sim-1", "sim-3"])),
            (Selection::All, true, Some(vec![])),
        ] {
            let changed = machines.set_power(&selection, on);
            let expected: Option<Vec<String>> =
                expected.map(|names| names.into_iter().map(String::from).collect());
            assert_eq!(changed, expected, "{selection:?}");
        }
        assert_eq!(machines.is_on("sim-1"), Some(true));
        assert_eq!(machines.is_on("other"), None);
    }

    #[test]
    fn machines_that_are_off_are_listed() {
        let machines = Machines::new(FleetSpec { nodes: 3, zones: 1 });
        assert!(machines.off().is_empty());
        machines.set_power(&Selection::Node("sim-2".to_owned()), false);
        assert_eq!(machines.off(), ["sim-2"]);
    }
}
