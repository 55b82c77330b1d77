use muster_proto::pb;
use muster_proto::pod::Container;
use muster_proto::taint::Toleration;

use super::*;
use crate::testing::{ContainerBuilder, NODE, PodBuilder, amounts, container, labels, pod, security_policy};

fn node() -> NodeFacts {
    NodeFacts {
        name: NODE.parse().unwrap(),
        labels: labels("zone=a"),
        taints: Vec::new(),
        allocatable: amounts("cpu=4 memory=8Gi pods=3"),
        pressure: PressureConditions::default(),
        shutting_down: false,
        security: security_policy(),
    }
}

fn reasons(pod: PodBuilder, node: &NodeFacts, others: &[PodBuilder]) -> Vec<String> {
    let others: Vec<Pod> = others.iter().cloned().map(PodBuilder::build).collect();
    let others: Vec<&Pod> = others.iter().collect();
    rejections(&pod.build(), node, &others).into_iter().map(|found| found.reason).collect()
}

fn guaranteed() -> PodBuilder {
    let each = "cpu=1 memory=1Gi";
    pod("g").containers(vec![container("main").requests(each).limits(each)])
}

#[test]
fn s066_under_pressure_a_node_admits_only_some_pods() {
    let best_effort = || pod("b");
    let tolerating = || best_effort().tolerates(muster_proto::taint::memory_pressure_toleration());
    let none = PressureConditions::default();
    let (memory, disk) =
        (PressureConditions { memory: true, ..none }, PressureConditions { disk: true, ..none });
    let (pid, both) = (PressureConditions { pid: true, ..none }, PressureConditions { disk: true, ..memory });
    for (name, pod, admitted_under) in [
        ("guaranteed", guaranteed(), [true, true, false, false, false]),
        ("burstable", pod("u").requests("cpu=1"), [true, true, false, false, false]),
        ("best effort", best_effort(), [true, false, false, false, false]),
        ("tolerating", tolerating(), [true, true, false, false, false]),
        ("critical", best_effort().priority(priority::SYSTEM_CRITICAL), [true; 5]),
        ("static", best_effort().unstored().source("file"), [true; 5]),
        ("annotated", best_effort().source("file").mirror(), [true, false, false, false, false]),
    ] {
        for (pressure, admitted) in [none, memory, disk, pid, both].into_iter().zip(admitted_under) {
            let expected: &[&str] = if admitted { &[] } else { &["Evicted"] };
            let node = NodeFacts { pressure, ..node() };
            assert_eq!(reasons(pod.clone(), &node, &[]), expected, "{name} under {pressure:?}");
        }
    }
}

#[test]
fn s072_a_node_that_shuts_down_admits_no_pod() {
    let node = NodeFacts { shutting_down: true, ..node() };
    for new in [pod("a"), pod("a").priority(priority::SYSTEM_CRITICAL), pod("a").unstored().source("file")] {
        assert_eq!(reasons(new, &node, &[]), ["NodeShutdown"]);
    }
}

#[test]
fn s075_a_pod_that_does_not_fit_is_rejected_for_each_resource() {
    let extended = "example.com/gpu=1";
    for (wanted, others, expected) in [
        ("cpu=5", vec![], vec!["OutOfcpu"]),
        ("cpu=4", vec![], vec![]),
        ("cpu=3", vec!["cpu=1"], vec![]),
        ("cpu=3001m", vec!["cpu=1"], vec!["OutOfcpu"]),
        ("memory=8Gi", vec![], vec![]),
        ("memory=8Gi", vec!["memory=1"], vec!["OutOfmemory"]),
        ("cpu=5 memory=9Gi", vec![], vec!["OutOfcpu", "OutOfmemory"]),
        ("ephemeral-storage=1", vec![], vec!["OutOfephemeral-storage"]),
        (extended, vec![], vec!["OutOfexample.com/gpu"]),
        // Those who ask for nothing are not held against what others took too much of.
        ("memory=1", vec!["cpu=9"], vec![]),
        ("", vec!["", ""], vec![]),
        ("", vec!["", "", ""], vec!["OutOfpods"]),
        ("cpu=5", vec!["", "", ""], vec!["OutOfpods", "OutOfcpu"]),
    ] {
        let others: Vec<PodBuilder> = others.into_iter().map(|each| pod("other").requests(each)).collect();
        assert_eq!(reasons(pod("a").requests(wanted), &node(), &others), expected, "{wanted:?}");
    }
    let bare = NodeFacts { allocatable: Resources::new(), ..node() };
    assert_eq!(reasons(pod("a"), &bare, &[]), ["OutOfpods"], "nothing fits on a node without capacity");
}

#[test]
fn s075_the_message_has_the_request_and_what_is_used() {
    let other = pod("other").requests("cpu=1").build();
    let found = rejections(&pod("a").requests("cpu=5").build(), &node(), &[&other]);
    let message = "Pod was rejected: it asks for 5 cpu, of 4 the node has given away 1";
    assert_eq!(found, [Rejection { reason: "OutOfcpu".into(), message: message.into() }]);
}

#[test]
fn s076_only_no_execute_taints_count_and_not_for_static_pods() {
    use TaintEffect::{NoExecute, NoSchedule, PreferNoSchedule};
    let tolerating = |effect| pod("a").tolerates(Toleration::exists("user", effect));
    for (pod, effect, expected) in [
        (pod("a"), NoExecute, &["TaintToleration"][..]),
        (pod("a"), NoSchedule, &[]),
        (pod("a"), PreferNoSchedule, &[]),
        (tolerating(NoExecute), NoExecute, &[]),
        (tolerating(NoSchedule), NoExecute, &["TaintToleration"]),
        (pod("a").unstored().source("file"), NoExecute, &[]),
        (pod("a").source("file"), NoExecute, &["TaintToleration"]),
    ] {
        let node = NodeFacts { taints: vec![Taint::new("user", "x", effect)], ..node() };
        assert_eq!(reasons(pod, &node, &[]), expected, "{effect}");
    }
}

#[test]
fn a_host_port_is_used_once() {
    let on = |container: Container| pod("a").containers(vec![container]);
    let port = |number, ip, protocol| container("c").port(number, ip, protocol);
    for (wanted, held, expected) in [
        (port(80, "", ""), port(80, "", "TCP"), &["NodePorts"][..]),
        (port(80, "", ""), port(81, "", ""), &[]),
        (port(80, "", "UDP"), port(80, "", "TCP"), &[]),
        (port(80, "10.0.0.1", ""), port(80, "10.0.0.2", ""), &[]),
        (port(80, "10.0.0.1", ""), port(80, "10.0.0.1", ""), &["NodePorts"]),
        (port(80, "10.0.0.1", ""), port(80, "0.0.0.0", ""), &["NodePorts"]),
        (port(0, "", ""), port(0, "", ""), &[]),
    ] {
        let text = format!("{:?} beside {:?}", wanted.ports, held.ports);
        assert_eq!(reasons(on(wanted), &node(), &[on(held)]), expected, "{text}");
    }
    let mut host = on(port(0, "", "")).build();
    host.spec.host_network = true;
    let found = rejections(&host, &node(), &[&host]);
    assert_eq!(
        found.first().map(|found| found.reason.as_str()),
        Some("NodePorts"),
        "on the host network a container port is a host port"
    );
}

#[test]
fn a_pod_that_asks_for_more_than_the_agent_allows_is_rejected() {
    let mut root = pod("a").build();
    root.spec.security_context = Some(pb::PodSecurityContext { run_as_user: Some(0), ..Default::default() });
    let found = rejections(&root, &node(), &[]);
    let message = "Pod was rejected: container main asks for runAsUser 0, which this node does not allow \
                   (--allow-run-as of its agent)";
    assert_eq!(found, [Rejection { reason: "SecurityContextDenied".into(), message: message.into() }]);
    let mut trusting = node();
    trusting.security.allow_privileged = true;
    assert_eq!(rejections(&root, &trusting, &[]), []);
}

#[test]
fn all_rejections_are_collected_and_only_labels_may_be_stale() {
    let mut picky = pod("a").requests("cpu=5").build();
    picky.spec.node_selector = labels("zone=b");
    let mut only_labels = pod("a").build();
    only_labels.spec.node_selector = labels("zone=b");
    let mut elsewhere = pod("a").build();
    elsewhere.spec.node_name = Some("n2".parse().unwrap());
    for (pod, expected, fresh) in [
        (picky, &["OutOfcpu", "NodeAffinity"][..], false),
        (only_labels, &["NodeAffinity"], true),
        (elsewhere, &["NodeName"], false),
        (pod("a").build(), &[], false),
    ] {
        let found = rejections(&pod, &node(), &[]);
        let reasons: Vec<&str> = found.iter().map(|each| each.reason.as_str()).collect();
        assert_eq!((reasons.as_slice(), may_be_stale(&found)), (expected, fresh));
    }
}
