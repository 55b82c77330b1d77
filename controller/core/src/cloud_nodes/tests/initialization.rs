//! Nodes that the cloud describes.

use super::*;

const MARK: &str = "node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule";

fn address(kind: AddressType, address: &str) -> NodeAddress {
    NodeAddress { kind, address: address.to_owned() }
}

fn described() -> Machine {
    let metadata = CloudMachine {
        provider_id: "x://1".to_owned(),
        instance_type: "large".to_owned(),
        zone: "z1".to_owned(),
        region: "r1".to_owned(),
        addresses: vec![address(AddressType::InternalIp, "10.0.0.1")],
    };
    Machine { metadata: Ok(Answer::Machine(Box::new(metadata))), ..machine() }
}

fn newcomer() -> NodeSample {
    let hostname = address(AddressType::Hostname, "a");
    node("a").ready(True).taint(MARK).with(|node| node.status.addresses = vec![hostname])
}

#[test]
fn a_newcomer_is_described_in_one_write_and_then_reachable() {
    let mut fleet = Fleet::new(Settings::default());
    fleet.machines.insert("a", described());
    fleet.put(newcomer().taint("mine:NoSchedule"));
    fleet.settle();
    assert_eq!((fleet.done.join(", ").as_str(), fleet.version), ("metadata a, status a", 3));
    let node = fleet.world.node("a").unwrap();
    assert_eq!((fleet.taints("a").as_str(), node.spec.provider_id.as_str()), ("mine:NoSchedule", "x://1"));
    for (key, value) in [
        (label::INSTANCE_TYPE, "large"),
        (label::INSTANCE_TYPE_BETA, "large"),
        (label::ZONE, "z1"),
        (label::ZONE_BETA, "z1"),
        (label::REGION, "r1"),
        (label::REGION_BETA, "r1"),
    ] {
        assert_eq!(node.meta.labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    let expected = [address(AddressType::InternalIp, "10.0.0.1"), address(AddressType::Hostname, "a")];
    assert_eq!(node.status.addresses, expected, "the node's own name for itself is kept");
    fleet.run_until(60);
    assert_eq!(fleet.done.len(), 2, "it is not asked about again");
}

#[test]
fn what_the_cloud_does_not_know_is_left_as_it_is() {
    let mut fleet = Fleet::new(Settings::default());
    let metadata = Ok(Answer::Machine(Box::default()));
    fleet.machines.insert("a", Machine { metadata, ..machine() });
    fleet.put(newcomer().zone("mine").with(|node| node.spec.provider_id = "x://mine".to_owned()));
    fleet.settle();
    let node = fleet.world.node("a").unwrap();
    assert_eq!((fleet.taints("a").as_str(), node.spec.provider_id.as_str()), ("", "x://mine"));
    assert_eq!(node.meta.labels.get(label::ZONE).map(String::as_str), Some("mine"));
    assert_eq!((node.meta.labels.len(), fleet.done.as_slice()), (1, &["metadata a".to_owned()][..]));
}

#[test]
fn the_mark_stays_until_the_cloud_has_an_answer() {
    for failure in [Err(Failure::Gone), error(), Ok(Answer::Cloud(true))] {
        let mut fleet = Fleet::new(Settings::default());
        fleet.machines.insert("a", Machine { metadata: failure.clone(), ..machine() });
        fleet.put(newcomer());
        fleet.run_until(4);
        assert_eq!((fleet.taints("a").as_str(), fleet.done.len()), (MARK, 1), "{failure:?}");
        let (action, state, reason) = fleet.explain("a").remove(1);
        assert_eq!((action, state), (ExplanationAction::Untaint, ExplanationState::Waiting));
        assert!(reason.starts_with("The cloud did not describe the machine: "), "{reason}");
        fleet.machines.insert("a", described());
        fleet.run_until(5);
        assert_eq!(fleet.taints("a"), "");
    }
}

#[test]
fn a_newcomer_that_is_not_ready_is_asked_about_twice_but_not_at_once() {
    let mut fleet = Fleet::new(Settings::default());
    fleet.machines.insert("a", described());
    fleet.put(newcomer().ready(False));
    let plan = fleet.decide();
    assert_eq!(plan.actions.len(), 1, "an outcome names its node, not its question");
    let result = fleet.perform(&plan.actions[0]);
    fleet.answer(&plan.actions[0], result);
    fleet.settle();
    assert_eq!(fleet.done, ["exists a", "shutdown a", "metadata a", "status a"]);
}

#[test]
fn a_newcomer_without_a_machine_is_deleted() {
    let mut fleet = Fleet::new(Settings::default());
    fleet.put(newcomer().ready(False));
    fleet.run_until(10);
    assert!(!fleet.has("a"));
}

#[test]
fn addresses_that_could_not_be_written_are_tried_again() {
    for (failure, retried_at) in [(Failure::Later("busy".to_owned()), 5), (Failure::Conflict, 5)] {
        let mut fleet = Fleet::new(Settings::default());
        fleet.machines.insert("a", described());
        fleet.put(newcomer());
        let asked = fleet.decide().actions.remove(0);
        fleet.answer(&asked, described().metadata);
        fleet.write("a");
        let write = fleet.decide().actions.remove(0);
        assert!(matches!(write.action, Action::UpdateNodeStatus(_)));
        fleet.answer(&write, Err(failure));
        assert_eq!(fleet.settle(), Some(at(retried_at).mono));
        let node = Node::clone(fleet.world.node("a").unwrap());
        fleet.put(NodeSample(node).label("newer", "version"));
        fleet.settle();
        assert_eq!(fleet.done, ["status a"], "on the next version at once");
    }
}

#[test]
fn a_newcomer_that_leaves_while_it_is_asked_about_blocks_nobody() {
    let mut fleet = Fleet::new(Settings::default());
    for name in ["a", "b"] {
        fleet.machines.insert(name, described());
        fleet.put(node(name).ready(True).taint(MARK));
    }
    let asked = fleet.decide().actions.remove(0);
    fleet.remove(&"a".parse().unwrap());
    fleet.answer(&asked, described().metadata);
    fleet.settle();
    assert_eq!(fleet.done, ["metadata b", "status b"]);
}

#[test]
fn a_node_that_somebody_else_described_is_left_alone() {
    let mut fleet = Fleet::new(Settings::default());
    fleet.put(newcomer());
    let asked = fleet.decide().actions.remove(0);
    fleet.put(node("a").ready(True));
    fleet.answer(&asked, described().metadata);
    fleet.settle();
    assert!(fleet.done.is_empty() && fleet.world.node("a").unwrap().meta.labels.is_empty());
}

#[test]
fn only_a_record_that_bears_the_mark_is_described() {
    let mut fleet = Fleet::new(Settings::default());
    fleet.put(newcomer());
    let asked = fleet.decide().actions.remove(0);
    fleet.answer(&asked, described().metadata);
    for (sample, is_described) in [(newcomer(), true), (node("a").ready(True), false)] {
        let before = sample.build();
        let mut node = before.clone();
        fleet.cloud.apply_to(&mut node, at(0));
        assert_eq!(node != before, is_described);
    }
}
