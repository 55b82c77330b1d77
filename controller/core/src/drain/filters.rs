//! Which of a node's pods a drain evicts, and why not the others.
//!
//! The filters run in a fixed order; the first that objects decides. One pod that must not leave is enough to refuse
//! the whole drain, so that the operator decides what to risk before any pod is evicted.

use std::fmt;
use std::fmt::Write;

use jiff::{SignedDuration, Timestamp};
use muster_proto::drain::DrainOptions;
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::pb::volume::Source;
use muster_proto::pod::Pod;

use crate::plan::uid;

/// A refusal lists this many pods of a kind; the rest are counted.
const LISTED: usize = 5;

/// What a drain does with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodAction {
    /// Request its eviction, which respects its disruption budget.
    Evict,
    /// Delete it without regard to its disruption budget.
    Delete,
    /// It may keep running.
    Leave,
    /// The drain neither evicts it nor waits for it.
    Skip,
    /// It must not leave, so the drain does not start.
    Refuse(Obstacle),
}

/// Why a pod must not leave, and which option allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Obstacle {
    DaemonSet,
    EmptyDir,
    Unmanaged,
}

/// A pod, and what the drain does with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPod {
    pub key: Key,
    pub uid: Uid,
    pub action: PodAction,
    /// The rule that decided, as the continuation of a sentence that starts with the pod's name.
    pub reason: &'static str,
    /// What is at risk.
    pub warnings: Vec<&'static str>,
}

/// What a drain does with the pods of a node, in the order they leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainPlan {
    pub pods: Vec<PlannedPod>,
}

/// What a drain with these options does with these pods. Lower priorities leave first.
pub fn plan<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    options: &DrainOptions,
    now: Timestamp,
) -> DrainPlan {
    let mut pods: Vec<(i32, PlannedPod)> = pods
        .into_iter()
        .map(|pod| (pod.spec.priority.unwrap_or_default(), planned(pod, options, now)))
        .collect();
    pods.sort_by(|(a, left), (b, right)| a.cmp(b).then_with(|| left.key.cmp(&right.key)));
    DrainPlan { pods: pods.into_iter().map(|(_, planned)| planned).collect() }
}

/// What a drain with these options does with this pod.
pub(super) fn planned(pod: &Pod, options: &DrainOptions, now: Timestamp) -> PlannedPod {
    let mut warnings = Vec::new();
    let objection = objection(pod, options, now, &mut warnings);
    let (action, reason) = objection.unwrap_or_else(|| {
        let action = if options.disable_eviction { PodAction::Delete } else { PodAction::Evict };
        let reason = match (pod.is_finished(), pod.meta.controller()) {
            (true, _) => "has finished",
            (false, Some(_)) => "has an owner that can replace it",
            (false, None) => "goes because of force",
        };
        (action, reason)
    });
    PlannedPod { key: Key::of(pod), uid: uid(&pod.meta), action, reason, warnings }
}

/// The decision of the first filter that objects to an eviction.
fn objection(
    pod: &Pod,
    options: &DrainOptions,
    now: Timestamp,
    warnings: &mut Vec<&'static str>,
) -> Option<(PodAction, &'static str)> {
    if overdue_at(pod, options).is_some_and(|at| now >= at) {
        return Some((PodAction::Skip, "should have ended longer ago than skipWaitForDeleteSeconds"));
    }
    // Muster keeps no DaemonSet records, so it cannot tell that the owner of a pod is missing: every such pod counts as
    // one whose DaemonSet would start it again at once, even on a cordoned node.
    if pod.is_daemon() && !pod.is_finished() {
        return Some(if options.ignore_daemonsets {
            warnings.push("it goes on running, since its DaemonSet would start it again here");
            (PodAction::Leave, "belongs to a DaemonSet")
        } else {
            (PodAction::Refuse(Obstacle::DaemonSet), "belongs to a DaemonSet")
        });
    }
    if pod.is_mirror() {
        return Some((PodAction::Skip, "is a static pod of its node"));
    }
    if pod.is_finished() {
        return None;
    }
    if has_empty_dir(pod) {
        if !options.delete_emptydir_data {
            return Some((PodAction::Refuse(Obstacle::EmptyDir), "keeps data in an emptyDir volume"));
        }
        warnings.push("what is in its emptyDir volumes is lost");
    }
    if pod.meta.controller().is_none() {
        if !options.force {
            return Some((PodAction::Refuse(Obstacle::Unmanaged), "has no owner that would replace it"));
        }
        warnings.push("nothing will start it again elsewhere");
    }
    None
}

/// When the drain stops waiting for a pod that is being deleted: `skipWaitForDeleteSeconds` after its grace period.
pub(super) fn overdue_at(pod: &Pod, options: &DrainOptions) -> Option<Timestamp> {
    // "Longer than" excludes the exact time.
    const ONE_MORE: SignedDuration = SignedDuration::from_millis(1);
    let patience = Some(options.skip_wait_for_delete_seconds).filter(|seconds| *seconds > 0)?;
    let ends = pod.meta.deletion_timestamp?;
    ends.checked_add(SignedDuration::from_secs(patience) + ONE_MORE).ok()
}

fn has_empty_dir(pod: &Pod) -> bool {
    pod.spec.volumes.iter().any(|volume| matches!(volume.source, Some(Source::EmptyDir(_))))
}

impl DrainPlan {
    /// The pods that have to leave.
    pub fn going(&self) -> impl Iterator<Item = &PlannedPod> {
        self.pods.iter().filter(|pod| pod.action.moves())
    }

    /// Why no pod may be evicted: the pods that must not leave, and the options that allow it.
    pub fn refusal(&self) -> Option<String> {
        let kinds = [Obstacle::DaemonSet, Obstacle::EmptyDir, Obstacle::Unmanaged];
        let texts = kinds.into_iter().filter_map(|kind| {
            let refused = self.pods.iter().filter(|pod| pod.action == PodAction::Refuse(kind));
            let names = list_some(refused.map(|pod| &pod.key))?;
            Some(kind.text(&names))
        });
        let texts: Vec<String> = texts.collect();
        (!texts.is_empty()).then(|| format!("refused: {}", texts.join("; ")))
    }
}

impl PodAction {
    /// Whether the pod has to leave.
    pub fn moves(self) -> bool {
        matches!(self, PodAction::Evict | PodAction::Delete)
    }
}

impl Obstacle {
    /// The option that allows it, as requests spell it.
    pub fn option(self) -> &'static str {
        match self {
            Obstacle::DaemonSet => "ignoreDaemonsets",
            Obstacle::EmptyDir => "deleteEmptydirData",
            Obstacle::Unmanaged => "force",
        }
    }

    fn text(self, names: &str) -> String {
        let option = self.option();
        match self {
            Obstacle::DaemonSet => format!("pods of a DaemonSet: {names} ({option} leaves them running)"),
            Obstacle::EmptyDir => {
                format!(
                    "pods with data in emptyDir volumes: {names} ({option} moves them, and the data is lost)"
                )
            }
            Obstacle::Unmanaged => {
                format!(
                    "pods without an owner that would replace them: {names} ({option} ends them for good)"
                )
            }
        }
    }
}

/// The first names and how many more there are; `None` if there are none.
pub(crate) fn list_some<T: fmt::Display>(names: impl IntoIterator<Item = T>) -> Option<String> {
    let mut names = names.into_iter();
    let mut text = names.next()?.to_string();
    for name in names.by_ref().take(LISTED - 1) {
        let _ = write!(text, ", {name}");
    }
    match names.count() {
        0 => {}
        more => {
            let _ = write!(text, " and {more} more");
        }
    }
    Some(text)
}

impl fmt::Display for PodAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PodAction::Evict => "Evict",
            PodAction::Delete => "Delete",
            PodAction::Leave => "Leave",
            PodAction::Skip => "Skip",
            PodAction::Refuse(_) => "Refuse",
        })
    }
}

#[cfg(test)]
mod tests;
