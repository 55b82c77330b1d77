//! The initialization of new nodes.

use super::*;

const TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule";

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

fn uninitialized() -> NodeSample {
    let hostname = address(AddressType::Hostname, "a");
    node("a").ready(True).taint(TAINT).with(|node| node.status.addresses = vec![hostname])
}

#[test]
fn a_node_is_initialized_in_one_write_and_then_gets_its_addresses() {
    let mut harness = Harness::new(Settings::default());
    harness.machines.insert("a", described());
    harness.put(uninitialized().taint("mine:NoSchedule"));
    harness.settle();
    assert_eq!((harness.done.join(", ").as_str(), harness.version), ("metadata a, status a", 3));
    let node = harness.world.node("a").unwrap();
    assert_eq!((harness.taints("a").as_str(), node.spec.provider_id.as_str()), ("mine:NoSchedule", "x://1"));
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
    assert_eq!(node.status.addresses, expected, "the node's own hostname is kept");
    harness.run_until(60);
    assert_eq!(harness.done.len(), 2, "the cloud is not asked about it again");
}

#[test]
fn fields_that_the_cloud_does_not_know_stay_as_they_are() {
    let mut harness = Harness::new(Settings::default());
    let metadata = Ok(Answer::Machine(Box::default()));
    harness.machines.insert("a", Machine { metadata, ..machine() });
    harness.put(uninitialized().zone("mine").with(|node| node.spec.provider_id = "x://mine".to_owned()));
    harness.settle();
    let node = harness.world.node("a").unwrap();
    assert_eq!((harness.taints("a").as_str(), node.spec.provider_id.as_str()), ("", "x://mine"));
    assert_eq!(node.meta.labels.get(label::ZONE).map(String::as_str), Some("mine"));
    assert_eq!((node.meta.labels.len(), harness.done.as_slice()), (1, &["metadata a".to_owned()][..]));
}

#[test]
fn the_taint_stays_until_the_cloud_has_an_answer() {
    for failure in [Err(Failure::Gone), error(), Ok(Answer::Cloud(true))] {
        let mut harness = Harness::new(Settings::default());
        harness.machines.insert("a", Machine { metadata: failure.clone(), ..machine() });
        harness.put(uninitialized());
        harness.run_until(4);
        assert_eq!((harness.taints("a").as_str(), harness.done.len()), (TAINT, 1), "{failure:?}");
        let (action, state, reason) = harness.explain("a").remove(1);
        assert_eq!((action, state), (ExplanationAction::Untaint, ExplanationState::Waiting));
        assert!(reason.starts_with("The cloud did not describe the machine: "), "{reason}");
        harness.machines.insert("a", described());
        harness.run_until(5);
        assert_eq!(harness.taints("a"), "");
    }
}

#[test]
fn a_new_node_that_is_not_ready_has_one_question_in_flight_at_a_time() {
    let mut harness = Harness::new(Settings::default());
    harness.machines.insert("a", described());
    harness.put(uninitialized().ready(False));
    let plan = harness.decide();
    assert_eq!(plan.actions.len(), 1, "an outcome names its node, not its question");
    let result = harness.perform(&plan.actions[0]);
    harness.answer(&plan.actions[0], result);
    harness.settle();
    assert_eq!(harness.done, ["exists a", "shutdown a", "metadata a", "status a"]);
}

#[test]
fn a_new_node_without_a_machine_is_deleted() {
    let mut harness = Harness::new(Settings::default());
    harness.put(uninitialized().ready(False));
    harness.run_until(10);
    assert!(!harness.has("a"));
}

#[test]
fn a_failed_write_of_addresses_is_retried() {
    for (failure, retried_at) in [(Failure::Later("busy".to_owned()), 5), (Failure::Conflict, 5)] {
        let mut harness = Harness::new(Settings::default());
        harness.machines.insert("a", described());
        harness.put(uninitialized());
        let asked = harness.decide().actions.remove(0);
        harness.answer(&asked, described().metadata);
        harness.write("a");
        let write = harness.decide().actions.remove(0);
        assert!(matches!(write.action, Action::UpdateNodeStatus(_)));
        harness.answer(&write, Err(failure));
        assert_eq!(harness.settle(), Some(at(retried_at).mono));
        let node = Node::clone(harness.world.node("a").unwrap());
        harness.put(NodeSample(node).label("newer", "version"));
        harness.settle();
        assert_eq!(harness.done, ["status a"], "at once on the next version");
    }
}

#[test]
fn a_node_deleted_while_the_cloud_is_asked_does_not_block_others() {
    let mut harness = Harness::new(Settings::default());
    for name in ["a", "b"] {
        harness.machines.insert(name, described());
        harness.put(node(name).ready(True).taint(TAINT));
    }
    let asked = harness.decide().actions.remove(0);
    harness.remove(&"a".parse().unwrap());
    harness.answer(&asked, described().metadata);
    harness.settle();
    assert_eq!(harness.done, ["metadata b", "status b"]);
}

#[test]
fn a_node_that_another_writer_initialized_is_left_alone() {
    let mut harness = Harness::new(Settings::default());
    harness.put(uninitialized());
    let asked = harness.decide().actions.remove(0);
    harness.put(node("a").ready(True));
    harness.answer(&asked, described().metadata);
    harness.settle();
    assert!(harness.done.is_empty() && harness.world.node("a").unwrap().meta.labels.is_empty());
}

#[test]
fn only_a_record_with_the_taint_is_initialized() {
    let mut harness = Harness::new(Settings::default());
    harness.put(uninitialized());
    let asked = harness.decide().actions.remove(0);
    harness.answer(&asked, described().metadata);
    for (sample, is_described) in [(uninitialized(), true), (node("a").ready(True), false)] {
        let before = sample.build();
        let mut node = before.clone();
        harness.cloud.apply_to(&mut node, at(0));
        assert_eq!(node != before, is_described);
    }
}
