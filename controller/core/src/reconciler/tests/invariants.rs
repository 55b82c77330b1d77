//! Invariants: random sequences of faults on a fleet, with the same conditions checked after every step.

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

/// Zones and their sizes. In partial disruption no node of y is tainted; z is large enough for the secondary rate.
const ZONES: [(&str, usize); 3] = [("x", 3), ("y", 5), ("z", 8)];
const NODES: usize = 16;

fn policy(hold: u64) -> Policy {
    Policy { hold: Duration::from_secs(hold), large_zone_size: 6, ..scenario_policy() }
}

fn name(node: usize) -> String {
    let names = ZONES.iter().flat_map(|(zone, size)| (0..*size).map(move |i| format!("{zone}{i}")));
    names.into_iter().nth(node).expect("a node of the fleet")
}

/// One fault, repair or change.
#[derive(Clone, Debug)]
enum Fault {
    StopAgent(usize),
    /// The agents of that many nodes of a zone stop at once.
    ZoneOutage(usize, usize),
    StartAgent(usize),
    ReportNotReady(usize),
    Wait(u64),
    RemoveTaints(usize),
    RestartController,
    Disconnect,
    Reconnect,
    FailWrites,
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        4 => (0..NODES).prop_map(Fault::StopAgent),
        2 => (0..ZONES.len(), 2..8usize).prop_map(|(zone, nodes)| Fault::ZoneOutage(zone, nodes)),
        3 => (0..NODES).prop_map(Fault::StartAgent),
        1 => (0..NODES).prop_map(Fault::ReportNotReady),
        6 => (1..120_000u64).prop_map(Fault::Wait),
        1 => (0..NODES).prop_map(Fault::RemoveTaints),
        1 => Just(Fault::RestartController),
        1 => Just(Fault::Disconnect),
        2 => Just(Fault::Reconnect),
        1 => Just(Fault::FailWrites),
    ]
}

fn simulate(hold: u64, faults: &[Fault]) -> Simulator {
    let mut sim = Simulator::with(policy(hold));
    sim.check_evictions = true;
    for node in 0..NODES {
        sim.add_ready_node(&name(node), &name(node)[..1]);
        let toleration = for_unreachable([0, 30, 300][node % 3]);
        sim.put_pod(pod(&format!("on-{}", name(node))).on(&name(node)).running(True).tolerates(toleration));
    }
    sim.start();
    let mut disconnected = false;
    for fault in faults {
        match fault {
            Fault::StopAgent(node) => sim.stop_agent(&name(*node)),
            Fault::ZoneOutage(zone, nodes) => {
                let (zone, size) = ZONES[*zone];
                for i in 0..size.min(*nodes) {
                    sim.stop_agent(&format!("{zone}{i}"));
                }
            }
            Fault::StartAgent(node) => sim.start_agent(&name(*node)),
            Fault::ReportNotReady(node) => {
                sim.edit_agent(&name(*node), |agent| agent.ready = False);
                sim.post_status(&name(*node), False);
            }
            Fault::Wait(millis) => {
                let end = sim.seconds() + *millis as f64 / 1000.0;
                sim.run_until(end);
            }
            Fault::RemoveTaints(node) => sim.edit_node(&name(*node), |node| node.spec.taints.clear()),
            Fault::RestartController if !disconnected => drop(sim.restart()),
            Fault::Disconnect if !disconnected => {
                sim.disconnect();
                disconnected = true;
            }
            Fault::Reconnect if disconnected => {
                sim.reconnect();
                disconnected = false;
            }
            Fault::FailWrites => sim.fail_actions("its record", 2),
            Fault::RestartController | Fault::Disconnect | Fault::Reconnect => {}
        }
        assert_zone_counts(&sim);
    }
    sim
}

/// The counts that are updated as nodes change equal a count of all nodes.
fn assert_zone_counts(sim: &Simulator) {
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

/// A second implementation of the token bucket, after the specification.
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

/// Checks every token of a zone against its bucket. Returns the rates at which tokens were taken, in nodes per 1000 s.
fn check_tokens(sim: &Simulator, zone: &str) -> BTreeSet<u32> {
    let taken = sim.trace_events.iter().filter_map(|(at, event)| match event {
        TraceEvent::TokenTaken { node, zone: from, .. } if from.zone == zone => Some((*at, node)),
        _ => None,
    });
    let mut taken = taken.peekable();
    let mut bucket = Bucket { rate: 0.1, token_at: Some(0) };
    let mut rates = BTreeSet::new();
    for (now, counts) in &sim.passes {
        let by_status: Vec<_> = counts.iter().map(|(_, nodes, bad)| (nodes - bad, *bad, 0)).collect();
        let i = counts.iter().position(|(name, ..)| name == zone).expect("no zone is removed");
        bucket.set_rate(expected_zones(&by_status, sim.reconciler.policy().large_zone_size)[i].1, *now);
        while let Some((_, node)) = taken.next_if(|(at, _)| at == now) {
            rates.insert((bucket.rate * 1000.0) as u32);
            assert!(bucket.take(*now), "{node} took a token at {now} ms, when {zone} had none");
        }
    }
    assert_eq!(taken.next(), None, "tokens are taken in passes only");
    rates
}

/// Every node with a NoExecute health taint took a token for it, unless one health taint was swapped for the other.
fn check_taints(sim: &Simulator) {
    let swaps: Vec<_> = [("-unreachable:NE", "+not-ready:NE"), ("-not-ready:NE", "+unreachable:NE")]
        .iter()
        .flat_map(|(off, on)| {
            let off = sim.when(off);
            sim.when(on).into_iter().filter(move |taint| off.contains(taint))
        })
        .collect();
    let mut taints: BTreeMap<String, usize> = BTreeMap::new();
    for (at, name) in sim.tainted_noexecute().into_iter().filter(|taint| !swaps.contains(taint)) {
        let is_its_token = |(taken, event): &&(u64, TraceEvent)| {
            matches!(event, TraceEvent::TokenTaken { node, .. } if node.as_str() == name)
                && *taken as f64 / 1000.0 <= at
        };
        let tokens = sim.trace_events.iter().filter(is_its_token).count();
        let times = taints.entry(name.clone()).or_default();
        *times += 1;
        assert!(*times <= tokens, "{name} is tainted at {at} without a token");
    }
}

#[test]
fn no_zone_is_tainted_faster_than_its_rate() {
    let config = ProptestConfig { source_file: Some(file!()), ..ProptestConfig::with_cases(192) };
    let (rates, states) = (RefCell::new(BTreeSet::new()), RefCell::new(BTreeSet::new()));
    let check = |faults: Vec<Fault>| {
        // A new controller starts with full buckets.
        let without_restarts: Vec<_> =
            faults.into_iter().filter(|one| !matches!(one, Fault::RestartController)).collect();
        let sim = simulate(0, &without_restarts);
        check_taints(&sim);
        for (zone, _) in ZONES {
            rates.borrow_mut().extend(check_tokens(&sim, zone));
        }
        for (_, counts) in &sim.passes {
            let found = counts.iter().map(|(zone, nodes, bad)| (zone.clone(), assess(*nodes, *bad, 0.55)));
            states.borrow_mut().extend(found);
        }
        Ok(())
    };
    TestRunner::new(config).run(&prop::collection::vec(fault(), 1..40), check).unwrap();
    assert_eq!(rates.into_inner(), [10, 100].into(), "both rates were tested");
    let partial: Vec<String> = states
        .into_inner()
        .into_iter()
        .filter(|(_, state)| *state == PartialDisruption)
        .map(|(zone, _)| zone)
        .collect();
    assert_eq!(partial, ["y", "z"], "a small and a large zone in partial disruption were tested");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// The simulator checks each eviction.
    #[test]
    fn no_pod_is_evicted_in_full_disruption_or_during_a_hold(
        hold in 0..100u64,
        faults in prop::collection::vec(fault(), 1..40),
    ) {
        simulate(hold, &faults);
    }

    #[test]
    fn a_fleet_that_recovers_has_no_taints_and_no_pending_evictions(faults in prop::collection::vec(fault(), 1..40)) {
        let mut sim = simulate(50, &faults);
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

/// Every fleet of up to three zones of up to six nodes, each node True, False or Unknown: the state of each zone, its
/// rate, and whether a node is tainted, compared with a second implementation of the specification.
#[test]
fn every_small_fleet_is_assessed_as_specified() {
    // A zone's state depends on how many nodes have each status, not on which: 83 zones stand for all.
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
        assert_as_specified(&[zones[first]]);
        for second in first..zones.len() {
            assert_as_specified(&[zones[first], zones[second]]);
            for third in second..zones.len() {
                assert_as_specified(&[zones[first], zones[second], zones[third]]);
                fleets += 1;
            }
        }
    }
    assert_eq!(zones.len(), 83);
    assert_eq!(fleets, 98_770);
}

/// The state and rate of each zone after the specification: the first condition that holds gives the state, state and
/// size give the rate, and if all zones are in full disruption the rate is 0.
fn expected_zones(zones: &[(usize, usize, usize)], large: usize) -> Vec<(ZoneState, f64)> {
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
    let all_full = states.iter().all(|state| *state == FullDisruption);
    let rate = |state: ZoneState, (ready, not_ready, unknown): (usize, usize, usize)| match state {
        _ if all_full => 0.0,
        PartialDisruption if ready + not_ready + unknown > large => 0.01,
        PartialDisruption => 0.0,
        _ => 0.1,
    };
    states.into_iter().zip(zones).map(|(state, zone)| (state, rate(state, *zone))).collect()
}

fn assert_as_specified(fleet: &[(usize, usize, usize)]) {
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
    let expected = expected_zones(fleet, policy.large_zone_size);
    assert_eq!(found, expected, "{fleet:?} as (ready, not ready, unknown)");
    // In the first pass one node is tainted in each zone that has an unhealthy node and a rate above 0.
    let tainted = taints.take_changed().len();
    let expected = fleet
        .iter()
        .zip(&expected)
        .filter(|((_, not_ready, unknown), (_, rate))| not_ready + unknown > 0 && *rate > 0.0);
    assert_eq!(tainted, expected.count(), "{fleet:?}");
}
