//! The rule and the inputs of every action and every wait: the one place where they are made.

use std::time::Duration;

use muster_proto::drain::{Drain, DrainState};
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::taint::{Taint, TaintEffect};
use muster_proto::time::{Mono, Now};
use muster_proto::wellknown::taint::{SHUTDOWN, UNINITIALIZED};

use super::{Cause, Rule};
use crate::explain::fleet::words;
use crate::node_lifecycle::eviction_hold::{EvictionHold, HoldCause};
use crate::node_lifecycle::liveness::{Gap, SignOfLife, Silence};
use crate::node_lifecycle::noexecute_taints::is_health_taint;
use crate::node_lifecycle::zone_report::ZoneReport;
use crate::policy::Policy;
use crate::scheduler::victims::Victim;

pub(super) const FOLLOW_CONDITIONS: &str =
    "The taints that keep new pods away follow the conditions and the cordon of the node.";

/// The unit of a moment. A reason with another moment is another reason.
pub(super) const TIME: &str = "time";

impl Rule {
    pub fn because(self, reason: impl Into<String>) -> Cause {
        Cause { rule: self, reason: reason.into(), inputs: Vec::new() }
    }
}

pub fn heartbeat_gap(gap: &Gap, policy: &Policy) -> Cause {
    let quarter = policy.grace / 4;
    let reason = format!(
        "Two signs of life were {} apart, more than a quarter of the grace period of {}.",
        words(gap.length),
        words(policy.grace)
    );
    Rule::HeartbeatGap
        .because(reason)
        .against("gap", seconds(gap.length), seconds(quarter), "s")
        .against("grace", seconds(gap.length), seconds(policy.grace), "s")
        .input("endedBy", sign(Some(gap.ended_by)))
}

pub fn grace_period_passed(silence: &Silence, now: Now) -> Cause {
    let silent_for = (now.mono - silence.seen_at).saturating_sub(silence.cut_off);
    let reason = format!(
        "No sign of life for {}, longer than the grace period of {}.",
        words(silent_for),
        words(silence.grace)
    );
    let cause = Rule::GracePeriodPassed
        .because(reason)
        .against("silentFor", seconds(silent_for), seconds(silence.grace), "s")
        .input("seenBy", sign(silence.seen_by))
        .quantity("seenAt", now.wall_of(silence.seen_at), TIME);
    match silence.cut_off.is_zero() {
        true => cause,
        false => cause.quantity("cutOff", seconds(silence.cut_off), "s"),
    }
}

pub fn node_ready() -> Cause {
    Rule::NodeReady.because("The node gives signs of life and reports that it is Ready.")
}

pub fn node_deleted() -> Cause {
    Rule::NodeDeleted.because("The record of the node was deleted.")
}

pub fn zone_state(zone: &ZoneReport, policy: &Policy) -> Cause {
    let reason = format!(
        "The zone is in {}: {} of {} nodes are not healthy, and nodes are tainted NoExecute at {} a second.",
        zone.state, zone.unhealthy, zone.nodes, zone.rate
    );
    let share = if zone.nodes == 0 { 0.0 } else { zone.unhealthy as f64 / zone.nodes as f64 };
    Rule::ZoneState
        .because(reason)
        .input("state", zone.state)
        .against("unhealthyNodes", zone.unhealthy, zone.nodes, "nodes")
        .against("unhealthyShare", format!("{share:.2}"), policy.unhealthy_zone_threshold, "")
        .against("zoneSize", zone.nodes, policy.large_zone_size, "nodes")
        .quantity("evictionRate", zone.rate, "nodes/s")
        .quantity("queueLength", zone.queue_length, "nodes")
}

pub fn full_disruption(is_full: bool) -> Cause {
    Rule::FullDisruption.because(match is_full {
        true => {
            "Every zone is in FullDisruption, so this controller is more likely cut off than the whole fleet \
             down: no node is tainted NoExecute and no pod evicted because of the health of its node."
        }
        false => "Not every zone is in FullDisruption any more: every node gets a new grace period.",
    })
}

pub fn eviction_hold(hold: &EvictionHold, now: Now) -> Cause {
    let since = match hold.cause {
        HoldCause::Start => "The controller has just begun to lead",
        HoldCause::Interruption => "The controller was cut off from the store",
    };
    let lasts = hold.until - hold.since;
    let reason = format!(
        "{since}: for {} no node is tainted NoExecute and no pod evicted because of the health of its node.",
        words(lasts)
    );
    Rule::EvictionHold.because(reason).quantity("hold", seconds(lasts), "s").quantity(
        "until",
        now.wall_of(hold.until),
        TIME,
    )
}

/// Why a node in the queue of its zone is not tainted NoExecute in this pass.
pub fn taint_wait(zone: &ZoneReport, held: Option<&EvictionHold>, is_full: bool, now: Now) -> Cause {
    let cause = if is_full {
        Rule::FullDisruption.because("No node is tainted NoExecute while every zone is in FullDisruption.")
    } else if let Some(hold) = held {
        let reason = "No node is tainted NoExecute before the eviction hold ends.";
        Rule::EvictionHold.because(reason).quantity("until", now.wall_of(hold.until), TIME)
    } else if zone.rate == 0.0 {
        let reason = format!("No node of a small zone in {} is tainted NoExecute.", zone.state);
        Rule::ZoneState.because(reason)
    } else {
        let reason = format!(
            "The node waits in the queue of its zone, which is in {} and taints {} nodes a second.",
            zone.state, zone.rate
        );
        Rule::ZoneEvictionRate.because(reason)
    };
    cause
        .input("zoneState", zone.state)
        .against("unhealthyNodes", zone.unhealthy, zone.nodes, "nodes")
        .quantity("evictionRate", zone.rate, "nodes/s")
        .quantity("queueLength", zone.queue_length, "nodes")
}

pub fn pod_not_ready(node: &Name) -> Cause {
    let reason = format!("Node {node} is not ready, so nothing confirms that the pod is.");
    Rule::PodNotReady.because(reason).input("node", node)
}

/// A pod is evicted from its node at `at` unless the taint goes before; `limit` is how long it tolerates the taint.
pub fn toleration_time(node: &Name, taint: &Taint, limit: Duration, at: Mono, now: Now) -> Cause {
    let reason = format!(
        "The pod tolerates the taint {taint} of node {node} for {} and is then evicted.",
        words(limit)
    );
    Rule::TolerationTime
        .because(reason)
        .input("taint", taint)
        .quantity("tolerationTime", seconds(limit), "s")
        .quantity("until", now.wall_of(at), TIME)
}

pub fn toleration_over(node: &Name, taint: &str, since: Mono, over: Mono, now: Now) -> Cause {
    let (limit, had) = (over - since, now.mono - since);
    let reason = match limit.is_zero() {
        true => format!("The pod does not tolerate the taint {taint} of node {node}."),
        false => format!(
            "Node {node} has had the taint {taint} for {}, which the pod tolerates for {}.",
            words(had),
            words(limit)
        ),
    };
    Rule::TolerationOver.because(reason).input("taint", taint).against(
        "taintedFor",
        seconds(had),
        seconds(limit),
        "s",
    )
}

/// An eviction whose taint cannot be named any more: the node was deleted meanwhile.
pub fn toleration_over_unnamed() -> Cause {
    Rule::TolerationOver
        .because("The time for which the pod tolerated a NoExecute taint of its node is over.")
}

pub fn eviction_cancelled() -> Cause {
    Rule::EvictionCancelled.because("No taint of its node evicts the pod any more.")
}

pub fn pod_gone() -> Cause {
    Rule::PodGone.because("The record of the pod is gone.")
}

pub fn pod_scheduled(node: &Name, is_repeated: bool) -> Cause {
    let reason = match is_repeated {
        false => format!("No node suits the pod better than {node}."),
        true => format!("It is not known whether the pod was bound to {node}, so it is bound again."),
    };
    Rule::PodScheduled.because(reason).input("node", node)
}

pub fn pod_unschedulable(why: &str) -> Cause {
    Rule::PodUnschedulable.because(why)
}

/// A pod waits for the space of others on this node.
pub fn nominated(node: &Name, why: &str) -> Cause {
    Rule::Preemption.because(why).input("node", node)
}

/// A pod is deleted to make space.
pub(crate) fn displaced(victim: &Victim) -> Cause {
    Rule::Preemption
        .because(format!("The pod is {}.", victim.message()))
        .input("node", &victim.node)
        .input("displacedBy", &victim.by)
        .input("displacerPriority", victim.by_priority)
}

pub fn drain_started(drain: &Drain, now: Now) -> Cause {
    with_drain(
        Rule::DrainStarted.because(format!("{} drains the node: {}", drain.requested_by, drain.reason)),
        drain,
        now,
    )
}

pub fn drain_eviction(drain: &Drain, now: Now) -> Cause {
    let reason = format!("The node is being drained by {}: {}", drain.requested_by, drain.reason);
    with_drain(Rule::DrainEviction.because(reason), drain, now)
}

fn with_drain(cause: Cause, drain: &Drain, now: Now) -> Cause {
    let cause = cause.input("requestedBy", &drain.requested_by);
    match drain.deadline {
        Some(deadline) => {
            let age = now.wall.duration_since(drain.requested_at).unsigned_abs();
            let limit = deadline.duration_since(drain.requested_at).unsigned_abs();
            cause.against("drainingFor", seconds(age), seconds(limit), "s")
        }
        None => cause,
    }
}

pub fn address_block_condition(waits: bool) -> Cause {
    Rule::AddressBlockCondition.because(match waits {
        true => "No address block is free for the node, so its network is not available.",
        false => "The node has its address blocks.",
    })
}

pub fn gc(rule: Rule, why: &str, node: Option<&Name>) -> Cause {
    let cause = rule.because(format!("No agent will remove the pod: {why}."));
    node.into_iter().fold(cause, |cause, node| cause.input("node", node))
}

pub fn machine_gone(answers: u32, wanted: u32) -> Cause {
    let reason = "The cloud says that the machine of the node does not exist.";
    Rule::MachineGone.because(reason).against("answers", answers, wanted, "")
}

pub fn cloud_addresses() -> Cause {
    Rule::CloudNodeAddresses.because("The cloud knows the addresses of the node.")
}

/// Why a node's record is written, by what the write changes: one cause for each rule. `zone` is that of the node.
pub fn node_write(before: &Node, after: &Node, zone: Option<&ZoneReport>) -> Vec<Cause> {
    let mut causes = Vec::new();
    causes.extend(health_taint(before, after, zone));
    causes.extend(taints_without_effect_on_pods(before, after));
    if after.spec.cordons.len() < before.spec.cordons.len() {
        let kept = |owner: &str| after.spec.cordons.iter().any(|held| held.owner == owner);
        let ended = before.spec.cordons.iter().filter(|held| !kept(&held.owner));
        let owners: Vec<String> = ended.map(muster_proto::drain::Cordon::who).collect();
        causes
            .push(Rule::CordonEnded.because(format!("The cordon of {} has ended.", owners.join(" and of "))));
    }
    let state = |node: &Node| node.spec.drain.as_ref().map(|drain| drain.state);
    if state(before) != state(after)
        && let Some(drain) = &after.spec.drain
    {
        let result = if drain.state == DrainState::Complete { "complete" } else { "failed" };
        causes.push(
            Rule::DrainResult
                .because(format!("The drain is {result}: {}", drain.message))
                .input("requestedBy", &drain.requested_by),
        );
    }
    if before.spec.pod_cidrs != after.spec.pod_cidrs {
        let blocks: Vec<String> = after.spec.pod_cidrs.iter().map(ToString::to_string).collect();
        let reason = "The node has no address block, and each pool has a free one.";
        causes.push(Rule::AddressBlock.because(reason).input("blocks", blocks.join(" ")));
    }
    if has_key(before, UNINITIALIZED) && !has_key(after, UNINITIALIZED) {
        causes.push(Rule::CloudNodeInitialized.because("The cloud has described the machine of the node."));
    }
    if has_key(before, SHUTDOWN) != has_key(after, SHUTDOWN) {
        let what = if has_key(after, SHUTDOWN) { "The machine is shut down." } else { "The machine runs." };
        causes.push(Rule::MachineShutDown.because(what));
    }
    if causes.is_empty() {
        causes.push(Rule::NodeLabels.because("Labels that follow from others are written."));
    }
    causes
}

fn health_taint(before: &Node, after: &Node, zone: Option<&ZoneReport>) -> Option<Cause> {
    let texts = |node: &Node| -> Vec<String> {
        node.spec.taints.iter().filter(|taint| is_health_taint(taint)).map(ToString::to_string).collect()
    };
    let (old, new) = (texts(before), texts(after));
    if old == new {
        return None;
    }
    let with_zone = |cause: Cause| match zone {
        Some(zone) => cause
            .input("zoneState", zone.state)
            .against("unhealthyNodes", zone.unhealthy, zone.nodes, "nodes")
            .quantity("evictionRate", zone.rate, "nodes/s"),
        None => cause,
    };
    Some(match (old.first(), new.first()) {
        (None, Some(taint)) => {
            with_zone(Rule::HealthTaint.because(format!(
                "It was the turn of the node in its zone's queue: it gets the taint {taint}."
            )))
            .input("taint", taint)
        }
        (Some(old), Some(new)) => {
            Rule::HealthTaint.because(format!("The taint {old} is replaced by {new}.")).input("taint", new)
        }
        (Some(taint), None) if after.is_ready() => {
            let reason = format!("The node is Ready again, so the taint {taint} is removed.");
            Rule::HealthTaintRemoved.because(reason).input("taint", taint)
        }
        (taint, None) => {
            let taint = taint.cloned().unwrap_or_default();
            let reason = format!(
                "The taint {taint} is removed: it was set before this controller led, or every zone is in FullDisruption."
            );
            with_zone(Rule::HealthTaintRemoved.because(reason)).input("taint", taint)
        }
    })
}

/// Taints that only keep new pods away.
fn taints_without_effect_on_pods(before: &Node, after: &Node) -> Option<Cause> {
    let texts = |node: &Node| -> Vec<String> {
        let managed = |taint: &&Taint| {
            taint.effect == TaintEffect::NoSchedule
                && ![SHUTDOWN, UNINITIALIZED].contains(&taint.key.as_str())
        };
        node.spec.taints.iter().filter(managed).map(ToString::to_string).collect()
    };
    let (old, new) = (texts(before), texts(after));
    let added = new.iter().filter(|taint| !old.contains(taint)).map(|taint| format!("+{taint}"));
    let removed = old.iter().filter(|taint| !new.contains(taint)).map(|taint| format!("-{taint}"));
    let changes: Vec<String> = added.chain(removed).collect();
    (!changes.is_empty())
        .then(|| Rule::ConditionTaints.because(FOLLOW_CONDITIONS).input("taints", changes.join(" ")))
}

fn has_key(node: &Node, key: &str) -> bool {
    node.spec.taints.iter().any(|taint| taint.key == key)
}

fn sign(sign: Option<SignOfLife>) -> &'static str {
    match sign {
        Some(SignOfLife::Lease) => "lease",
        Some(SignOfLife::Status) => "status",
        Some(SignOfLife::FirstSeen) => "first-seen",
        Some(SignOfLife::Created) => "created",
        None => "new-grace",
    }
}

/// Seconds with millisecond precision.
pub(super) fn seconds(time: Duration) -> String {
    let text = format!("{:.3}", time.as_secs_f64());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What a record that stands for many says.
pub(super) fn summed(rule: Rule) -> Cause {
    rule.because("More decisions by this rule were made at once than the log records one by one.")
}

/// Decisions that no record has.
pub fn lost(count: u64) -> Cause {
    let reason = "The log could not be written for so long that decisions are missing here.";
    Rule::DecisionsLost.because(reason).quantity("count", count, "decisions")
}
