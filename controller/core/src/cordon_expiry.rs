//! Ends cordons whose time is over. Each node with such a cordon has one deadline, that of the first to end.

use std::collections::BTreeSet;

use muster_proto::drain::Cordon;
use muster_proto::event::{Event, EventType};
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::time::Now;

use crate::deadlines::Deadlines;
use crate::plan::{Plan, event};
use crate::world::{Change, Delta, World};

#[derive(Debug, Default)]
pub struct CordonExpiry {
    nodes: Deadlines<Name>,
    /// Nodes whose record is to be written.
    changed: BTreeSet<Name>,
    events: Vec<Event>,
}

impl CordonExpiry {
    pub fn observe(&mut self, delta: &Delta, _: &World, now: Now) {
        let Delta::Node(change) = delta else { return };
        self.report_ended(change, now);
        let name = &change.either().meta.name;
        let next =
            change.new.iter().flat_map(|node| &node.spec.cordons).filter_map(|held| held.expires_at).min();
        match next {
            Some(at) => self.nodes.schedule(name.clone(), now.mono_of(at)),
            None => self.nodes.forget(name),
        }
    }

    /// A cordon that is gone after its end was ended here, by this controller or the one before.
    fn report_ended(&mut self, change: &Change<Node>, now: Now) {
        let (Some(old), Some(new)) = (&change.old, &change.new) else { return };
        if old.spec.cordons == new.spec.cordons {
            return;
        }
        let is_gone = |held: &&Cordon| !new.spec.cordons.iter().any(|kept| kept.owner == held.owner);
        for ended in old.spec.cordons.iter().filter(is_gone).filter(|held| held.is_expired(now.wall)) {
            let message = format!("The cordon of {} has ended: {}", ended.who(), ended.reason);
            self.events.push(event(&**new, EventType::Normal, "CordonEnded", message));
        }
    }

    pub fn decide(&mut self, now: Now, plan: &mut Plan) {
        self.changed.extend(self.nodes.take(now.mono));
        plan.events.append(&mut self.events);
        if let Some(at) = self.nodes.next() {
            plan.wake_by(at);
        }
    }

    /// Takes the nodes whose record is to be written.
    pub fn take_changed(&mut self) -> Vec<Name> {
        std::mem::take(&mut self.changed).into_iter().collect()
    }
}

/// Removes the cordons that have ended from a node's record. Before the taints are written, which follow from it.
pub fn apply_to(node: &mut Node, now: Now) {
    let before = node.spec.cordons.len();
    node.spec.cordons.retain(|held| !held.is_expired(now.wall));
    if node.spec.cordons.len() < before {
        node.spec.unschedulable = !node.spec.cordons.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::condition::ConditionStatus::True;
    use muster_proto::drain::Cordon;

    use crate::drain::intent;
    use crate::drain::intent::cordon_of;
    use crate::fixtures::simulator::Simulator;
    use crate::fixtures::{at, drain, node};

    /// A node with cordons of these owners, which end after so many seconds.
    fn cordoned(cordons: &[(&str, Option<u64>)]) -> Simulator {
        let mut sim = Simulator::new();
        sim.start().put_node(node("a").ready(True));
        let cordons: Vec<Cordon> = cordons
            .iter()
            .map(|(owner, end)| cordon_of(owner, "why", at(0).wall, end.map(|end| at(end).wall)))
            .collect();
        sim.edit_node("a", |node| {
            node.spec.cordons = cordons;
            node.spec.unschedulable = true;
        });
        sim
    }

    fn state(sim: &Simulator) -> (Vec<&str>, bool, String) {
        let spec = &sim.node("a").spec;
        let owners = spec.cordons.iter().map(|held| held.owner.as_str()).collect();
        (owners, spec.unschedulable, sim.taints("a"))
    }

    #[test]
    fn s193_a_cordon_ends_at_its_time_and_the_last_one_frees_the_node() {
        let mut sim = cordoned(&[("eva", Some(20)), ("bob", Some(30))]);
        let taint = || "unschedulable:NS".to_owned();
        sim.run_until(19.9);
        assert_eq!(state(&sim), (vec!["eva", "bob"], true, taint()));
        sim.run_until(20.1);
        assert_eq!(state(&sim), (vec!["bob"], true, taint()));
        sim.run_until(30.1);
        assert_eq!(state(&sim), (vec![], false, String::new()), "the taint goes with the same write");
        assert_eq!(sim.times("event CordonEnded a"), [20.0, 30.0]);
    }

    #[test]
    fn a_cordon_without_an_end_stays() {
        let mut sim = cordoned(&[("eva", None), ("bob", Some(30))]);
        sim.run_until(1000.0);
        assert_eq!((state(&sim).0, state(&sim).1), (vec!["eva"], true));
        sim.edit_node("a", |node| *node = intent::request_drain(node, drain(0)).unwrap());
        sim.run_until(2000.0);
        assert_eq!((state(&sim).0, state(&sim).1), (vec!["eva", "drain"], true));
    }

    #[test]
    fn a_cordon_whose_time_passed_while_no_controller_ran_ends_at_the_start() {
        let mut sim = cordoned(&[("eva", Some(20))]);
        sim.reconciler = crate::reconciler::Reconciler::new(sim.reconciler.policy().clone());
        sim.run_until(50.0).start();
        assert_eq!(state(&sim), (vec![], false, String::new()));
    }
}
