//! How a pod ends: with a grace that can be shortened but never lengthened or taken back.
//!
//! The store never removes a pod because its time is over. Only a deletion without grace does: the agent
//! sends it once the containers have stopped, and until then nobody may take them for gone.

use jiff::{SignedDuration, Timestamp};
use muster_proto::pod::Pod;

use super::super::common::{check_preconditions, existing};
use super::super::{Context, Outcome, PodDeletion, RecordId, Refusal};

#[cfg(test)]
mod tests;

/// What a deletion makes of the pod.
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

/// What becomes of a pod that is to end within so many seconds, or within its own grace.
pub(in super::super) fn delete_with_grace(pod: Pod, requested: Option<i64>, cx: &Context) -> Outcome<Pod> {
    let requested = requested.map(|seconds| bounded(seconds, cx.now));
    match (pod.meta.deletion_timestamp, pod.meta.deletion_grace_period_seconds) {
        (None, _) => begin(pod, requested, cx.now),
        // Only finalizers keep it: no grace is left to shorten.
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
    // What never ran, or runs no longer, has nothing to end in good order.
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
        // Late already, but 0 would say that the containers have stopped. Nobody said so.
        grace = grace.min(1);
    }
    if grace == 0 && pod.meta.finalizers.is_empty() {
        return Outcome::Remove(pod);
    }
    pod.meta.deletion_timestamp = Some(deadline);
    pod.meta.deletion_grace_period_seconds = Some(grace);
    Outcome::Store(pod)
}

/// A grace as it can be kept: a negative one is the shortest there is, and none ends after the calendar.
fn bounded(seconds: i64, now: Timestamp) -> i64 {
    let longest = Timestamp::MAX.as_second() - now.as_second();
    if seconds < 0 { 1 } else { seconds.min(longest) }
}

fn later(time: Timestamp, seconds: i64) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}
