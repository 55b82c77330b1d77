//! Graceful deletion of pods: the grace period can be shortened, but neither extended nor cancelled.
//!
//! The store never removes a pod because its grace period is over. Only a deletion with grace 0 removes it: the agent
//! sends one when the containers have stopped. Until then other parts must assume that they run.

use jiff::{SignedDuration, Timestamp};
use muster_proto::pod::Pod;

use super::super::common::{check_preconditions, existing};
use super::super::{Context, Outcome, PodDeletion, RecordId, Refusal};

#[cfg(test)]
mod tests;

/// The outcome of a pod's deletion.
pub fn delete_pod(
    key: &RecordId,
    current: Option<&Pod>,
    deletion: &PodDeletion,
    cx: &Context,
) -> Result<Outcome<Pod>, Refusal> {
    let pod = existing(key, current)?;
    check_preconditions(pod, &deletion.preconditions)?;
    Ok(delete_with_grace(pod.clone(), deletion.grace_period_seconds, cx))
}

/// The outcome of a deletion with the requested grace in seconds, or the pod's own if none is requested.
pub(in super::super) fn delete_with_grace(pod: Pod, requested: Option<i64>, cx: &Context) -> Outcome<Pod> {
    let requested = requested.map(|seconds| bounded(seconds, cx.now));
    match (pod.meta.deletion_timestamp, pod.meta.deletion_grace_period_seconds) {
        (None, _) => begin(pod, requested, cx.now),
        // Only finalizers keep the pod: there is no grace left to shorten.
        (Some(_), None | Some(0)) if pod.meta.finalizers.is_empty() => Outcome::Remove(pod),
        (Some(_), None | Some(0)) => Outcome::Unchanged(pod),
        (Some(deadline), Some(grace)) => match requested {
            Some(seconds) if seconds < grace => shorten(pod, later(deadline, -grace), seconds, cx.now),
            _ => Outcome::Unchanged(pod),
        },
    }
}

fn begin(mut pod: Pod, requested: Option<i64>, now: Timestamp) -> Outcome<Pod> {
    let own = pod.spec.termination_grace_period_seconds.map(|seconds| bounded(seconds, now));
    // A pod that never ran, or has finished, needs no grace period.
    let idle = pod.spec.node_name.is_none() || pod.is_finished();
    let grace = if idle { 0 } else { requested.or(own).unwrap_or(0) };
    if grace == 0 && pod.meta.finalizers.is_empty() {
        return Outcome::Remove(pod);
    }
    pod.meta.generation += 1;
    pod.meta.deletion_timestamp = Some(later(now, grace));
    pod.meta.deletion_grace_period_seconds = Some(grace);
    Outcome::Store(pod)
}

/// Moves the deadline of a pod whose deletion began at `begun`.
fn shorten(mut pod: Pod, begun: Timestamp, seconds: i64, now: Timestamp) -> Outcome<Pod> {
    let mut deadline = later(begun, seconds);
    let mut grace = seconds;
    if deadline < now {
        deadline = now;
        // The new deadline has passed, but a grace of 0 would mean that the containers have stopped, which no agent
        // has confirmed.
        grace = grace.min(1);
    }
    if grace == 0 && pod.meta.finalizers.is_empty() {
        return Outcome::Remove(pod);
    }
    pod.meta.deletion_timestamp = Some(deadline);
    pod.meta.deletion_grace_period_seconds = Some(grace);
    Outcome::Store(pod)
}

/// The grace within its valid range: negative means 1 second, and the deadline must be a valid timestamp.
fn bounded(seconds: i64, now: Timestamp) -> i64 {
    let longest = Timestamp::MAX.as_second() - now.as_second();
    if seconds < 0 { 1 } else { seconds.min(longest) }
}

fn later(time: Timestamp, seconds: i64) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}
