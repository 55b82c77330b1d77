//! How far each pod of a drain has come, and whether that is the end of it.

use muster_proto::drain::{DrainOptions, DrainState};
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;

use super::filters::{DrainPlan, PodAction, name_some, overdue_at};
use super::{End, RETRY, UnderWay};
use crate::plan::{Answer, Failure, Outcome};
use muster_proto::time::Now;

/// What the store said when it was last asked for a pod.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    /// The bearer of the name that it was about.
    pub(super) uid: Uid,
    pub(super) said: Said,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// The record shows it from this version on.
    Granted { version: u64 },
    /// There is no such pod any more; its record is about to go.
    Gone,
    /// Not now. Where a version is given, a later one is worth a try before the time.
    Later { why: String, until: Mono, version: Option<u64> },
    /// Never, as far as the store is concerned.
    Refused(String),
}

/// How far a pod that is to go has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is to be asked for now; the text is what was in the way so far.
    Due { why: Option<String> },
    /// The answer is on its way.
    Asked { why: Option<String> },
    /// Something is in the way until that moment, or for good.
    Blocked { why: String, until: Option<Mono> },
    /// It is ending; its node has to confirm that.
    Stopping,
}

/// A pod that is to go.
#[derive(Debug)]
pub(super) struct Going<'a> {
    pub(super) pod: &'a Pod,
    pub(super) action: PodAction,
    pub(super) standing: Standing,
}

/// Where a drain stands: all pods in the order they go, and of those that are to go how far they have come.
#[derive(Debug)]
pub(super) struct Stand<'a> {
    pub(super) plan: DrainPlan,
    pub(super) going: Vec<Going<'a>>,
}

impl Said {
    /// What an outcome means; `version` is that of the pod's record when it was heard.
    pub(super) fn of(outcome: &Outcome, version: u64, now: Now) -> Said {
        let later = |why: String, version| Said::Later { why, until: now.mono + RETRY, version };
        match &outcome.result {
            Ok(Answer::Pod(pod)) => Said::Granted { version: pod.meta.resource_version },
            Ok(_) => Said::Granted { version },
            Err(Failure::Gone) => Said::Gone,
            Err(Failure::Budget { message, retry_after }) => {
                let until = now.mono + RETRY.max(retry_after.unwrap_or_default());
                Said::Later { why: message.clone(), until, version: None }
            }
            Err(Failure::Conflict) => {
                later("its record changed while it was asked for".to_owned(), Some(version))
            }
            Err(Failure::Unknown(why)) => later(why.clone(), Some(version)),
            Err(Failure::Later(why)) => later(why.clone(), None),
            Err(Failure::Refused(why)) => Said::Refused(why.clone()),
        }
    }

    /// What is in the way.
    fn why(&self) -> Option<&str> {
        match self {
            Said::Later { why, .. } | Said::Refused(why) => Some(why),
            Said::Granted { .. } | Said::Gone => None,
        }
    }
}

/// How far a pod that is to go has come.
pub(super) fn standing(
    pod: &Pod,
    options: &DrainOptions,
    is_asked: bool,
    reply: Option<&Reply>,
    now: Now,
) -> Standing {
    let why = reply.and_then(|reply| reply.said.why()).map(str::to_owned);
    if is_asked {
        return Standing::Asked { why };
    }
    if is_ending_in_time(pod, options) {
        return Standing::Stopping;
    }
    let found = pod.meta.resource_version;
    match reply.map(|reply| &reply.said) {
        Some(Said::Granted { version }) if found <= *version => Standing::Stopping,
        Some(Said::Gone) => Standing::Stopping,
        Some(Said::Refused(why)) => Standing::Blocked { why: why.clone(), until: None },
        Some(Said::Later { why, until, version })
            if now.mono < *until && version.is_none_or(|version| found <= version) =>
        {
            Standing::Blocked { why: why.clone(), until: Some(*until) }
        }
        Some(Said::Granted { .. } | Said::Later { .. }) | None => Standing::Due { why },
    }
}

/// Whether the pod is being deleted, and has no more time for it than it is to have.
fn is_ending_in_time(pod: &Pod, options: &DrainOptions) -> bool {
    let given = pod.meta.deletion_grace_period_seconds.unwrap_or_default();
    pod.meta.is_deleting() && options.grace_period_seconds.is_none_or(|wanted| wanted >= given)
}

impl Going<'_> {
    pub(super) fn is_due(&self) -> bool {
        matches!(self.standing, Standing::Due { .. })
    }

    fn is_blocked_for_good(&self) -> bool {
        matches!(self.standing, Standing::Blocked { until: None, .. })
    }

    fn tell(&self) -> String {
        let key = Key::of(self.pod);
        match &self.standing {
            Standing::Due { why: None } | Standing::Asked { why: None } => {
                format!("{key} (not asked to end yet)")
            }
            Standing::Due { why: Some(why) }
            | Standing::Asked { why: Some(why) }
            | Standing::Blocked { why, .. } => {
                format!("{key} ({why})")
            }
            Standing::Stopping => format!("{key} (still stopping)"),
        }
    }
}

/// What is still to be seen of pods that were placed before the node was cordoned.
pub(super) fn tell_coming(coming: usize) -> String {
    let pods = if coming == 1 { "1 pod is".to_owned() } else { format!("{coming} pods are") };
    format!("{pods} being bound to the node, chosen before it was cordoned")
}

impl Stand<'_> {
    /// How the drain ends, if this is its end.
    pub(super) fn end(&self, drain: &UnderWay, node: &Node, now: Now) -> Option<End> {
        let (state, message) = if !node.spec.unschedulable {
            (DrainState::Failed, "cancelled: the node was uncordoned".to_owned())
        } else if let Some(refusal) = self.plan.refusal() {
            (DrainState::Failed, refusal)
        } else if self.going.is_empty() && drain.coming == 0 {
            (DrainState::Complete, self.tell_complete())
        } else if drain.deadline.is_some_and(|at| now.mono >= at) {
            (DrainState::Failed, format!("the deadline has passed and {}", self.tell_left(drain.coming)))
        } else if !self.going.is_empty() && self.going.iter().all(Going::is_blocked_for_good) {
            (DrainState::Failed, format!("the store refuses to let them go and {}", self.tell_left(0)))
        } else {
            return None;
        };
        Some(End { state, message, at: now.wall })
    }

    /// When to look again if nothing happens.
    pub(super) fn wake_at(&self, drain: &UnderWay, now: Now) -> Option<Mono> {
        let pods = self.going.iter().filter_map(|going| match going.standing {
            Standing::Blocked { until, .. } => until,
            // It will not be waited for any more then.
            Standing::Stopping => overdue_at(going.pod, &drain.request.options).map(|at| now.mono_of(at)),
            Standing::Due { .. } | Standing::Asked { .. } => None,
        });
        pods.chain(drain.deadline).min()
    }

    fn tell_complete(&self) -> String {
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

    fn tell_left(&self, coming: usize) -> String {
        if self.going.is_empty() {
            return tell_coming(coming);
        }
        let left = name_some(self.going.iter().map(Going::tell)).unwrap_or_default();
        let pods = if self.going.len() == 1 {
            "1 pod is".to_owned()
        } else {
            format!("{} pods are", self.going.len())
        };
        format!("{pods} left: {left}")
    }
}
