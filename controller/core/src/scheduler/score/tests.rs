use std::sync::Arc;

use muster_proto::taint::{TaintEffect, Toleration};

use super::*;
use crate::fixtures::{NodeSample, PodSample, amounts, node, pod, wish};
use crate::scheduler::pod_requirements::Claim;

/// The name of the best node, each with what is taken of it.
fn chosen(wanted: PodSample, sites: Vec<(NodeSample, &str)>) -> String {
    let demand = Demand::of(&wanted.build().spec);
    let sites: Vec<(Facts, Taken)> = sites
        .into_iter()
        .map(|(sample, requests)| {
            let mut taken = Taken::default();
            if !requests.is_empty() {
                taken.add(&Claim::of(&pod("other").requests(requests).build().spec));
            }
            (Facts::of(&Arc::new(sample.build())), taken)
        })
        .collect();
    let candidates: Vec<_> =
        sites.iter().map(|(facts, taken)| Candidate::new(&demand, facts, taken)).collect();
    let most = Class::most(candidates.iter().map(|each| each.class));
    best(candidates.into_iter(), most).map(ToString::to_string).unwrap_or_default()
}

fn roomy(name: &str) -> NodeSample {
    node(name).allocatable("cpu=10 memory=10Gi pods=10")
}

fn load(text: &str) -> Load {
    Load::of(&amounts(text))
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
        assert_eq!(least_allocated(load(all), load(asked)), expected, "{asked:?} of {all:?}");
    }
}

#[test]
fn balance_is_lost_by_half_of_what_cpu_and_memory_differ_by() {
    for (all, asked, expected) in [
        ("cpu=4 memory=4Gi", "cpu=1 memory=1Gi", 100),
        ("cpu=4 memory=4Gi", "cpu=4", 50),
        ("cpu=4 memory=4Gi", "cpu=3 memory=1Gi", 75),
        ("cpu=4 memory=4Gi", "cpu=9 memory=4Gi", 100),
        ("cpu=100 memory=100", "cpu=1 memory=0", 99),
        ("cpu=4", "cpu=4", 100),
        ("", "cpu=4", 100),
    ] {
        assert_eq!(balanced(load(all), load(asked)), expected, "{asked:?} of {all:?}");
    }
}

#[test]
fn figures_beyond_all_machines_do_not_overflow() {
    let huge = load("cpu=99999999999E memory=99999999999E");
    let sum = (0..1_000).fold(Load::default(), |sum, _| sum.plus(huge));
    assert_eq!((least_allocated(huge, sum), balanced(huge, sum)), (0, 100));
}

#[test]
fn equals_are_told_apart_by_name() {
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
fn pods_that_name_no_amounts_count_all_the_same() {
    let small = |name| node(name).allocatable("cpu=1 memory=1Gi pods=10");
    let sites = vec![(small("a"), "example.com/x=1"), (small("b"), "cpu=50m memory=100Mi")];
    assert_eq!(chosen(pod("p"), sites), "b");
}

#[test]
fn a_pod_goes_where_it_evens_things_out() {
    // Both are half taken on the mean; what tells them apart is what the pod adds to.
    let wanted = pod("p").requests("cpu=2 memory=0");
    let sites = vec![(roomy("a"), "cpu=6 memory=2Gi"), (roomy("b"), "cpu=2 memory=6Gi")];
    assert_eq!(chosen(wanted, sites), "b");
    let nothing = pod("p").requests("cpu=0 memory=0");
    let sites = vec![(roomy("a"), "cpu=6 memory=2Gi"), (roomy("b"), "cpu=4 memory=4Gi")];
    assert_eq!(chosen(nothing, sites), "a", "who asks for nothing is not sent to the better balanced");
}

#[test]
fn s169_soft_taints_only_lower_the_rank() {
    let soft = || roomy("a").taint("k=v:PreferNoSchedule");
    let used = "cpu=9 memory=9Gi";
    assert_eq!(chosen(pod("p"), vec![(soft(), ""), (roomy("b"), used)]), "b", "taints weigh more than load");
    assert_eq!(chosen(pod("p"), vec![(soft(), "")]), "a", "there is no elsewhere");
    let tolerating = pod("p").tolerates(Toleration::exists("k", TaintEffect::PreferNoSchedule));
    assert_eq!(chosen(tolerating, vec![(soft(), ""), (roomy("b"), used)]), "a");
    let softer = || roomy("b").taint("k=v:PreferNoSchedule").taint("l:PreferNoSchedule");
    assert_eq!(chosen(pod("p"), vec![(softer(), ""), (soft(), used)]), "a", "the fewer the better");
}

#[test]
fn granted_wishes_weigh_by_their_weights() {
    let wanted = || pod("p").prefers(10, wish("zone In x")).prefers(60, wish("disk In ssd"));
    let x = || roomy("a").label("zone", "x");
    let ssd = || roomy("b").label("disk", "ssd");
    assert_eq!(chosen(wanted(), vec![(x(), ""), (ssd(), "")]), "b");
    assert_eq!(
        chosen(wanted(), vec![(x(), ""), (ssd(), "cpu=9 memory=9Gi")]),
        "b",
        "wishes weigh more than load"
    );
    assert_eq!(chosen(wanted(), vec![(x(), ""), (roomy("c"), "")]), "a");
    assert_eq!(chosen(wanted(), vec![(roomy("c"), ""), (roomy("d"), "")]), "c", "nobody grants anything");
    let tainted = || ssd().taint("k:PreferNoSchedule");
    assert_eq!(
        chosen(wanted(), vec![(roomy("c"), ""), (tainted(), "")]),
        "c",
        "taints weigh more than wishes"
    );
}
