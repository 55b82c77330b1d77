//! What a new leader takes over: the newest decisions of the log, and what the leader before wrote without recording it.
//!
//! A leader that is killed between a write and its record leaves a state that no decision explains. It is visible in the
//! records themselves, so the next leader adds it.

use std::collections::HashMap;

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::taint::{Taint, TaintEffect};
use muster_proto::wellknown::taint::{NOT_READY, UNREACHABLE};

use super::causes::FOLLOW_CONDITIONS;
use super::{Cause, DecisionResult, DecisionState, DecisionSubject, Rule, causes};
use crate::node_lifecycle::noexecute_taints::is_health_taint;
use crate::plan::{ControllerName, uid};
use crate::taint_eviction::EVICTION_REASON;
use crate::world::World;

/// When something was written, by the record itself.
type WrittenAt = Option<Timestamp>;

/// The newest decisions of the log, as far as the next leader needs them. The default is that of an empty log.
#[derive(Clone, Debug, Default)]
pub struct Seed {
    last_id: u64,
    /// The time of the oldest decision that was read.
    oldest: Option<Timestamp>,
    subjects: HashMap<DecisionSubject, SeedEntry>,
}

/// What the log says of a subject.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SeedEntry {
    pub(super) id: u64,
    pub(super) fingerprint: u64,
    /// Whether the node was marked Unknown; `None` if no decision says so.
    unknown: Option<bool>,
    /// Whether the node was tainted NoExecute.
    tainted: Option<bool>,
    /// Whether the node was tainted NoSchedule for its health.
    kept_away: Option<bool>,
    /// Whether the pod was evicted and not seen gone.
    evicted: Option<bool>,
    /// When each of these was last written by a recorded decision, and when the pod was marked not ready.
    unknown_at: WrittenAt,
    tainted_at: WrittenAt,
    kept_away_at: WrittenAt,
    evicted_at: WrittenAt,
    not_ready_at: WrittenAt,
}

/// A recorded decision, as far as a seed needs it.
pub(super) struct Recorded {
    pub(super) id: u64,
    pub(super) at: Timestamp,
    pub(super) subject: DecisionSubject,
    pub(super) rule: Rule,
    pub(super) result: Option<DecisionResult>,
    /// When the outcome was known.
    pub(super) completed_at: WrittenAt,
    /// Taints that were added and removed, each with its sign.
    pub(super) taints: String,
    pub(super) fingerprint: u64,
}

impl Seed {
    pub fn last_id(&self) -> u64 {
        self.last_id
    }

    /// Adds the next decision of the log; they come in order.
    pub(super) fn add(&mut self, recorded: Recorded) {
        let Recorded { id, at, subject, rule, result, completed_at, taints, fingerprint } = recorded;
        self.last_id = self.last_id.max(id);
        self.oldest.get_or_insert(at);
        let entry = self.subjects.entry(subject).or_default();
        (entry.id, entry.fingerprint) = (id, fingerprint);
        let is_written = result == Some(DecisionResult::Written);
        match rule {
            Rule::GracePeriodPassed if is_written => {
                (entry.unknown, entry.unknown_at) = (Some(true), Some(at));
            }
            Rule::NodeReady => entry.unknown = Some(false),
            Rule::NodeDeleted => (entry.unknown, entry.tainted) = (Some(false), Some(false)),
            Rule::HealthTaint if is_written => (entry.tainted, entry.tainted_at) = (Some(true), Some(at)),
            Rule::HealthTaintRemoved if is_written => entry.tainted = Some(false),
            Rule::ConditionTaints if is_written => {
                entry.kept_away = keeps_away(&taints).or(entry.kept_away);
                entry.kept_away_at = Some(at);
            }
            Rule::PodNotReady if is_written => entry.not_ready_at = Some(at),
            // The mark of an eviction is made when it is performed.
            Rule::TolerationOver | Rule::DrainEviction if is_written => {
                (entry.evicted, entry.evicted_at) = (Some(true), completed_at);
            }
            Rule::PodGone => entry.evicted = Some(false),
            _ => {}
        }
    }

    /// The log continues after this number, whatever is known of it.
    pub fn continue_after(&mut self, last_id: u64) {
        self.last_id = self.last_id.max(last_id);
    }

    pub(super) fn entry(&self, subject: &DecisionSubject) -> Option<&SeedEntry> {
        self.subjects.get(subject).filter(|entry| entry.is_open())
    }

    /// Subjects whose next decision follows from what was recorded.
    pub(super) fn open_entries(&self) -> impl Iterator<Item = (&DecisionSubject, &SeedEntry)> {
        self.subjects.iter().filter(|(_, entry)| entry.is_open())
    }

    /// Whether something that was written then is not recorded, although what was read of the log goes back as far;
    /// `last` is the last recorded write of its kind.
    fn lacks(&self, at: WrittenAt, last: WrittenAt) -> bool {
        let is_covered = at.zip(self.oldest).is_some_and(|(at, oldest)| at >= oldest);
        is_covered && last.is_none_or(|last| at.is_some_and(|at| at > last))
    }
}

/// Whether a node had a NoSchedule taint for its health after a change of its taints; `None` if that did not change.
fn keeps_away(changes: &str) -> Option<bool> {
    let of_health = |change: &&str| {
        let taint = change.trim_start_matches(['+', '-']);
        let key = taint.split(':').next().unwrap_or_default();
        [NOT_READY, UNREACHABLE].contains(&key)
    };
    let changes: Vec<&str> = changes.split(' ').filter(of_health).collect();
    (!changes.is_empty()).then(|| changes.iter().any(|change| change.starts_with('+')))
}

impl SeedEntry {
    fn is_open(&self) -> bool {
        let is_healthy = self.unknown == Some(false) && self.tainted != Some(true);
        !is_healthy && self.evicted != Some(false)
    }
}

/// A state that no decision of the log explains.
pub(super) struct Found {
    pub(super) controller: ControllerName,
    pub(super) subject: DecisionSubject,
    pub(super) uid: Uid,
    pub(super) state: DecisionState,
    pub(super) cause: Cause,
    pub(super) revision: u64,
    /// When it was written, where the record says so.
    pub(super) at: WrittenAt,
}

/// The action that such a state comes from, as its decision would have named it.
pub(super) const fn action_of(rule: Rule) -> &'static str {
    match rule {
        Rule::GracePeriodPassed => "update the node's status",
        Rule::PodNotReady => "update the pod's status",
        Rule::TolerationOver => "delete the pod",
        _ => "update the node",
    }
}

/// What the leader before wrote without recording it, in the order in which it follows from each other.
pub(super) fn found(seed: &Seed, world: &World) -> Vec<Found> {
    let mut all = Vec::new();
    for node in world.nodes() {
        of_node(node, seed, &mut all);
    }
    for pod in world.pods() {
        pod_not_ready(pod, seed, world, &mut all);
        evicted_pod(pod, seed, &mut all);
    }
    all
}

fn of_node(node: &Node, seed: &Seed, all: &mut Vec<Found>) {
    let subject = DecisionSubject::Node(node.meta.name.clone());
    let entry = seed.subjects.get(&subject).copied().unwrap_or_default();
    let mut add = |controller, state, cause, at| {
        let (uid, revision) = (uid(&node.meta), node.meta.resource_version);
        all.push(Found { controller, subject: subject.clone(), uid, state, cause, revision, at });
    };
    let ready = node.condition(types::READY);
    let since = ready.and_then(|ready| ready.last_transition_time);
    if ready.is_some_and(|ready| ready.status == ConditionStatus::Unknown) {
        if seed.lacks(since, entry.unknown_at) {
            let cause = Rule::GracePeriodPassed.because("No sign of life for longer than the grace period.");
            add(ControllerName::NodeLifecycle, DecisionState::Acted, cause, since);
        }
    } else if entry.unknown == Some(true) && node.is_ready() {
        add(ControllerName::NodeLifecycle, DecisionState::Observed, causes::node_ready(), since);
    }
    let is_kept_away = |taint: &&Taint| {
        taint.effect == TaintEffect::NoSchedule && [NOT_READY, UNREACHABLE].contains(&taint.key.as_str())
    };
    let conditions = |taints| Rule::ConditionTaints.because(FOLLOW_CONDITIONS).input("taints", taints);
    match node.spec.taints.iter().find(is_kept_away) {
        Some(taint) if seed.lacks(taint.time_added, entry.kept_away_at) => {
            let cause = conditions(format!("+{taint}"));
            add(ControllerName::NodeRecords, DecisionState::Acted, cause, taint.time_added);
        }
        None if entry.kept_away == Some(true) => {
            let cause = conditions(format!("-{UNREACHABLE}:{}", TaintEffect::NoSchedule));
            add(ControllerName::NodeRecords, DecisionState::Acted, cause, None);
        }
        _ => {}
    }
    let taint = node.spec.taints.iter().find(|taint| is_health_taint(taint));
    match taint {
        Some(taint) if seed.lacks(taint.time_added, entry.tainted_at) => {
            let reason =
                format!("It was the turn of the node in its zone's queue: it got the taint {taint}.");
            let cause = Rule::HealthTaint.because(reason).input("taint", taint);
            add(ControllerName::NodeRecords, DecisionState::Acted, cause, taint.time_added);
        }
        None if entry.tainted == Some(true) => {
            let cause = Rule::HealthTaintRemoved.because("The NoExecute taint of the node was removed.");
            add(ControllerName::NodeRecords, DecisionState::Acted, cause, None);
        }
        _ => {}
    }
}

/// A pod that became not ready while the agent of its node was silent.
fn pod_not_ready(pod: &Pod, seed: &Seed, world: &World, all: &mut Vec<Found>) {
    let since = |ready: Option<(ConditionStatus, WrittenAt)>, status| {
        ready.filter(|(held, _)| *held == status).and_then(|(_, since)| since)
    };
    let Some(node) = pod.spec.node_name.as_ref().and_then(|name| world.node(name.as_str())) else { return };
    let of_node = node.condition(types::READY).map(|ready| (ready.status, ready.last_transition_time));
    let of_pod = pod.condition(types::READY).map(|ready| (ready.status, ready.last_transition_time));
    let unknown_since = since(of_node, ConditionStatus::Unknown);
    let at = since(of_pod, ConditionStatus::False);
    let is_after = unknown_since.zip(at).is_some_and(|(unknown, at)| at >= unknown);
    let subject = DecisionSubject::Pod(Key::of(pod));
    let last = seed.subjects.get(&subject).and_then(|entry| entry.not_ready_at);
    if is_after && seed.lacks(at, last) {
        all.push(Found {
            controller: ControllerName::NodeLifecycle,
            subject,
            uid: uid(&pod.meta),
            state: DecisionState::Acted,
            cause: causes::pod_not_ready(&node.meta.name),
            revision: pod.meta.resource_version,
            at,
        });
    }
}

fn evicted_pod(pod: &Pod, seed: &Seed, all: &mut Vec<Found>) {
    let target = pod.condition(types::DISRUPTION_TARGET).filter(|held| held.reason == EVICTION_REASON);
    let Some(target) = target.filter(|_| pod.meta.is_deleting()) else { return };
    let subject = DecisionSubject::Pod(Key::of(pod));
    let last = seed.subjects.get(&subject).and_then(|entry| entry.evicted_at);
    if seed.lacks(target.last_transition_time, last) {
        all.push(Found {
            controller: ControllerName::TaintEviction,
            subject,
            uid: uid(&pod.meta),
            state: DecisionState::Acted,
            cause: causes::toleration_over_unnamed(),
            revision: pod.meta.resource_version,
            at: target.last_transition_time,
        });
    }
}
