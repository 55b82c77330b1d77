use std::sync::Arc;

use muster_proto::taint::{TaintEffect, Toleration};

use super::*;
use crate::fixtures::{NodeSample, PodSample, amounts, node, pod, wish};
use crate::scheduler::pod_requirements::PodRequest;

/// The name of the best node; each node comes with what is allocated on it.
fn chosen(wanted: PodSample, infos: Vec<(NodeSample, &str)>) -> String {
    let requirements = PodRequirements::of(&wanted.build().spec);
    let infos: Vec<(NodeView, Allocated)> = infos
        .into_iter()
        .map(|(sample, requests)| {
            let mut allocated = Allocated::default();
            if !requests.is_empty() {
                allocated.add(&PodRequest::of(&pod("other").requests(requests).build().spec));
            }
            (NodeView::of(&Arc::new(sample.build())), allocated)
        })
        .collect();
    let candidates: Vec<_> =
        infos.iter().map(|(view, allocated)| Candidate::new(&requirements, view, allocated)).collect();
    let max = ScoreClass::max_of(candidates.iter().map(|each| each.class));
    best(candidates.into_iter(), max).map(ToString::to_string).unwrap_or_default()
}

fn roomy(name: &str) -> NodeSample {
    node(name).allocatable("cpu=10 memory=10Gi pods=10")
}

fn cpu_memory(text: &str) -> CpuMemory {
    CpuMemory::of(&amounts(text))
}

#[test]
fn least_allocated_is_the_mean_share_that_is_left() {
    for (all, asked, expected) in [
        ("cpu=4 memory=4Gi", "", 100),
        ("cpu=4 memory=4Gi", "cpu=1 memory=1Gi", 75),
        ("cpu=4 memory=4Gi", "cpu=4 memory=1Gi", 37),
        ("cpu=4 memory=4Gi", "cpu=5 memory=4Gi", 0),
        ("cpu=3 memory=3", "cpu=1 memory=1", 66),
        ("cpu=4", "cpu=1 memory=1Gi", 75),
        ("", "cpu=1", 0),
    ] {
        assert_eq!(least_allocated(cpu_memory(all), cpu_memory(asked)), expected, "{asked:?} of {all:?}");
    }
}

#[test]
fn balance_falls_by_half_the_difference_of_cpu_and_memory() {
    for (all, asked, expected) in [
        ("cpu=4 memory=4Gi", "cpu=1 memory=1Gi", 100),
        ("cpu=4 memory=4Gi", "cpu=4", 50),
        ("cpu=4 memory=4Gi", "cpu=3 memory=1Gi", 75),
        ("cpu=4 memory=4Gi", "cpu=9 memory=4Gi", 100),
        ("cpu=100 memory=100", "cpu=1 memory=0", 99),
        ("cpu=4", "cpu=4", 100),
        ("", "cpu=4", 100),
    ] {
        assert_eq!(balanced(cpu_memory(all), cpu_memory(asked)), expected, "{asked:?} of {all:?}");
    }
}

#[test]
fn amounts_beyond_any_machine_do_not_overflow() {
    let huge = cpu_memory("cpu=99999999999E memory=99999999999E");
    let sum = (0..1_000).fold(CpuMemory::default(), |sum, _| sum.plus(huge));
    assert_eq!((least_allocated(huge, sum), balanced(huge, sum)), (0, 100));
}

#[test]
fn of_equal_nodes_the_lowest_name_wins() {
    assert_eq!(chosen(pod("p"), vec![(roomy("b"), ""), (roomy("a"), ""), (roomy("c"), "")]), "a");
    assert_eq!(chosen(pod("p"), vec![]), "");
}

#[test]
fn the_emptier_node_is_better() {
    let wanted = || pod("p").requests("cpu=1 memory=1Gi");
    let used = "cpu=4 memory=4Gi";
    assert_eq!(chosen(wanted(), vec![(roomy("a"), used), (roomy("b"), "")]), "b");
    let large = || node("a").allocatable("cpu=100 memory=100Gi pods=10");
    assert_eq!(chosen(wanted(), vec![(large(), used), (roomy("b"), "cpu=1 memory=1Gi")]), "a", "by share");
}

#[test]
fn pods_without_requests_count_with_defaults() {
    let small = |name| node(name).allocatable("cpu=1 memory=1Gi pods=10");
    let infos = vec![(small("a"), "example.com/x=1"), (small("b"), "cpu=50m memory=100Mi")];
    assert_eq!(chosen(pod("p"), infos), "b");
}

#[test]
fn a_pod_goes_where_it_balances_cpu_and_memory() {
    // Both are half allocated on average; they differ in which resource the pod adds to.
    let wanted = pod("p").requests("cpu=2 memory=0");
    let infos = vec![(roomy("a"), "cpu=6 memory=2Gi"), (roomy("b"), "cpu=2 memory=6Gi")];
    assert_eq!(chosen(wanted, infos), "b");
    let nothing = pod("p").requests("cpu=0 memory=0");
    let infos = vec![(roomy("a"), "cpu=6 memory=2Gi"), (roomy("b"), "cpu=4 memory=4Gi")];
    assert_eq!(chosen(nothing, infos), "a", "the balance does not count for a pod without requests");
}

#[test]
fn s169_soft_taints_only_lower_the_score() {
    let soft = || roomy("a").taint("k=v:PreferNoSchedule");
    let used = "cpu=9 memory=9Gi";
    assert_eq!(
        chosen(pod("p"), vec![(soft(), ""), (roomy("b"), used)]),
        "b",
        "taints weigh more than requested"
    );
    assert_eq!(chosen(pod("p"), vec![(soft(), "")]), "a", "there is no elsewhere");
    let tolerating = pod("p").tolerates(Toleration::exists("k", TaintEffect::PreferNoSchedule));
    assert_eq!(chosen(tolerating, vec![(soft(), ""), (roomy("b"), used)]), "a");
    let softer = || roomy("b").taint("k=v:PreferNoSchedule").taint("l:PreferNoSchedule");
    assert_eq!(chosen(pod("p"), vec![(softer(), ""), (soft(), used)]), "a", "the fewer the better");
}

#[test]
fn preferred_terms_count_by_their_weights() {
    let wanted = || pod("p").prefers(10, wish("zone In x")).prefers(60, wish("disk In ssd"));
    let x = || roomy("a").label("zone", "x");
    let ssd = || roomy("b").label("disk", "ssd");
    assert_eq!(chosen(wanted(), vec![(x(), ""), (ssd(), "")]), "b");
    assert_eq!(
        chosen(wanted(), vec![(x(), ""), (ssd(), "cpu=9 memory=9Gi")]),
        "b",
        "preferred terms count more than free resources"
    );
    assert_eq!(chosen(wanted(), vec![(x(), ""), (roomy("c"), "")]), "a");
    assert_eq!(
        chosen(wanted(), vec![(roomy("c"), ""), (roomy("d"), "")]),
        "c",
        "no node matches a preferred term"
    );
    let tainted = || ssd().taint("k:PreferNoSchedule");
    assert_eq!(
        chosen(wanted(), vec![(roomy("c"), ""), (tainted(), "")]),
        "c",
        "taints count more than preferred terms"
    );
}
