//! New nodes, nodes that were there before, and labels that went astray.

use muster_proto::label::Annotations;
use muster_proto::node::NodeStatus;
use muster_proto::taint::TaintEffect::{NoExecute, NoSchedule};

use super::*;
use crate::testing::node::{after, observed, settings};

fn labels(list: &[(&str, &str)]) -> Labels {
    list.iter().copied().map(owned).collect()
}

fn quantities(list: &[(&str, &str)]) -> Resources {
    list.iter().map(|(name, amount)| ((*name).to_owned(), amount.parse().unwrap())).collect()
}

fn initial(settings: &Settings) -> Node {
    let observed = observed();
    initial_node(settings, &observed.system, after(&NodeStatus::default(), &observed, 100))
}

/// The node as it might have been for long: what the agent says of it, and more.
fn existing() -> Node {
    let mut node = initial(&settings());
    node.meta.resource_version = 7;
    node.meta.labels.extend(labels(&[("a", "old"), ("x", "y")]));
    node.spec.taints = vec![Taint::new("q", "", NoSchedule)];
    node.spec.unschedulable = true;
    node.spec.pod_cidrs = vec!["10.10.0.0/24".parse().unwrap()];
    node
}

/// An agent that had the node before, or one with a state directory of its own that never had any.
fn agent(is_new: bool) -> Option<Uid> {
    (!is_new).then(|| Uid::new(uuid::Uuid::from_u128(9)))
}

fn wishing(labels_: &[(&str, &str)], taints: Vec<Taint>) -> Settings {
    let mut settings = settings();
    settings.node.labels = labels(labels_);
    settings.node.taints = taints;
    settings
}

#[test]
fn s035_a_new_node_has_its_labels_taints_and_status() {
    let taint = Taint::new("k", "v", NoSchedule);
    let node = initial(&wishing(&[("a", "b")], vec![taint.clone()]));
    let expected = labels(&[
        ("a", "b"),
        ("kubernetes.io/hostname", "n1"),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", "amd64"),
    ]);
    assert_eq!(node.meta.labels, expected);
    assert_eq!(node.spec.taints, [taint]);
    assert_eq!(node.status, after(&NodeStatus::default(), &observed(), 100).status);
    assert!(!node.spec.unschedulable && node.spec.pod_cidrs.is_empty());
}

#[test]
fn the_operators_labels_override_the_agents_own() {
    let node =
        initial(&wishing(&[("kubernetes.io/hostname", "h"), ("kubernetes.io/arch", "riscv64")], vec![]));
    assert_eq!(node.meta.labels["kubernetes.io/hostname"], "h");
    assert_eq!(node.meta.labels["kubernetes.io/arch"], "riscv64");
}

#[test]
fn a_node_with_an_external_cloud_has_the_uninitialized_taint() {
    let mut settings = wishing(&[], vec![Taint::new("k", "", NoExecute)]);
    settings.node.cloud = Cloud::External;
    settings.node.provider_id = "cloud://1".to_owned();
    let node = initial(&settings);
    assert_eq!(
        node.spec.taints,
        [Taint::new("k", "", NoExecute), Taint::new(taint::UNINITIALIZED, "true", NoSchedule)]
    );
    assert_eq!(node.spec.provider_id, "cloud://1");
}

#[test]
fn s036_what_operators_set_on_a_node_that_exists_stays() {
    let initial = initial(&wishing(&[("a", "new")], vec![Taint::new("k", "v", NoSchedule)]));
    assert_eq!(reconcile(&existing(), &initial, agent(false)), None);

    let mut wrong = existing();
    wrong.meta.labels.insert(label::HOSTNAME.to_owned(), "other".to_owned());
    assert_eq!(reconcile(&wrong, &initial, agent(false)), Some(existing()));
}

#[test]
fn s037_labels_that_describe_the_machine_are_corrected() {
    for (key, found, wanted, expected) in [
        ("kubernetes.io/arch", Some("wrong"), Some("amd64"), Some("amd64")),
        ("kubernetes.io/os", None, Some("linux"), Some("linux")),
        ("beta.kubernetes.io/arch", Some("wrong"), Some("amd64"), Some("amd64")),
        ("topology.kubernetes.io/zone", Some("z1"), Some("z2"), Some("z2")),
        ("topology.kubernetes.io/zone", Some("z1"), None, Some("z1")),
        ("topology.kubernetes.io/zone", Some("z1"), Some(""), None),
        ("node.kubernetes.io/instance-type", None, Some("m1"), Some("m1")),
        ("kubelet.kubernetes.io/x", Some("1"), Some("2"), Some("1")),
        ("x", Some("y"), Some("z"), Some("y")),
        ("new", None, Some("z"), None),
    ] {
        let set = |node: &mut Node, value: Option<&str>| match value {
            Some(value) => drop(node.meta.labels.insert(key.to_owned(), value.to_owned())),
            None => drop(node.meta.labels.remove(key)),
        };
        let (mut before, mut by_agent) = (existing(), initial(&settings()));
        set(&mut before, found);
        set(&mut by_agent, wanted);
        let node = reconcile(&before, &by_agent, agent(false)).unwrap_or(before);
        assert_eq!(node.meta.labels.get(key).map(String::as_str), expected, "{key} {found:?} {wanted:?}");
    }
}

#[test]
fn s037_system_labels_are_restored_at_run_time() {
    let system = observed().system;
    for (os, arch, expected) in [
        (Some("linux"), Some("amd64"), false),
        (None, Some("amd64"), true),
        (Some("linux"), Some("wrong"), true),
        (None, None, true),
    ] {
        let mut found: Labels = labels(&[("x", "y")]);
        let given = [(label::OS, os), (label::ARCH, arch)];
        found.extend(given.into_iter().filter_map(|(key, value)| Some(owned((key, value?)))));
        assert_eq!(repair_labels(&mut found, &system), expected, "{os:?} {arch:?}");
        assert_eq!(found, labels(&[("x", "y"), (label::OS, "linux"), (label::ARCH, "amd64")]));
    }
}

#[test]
fn a_node_created_by_hand_gets_the_capacity_it_lacks() {
    let initial = initial(&settings());
    let mut bare = existing();
    bare.status = NodeStatus::default();
    let node = reconcile(&bare, &initial, agent(false)).unwrap();
    assert_eq!(node.status.capacity, initial.status.capacity);
    assert_eq!(node.status.allocatable, initial.status.allocatable);
    assert!(node.status.conditions.is_empty(), "conditions come with the first status");
    assert_eq!(node.meta.annotations, Annotations::new());
}

#[test]
fn huge_pages_follow_the_machine_and_devices_are_zero_for_an_agent_without_state() {
    let mut wanted = initial(&settings());
    wanted.status.capacity = quantities(&[("cpu", "4"), ("hugepages-1Gi", "2Gi")]);
    wanted.status.allocatable = wanted.status.capacity.clone();
    for (held, is_new, expected) in [
        (&[("cpu", "2"), ("hugepages-2Mi", "4Mi")][..], false, &[("cpu", "2"), ("hugepages-1Gi", "2Gi")][..]),
        (
            &[("cpu", "2"), ("hugepages-1Gi", "1Gi"), ("example.com/gpu", "4")],
            false,
            &[("cpu", "2"), ("hugepages-1Gi", "2Gi"), ("example.com/gpu", "4")],
        ),
        (
            &[("cpu", "2"), ("pods", "9"), ("example.com/gpu", "4")],
            true,
            &[("cpu", "2"), ("pods", "9"), ("hugepages-1Gi", "2Gi"), ("example.com/gpu", "0")],
        ),
    ] {
        let mut before = existing();
        before.status.capacity = quantities(held);
        before.status.allocatable = quantities(held);
        let node = reconcile(&before, &wanted, agent(is_new)).unwrap();
        assert_eq!(node.status.capacity, quantities(expected));
        assert_eq!(node.status.allocatable, quantities(expected));
    }
}

#[test]
fn s043_an_agent_that_may_not_create_its_node_adopts_an_existing_one() {
    for (created, expected) in [
        (Created::Done, Next::Registered),
        (Created::AlreadyExists, Next::Read),
        (Created::Forbidden, Next::Read),
        (Created::Failed, Next::Retry),
    ] {
        assert_eq!(after_create(created), expected);
    }
}
