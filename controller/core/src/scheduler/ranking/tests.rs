//! A kept ranking gives the same choice as examining every node.

use std::sync::Arc;

use muster_proto::taint::{TaintEffect, Toleration};
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::fixtures::{node, pod, wish};
use crate::scheduler::pod_requirements::PodRequest;

/// Pods with different requirements, so that each filter and each score matters for one of them.
fn kinds() -> Vec<Arc<PodRequirements>> {
    let tolerant = Toleration::exists("soft", TaintEffect::PreferNoSchedule);
    let bold = Toleration::exists("hard", TaintEffect::NoSchedule);
    let uncordoned = Toleration::exists("node.kubernetes.io/unschedulable", TaintEffect::NoSchedule);
    let samples = [
        pod("p"),
        pod("p").requests("cpu=1"),
        pod("p").requests("cpu=2 memory=1Gi").prefers(3, wish("zone In a")).prefers(2, wish("disk Exists")),
        pod("p").requests("cpu=1 a/b=1").tolerates(tolerant),
        pod("p").requests("memory=2Gi").requires(&[&[wish("zone In a")]]).tolerates(bold),
        pod("p").requests("cpu=1").port(80).tolerates(uncordoned),
        pod("p").requires(&[&[wish("metadata.name In n1,n2")]]),
    ];
    samples.into_iter().map(|sample| Arc::new(PodRequirements::of(&sample.build().spec))).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Node {
        name: usize,
        cpu: u8,
        memory: u8,
        pods: u8,
        flags: u8,
    },
    Remove(usize),
    Allocate(usize, Index),
    Release(Index),
    /// A pod of that kind is allocated on its best node, if there is one.
    Assign(Index),
    Choose(Index),
}

fn any_step() -> impl Strategy<Value = Step> {
    let name = 0..4usize;
    prop_oneof![
        4 => (name.clone(), 0..6u8, 0..6u8, 0..4u8, any::<u8>())
            .prop_map(|(name, cpu, memory, pods, flags)| Step::Node { name, cpu, memory, pods, flags }),
        3 => name.clone().prop_map(Step::Remove),
        2 => (name, any::<Index>()).prop_map(|(name, kind)| Step::Allocate(name, kind)),
        2 => any::<Index>().prop_map(Step::Release),
        6 => any::<Index>().prop_map(Step::Assign),
        3 => any::<Index>().prop_map(Step::Choose),
    ]
}

/// A node whose labels, taints and cordon follow from the bits of `flags`.
fn sample(name: usize, cpu: u8, memory: u8, pods: u8, flags: u8) -> Arc<muster_proto::node::Node> {
    let mut sample = node(&format!("n{name}"))
        .allocatable(&format!("cpu={cpu} memory={memory}Gi pods={pods} a/b={}", flags & 1));
    for (bit, change) in
        [(2, "soft=x:PreferNoSchedule"), (4, "soft=y:PreferNoSchedule"), (8, "hard:NoSchedule")]
    {
        if flags & bit == bit {
            sample = sample.taint(change);
        }
    }
    if flags & 16 == 16 {
        sample = sample.label("zone", "a");
    }
    if flags & 32 == 32 {
        sample = sample.label("disk", "ssd");
    }
    if flags & 192 == 192 {
        sample = sample.cordoned();
    }
    Arc::new(sample.build())
}

fn node_name(name: usize) -> Name {
    format!("n{name}").parse().unwrap()
}

/// Chooses in both ways.
fn agreed(
    cache: &NodeCache,
    rankings: &mut Rankings,
    requirements: &Arc<PodRequirements>,
) -> Result<Name, FitError> {
    let kept = rankings.choose(cache, requirements, &mut 0);
    assert_eq!(kept, cache.choose_among_all(requirements, &mut 0), "{requirements:?}");
    kept
}

proptest! {
    #[test]
    fn a_kept_ranking_chooses_like_an_examination_of_every_node(steps in prop::collection::vec(any_step(), 1..120)) {
        let kinds = kinds();
        let (mut cache, mut rankings, mut allocated) = (NodeCache::default(), Rankings::default(), Vec::new());
        for step in steps {
            match step {
                Step::Node { name, cpu, memory, pods, flags } => {
                    cache.set_node(&sample(name, cpu, memory, pods, flags));
                }
                Step::Remove(name) => cache.remove_node(&node_name(name)),
                Step::Allocate(name, kind) => {
                    let (name, request) = (node_name(name), kinds[kind.index(kinds.len())].request.clone());
                    cache.allocate(&name, &request);
                    allocated.push((name, request));
                }
                Step::Release(which) if !allocated.is_empty() => {
                    let (name, request) = allocated.swap_remove(which.index(allocated.len()));
                    cache.release(&name, &request);
                }
                Step::Release(_) => {}
                Step::Assign(kind) => {
                    let requirements = &kinds[kind.index(kinds.len())];
                    if let Ok(name) = agreed(&cache, &mut rankings, requirements) {
                        cache.allocate(&name, &requirements.request);
                        allocated.push((name, requirements.request.clone()));
                    }
                }
                Step::Choose(kind) => drop(agreed(&cache, &mut rankings, &kinds[kind.index(kinds.len())])),
            }
        }
        for requirements in &kinds {
            let _ = agreed(&cache, &mut rankings, requirements);
        }
    }
}

#[test]
fn the_next_pod_of_a_class_examines_only_changed_nodes() {
    let (mut cache, mut rankings) = (NodeCache::default(), Rankings::default());
    for i in 0..100 {
        cache.set_node(&sample(i, 4, 4, 10, 0));
    }
    let requirements = Arc::new(PodRequirements::of(&pod("p").requests("cpu=1").build().spec));
    let mut examined = 0;
    for expected in [100, 101, 102] {
        let name = rankings.choose(&cache, &requirements, &mut examined).unwrap();
        assert_eq!(examined, expected);
        cache.allocate(&name, &requirements.request);
    }
    // Equal for the scheduler: the same pod with another image, and a node whose health has changed.
    let equal = Arc::new(PodRequirements::of(&pod("q").requests("cpu=1000m").build().spec));
    cache.set_node(&sample(99, 4, 4, 10, 0));
    rankings.choose(&cache, &equal, &mut examined).unwrap();
    assert_eq!(examined, 103);
    let other = PodRequest::of(&pod("r").requests("cpu=3").build().spec);
    (0..10).for_each(|i| cache.allocate(&node_name(i), &other));
    rankings.choose(&cache, &equal, &mut examined).unwrap();
    assert_eq!(examined, 113);
}

#[test]
fn nodes_that_come_back_in_each_others_slots_are_distinguished() {
    let (mut cache, mut rankings) = (NodeCache::default(), Rankings::default());
    let requirements = Arc::new(PodRequirements::of(&pod("p").requests("cpu=1").build().spec));
    for names in [[0, 1], [1, 0], [0, 1]] {
        for name in names {
            cache.set_node(&sample(name, 4, 4, 10, 0));
        }
        assert_eq!(agreed(&cache, &mut rankings, &requirements), Ok(node_name(0)));
        for name in names {
            cache.remove_node(&node_name(name));
        }
    }
    assert!(agreed(&cache, &mut rankings, &requirements).is_err());
}

#[test]
fn the_least_recently_used_rankings_are_dropped_first() {
    let (mut cache, mut rankings) = (NodeCache::default(), Rankings::default());
    cache.set_node(&sample(0, 4, 4, 10, 0));
    let kind =
        |cpu: usize| Arc::new(PodRequirements::of(&pod("p").requests(&format!("cpu={cpu}m")).build().spec));
    let first = kind(1);
    let mut examined = 0;
    for cpu in 2..=MAX_RANKINGS + 50 {
        let _ = rankings.choose(&cache, &first, &mut examined);
        let _ = rankings.choose(&cache, &kind(cpu), &mut examined);
    }
    assert_eq!(rankings.rankings.len(), MAX_RANKINGS);
    assert!(rankings.rankings.contains_key(&first), "it was used all the time");
    assert!(!rankings.rankings.contains_key(&kind(2)));
}
