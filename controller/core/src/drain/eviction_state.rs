//! How far the eviction of each pod of a drain has come, and what result that gives the drain.

use muster_proto::drain::{DrainOptions, DrainState};
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;

use super::filters::{DrainPlan, PodAction, list_some, overdue_at};
use super::{ActiveDrain, DrainResult, RETRY};
use crate::plan::{Answer, Failure, Outcome};
use muster_proto::time::Now;

/// The store's last answer to an eviction or deletion of a pod.
#[derive(Clone, Debug)]
pub(super) struct LastAnswer {
    /// The pod that the answer is about; another pod of that name may exist by now.
    pub(super) uid: Uid,
    pub(super) answer: StoreAnswer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StoreAnswer {
    /// The pod is being deleted; its record shows that from this version on.
    Granted { version: u64 },
    /// There is no such pod any more; the watch has not shown that yet.
    Gone,
    /// Not before `until`. If a version is given, a later version of the record is a reason to try earlier.
    Later { why: String, until: Mono, version: Option<u64> },
    /// The store will never allow it.
    Refused(String),
}

/// How far the eviction of a pod has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EvictionState {
    /// The eviction is to be requested now; the text is what prevented it before.
    Due { why: Option<String> },
    /// The request is in flight.
    InFlight { why: Option<String> },
    /// It cannot be requested until that time, or never.
    Blocked { why: String, until: Option<Mono> },
    /// The pod is terminating; its agent has to confirm the stop.
    Stopping,
}

/// A pod that has to leave.
#[derive(Debug)]
pub(super) struct LeavingPod<'a> {
    pub(super) pod: &'a Pod,
    pub(super) action: PodAction,
    pub(super) state: EvictionState,
}

/// The status of a drain: all pods in the order they leave, and how far those that have to leave have come.
#[derive(Debug)]
pub(super) struct DrainStatus<'a> {
    pub(super) plan: DrainPlan,
    pub(super) leaving: Vec<LeavingPod<'a>>,
}

impl StoreAnswer {
    /// What an outcome means; `version` is that of the pod's record when the outcome arrived.
    pub(super) fn of(outcome: &Outcome, version: u64, now: Now) -> StoreAnswer {
        let later = |why: String, version| StoreAnswer::Later { why, until: now.mono + RETRY, version };
        match &outcome.result {
            Ok(Answer::Pod(pod)) => StoreAnswer::Granted { version: pod.meta.resource_version },
            Ok(_) => StoreAnswer::Granted { version },
            Err(Failure::Gone) => StoreAnswer::Gone,
            Err(Failure::Budget { message, retry_after }) => {
                let until = now.mono + RETRY.max(retry_after.unwrap_or_default());
                StoreAnswer::Later { why: message.clone(), until, version: None }
            }
            Err(Failure::Conflict) => {
                later("its record changed while its eviction was requested".to_owned(), Some(version))
            }
            Err(Failure::Unknown(why)) => later(why.clone(), Some(version)),
            Err(Failure::Later(why)) => later(why.clone(), None),
            Err(Failure::Refused(why)) => StoreAnswer::Refused(why.clone()),
        }
    }

    /// What prevents the eviction.
    fn why(&self) -> Option<&str> {
        match self {
            StoreAnswer::Later { why, .. } | StoreAnswer::Refused(why) => Some(why),
            StoreAnswer::Granted { .. } | StoreAnswer::Gone => None,
        }
    }
}

/// How far the eviction of a pod has come.
pub(super) fn eviction_state(
    pod: &Pod,
    options: &DrainOptions,
    is_in_flight: bool,
    last: Option<&LastAnswer>,
    now: Now,
) -> EvictionState {
    let why = last.and_then(|last| last.answer.why()).map(str::to_owned);
    if is_in_flight {
        return EvictionState::InFlight { why };
    }
    if is_terminating_in_time(pod, options) {
        return EvictionState::Stopping;
    }
    let found = pod.meta.resource_version;
    match last.map(|last| &last.answer) {
        Some(StoreAnswer::Granted { version }) if found <= *version => EvictionState::Stopping,
        Some(StoreAnswer::Gone) => EvictionState::Stopping,
        Some(StoreAnswer::Refused(why)) => EvictionState::Blocked { why: why.clone(), until: None },
        Some(StoreAnswer::Later { why, until, version })
            if now.mono < *until && version.is_none_or(|version| found <= version) =>
        {
            EvictionState::Blocked { why: why.clone(), until: Some(*until) }
        }
        Some(StoreAnswer::Granted { .. } | StoreAnswer::Later { .. }) | None => EvictionState::Due { why },
    }
}

/// Whether the pod is being deleted with no longer grace period than the drain allows.
fn is_terminating_in_time(pod: &Pod, options: &DrainOptions) -> bool {
    let given = pod.meta.deletion_grace_period_seconds.unwrap_or_default();
    pod.meta.is_deleting() && options.grace_period_seconds.is_none_or(|wanted| wanted >= given)
}

impl LeavingPod<'_> {
    pub(super) fn is_due(&self) -> bool {
        matches!(self.state, EvictionState::Due { .. })
    }

    fn is_blocked_for_good(&self) -> bool {
        matches!(self.state, EvictionState::Blocked { until: None, .. })
    }

    fn text(&self) -> String {
        let key = Key::of(self.pod);
        match &self.state {
            EvictionState::Due { why: None } | EvictionState::InFlight { why: None } => {
                format!("{key} (not asked to end yet)")
            }
            EvictionState::Due { why: Some(why) }
            | EvictionState::InFlight { why: Some(why) }
            | EvictionState::Blocked { why, .. } => {
                format!("{key} ({why})")
            }
            EvictionState::Stopping => format!("{key} (still stopping)"),
        }
    }
}

/// Describes the pods that were scheduled to the node before it was cordoned.
pub(super) fn binding_text(binding: usize) -> String {
    let pods = if binding == 1 { "1 pod is".to_owned() } else { format!("{binding} pods are") };
    format!("{pods} being bound to the node, chosen before it was cordoned")
}

impl DrainStatus<'_> {
    /// The result of the drain, if it has one.
    pub(super) fn result(&self, drain: &ActiveDrain, node: &Node, now: Now) -> Option<DrainResult> {
        let (state, message) = if !node.spec.unschedulable {
            (DrainState::Failed, "cancelled: the node was uncordoned".to_owned())
        } else if let Some(refusal) = self.plan.refusal() {
            (DrainState::Failed, refusal)
        } else if self.leaving.is_empty() && drain.binding == 0 {
            (DrainState::Complete, self.complete_text())
        } else if drain.deadline.is_some_and(|at| now.mono >= at) {
            (
                DrainState::Failed,
                format!("the deadline has passed and {}", self.remaining_text(drain.binding)),
            )
        } else if !self.leaving.is_empty() && self.leaving.iter().all(LeavingPod::is_blocked_for_good) {
            (DrainState::Failed, format!("the store refuses to let them go and {}", self.remaining_text(0)))
        } else {
            return None;
        };
        Some(DrainResult { state, message, at: now.wall })
    }

    /// When to look again if nothing changes.
    pub(super) fn wake_at(&self, drain: &ActiveDrain, now: Now) -> Option<Mono> {
        let pods = self.leaving.iter().filter_map(|leaving| match leaving.state {
            EvictionState::Blocked { until, .. } => until,
            // From then on the drain does not wait for the pod.
            EvictionState::Stopping => {
                overdue_at(leaving.pod, &drain.request.options).map(|at| now.mono_of(at))
            }
            EvictionState::Due { .. } | EvictionState::InFlight { .. } => None,
        });
        pods.chain(drain.deadline).min()
    }

    fn complete_text(&self) -> String {
        let count = |action| self.plan.pods.iter().filter(|pod| pod.action == action).count();
        let mut message = "every pod that had to go has stopped".to_owned();
        for (count, what) in [(count(PodAction::Leave), "left running"), (count(PodAction::Skip), "skipped")]
        {
            if count > 0 {
                message += &format!("; {count} {what}");
            }
        }
        message
    }

    fn remaining_text(&self, binding: usize) -> String {
        if self.leaving.is_empty() {
            return binding_text(binding);
        }
        let left = list_some(self.leaving.iter().map(LeavingPod::text)).unwrap_or_default();
        let pods = if self.leaving.len() == 1 {
            "1 pod is".to_owned()
        } else {
            format!("{} pods are", self.leaving.len())
        };
        format!("{pods} left: {left}")
    }
}
