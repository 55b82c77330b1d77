//! The order that is kept comes to the same choice as a look at every node.

use std::sync::Arc;

use muster_proto::taint::{TaintEffect, Toleration};
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::fixtures::{node, pod, wish};
use crate::scheduler::pod_requirements::Claim;

/// Pods that ask for different things, so that each filter and each score counts for one of them.
fn demands() -> Vec<Arc<Demand>> {
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
    samples.into_iter().map(|sample| Arc::new(Demand::of(&sample.build().spec))).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Node {
        name: usize,
        cpu: u8,
        memory: u8,
        pods: u8,
        looks: u8,
    },
    Remove(usize),
    Take(usize, Index),
    GiveBack(Index),
    /// A pod of that kind gets a node, if there is one.
    Place(Index),
    Ask(Index),
}

fn any_step() -> impl Strategy<Value = Step> {
    let name = 0..4usize;
    prop_oneof![
        4 => (name.clone(), 0..6u8, 0..6u8, 0..4u8, any::<u8>())
            .prop_map(|(name, cpu, memory, pods, looks)| Step::Node { name, cpu, memory, pods, looks }),
        3 => name.clone().prop_map(Step::Remove),
        2 => (name, any::<Index>()).prop_map(|(name, kind)| Step::Take(name, kind)),
        2 => any::<Index>().prop_map(Step::GiveBack),
        6 => any::<Index>().prop_map(Step::Place),
        3 => any::<Index>().prop_map(Step::Ask),
    ]
}

/// A node whose labels, taints and cordon are spelled by the bits of `looks`.
fn sample(name: usize, cpu: u8, memory: u8, pods: u8, looks: u8) -> Arc<muster_proto::node::Node> {
    let mut sample = node(&format!("n{name}"))
        .allocatable(&format!("cpu={cpu} memory={memory}Gi pods={pods} a/b={}", looks & 1));
    for (bit, change) in
        [(2, "soft=x:PreferNoSchedule"), (4, "soft=y:PreferNoSchedule"), (8, "hard:NoSchedule")]
    {
        if looks & bit == bit {
            sample = sample.taint(change);
        }
    }
    if looks & 16 == 16 {
        sample = sample.label("zone", "a");
    }
    if looks & 32 == 32 {
        sample = sample.label("disk", "ssd");
    }
    if looks & 192 == 192 {
        sample = sample.cordoned();
    }
    Arc::new(sample.build())
}

fn node_name(name: usize) -> Name {
    format!("n{name}").parse().unwrap()
}

/// Asks both ways.
fn agreed(fleet: &Fleet, rankings: &mut Rankings, demand: &Arc<Demand>) -> Result<Name, Verdict> {
    let kept = rankings.choose(fleet, demand, &mut 0);
    assert_eq!(kept, fleet.choose_of_all(demand, &mut 0), "{demand:?}");
    kept
}

proptest! {
    #[test]
    fn the_kept_order_chooses_as_a_look_at_every_node_would(steps in prop::collection::vec(any_step(), 1..120)) {
        let demands = demands();
        let (mut fleet, mut rankings, mut taken) = (Fleet::default(), Rankings::default(), Vec::new());
        for step in steps {
            match step {
                Step::Node { name, cpu, memory, pods, looks } => {
                    fleet.set_node(&sample(name, cpu, memory, pods, looks));
                }
                Step::Remove(name) => fleet.remove_node(&node_name(name)),
                Step::Take(name, kind) => {
                    let (name, claim) = (node_name(name), demands[kind.index(demands.len())].claim.clone());
                    fleet.take(&name, &claim);
                    taken.push((name, claim));
                }
                Step::GiveBack(which) if !taken.is_empty() => {
                    let (name, claim) = taken.swap_remove(which.index(taken.len()));
                    fleet.give_back(&name, &claim);
                }
                Step::GiveBack(_) => {}
                Step::Place(kind) => {
                    let demand = &demands[kind.index(demands.len())];
                    if let Ok(name) = agreed(&fleet, &mut rankings, demand) {
                        fleet.take(&name, &demand.claim);
                        taken.push((name, demand.claim.clone()));
                    }
                }
                Step::Ask(kind) => drop(agreed(&fleet, &mut rankings, &demands[kind.index(demands.len())])),
            }
        }
        for demand in &demands {
            let _ = agreed(&fleet, &mut rankings, demand);
        }
    }
}

#[test]
fn the_next_of_a_line_costs_a_look_at_what_changed() {
    let (mut fleet, mut rankings) = (Fleet::default(), Rankings::default());
    for i in 0..100 {
        fleet.set_node(&sample(i, 4, 4, 10, 0));
    }
    let demand = Arc::new(Demand::of(&pod("p").requests("cpu=1").build().spec));
    let mut looks = 0;
    for expected in [100, 101, 102] {
        let name = rankings.choose(&fleet, &demand, &mut looks).unwrap();
        assert_eq!(looks, expected);
        fleet.take(&name, &demand.claim);
    }
    // Equal for placement: the same pod of another image, and a node whose health has changed.
    let equal = Arc::new(Demand::of(&pod("q").requests("cpu=1000m").build().spec));
    fleet.set_node(&sample(99, 4, 4, 10, 0));
    rankings.choose(&fleet, &equal, &mut looks).unwrap();
    assert_eq!(looks, 103);
    let other = Claim::of(&pod("r").requests("cpu=3").build().spec);
    (0..10).for_each(|i| fleet.take(&node_name(i), &other));
    rankings.choose(&fleet, &equal, &mut looks).unwrap();
    assert_eq!(looks, 113);
}

#[test]
fn nodes_that_come_back_in_each_others_place_are_told_apart() {
    let (mut fleet, mut rankings) = (Fleet::default(), Rankings::default());
    let demand = Arc::new(Demand::of(&pod("p").requests("cpu=1").build().spec));
    for names in [[0, 1], [1, 0], [0, 1]] {
        for name in names {
            fleet.set_node(&sample(name, 4, 4, 10, 0));
        }
        assert_eq!(agreed(&fleet, &mut rankings, &demand), Ok(node_name(0)));
        for name in names {
            fleet.remove_node(&node_name(name));
        }
    }
    assert!(agreed(&fleet, &mut rankings, &demand).is_err());
}

#[test]
fn so_many_orders_are_kept_and_the_longest_unasked_go_first() {
    let (mut fleet, mut rankings) = (Fleet::default(), Rankings::default());
    fleet.set_node(&sample(0, 4, 4, 10, 0));
    let kind = |cpu: usize| Arc::new(Demand::of(&pod("p").requests(&format!("cpu={cpu}m")).build().spec));
    let first = kind(1);
    let mut looks = 0;
    for cpu in 2..=MOST + 50 {
        let _ = rankings.choose(&fleet, &first, &mut looks);
        let _ = rankings.choose(&fleet, &kind(cpu), &mut looks);
    }
    assert_eq!(rankings.rankings.len(), MOST);
    assert!(rankings.rankings.contains_key(&first), "it was asked for all the time");
    assert!(!rankings.rankings.contains_key(&kind(2)));
}
