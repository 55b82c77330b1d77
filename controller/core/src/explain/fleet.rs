//! The controller's account of itself: what it sees, why it does what it does, and what it waits for.
//!
//! Everything here is read off the controllers that decide; nothing is kept for it.

use std::time::Duration;

use muster_proto::name::Name;
use muster_proto::pb;

use crate::cloud_nodes::Cloud;
use crate::controllers::Controllers;
use crate::explain::convert::{count, duration, timestamp};
use crate::explain::{Explanation, ExplanationAction, ExplanationState};
use crate::ipam::Ipam;
use crate::node_lifecycle::NodeLifecycle;
use crate::node_lifecycle::eviction_hold::HoldCause;
use crate::node_lifecycle::zone_report::ZoneReport;
use crate::node_lifecycle::zone_state::ZoneState;
use crate::pod_gc::Prospect;
use crate::policy::Policy;
use crate::reconciler::{Phase, Reconciler};
use muster_proto::time::Now;

/// What the controller does with the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FleetState {
    /// Another controller leads.
    Standby,
    /// The watches are not synced with the store: nothing is decided.
    Syncing,
    /// No pod is evicted because of node health until the eviction hold ends.
    Holding,
    Normal,
    /// All nodes of all zones have failed: no node is tainted NoExecute.
    FullDisruption,
}

/// How much of a queue is shown.
const QUEUE_SHOWN: usize = 100;

/// The fleet as the controller sees it. Who leads is for the caller to fill in.
pub fn fleet(reconciler: &Reconciler, now: Now) -> pb::Fleet {
    let world = reconciler.world();
    let counts = world.ready_counts();
    let (state, reason) = stance(reconciler, now);
    let controllers = reconciler.controllers();
    let reports = controllers.into_iter().flat_map(|controllers| {
        controllers.node_lifecycle.zone_reports().map(move |report| (controllers, report))
    });
    pb::Fleet {
        state: pb::FleetState::from(state).into(),
        reason,
        as_of: timestamp(now, now.mono),
        hold: controllers.and_then(|controllers| hold(controllers, world.node_count(), now)),
        nodes: count(world.node_count()),
        ready_nodes: count(counts.ready),
        not_ready_nodes: count(counts.not_ready),
        unknown_nodes: count(counts.unknown),
        pods: count(world.pod_count()),
        pending_pods: controllers.map_or(0, |controllers| count(controllers.scheduler.pending())),
        armed_evictions: controllers.map_or(0, |controllers| count(controllers.taint_evictions.count())),
        cidr_pools: controllers
            .and_then(|controllers| controllers.ipam.as_ref())
            .map_or_else(Vec::new, pools),
        cidr_failure: controllers
            .and_then(|controllers| controllers.ipam.as_ref()?.failure())
            .unwrap_or_default(),
        drains: controllers.map_or_else(Vec::new, |controllers| drains(reconciler, controllers, now)),
        cloud: controllers
            .and_then(|controllers| controllers.cloud_nodes.as_ref())
            .map(|cloud| brake(cloud, now)),
        zones: reports
            .map(|(controllers, report)| zone(controllers, &report, reconciler.policy(), now))
            .collect(),
        ..pb::Fleet::default()
    }
}

fn pools(cidrs: &Ipam) -> Vec<pb::CidrPool> {
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let pools = cidrs.pools().into_iter().map(|pool| pb::CidrPool {
        cidr: pool.cidr.to_string(),
        node_mask: i32::from(pool.node_mask),
        blocks: number(pool.blocks),
        used: number(pool.used),
        reserved: number(pool.reserved),
        waiting: number(pool.waiting),
        conflicts: number(pool.conflicts),
    });
    pools.collect()
}

fn drains(reconciler: &Reconciler, controllers: &Controllers, now: Now) -> Vec<pb::FleetDrain> {
    let drain = |name: &Name| pb::FleetDrain {
        node_name: name.to_string(),
        drain: reconciler
            .world()
            .node(name.as_str())
            .and_then(|node| node.spec.drain.clone())
            .map(Into::into),
        remaining: count(controllers.drains.remaining(reconciler.world(), name.as_str(), now)),
    };
    controllers.drains.under_way().map(drain).collect()
}

fn brake(cloud: &Cloud, now: Now) -> pb::CloudBrake {
    let brake = cloud.brake(now);
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    pb::CloudBrake {
        confirmations: i32::try_from(brake.confirmations).unwrap_or(i32::MAX),
        limit: i32::try_from(brake.limit).unwrap_or(i32::MAX),
        period: Some(duration(brake.period)),
        used: number(brake.used),
        held_back: count(brake.held_back),
    }
}

/// The state of the whole in a word and in a sentence.
fn stance(reconciler: &Reconciler, now: Now) -> (FleetState, String) {
    let Some(controllers) = reconciler.controllers().filter(|_| reconciler.phase() == Phase::Active) else {
        return match reconciler.phase() {
            Phase::Standby => {
                (FleetState::Standby, "This controller does not lead: it only listens.".to_owned())
            }
            Phase::Syncing => {
                let reason =
                    "The store is not heard, so nobody is judged; afterwards every node has a new grace.";
                (FleetState::Syncing, reason.to_owned())
            }
            Phase::Active => (FleetState::Holding, "The controller has only just begun.".to_owned()),
        };
    };
    if controllers.node_lifecycle.zones.is_full_disruption() {
        (FleetState::FullDisruption, full_disruption(&controllers.node_lifecycle))
    } else if now.mono < controllers.node_lifecycle.hold.until {
        (FleetState::Holding, hold_reason(controllers, reconciler.world().node_count(), now))
    } else {
        (FleetState::Normal, "Silent nodes are given up at the rate of their zone.".to_owned())
    }
}

/// Why a controller does not act, going by whom the lease names. Whether that one is still alive nobody can tell before
/// the lease has run out.
pub fn standby(controller: &str, leader: &str) -> String {
    match leader {
        "" => "Nobody holds the lease: this controller only listens until it has taken it.".to_owned(),
        own if own == controller => {
            "This controller's own term is over: it only listens until it has taken the lease \
                                     anew."
                .to_owned()
        }
        other => {
            format!(
                "{other} holds the lease: this controller only listens, and takes the lease when it runs out."
            )
        }
    }
}

pub(crate) fn full_disruption(node_lifecycle: &NodeLifecycle) -> String {
    let down = node_lifecycle.zone_reports().filter(|zone| zone.nodes > 0).count();
    format!(
        "All zones that count ({down}) have lost all their nodes: more likely the controller is cut off than the whole \
         fleet is dead, so nobody is evicted until a node anywhere is Ready."
    )
}

fn hold(controllers: &Controllers, nodes: usize, now: Now) -> Option<pb::EvictionHold> {
    let until = controllers.node_lifecycle.hold.until;
    (now.mono < until).then(|| pb::EvictionHold {
        until: timestamp(now, until),
        remaining: Some(duration(until - now.mono)),
        heard: count(controllers.node_lifecycle.liveness.seen()),
        nodes: count(nodes),
        reason: hold_reason(controllers, nodes, now),
        cause: pb::HoldCause::from(controllers.node_lifecycle.hold.cause).into(),
    })
}

pub(crate) fn hold_reason(controllers: &Controllers, nodes: usize, now: Now) -> String {
    let why = match controllers.node_lifecycle.hold.cause {
        HoldCause::Start => "The controller began to listen",
        HoldCause::Interruption => "The store was not heard for a while and is heard again since",
    };
    format!(
        "{why} {} ago: nobody is evicted before the fleet was heard for {}, which is in {}. {} of {nodes} nodes were \
         heard so far.",
        words(now.mono - controllers.node_lifecycle.hold.since),
        words(controllers.node_lifecycle.hold.until - controllers.node_lifecycle.hold.since),
        words(controllers.node_lifecycle.hold.until - now.mono),
        controllers.node_lifecycle.liveness.seen(),
    )
}

pub(super) fn zone(
    controllers: &Controllers,
    report: &ZoneReport,
    policy: &Policy,
    now: Now,
) -> pb::FleetZone {
    let node_lifecycle = &controllers.node_lifecycle;
    let healthy = report.nodes - report.unhealthy;
    pb::FleetZone {
        name: report.key.to_string(),
        region: report.key.region.clone(),
        zone: report.key.zone.clone(),
        state: pb::ZoneState::from(report.state).into(),
        nodes: count(report.nodes),
        unhealthy: count(report.unhealthy),
        health_percent: if report.nodes == 0 { 100.0 } else { 100.0 * healthy as f64 / report.nodes as f64 },
        rate: report.rate,
        queue: node_lifecycle.queued_nodes(&report.key).take(QUEUE_SHOWN).map(ToString::to_string).collect(),
        queue_length: count(report.queue_length),
        evictions: i64::try_from(report.evictions).unwrap_or(i64::MAX),
        next_taint_at: report
            .next_token
            .and_then(|at| timestamp(now, at.max(controllers.node_lifecycle.hold.until).max(now.mono))),
        reason: zone_reason(report, node_lifecycle.zones.is_full_disruption(), policy),
    }
}

/// State and rate of a zone in a sentence.
pub(crate) fn zone_reason(report: &ZoneReport, disrupted: bool, policy: &Policy) -> String {
    let ZoneReport { nodes, unhealthy, rate, .. } = report;
    let share = format!("{unhealthy} of {nodes} nodes are not Ready");
    let threshold = f64::from(policy.unhealthy_zone_threshold) * 100.0;
    match report.state {
        _ if disrupted => format!("{share}, and every other zone is lost too: nobody is given up."),
        ZoneState::Initial if *nodes == 0 => {
            format!("None of its nodes counts for the zone's health: {rate} nodes per second are given up.")
        }
        ZoneState::Initial => "It has not been assessed yet.".to_owned(),
        ZoneState::Normal => format!("{share}: {rate} nodes per second are given up."),
        ZoneState::FullDisruption => {
            format!(
                "All {nodes} nodes are lost while another zone lives: {rate} nodes per second are given up."
            )
        }
        ZoneState::PartialDisruption if *rate > 0.0 => format!(
            "{share}, which is {threshold:.0} % or more: in a zone of more than {} nodes only {rate} nodes per second \
             are given up.",
            policy.large_zone_size
        ),
        ZoneState::PartialDisruption => format!(
            "{share}, which is {threshold:.0} % or more: in a zone of {} nodes or fewer nobody is given up then.",
            policy.large_zone_size
        ),
    }
}

/// Whether the pods of a node are removed without its word.
pub(crate) fn collection(controllers: &Controllers, node: &Name, now: Now) -> Option<Explanation> {
    let told = |state, reason| Explanation::new(ExplanationAction::CollectPods, state, reason);
    match controllers.pod_gc.explain_node(node.as_str()) {
        Prospect::Left => None,
        Prospect::OutOfService { at } => {
            let reason = "Somebody vouches that the machine is off: pods that are being deleted are removed without its \
                          word.";
            Some(told(ExplanationState::Due, reason).earliest(at))
        }
        Prospect::Orphaned { until } => {
            let reason = "There is no such node, and its pods are removed unless it comes back.";
            Some(told(ExplanationState::Waiting, reason).earliest(until))
        }
        Prospect::Condemned => {
            let reason = "There is no such node: its pods are removed once the store has confirmed that.";
            Some(told(ExplanationState::Due, reason).earliest(now.mono))
        }
    }
}

/// A time in words, to a tenth of a second.
pub(crate) fn words(time: Duration) -> String {
    let tenths = time.as_millis() / 100;
    match tenths {
        0..600 => format!("{}.{} s", tenths / 10, tenths % 10),
        600..36_000 => format!("{} min {} s", tenths / 600, tenths % 600 / 10),
        _ => format!("{} h {} min", tenths / 36_000, tenths % 36_000 / 600),
    }
}
