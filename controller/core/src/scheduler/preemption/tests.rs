use muster_proto::budget::{
    DisruptionBudgetSpec, DisruptionBudgetStatus, DisruptionLimit, UnhealthyPodEvictionPolicy,
};
use muster_proto::meta::Metadata;
use muster_proto::percent::IntOrPercent;
use muster_proto::selector::LabelSelector;

use super::*;
use crate::fixtures::{PodSample, epoch, node, pod};
use crate::scheduler::node_cache::NodeCache;

/// A pod on node n.
fn held(name: &str, requests: &str, priority: i32) -> PodSample {
    pod(name).on("n").requests(requests).priority(priority)
}

/// Started so many seconds after the beginning.
fn started_at(sample: PodSample, seconds: i64) -> PodSample {
    sample.with(|pod| {
        pod.status.start_time = epoch().checked_add(jiff::SignedDuration::from_secs(seconds)).ok();
    })
}

fn labelled(sample: PodSample, app: &str) -> PodSample {
    sample.with(|pod| drop(pod.meta.labels.insert("app".into(), app.into())))
}

fn budget(app: &str, allowed: i32) -> DisruptionBudget {
    let selector: LabelSelector = format!("app={app}").parse().unwrap();
    DisruptionBudget {
        meta: Metadata::new(Some("default".parse().unwrap()), app.parse().unwrap()),
        spec: DisruptionBudgetSpec {
            selector,
            limit: DisruptionLimit::MinAvailable(IntOrPercent::Int(0)),
            unhealthy_pod_eviction_policy: UnhealthyPodEvictionPolicy::default(),
        },
        status: DisruptionBudgetStatus { disruptions_allowed: allowed, ..DisruptionBudgetStatus::default() },
    }
}

/// The victims of a pod on a node of 4 cpus, and how many of them a budget protects.
fn victims(
    wanted: PodSample,
    pods: Vec<PodSample>,
    budgets: Vec<DisruptionBudget>,
) -> Option<(String, usize)> {
    let pods: Vec<Arc<Pod>> = pods.into_iter().map(|sample| Arc::new(sample.build())).collect();
    let mut known = Budgets::default();
    budgets.into_iter().for_each(|budget| known.apply(budget));
    let requested =
        pods.iter().filter(|pod| pod.meta.name.as_str().starts_with("requested")).map(|pod| &**pod);
    let disruptions = Disruptions { budgets: &known, requested: requested.collect() };
    let mut cache = NodeCache::default();
    cache.set_node(&Arc::new(node("n").allocatable("cpu=4 memory=8Gi pods=10").build()));
    let name: Name = "n".parse().unwrap();
    for pod in &pods {
        let request = PodRequest::of(&pod.spec);
        if is_displaceable(pod) {
            cache.allocate_displaceable(&name, pod.spec.priority(), &request);
        } else {
            cache.allocate(&name, &request);
        }
    }
    let requirements = PodRequirements::of(&wanted.build().spec);
    let found = select_victims(&requirements, cache.info(&name).unwrap(), pods.iter(), &disruptions)?;
    let names: Vec<&str> = found.victims.iter().map(|pod| pod.meta.name.as_str()).collect();
    Some((names.join(" "), found.violations))
}

fn wants(requests: &str) -> PodSample {
    pod("p").requests(requests).priority(10)
}

#[test]
fn s216_as_few_and_as_unimportant_pods_as_possible_are_victims() {
    let two = || vec![held("high", "cpu=2", 5), held("low", "cpu=2", 1)];
    for (wanted, pods, expected) in [
        (wants("cpu=2"), two(), Some("low")),
        (wants("cpu=3"), two(), Some("high low")),
        (wants("cpu=5"), two(), None),
        (wants("cpu=2").priority(5), two(), Some("low")),
        (wants("cpu=3").priority(5), two(), None),
        (wants("cpu=2").priority(1), two(), None),
        // The important ones are spared first, even if two less important ones go for it.
        (
            wants("cpu=2"),
            vec![held("a", "cpu=1", 1), held("b", "cpu=1", 1), held("c", "cpu=2", 2)],
            Some("a b"),
        ),
        // Of equals those that have run longest are spared.
        (
            wants("cpu=2"),
            vec![started_at(held("a", "cpu=2", 1), 20), started_at(held("b", "cpu=2", 1), 10)],
            Some("a"),
        ),
        (wants("cpu=2"), vec![held("a", "cpu=2", 1), started_at(held("b", "cpu=2", 1), 10)], Some("a")),
        // What a pod takes besides: ports, and a place among the pods of the node.
        (wants("cpu=1").port(80), vec![held("a", "cpu=1", 1).port(80), held("b", "cpu=1", 0)], Some("a")),
        (wants(""), (0..10).map(|i| held(&format!("p{i}"), "", i)).collect(), Some("p0")),
    ] {
        let found = victims(wanted, pods, vec![]).map(|(names, _)| names);
        assert_eq!(found.as_deref(), expected);
    }
}

#[test]
fn s216_pods_that_a_budget_protects_are_spared_where_there_is_a_choice() {
    let web = |name: &str, priority| labelled(held(name, "cpu=2", priority), "web");
    for (wanted, pods, allowed, expected) in [
        // The protected one is spared although it is less important.
        ("cpu=2", vec![web("web", 1), held("other", "cpu=2", 5)], 0, ("other", 0)),
        ("cpu=2", vec![web("web", 1), held("other", "cpu=2", 5)], 1, ("web", 0)),
        ("cpu=4", vec![web("web", 1), held("other", "cpu=2", 5)], 0, ("other web", 1)),
        // A budget is used up by the most important ones first, as they are considered first.
        ("cpu=2", vec![web("a", 2), web("b", 1)], 1, ("a", 0)),
        ("cpu=4", vec![web("a", 2), web("b", 1)], 1, ("a b", 1)),
        ("cpu=4", vec![web("a", 2), web("b", 1)], 2, ("a b", 0)),
        // One that is leaving anyway uses nothing up.
        ("cpu=4", vec![web("a", 2).deleting(30), web("b", 1)], 1, ("a b", 0)),
        // A deletion that was requested does, before the budget's status shows it.
        ("cpu=4", vec![web("requested", 2), web("b", 1)], 1, ("requested b", 1)),
    ] {
        let found = victims(wants(wanted), pods, vec![budget("web", allowed)]);
        assert_eq!(found, Some((expected.0.to_owned(), expected.1)), "{wanted}, {allowed} allowed");
    }
    let mut disrupted = budget("web", 0);
    disrupted.status.disrupted_pods.insert("web".parse().unwrap(), epoch());
    let found = victims(wants("cpu=2"), vec![web("web", 1), held("other", "cpu=2", 5)], vec![disrupted]);
    assert_eq!(found, Some(("web".to_owned(), 0)), "the budget has counted it");
}

/// A candidate on that node with victims given as `priority@started`.
fn candidate(node: &str, violations: usize, victims: &str) -> Candidate {
    let victims = victims.split_whitespace().enumerate().map(|(i, text)| {
        let (priority, started) = text.split_once('@').unwrap();
        let sample = held(&format!("v{i}"), "cpu=1", priority.parse().unwrap());
        Arc::new(started_at(sample, started.parse().unwrap()).build())
    });
    Candidate { node: node.parse().unwrap(), victims: victims.collect(), violations }
}

#[test]
fn s216_the_node_is_chosen_in_the_order_of_kubernetes() {
    for (what, candidates, expected) in [
        ("fewest violated budgets", vec![candidate("a", 1, "0@0"), candidate("b", 0, "9@0 9@0")], "b"),
        ("lowest highest priority", vec![candidate("a", 0, "5@0"), candidate("b", 0, "4@0 4@0 4@0")], "b"),
        ("lowest sum", vec![candidate("a", 0, "5@0 3@0"), candidate("b", 0, "5@0 2@0")], "b"),
        (
            "fewer of a negative priority",
            vec![candidate("a", 0, "-5@0 -5@0"), candidate("b", 0, "-5@0")],
            "b",
        ),
        ("fewest victims", vec![candidate("a", 0, "0@0 0@0"), candidate("b", 0, "0@0")], "b"),
        (
            "latest start of the most important",
            vec![candidate("a", 0, "5@10 1@99"), candidate("b", 0, "5@20 1@0")],
            "b",
        ),
        (
            "the earliest of them counts",
            vec![candidate("a", 0, "5@10 5@99"), candidate("b", 0, "5@20 5@20")],
            "b",
        ),
        ("lowest name", vec![candidate("b", 0, "5@10"), candidate("a", 0, "5@10")], "a"),
    ] {
        assert_eq!(best(candidates).unwrap().node.as_str(), expected, "{what}");
    }
    assert_eq!(best([]), None);
}

#[test]
fn a_tenth_of_a_large_fleet_is_compared_and_a_hundred_nodes_at_least() {
    for (nodes, expected) in
        [(0, 0), (7, 7), (100, 100), (900, 100), (1_000, 100), (2_000, 200), (100_000, 10_000)]
    {
        assert_eq!(wanted_candidates(nodes), expected, "{nodes}");
    }
}
