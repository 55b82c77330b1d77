use std::sync::Arc;

use muster_proto::taint::{TaintEffect, Toleration};

use super::*;
use crate::fixtures::{NodeSample, PodSample, node, pod, wish};
use crate::scheduler::pod_requirements::PodRequest;

/// Why the pod does not fit the node beside the other pods; empty if it fits.
fn reasons(wanted: PodSample, sample: NodeSample, others: Vec<PodSample>) -> String {
    let requirements = PodRequirements::of(&wanted.build().spec);
    let view = NodeView::of(&Arc::new(sample.build()));
    let mut allocated = Allocated::default();
    for other in others {
        allocated.add(&PodRequest::of(&other.build().spec));
    }
    let mut found: Vec<String> = Vec::new();
    let passed = passes(&requirements, &view, &allocated, |reason| found.push(reason.to_string()));
    assert_eq!(passed, found.is_empty());
    let first = first_unfit_reason(&requirements, &view, &allocated).map(|reason| reason.to_string());
    assert_eq!(first.as_ref(), found.first());
    found.join(", ")
}

const CORDONED: &str = "node(s) were unschedulable";
const TAINTED: &str = "node(s) had untolerated taint(s)";
const UNMATCHED: &str = "node(s) didn't match Pod's node affinity/selector";

fn roomy() -> NodeSample {
    node("n1").allocatable("cpu=4 memory=8Gi pods=10")
}

#[test]
fn s170_a_cordoned_node_accepts_only_pods_that_tolerate_it() {
    let tolerating =
        |effect| pod("a").tolerates(Toleration::exists("node.kubernetes.io/unschedulable", effect));
    for (wanted, sample, expected) in [
        (pod("a"), roomy(), ""),
        (pod("a"), roomy().cordoned(), CORDONED),
        (tolerating(TaintEffect::NoSchedule), roomy().cordoned(), ""),
        (tolerating(TaintEffect::NoExecute), roomy().cordoned(), CORDONED),
        // The record shows the cordon before the taint that follows from it, and after.
        (
            tolerating(TaintEffect::NoSchedule),
            roomy().cordoned().taint("node.kubernetes.io/unschedulable:NoSchedule"),
            "",
        ),
        (pod("a"), roomy().taint("node.kubernetes.io/unschedulable:NoSchedule"), TAINTED),
    ] {
        assert_eq!(reasons(wanted, sample, vec![]), expected);
    }
}

#[test]
fn a_pod_that_names_its_node_fits_no_other() {
    assert_eq!(reasons(pod("a").on("n1"), roomy(), vec![]), "");
    let other = "node(s) didn't match the requested node name";
    assert_eq!(reasons(pod("a").on("n2"), roomy(), vec![]), other);
}

#[test]
fn s169_hard_taints_exclude_pods_and_soft_ones_do_not() {
    use TaintEffect::{NoExecute, NoSchedule, PreferNoSchedule};
    let tolerating = |effect| pod("a").tolerates(Toleration::exists("k", effect));
    let fleeting = || pod("a").tolerates(Toleration::exists("k", NoExecute).for_seconds(0));
    for (wanted, taint, expected) in [
        (pod("a"), "k=v:NoSchedule", TAINTED),
        (pod("a"), "k=v:NoExecute", TAINTED),
        (pod("a"), "k=v:PreferNoSchedule", ""),
        (tolerating(NoSchedule), "k=v:NoSchedule", ""),
        (tolerating(NoSchedule), "k=v:NoExecute", TAINTED),
        (tolerating(PreferNoSchedule), "k=v:NoSchedule", TAINTED),
        (fleeting(), "k=v:NoExecute", ""),
    ] {
        assert_eq!(reasons(wanted, roomy().taint(taint), vec![]), expected, "{taint}");
    }
    let half = roomy().taint("k=v:NoSchedule").taint("other:NoExecute");
    assert_eq!(reasons(tolerating(NoSchedule), half, vec![]), TAINTED, "one that is not tolerated is enough");
}

#[test]
fn s171_labels_and_name_must_match_selector_and_affinity() {
    let sample = || roomy().label("a", "b").label("cores", "6").label("odd", "x");
    for (wanted, expected) in [
        (pod("p").selects("a", "b"), ""),
        (pod("p").selects("a", "c"), UNMATCHED),
        (pod("p").selects("a", "b").requires(&[&[wish("cores Gt 5")]]), ""),
        (pod("p").selects("a", "c").requires(&[&[wish("cores Gt 5")]]), UNMATCHED),
        (pod("p").selects("a", "b").requires(&[&[wish("cores Gt 6")]]), UNMATCHED),
        (pod("p").requires(&[&[wish("odd Gt 5")]]), UNMATCHED),
        (pod("p").requires(&[&[wish("cores Lt 7")]]), ""),
        (pod("p").requires(&[&[wish("missing NotIn x")]]), ""),
        (pod("p").requires(&[&[wish("missing DoesNotExist")]]), ""),
        (pod("p").requires(&[&[wish("missing Exists")]]), UNMATCHED),
        (pod("p").requires(&[&[]]), UNMATCHED),
        (pod("p").requires(&[&[], &[wish("a In b")]]), ""),
        (pod("p").requires(&[&[wish("a In b"), wish("odd In y")]]), UNMATCHED),
        (pod("p").requires(&[&[wish("metadata.name In n1")]]), ""),
        (pod("p").requires(&[&[wish("metadata.name In n2")]]), UNMATCHED),
    ] {
        let text = format!("{:?} {:?}", wanted.0.spec.node_selector, wanted.0.spec.affinity);
        assert_eq!(reasons(wanted, sample(), vec![]), expected, "{text}");
    }
}

#[test]
fn a_host_port_is_used_once_per_node() {
    let allocated = "node(s) didn't have free ports";
    assert_eq!(reasons(pod("a").port(80), roomy(), vec![pod("b").port(80)]), allocated);
    assert_eq!(reasons(pod("a").port(80), roomy(), vec![pod("b").port(81)]), "");
    assert_eq!(reasons(pod("a"), roomy(), vec![pod("b").port(80)]), "");
}

#[test]
fn s165_s166_s167_requests_must_fit_what_the_node_has_left() {
    let some = || node("n1").allocatable("cpu=4 memory=8Gi pods=2 example.com/gpu=1");
    for (wanted, sample, others, expected) in [
        ("cpu=1", some(), vec!["cpu=3"], ""),
        ("cpu=1001m", some(), vec!["cpu=3"], "Insufficient cpu"),
        ("memory=8Gi", some(), vec![], ""),
        ("memory=8Gi", some(), vec!["memory=1"], "Insufficient memory"),
        ("cpu=5 memory=9Gi ephemeral-storage=1", some(), vec![], SHORT_OF_ALL),
        ("example.com/gpu=1", some(), vec![], ""),
        ("example.com/gpu=1", some(), vec!["example.com/gpu=1"], "Insufficient example.com/gpu"),
        ("other.com/gpu=1", some(), vec![], "Insufficient other.com/gpu"),
        // A pod that does not request an overcommitted resource still fits.
        ("memory=1", some(), vec!["cpu=9"], ""),
        ("", some(), vec!["cpu=9"], ""),
        ("", some(), vec!["", ""], "Too many pods"),
        ("cpu=5", some(), vec!["", ""], "Too many pods, Insufficient cpu"),
        ("", node("n1"), vec![], "Too many pods"),
        ("", node("n1").allocatable("cpu=4"), vec![], "Too many pods"),
        ("cpu=1", node("n1").allocatable("pods=5"), vec![], "Insufficient cpu"),
    ] {
        let others = others.into_iter().map(|each| pod("other").requests(each)).collect();
        assert_eq!(reasons(pod("a").requests(wanted), sample, others), expected, "{wanted:?}");
    }
}

const SHORT_OF_ALL: &str = "Insufficient cpu, Insufficient memory, Insufficient ephemeral-storage";

#[test]
fn s168_a_pod_needs_the_maximum_of_init_and_running_containers() {
    let container = |requests: &str| pod("x").requests(requests).build().spec.containers.remove(0);
    let wanted = || {
        pod("a").with(|pod| {
            pod.spec.init_containers = vec![container("cpu=2 memory=1G"), container("cpu=2 memory=3G")];
            pod.spec.containers = vec![container("cpu=2 memory=1G"), container("cpu=1 memory=1G")];
        })
    };
    for (allocatable, expected) in [
        ("cpu=3 memory=3G pods=1", ""),
        ("cpu=2999m memory=3G pods=1", "Insufficient cpu"),
        ("cpu=3 memory=2999M pods=1", "Insufficient memory"),
    ] {
        assert_eq!(reasons(wanted(), node("n1").allocatable(allocatable), vec![]), expected, "{allocatable}");
    }
}

#[test]
fn the_first_filter_that_fails_gives_the_reason() {
    let mut sample = node("n1").cordoned().taint("k:NoSchedule");
    let picky = || pod("a").on("n2").selects("zone", "b").port(80).requests("cpu=1");
    let held = || vec![pod("b").port(80)];
    assert_eq!(reasons(picky(), node("n1").cordoned().taint("k:NoSchedule"), held()), CORDONED);
    sample.0.spec.unschedulable = false;
    assert_eq!(reasons(picky(), sample, held()), "node(s) didn't match the requested node name");
    let named = || picky().on("n1");
    assert_eq!(reasons(named(), node("n1").taint("k:NoSchedule"), held()), TAINTED);
    assert_eq!(reasons(named(), node("n1"), held()), UNMATCHED);
    let labelled = || node("n1").label("zone", "b");
    assert_eq!(reasons(named(), labelled(), held()), "node(s) didn't have free ports");
    assert_eq!(reasons(named(), labelled(), vec![]), "Too many pods, Insufficient cpu");
}
