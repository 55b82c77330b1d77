//! The state of the whole fleet: its zones, the eviction hold, address pools, drains and the cloud's limits.

use std::time::Duration;

use muster_proto::name::Name;
use muster_proto::pb;

use crate::cloud_nodes::CloudNodes;
use crate::controllers::Controllers;
use crate::drain::filters::list_some;
use crate::explain::convert::{count, duration, timestamp};
use crate::explain::{Explanation, ExplanationAction, ExplanationState};
use crate::ipam::Ipam;
use crate::node_lifecycle::NodeLifecycle;
use crate::node_lifecycle::eviction_hold::HoldCause;
use crate::node_lifecycle::zone_report::ZoneReport;
use crate::node_lifecycle::zone_state::ZoneState;
use crate::pod_gc::PodGcForecast;
use crate::policy::Policy;
use crate::reconciler::{Phase, Reconciler};
use crate::world::ReadyCounts;
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

/// The state of the fleet and its counts, without reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetReport {
    pub state: FleetState,
    /// Whether evictions because of node health are on hold.
    pub is_holding: bool,
    pub nodes: ReadyCounts,
    pub pods: usize,
    /// Pods that wait to be scheduled.
    pub pending_pods: usize,
    /// Pods that a taint will evict at a known time.
    pub armed_evictions: usize,
    pub zones: Vec<ZoneReport>,
}

/// The state and counts of the fleet as the controller sees them now.
pub fn report(reconciler: &Reconciler, now: Now) -> FleetReport {
    let (world, controllers) = (reconciler.world(), reconciler.controllers());
    FleetReport {
        state: state(reconciler, now),
        is_holding: controllers.is_some_and(|controllers| now.mono < controllers.node_lifecycle.hold.until),
        nodes: world.ready_counts(),
        pods: world.pod_count(),
        pending_pods: controllers.map_or(0, |controllers| controllers.scheduler.pending()),
        armed_evictions: controllers.map_or(0, |controllers| controllers.taint_evictions.count()),
        zones: controllers
            .map_or_else(Vec::new, |controllers| controllers.node_lifecycle.zone_reports().collect()),
    }
}

/// How many nodes of a queue are listed.
const QUEUE_SHOWN: usize = 100;

/// The fleet as the controller sees it. The caller sets `controller` and `leader`.
pub fn fleet(reconciler: &Reconciler, now: Now) -> pb::Fleet {
    let (world, controllers) = (reconciler.world(), reconciler.controllers());
    let report = report(reconciler, now);
    let zones = controllers.into_iter().flat_map(|controllers| {
        let zone = |of: &ZoneReport| zone(controllers, of, reconciler.policy(), now);
        report.zones.iter().map(zone).collect::<Vec<_>>()
    });
    pb::Fleet {
        state: pb::FleetState::from(report.state).into(),
        reason: reason(reconciler, report.state, now),
        as_of: timestamp(now, now.mono),
        hold: controllers.and_then(|controllers| hold(controllers, world.node_count(), now)),
        nodes: count(world.node_count()),
        ready_nodes: count(report.nodes.ready),
        not_ready_nodes: count(report.nodes.not_ready),
        unknown_nodes: count(report.nodes.unknown),
        pods: count(report.pods),
        pending_pods: count(report.pending_pods),
        armed_evictions: count(report.armed_evictions),
        cidr_pools: controllers
            .and_then(|controllers| controllers.ipam.as_ref())
            .map_or_else(Vec::new, pools),
        cidr_failure: controllers
            .and_then(|controllers| controllers.ipam.as_ref()?.failure())
            .unwrap_or_default(),
        drains: controllers.map_or_else(Vec::new, |controllers| drains(reconciler, controllers, now)),
        cloud: controllers
            .and_then(|controllers| controllers.cloud_nodes.as_ref())
            .map(|cloud| deletion_limit(cloud, now)),
        zones: zones.collect(),
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

fn deletion_limit(cloud: &CloudNodes, now: Now) -> pb::CloudDeletionLimit {
    let limit = cloud.deletion_limit(now);
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    pb::CloudDeletionLimit {
        confirmations: i32::try_from(limit.confirmations).unwrap_or(i32::MAX),
        limit: i32::try_from(limit.limit).unwrap_or(i32::MAX),
        period: Some(duration(limit.period)),
        used: number(limit.used),
        held_back: count(limit.held_back),
    }
}

fn state(reconciler: &Reconciler, now: Now) -> FleetState {
    match (reconciler.phase(), reconciler.controllers()) {
        (Phase::Standby, _) => FleetState::Standby,
        (Phase::Syncing, _) => FleetState::Syncing,
        (Phase::Active, Some(controllers)) if controllers.node_lifecycle.zones.is_full_disruption() => {
            FleetState::FullDisruption
        }
        (Phase::Active, Some(controllers)) if now.mono >= controllers.node_lifecycle.hold.until => {
            FleetState::Normal
        }
        // Without controllers nothing was decided yet.
        (Phase::Active, _) => FleetState::Holding,
    }
}

/// The reason for the fleet's state, in a sentence.
fn reason(reconciler: &Reconciler, state: FleetState, now: Now) -> String {
    match (state, reconciler.controllers()) {
        (FleetState::Standby, _) => "This controller is on standby: it follows the store and writes nothing.".to_owned(),
        (FleetState::Syncing, _) => {
            "The watches of nodes, pods and leases are not synced with the store, so nothing is decided. The time until \
             they are synced counts against no node."
                .to_owned()
        }
        (FleetState::Holding, Some(controllers)) => hold_reason(controllers, reconciler.world().node_count(), now),
        (FleetState::FullDisruption, Some(controllers)) => full_disruption(&controllers.node_lifecycle),
        (FleetState::Normal, _) => "Failed nodes are tainted NoExecute at the rate of their zone.".to_owned(),
        (_, None) => "The controller has just become the leader and has decided nothing yet.".to_owned(),
    }
}

/// Why a controller is on standby, by the holder that the lease names. Whether that holder is alive is not known before
/// the lease has expired.
pub fn standby(controller: &str, leader: &str) -> String {
    match leader {
        "" => "No controller holds the lease: this controller is on standby until it has acquired the lease."
            .to_owned(),
        own if own == controller => {
            "This controller's own term is over: it is on standby until it has acquired the lease again."
                .to_owned()
        }
        other => {
            format!(
                "{other} holds the lease: this controller is on standby and acquires the lease when it expires."
            )
        }
    }
}

pub(crate) fn full_disruption(node_lifecycle: &NodeLifecycle) -> String {
    let zones = match node_lifecycle.zone_reports().filter(|zone| zone.nodes > 0).count() {
        1 => "the only zone".to_owned(),
        failed => format!("all {failed} zones"),
    };
    format!(
        "All nodes of {zones} have failed. More likely the controller is cut off from the fleet, so no node is \
         tainted NoExecute and no pod is evicted because of node health until a node is Ready."
    )
}

fn hold(controllers: &Controllers, nodes: usize, now: Now) -> Option<pb::EvictionHold> {
    let until = controllers.node_lifecycle.hold.until;
    (now.mono < until).then(|| pb::EvictionHold {
        until: timestamp(now, until),
        remaining: Some(duration(until - now.mono)),
        seen_nodes: count(controllers.node_lifecycle.liveness.seen()),
        nodes: count(nodes),
        reason: hold_reason(controllers, nodes, now),
        cause: pb::HoldCause::from(controllers.node_lifecycle.hold.cause).into(),
    })
}

pub(crate) fn hold_reason(controllers: &Controllers, nodes: usize, now: Now) -> String {
    let what = match controllers.node_lifecycle.hold.cause {
        HoldCause::Start => "The controller began to follow the fleet",
        HoldCause::Interruption => "The controller resumed after an interruption",
    };
    format!(
        "{what} {} ago: no pod is evicted because of node health before the fleet was followed for {}, which is in {}. \
         {} of {nodes} nodes gave a sign of life so far.",
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
    let excluded = || node_lifecycle.excluded_nodes(&report.key);
    pb::FleetZone {
        name: report.key.to_string(),
        region: report.key.region.clone(),
        zone: report.key.zone.clone(),
        state: pb::ZoneState::from(report.state).into(),
        nodes: count(report.nodes),
        unhealthy: count(report.unhealthy),
        health_percent: 100.0 * health_ratio(report),
        rate: report.rate,
        queue: node_lifecycle.queued_nodes(&report.key).take(QUEUE_SHOWN).map(ToString::to_string).collect(),
        queue_length: count(report.queue_length),
        evictions: i64::try_from(report.evictions).unwrap_or(i64::MAX),
        next_taint_at: report
            .next_token
            .and_then(|at| timestamp(now, at.max(controllers.node_lifecycle.hold.until).max(now.mono))),
        reason: zone_text(node_lifecycle, report, policy),
        excluded: count(report.excluded),
        excluded_nodes: excluded().take(QUEUE_SHOWN).map(ToString::to_string).collect(),
    }
}

/// The reason for a zone's state and rate, how long its queue takes, and which nodes do not count.
fn zone_text(node_lifecycle: &NodeLifecycle, report: &ZoneReport, policy: &Policy) -> String {
    let is_alone = node_lifecycle.zone_reports().filter(|zone| zone.nodes > 0).count() == 1;
    let disrupted = node_lifecycle.zones.is_full_disruption();
    let mut text = match disrupted && is_alone {
        true => {
            format!("None of {} nodes is Ready, and there is no other zone: {NOT_TAINTED}.", report.nodes)
        }
        false => zone_reason(report, disrupted, policy),
    };
    if report.queue_length > 0 && report.rate > 0.0 && !disrupted {
        let last = Duration::from_secs_f64(report.queue_length as f64 / report.rate);
        text += &format!(" {} queued, which takes about {}.", report.queue_length, about(last));
    }
    if let Some(names) = list_some(node_lifecycle.excluded_nodes(&report.key)) {
        text += &format!(" Excluded from the count: {names}.");
    }
    text
}

const NOT_TAINTED: &str = "no node is tainted NoExecute";

/// The share of Ready nodes, from 0 to 1.
pub fn health_ratio(zone: &ZoneReport) -> f64 {
    let ready = zone.nodes - zone.unhealthy;
    if zone.nodes == 0 { 1.0 } else { ready as f64 / zone.nodes as f64 }
}

/// The reason for a zone's state and rate, in a sentence.
pub(crate) fn zone_reason(report: &ZoneReport, disrupted: bool, policy: &Policy) -> String {
    let ZoneReport { nodes, unhealthy, rate, .. } = report;
    let share = format!("{unhealthy} of {nodes} nodes are not Ready");
    let threshold = f64::from(policy.unhealthy_zone_threshold) * 100.0;
    let large = policy.large_zone_size;
    let tainted = format!("up to {rate} nodes per second are tainted NoExecute");
    match report.state {
        _ if disrupted => {
            format!("{share}, and all nodes of every other zone have failed too: {NOT_TAINTED}.")
        }
        ZoneState::Initial if *nodes == 0 => format!("No node counts for the zone's health: {tainted}."),
        ZoneState::Initial => "The state of the zone has not been computed yet.".to_owned(),
        ZoneState::Normal if *unhealthy == 0 => {
            format!("{nodes} of {nodes} Ready; up to {rate} nodes/s may be evicted.")
        }
        ZoneState::Normal => format!("{share}: {tainted}."),
        ZoneState::FullDisruption => {
            format!("All {nodes} nodes have failed, but not those of another zone: {tainted}.")
        }
        ZoneState::PartialDisruption if *rate > 0.0 => {
            format!(
                "{share}, which reaches the threshold of {threshold:.0} %: in a zone of more than {large} nodes {tainted}."
            )
        }
        ZoneState::PartialDisruption => format!(
            "{share}, which reaches the threshold of {threshold:.0} %: in a zone of {large} nodes or fewer no node is \
             tainted NoExecute."
        ),
    }
}

/// Whether pod GC removes the pods of a node, and when.
pub(crate) fn pod_gc(controllers: &Controllers, node: &Name, now: Now) -> Option<Explanation> {
    let (state, reason, at) = match controllers.pod_gc.forecast(node.as_str()) {
        PodGcForecast::None => return None,
        PodGcForecast::OutOfService { at } => (
            ExplanationState::Due,
            "The taint out-of-service says that the machine is off: pods that are being deleted are removed without the \
             agent's confirmation.",
            at,
        ),
        PodGcForecast::NodeMissing { until } => (
            ExplanationState::Waiting,
            "The node does not exist: its pods are removed after the quarantine, unless the node is created again.",
            until,
        ),
        PodGcForecast::Deleting => (
            ExplanationState::Due,
            "The node does not exist: its pods are removed once the store has confirmed that.",
            now.mono,
        ),
    };
    Some(Explanation::new(ExplanationAction::PodGc, state, reason).earliest(at))
}

/// A duration that is only an estimate: in whole seconds, minutes or hours.
fn about(time: Duration) -> String {
    match time.as_secs_f64().round() {
        seconds if seconds < 90.0 => format!("{seconds} s"),
        seconds if seconds < 5400.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

/// A duration as text, to a tenth of a second.
pub(crate) fn words(time: Duration) -> String {
    let tenths = time.as_millis() / 100;
    match tenths {
        0..600 => format!("{}.{} s", tenths / 10, tenths % 10),
        600..36_000 => format!("{} min {} s", tenths / 600, tenths % 600 / 10),
        _ => format!("{} h {} min", tenths / 36_000, tenths % 36_000 / 600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_rounded_to_what_matters() {
        for (seconds, expected) in
            [(0.4, "0 s"), (50.0, "50 s"), (100.0, "2 min"), (398.0 / 0.4, "17 min"), (36_000.0, "10.0 h")]
        {
            assert_eq!(about(Duration::from_secs_f64(seconds)), expected);
        }
    }
}
