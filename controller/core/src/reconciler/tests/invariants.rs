//! What holds whatever happens: many fleets, many lives, one set of promises checked after every step.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_proto::condition::ConditionStatus::{False, True, Unknown};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::fixtures::simulator::{Simulator, scenario_policy};
use crate::fixtures::{for_unreachable, pod};
use crate::node_lifecycle::zone_state::ZoneState::{self, FullDisruption, Normal, PartialDisruption};
use crate::node_lifecycle::zone_state::assess;
use crate::policy::Policy;
use crate::trace_event::TraceEvent;

/// Zones by their first letter and their size: y stops when much of it is lost, z is large enough to go on slowly.
const ZONES: [(&str, usize); 3] = [("x", 3), ("y", 5), ("z", 8)];
const NODES: usize = 16;

fn policy(hold: u64) -> Policy {
    Policy { hold: Duration::from_secs(hold), large_zone_size: 6, ..scenario_policy() }
}

fn name(node: usize) -> String {
    let names = ZONES.iter().flat_map(|(zone, size)| (0..*size).map(move |i| format!("{zone}{i}")));
    names.into_iter().nth(node).expect("a node of the fleet")
}

/// One thing that happens to a fleet.
#[derive(Clone, Debug)]
enum Happening {
    Kill(usize),
    /// So many nodes of a zone die at once.
    Outage(usize, usize),
    Revive(usize),
    SaysNotReady(usize),
    Wait(u64),
    TaintTakenOff(usize),
    Restart,
    StoreLost,
    StoreFound,
    WritesFail,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => (0..NODES).prop_map(Happening::Kill),
        2 => (0..ZONES.len(), 2..8usize).prop_map(|(zone, nodes)| Happening::Outage(zone, nodes)),
        3 => (0..NODES).prop_map(Happening::Revive),
        1 => (0..NODES).prop_map(Happening::SaysNotReady),
        6 => (1..120_000u64).prop_map(Happening::Wait),
        1 => (0..NODES).prop_map(Happening::TaintTakenOff),
        1 => Just(Happening::Restart),
        1 => Just(Happening::StoreLost),
        2 => Just(Happening::StoreFound),
        1 => Just(Happening::WritesFail),
    ]
}

fn life(hold: u64, happenings: &[Happening]) -> Simulator {
    let mut sim = Simulator::with(policy(hold));
    sim.check_evictions = true;
    for node in 0..NODES {
        sim.add_ready_node(&name(node), &name(node)[..1]);
        let toleration = for_unreachable([0, 30, 300][node % 3]);
        sim.put_pod(pod(&format!("on-{}", name(node))).on(&name(node)).running(True).tolerates(toleration));
    }
    sim.start();
    let mut lost = false;
    for happening in happenings {
        match happening {
            Happening::Kill(node) => sim.stop_agent(&name(*node)),
            Happening::Outage(zone, nodes) => {
                let (zone, size) = ZONES[*zone];
                for i in 0..size.min(*nodes) {
                    sim.stop_agent(&format!("{zone}{i}"));
                }
            }
            Happening::Revive(node) => sim.start_agent(&name(*node)),
            Happening::SaysNotReady(node) => {
                sim.edit_agent(&name(*node), |agent| agent.ready = False);
                sim.post_status(&name(*node), False);
            }
            Happening::Wait(millis) => {
                let end = sim.seconds() + *millis as f64 / 1000.0;
                sim.run_until(end);
            }
            Happening::TaintTakenOff(node) => sim.edit_node(&name(*node), |node| node.spec.taints.clear()),
            Happening::Restart if !lost => drop(sim.restart()),
            Happening::StoreLost if !lost => {
                sim.disconnect();
                lost = true;
            }
            Happening::StoreFound if lost => {
                sim.reconnect();
                lost = false;
            }
            Happening::WritesFail => sim.fail_actions("its record", 2),
            Happening::Restart | Happening::StoreLost | Happening::StoreFound => {}
        }
        assert_zones_are_as_their_nodes(&sim);
    }
    sim
}

/// The counts that are kept as nodes change are those that counting gives.
fn assert_zones_are_as_their_nodes(sim: &Simulator) {
    let Some(controllers) = sim.reconciler.controllers() else { return };
    for zone in controllers.node_lifecycle.zone_reports() {
        let members =
            sim.reconciler.world().nodes().filter(|node| node.meta.name.as_str().starts_with(&zone.key.zone));
        let (mut nodes, mut unhealthy) = (0, 0);
        for node in members {
            nodes += 1;
            unhealthy +=
                usize::from(!node.is_ready() || controllers.node_lifecycle.is_silent(&node.meta.name));
        }
        assert_eq!((zone.nodes, zone.unhealthy), (nodes, unhealthy), "{}", zone.key);
    }
}

/// A zone's bucket by the specification's own words: what it holds, and what a change of rate leaves of it.
struct Bucket {
    rate: f64,
    /// When it holds a token; `None` means never.
    token_at: Option<u64>,
}

impl Bucket {
    fn interval(&self) -> Option<u64> {
        (self.rate > 0.0).then(|| (1000.0 / self.rate) as u64)
    }

    fn set_rate(&mut self, rate: f64, now: u64) {
        if rate != self.rate {
            let had_token = self.token_at.is_some_and(|at| at <= now);
            self.rate = rate;
            self.token_at = self.interval().map(|interval| if had_token { now } else { now + interval });
        }
    }

    fn take(&mut self, now: u64) -> bool {
        let had_token = self.token_at.is_some_and(|at| at <= now);
        self.token_at = self.interval().map(|interval| now + interval);
        had_token
    }
}

/// Holds every token that a zone gave against its bucket; says at which rates there were any, in nodes per 1000 s.
fn check_tokens(sim: &Simulator, zone: &str) -> BTreeSet<u32> {
    let taken = sim.trace_events.iter().filter_map(|(at, note)| match note {
        TraceEvent::TokenTaken { node, zone: from } if from.zone == zone => Some((*at, node)),
        _ => None,
    });
    let mut taken = taken.peekable();
    let mut bucket = Bucket { rate: 0.1, token_at: Some(0) };
    let mut rates = BTreeSet::new();
    for (now, census) in &sim.passes {
        let counts: Vec<_> = census.iter().map(|(_, nodes, lost)| (nodes - lost, *lost, 0)).collect();
        let place = census.iter().position(|(name, ..)| name == zone).expect("no zone is forgotten");
        bucket.set_rate(oracle(&counts, sim.reconciler.policy().large_zone_size)[place].1, *now);
        while let Some((_, node)) = taken.next_if(|(at, _)| at == now) {
            rates.insert((bucket.rate * 1000.0) as u32);
            assert!(bucket.take(*now), "{node} is given up at {now} ms, when {zone} has no token");
        }
    }
    assert_eq!(taken.next(), None, "tokens are given in passes only");
    rates
}

/// Whoever was given up took a token for it; a swap of one illness for another needs none.
fn check_taints(sim: &Simulator) {
    let swaps: Vec<_> = [("-unreachable:NE", "+not-ready:NE"), ("-not-ready:NE", "+unreachable:NE")]
        .iter()
        .flat_map(|(off, on)| {
            let off = sim.when(off);
            sim.when(on).into_iter().filter(move |taint| off.contains(taint))
        })
        .collect();
    let mut given_up: BTreeMap<String, usize> = BTreeMap::new();
    for (at, name) in sim.tainted_noexecute().into_iter().filter(|taint| !swaps.contains(taint)) {
        let is_its_token = |(taken, note): &&(u64, TraceEvent)| {
            matches!(note, TraceEvent::TokenTaken { node, .. } if node.as_str() == name)
                && *taken as f64 / 1000.0 <= at
        };
        let tokens = sim.trace_events.iter().filter(is_its_token).count();
        let times = given_up.entry(name.clone()).or_default();
        *times += 1;
        assert!(*times <= tokens, "{name} is given up at {at} without a token");
    }
}

/// In no zone are more nodes given up than its rate allows, whatever happens in between.
#[test]
fn no_zone_is_given_up_faster_than_its_rate() {
    let config = ProptestConfig { source_file: Some(file!()), ..ProptestConfig::with_cases(192) };
    let (rates, states) = (RefCell::new(BTreeSet::new()), RefCell::new(BTreeSet::new()));
    let check = |happenings: Vec<Happening>| {
        // Each start has buckets of its own.
        let without_restarts: Vec<_> =
            happenings.into_iter().filter(|one| !matches!(one, Happening::Restart)).collect();
        let sim = life(0, &without_restarts);
        check_taints(&sim);
        for (zone, _) in ZONES {
            rates.borrow_mut().extend(check_tokens(&sim, zone));
        }
        for (_, census) in &sim.passes {
            let lost = census.iter().map(|(zone, nodes, lost)| (zone.clone(), assess(*nodes, *lost, 0.55)));
            states.borrow_mut().extend(lost);
        }
        Ok(())
    };
    TestRunner::new(config).run(&prop::collection::vec(happening(), 1..40), check).unwrap();
    assert_eq!(rates.into_inner(), [10, 100].into(), "both rates were put to the test");
    let partial: Vec<String> = states
        .into_inner()
        .into_iter()
        .filter(|(_, state)| *state == PartialDisruption)
        .map(|(zone, _)| zone)
        .collect();
    assert_eq!(partial, ["y", "z"], "and so were a small and a large zone of which much is lost");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Nobody is driven off while every zone is lost, nor before the fleet was heard for a whole grace, nor while the
    /// store is not heard; the sim looks at each eviction.
    #[test]
    fn nobody_is_evicted_in_full_disruption_or_during_a_hold(
        hold in 0..100u64,
        happenings in prop::collection::vec(happening(), 1..40),
    ) {
        life(hold, &happenings);
    }

    /// After everything, when all is well again for long enough, nothing is left of it.
    #[test]
    fn a_fleet_that_recovers_is_as_if_nothing_had_happened(happenings in prop::collection::vec(happening(), 1..40)) {
        let mut sim = life(50, &happenings);
        sim.reconnect();
        for node in 0..NODES {
            sim.start_agent(&name(node));
        }
        let end = sim.seconds() + 120.0;
        sim.run_until(end);
        for node in 0..NODES {
            prop_assert_eq!(sim.ready(&name(node)), True);
            prop_assert_eq!(sim.taints(&name(node)), "");
        }
        for zone in sim.controllers().node_lifecycle.zone_reports() {
            prop_assert_eq!((zone.state, zone.unhealthy, zone.queue_length), (Normal, 0, 0));
        }
        prop_assert_eq!(sim.controllers().taint_evictions.count(), 0);
    }
}

/// Every fleet of up to three zones of up to six nodes, each node True, False or Unknown: the states of all zones and
/// whether anybody may be given up, by the decision tables of the specification written out once more.
#[test]
fn every_small_fleet_is_assessed_as_the_tables_say() {
    // What a zone is depends on how many of its nodes are in each state, not on which: 83 zones stand for all.
    let mut zones = Vec::new();
    for size in 1..=6usize {
        for ready in 0..=size {
            for not_ready in 0..=size - ready {
                zones.push((ready, not_ready, size - ready - not_ready));
            }
        }
    }
    let mut fleets = 0;
    for first in 0..zones.len() {
        assert_as_told(&[zones[first]]);
        for second in first..zones.len() {
            assert_as_told(&[zones[first], zones[second]]);
            for third in second..zones.len() {
                assert_as_told(&[zones[first], zones[second], zones[third]]);
                fleets += 1;
            }
        }
    }
    assert_eq!(zones.len(), 83);
    assert_eq!(fleets, 98_770);
}

/// The specification's own words: states by the first test that holds, rates by state and size, nothing if all are
/// Full.
fn oracle(zones: &[(usize, usize, usize)], large: usize) -> Vec<(ZoneState, f64)> {
    let state = |&(ready, not_ready, unknown): &(usize, usize, usize)| {
        let bad = not_ready + unknown;
        let tenths_of_a_percent = bad * 1000 / (bad + ready);
        match (ready, bad) {
            (0, 1..) => FullDisruption,
            (_, 3..) if tenths_of_a_percent >= 550 => PartialDisruption,
            _ => Normal,
        }
    };
    let states: Vec<ZoneState> = zones.iter().map(state).collect();
    let all_lost = states.iter().all(|state| *state == FullDisruption);
    let rate = |state: ZoneState, (ready, not_ready, unknown): (usize, usize, usize)| match state {
        _ if all_lost => 0.0,
        PartialDisruption if ready + not_ready + unknown > large => 0.01,
        PartialDisruption => 0.0,
        _ => 0.1,
    };
    states.into_iter().zip(zones).map(|(state, zone)| (state, rate(state, *zone))).collect()
}

fn assert_as_told(fleet: &[(usize, usize, usize)]) {
    use crate::fixtures::{at, node};
    use crate::node_lifecycle::noexecute_taints::NoExecuteTaints;
    use crate::node_lifecycle::zones::Zones;
    use crate::world::Change;

    let (policy, now) = (scenario_policy(), at(0));
    let (mut zones, mut taints) = (Zones::new(), NoExecuteTaints::new());
    for (number, &(ready, not_ready, unknown)) in fleet.iter().enumerate() {
        let states = [(True, ready), (False, not_ready), (Unknown, unknown)];
        for (i, status) in states.iter().flat_map(|&(status, count)| vec![status; count]).enumerate() {
            let sample = node(&format!("n{number}-{i}")).zone(&number.to_string()).ready(status).build();
            let change = Change { old: None, new: Some(sample.into()) };
            zones.observe(&change);
            taints.observe(&change, &zones, &policy, now);
        }
    }
    let assessment = zones.assess(policy.unhealthy_zone_threshold);
    taints.pass(&zones, &assessment, &policy, now.mono, false, &mut Vec::new());
    let rate = |key| taints.queue(key).unwrap().bucket.rate();
    let found: Vec<(ZoneState, f64)> = zones.iter().map(|(key, zone)| (zone.state, rate(key))).collect();
    let expected = oracle(fleet, policy.large_zone_size);
    assert_eq!(found, expected, "{fleet:?} as (ready, not ready, unknown)");
    // Of each zone that has somebody to give up and may, one is given up in the first pass.
    let tainted = taints.take_changed().len();
    let may = fleet
        .iter()
        .zip(&expected)
        .filter(|((_, not_ready, unknown), (_, rate))| not_ready + unknown > 0 && *rate > 0.0);
    assert_eq!(tainted, may.count(), "{fleet:?}");
}
