//! What holds whatever happens: many fleets, many lives, one set of promises checked after every step.

use std::time::Duration;

use muster_proto::condition::ConditionStatus::{False, True, Unknown};
use proptest::prelude::*;

use super::stage::{Stage, scenario_policy};
use crate::policy::Policy;
use crate::samples::{for_unreachable, pod};
use crate::zone::ZoneState::{self, FullDisruption, Normal, PartialDisruption};

/// One thing that happens to a fleet of nine nodes in three zones.
#[derive(Clone, Debug)]
enum Happening {
    Kill(usize),
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
        4 => (0..9usize).prop_map(Happening::Kill),
        3 => (0..9usize).prop_map(Happening::Revive),
        1 => (0..9usize).prop_map(Happening::SaysNotReady),
        6 => (1..120_000u64).prop_map(Happening::Wait),
        1 => (0..9usize).prop_map(Happening::TaintTakenOff),
        1 => Just(Happening::Restart),
        1 => Just(Happening::StoreLost),
        2 => Just(Happening::StoreFound),
        1 => Just(Happening::WritesFail),
    ]
}

fn name(node: usize) -> String {
    format!("{}{}", ["x", "y", "z"][node / 3], node % 3)
}

fn life(hold: u64, happenings: &[Happening]) -> Stage {
    let policy = Policy { hold: Duration::from_secs(hold), ..scenario_policy() };
    let mut stage = Stage::with(policy);
    stage.sure_of_itself = true;
    for node in 0..9 {
        stage.living(&name(node), &name(node)[..1]);
        let toleration = for_unreachable([0, 30, 300][node % 3]);
        stage.put_pod(pod(&format!("on-{}", name(node))).on(&name(node)).running(True).tolerates(toleration));
    }
    stage.start();
    let mut lost = false;
    for happening in happenings {
        match happening {
            Happening::Kill(node) => stage.kill(&name(*node)),
            Happening::Revive(node) => stage.revive(&name(*node)),
            Happening::SaysNotReady(node) => {
                stage.agent(&name(*node), |agent| agent.ready = False);
                stage.post(&name(*node), False);
            }
            Happening::Wait(millis) => {
                let end = stage.seconds() + *millis as f64 / 1000.0;
                stage.run_until(end);
            }
            Happening::TaintTakenOff(node) => stage.edit_node(&name(*node), |node| node.spec.taints.clear()),
            Happening::Restart if !lost => drop(stage.restart()),
            Happening::StoreLost if !lost => {
                stage.lose_the_store();
                lost = true;
            }
            Happening::StoreFound if lost => {
                stage.find_the_store();
                lost = false;
            }
            Happening::WritesFail => stage.fail("its record", 2),
            Happening::Restart | Happening::StoreLost | Happening::StoreFound => {}
        }
        assert_zones_are_as_their_nodes(&stage);
    }
    stage
}

/// The counts that are kept as nodes change are those that counting gives.
fn assert_zones_are_as_their_nodes(stage: &Stage) {
    let Some(rooms) = stage.core.rooms() else { return };
    for zone in rooms.zones.reports() {
        let members =
            stage.core.world().nodes().filter(|node| node.meta.name.as_str().starts_with(&zone.key.zone));
        let (mut nodes, mut unhealthy) = (0, 0);
        for node in members {
            nodes += 1;
            unhealthy += usize::from(!node.is_ready() || rooms.health.is_silent(&node.meta.name));
        }
        assert_eq!((zone.nodes, zone.unhealthy), (nodes, unhealthy), "{}", zone.key);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// In each zone at most one node per ten seconds is given up, whatever happens in between.
    #[test]
    fn no_zone_is_given_up_faster_than_its_rate(happenings in prop::collection::vec(happening(), 1..40)) {
        let without_restarts: Vec<_> =
            happenings.into_iter().filter(|one| !matches!(one, Happening::Restart)).collect();
        let stage = life(0, &without_restarts);
        for zone in ["x", "y", "z"] {
            // A swap of one illness for another needs no token.
            let swaps: Vec<_> = [("-unreachable:NE", "+not-ready:NE"), ("-not-ready:NE", "+unreachable:NE")]
                .iter()
                .flat_map(|(off, on)| {
                    let off = stage.when(off);
                    stage.when(on).into_iter().filter(move |taint| off.contains(taint))
                })
                .collect();
            let mut given_up = stage.given_up();
            given_up.retain(|taint| taint.1.starts_with(zone) && !swaps.contains(taint));
            for pair in given_up.windows(2) {
                // A pass that was late and a write that failed land late, by less than that.
                prop_assert!(pair[1].0 - pair[0].0 > 10.0 - 2.0, "{given_up:?}");
            }
        }
    }

    /// Nobody is driven off while every zone is lost, nor before the fleet was heard for a whole grace, nor while the
    /// store is not heard; the stage looks at each eviction.
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
        let mut stage = life(50, &happenings);
        stage.find_the_store();
        for node in 0..9 {
            stage.revive(&name(node));
        }
        let end = stage.seconds() + 120.0;
        stage.run_until(end);
        for node in 0..9 {
            prop_assert_eq!(stage.ready(&name(node)), True);
            prop_assert_eq!(stage.taints(&name(node)), "");
        }
        for zone in stage.rooms().zones.reports() {
            prop_assert_eq!((zone.state, zone.unhealthy, zone.queue_length), (Normal, 0, 0));
        }
        prop_assert_eq!(stage.rooms().evictions.count(), 0);
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

/// The specification's own words: states by the first test that holds, rates by state, nothing if all are Full.
fn oracle(zones: &[(usize, usize, usize)]) -> Vec<(ZoneState, f64)> {
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
    let rate = |state: ZoneState| match state {
        _ if all_lost => 0.0,
        PartialDisruption => 0.0,
        _ => 0.1,
    };
    states.into_iter().map(|state| (state, rate(state))).collect()
}

fn assert_as_told(fleet: &[(usize, usize, usize)]) {
    use crate::samples::{at, node};
    use crate::world::Change;
    use crate::zones::Zones;

    let (policy, now) = (scenario_policy(), at(0));
    let mut zones = Zones::new();
    for (number, &(ready, not_ready, unknown)) in fleet.iter().enumerate() {
        let states = [(True, ready), (False, not_ready), (Unknown, unknown)];
        for (i, status) in states.iter().flat_map(|&(status, count)| vec![status; count]).enumerate() {
            let sample = node(&format!("n{number}-{i}")).zone(&number.to_string()).ready(status).build();
            zones.observe(&Change { old: None, new: Some(sample.into()) }, &policy, now);
        }
    }
    zones.pass(&policy, now.mono, false, &mut Vec::new());
    let found: Vec<(ZoneState, f64)> = zones.reports().map(|zone| (zone.state, zone.rate)).collect();
    let expected = oracle(fleet);
    assert_eq!(found, expected, "{fleet:?} as (ready, not ready, unknown)");
    // Of each zone that has somebody to give up and may, one is given up in the first pass.
    let given_up = zones.take_touched().len();
    let may = fleet
        .iter()
        .zip(&expected)
        .filter(|((_, not_ready, unknown), (_, rate))| not_ready + unknown > 0 && *rate > 0.0);
    assert_eq!(given_up, may.count(), "{fleet:?}");
}
