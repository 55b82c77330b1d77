use super::*;
use crate::samples::{at, seconds};

pub(crate) fn zone(name: &str, state: pb::ZoneState, rate: f64) -> pb::FleetZone {
    let (region, zone) = name.split_once('/').unwrap();
    pb::FleetZone {
        name: name.to_owned(),
        region: region.to_owned(),
        zone: zone.to_owned(),
        state: state.into(),
        nodes: 334,
        health_percent: 100.0,
        rate,
        ..Default::default()
    }
}

fn full_fleet() -> pb::Fleet {
    let disrupted = pb::FleetZone {
        unhealthy: 200,
        health_percent: 40.12,
        queue: vec!["worker-7".to_owned()],
        queue_length: 199,
        evictions: 1,
        next_taint_at: at("2026-05-04T12:01:40Z"),
        reason: "60% of its nodes are not ready: slowed to the secondary rate".to_owned(),
        ..zone("eu/eu-2", pb::ZoneState::PartialDisruption, 0.01)
    };
    let drain = pb::NodeDrain {
        requested_by: "admin".to_owned(),
        reason: "new fans".to_owned(),
        requested_at: at("2026-05-04T11:30:00Z"),
        ..Default::default()
    };
    pb::Fleet {
        controller: "controller-1".to_owned(),
        leader: "controller-1".to_owned(),
        state: pb::FleetState::Normal.into(),
        reason: "each zone is judged by itself".to_owned(),
        as_of: at("2026-05-04T12:00:00Z"),
        nodes: 1000,
        ready_nodes: 800,
        not_ready_nodes: 10,
        unknown_nodes: 190,
        pods: 30_000,
        pending_pods: 12,
        armed_evictions: 40,
        zones: vec![
            zone("eu/eu-1", pb::ZoneState::Normal, 0.1),
            disrupted,
            zone("eu/eu-3", pb::ZoneState::FullDisruption, 0.0),
        ],
        cidr_pools: vec![pb::CidrPool {
            cidr: "10.0.0.0/8".to_owned(),
            node_mask: 24,
            blocks: 65_536,
            used: 1000,
            reserved: 16,
            waiting: 0,
            conflicts: 1,
        }],
        drains: vec![pb::FleetDrain { node_name: "worker-1".to_owned(), drain: Some(drain), remaining: 3 }],
        cloud: Some(pb::CloudDeletionLimit {
            confirmations: 3,
            limit: 10,
            period: seconds(3600),
            used: 2,
            held_back: 0,
        }),
        ..Default::default()
    }
}

#[test]
fn a_fleet_with_all_fields() {
    let late = Late { nodes: 12, longest: Duration::from_secs(31) };
    insta::assert_snapshot!(fleet(&full_fleet(), Some(&late), Paint::Plain, usize::MAX));
}

#[test]
fn a_fleet_on_80_columns() {
    let shown = fleet(&full_fleet(), None, Paint::Plain, 80);
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    insta::assert_snapshot!(shown);
}

#[test]
fn leases_are_late_between_half_of_their_time_and_its_end() {
    let now = crate::samples::now();
    let lease = |silence: i64| {
        let mut lease = crate::samples::lease();
        lease.spec.lease_duration_seconds = Some(40);
        lease.spec.renew_time = Some(now - jiff::SignedDuration::from_secs(silence));
        lease
    };
    let leases = [-5, 0, 20, 21, 40, 41].map(lease);
    assert_eq!(Late::of(leases.iter(), now), Late { nodes: 2, longest: Duration::from_secs(40) });
}

#[test]
fn a_queue_has_an_eta_unless_it_does_not_move() {
    let zone = |queue_length, rate| pb::FleetZone { queue_length, rate, ..Default::default() };
    for (queue, rate, expected) in [(398, 0.4, "16m"), (0, 0.4, "-"), (3, 0.0, "never"), (1, 0.01, "100s")] {
        assert_eq!(queue_eta(&zone(queue, rate)), expected);
    }
}

#[test]
fn an_eviction_hold_is_shown_with_its_reason() {
    let held = pb::Fleet {
        controller: "controller-2".to_owned(),
        leader: "controller-1".to_owned(),
        state: pb::FleetState::Holding.into(),
        hold: Some(pb::EvictionHold {
            until: at("2026-05-04T12:00:30Z"),
            remaining: seconds(30),
            seen_nodes: 3,
            nodes: 1000,
            reason: "the controller has just started".to_owned(),
            cause: pb::HoldCause::Start.into(),
        }),
        cidr_failure: "worker-9 holds 172.16.0.0/24, which is in no pool".to_owned(),
        ..Default::default()
    };
    insta::assert_snapshot!(fleet(&held, None, Paint::Plain, usize::MAX));
}

#[test]
fn a_zone_is_healthy_to_the_full_only_if_all_of_its_nodes_are_ready() {
    for (nodes, unhealthy, expected) in [(400, 0, " 400/400 "), (400, 1, " 399/400 "), (3, 3, " 0/3 ")] {
        let zone = pb::FleetZone { nodes, unhealthy, ..zone("eu/eu-1", pb::ZoneState::Normal, 0.1) };
        let table = zones(&[zone], None, Paint::Plain, usize::MAX);
        assert!(table.contains(expected), "{table}");
    }
}

#[test]
fn nodes_that_do_not_count_are_named_beside_the_others() {
    let zone = pb::FleetZone { nodes: 3, excluded: 1, ..zone("eu/eu-1", pb::ZoneState::Normal, 0.1) };
    let table = zones(&[zone], None, Paint::Plain, usize::MAX);
    assert!(table.contains("3/3 (+1 excluded)"), "{table}");
}

#[test]
fn a_zone_without_a_queue_has_no_next_node() {
    let now = crate::samples::now();
    let next = Some(prost_types::Timestamp { seconds: now.as_second() + 5, nanos: 0 });
    for (queue_length, is_shown) in [(0, false), (3, true)] {
        let zone = pb::FleetZone {
            queue_length,
            next_taint_at: next,
            ..zone("eu/eu-1", pb::ZoneState::Normal, 0.1)
        };
        let table = zones(&[zone], Some(now), Paint::Plain, usize::MAX);
        assert_eq!(table.contains("in 5s"), is_shown, "{table}");
    }
}
