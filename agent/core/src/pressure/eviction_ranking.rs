//! Which pod is evicted when the machine is under pressure.
//!
//! One pod per round, and no further round until that pod has stopped or half a minute has passed: what it frees may be
//! enough.

use std::cmp::Reverse;
use std::time::Duration;

use muster_proto::name::Uid;
use muster_proto::pod::{Pod, requests};
use muster_proto::quantity::Quantity;
use muster_proto::time::Mono;

use crate::pod_lifecycle::PodTermination;
use crate::pressure::{PressureState, StarvedResource, Threshold};
use crate::resources::priority;

#[cfg(test)]
mod tests;

/// The grace period of a pod that is evicted for a hard threshold.
const HARD_GRACE: Duration = Duration::from_secs(1);
/// How long a round waits for its pod to stop.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);

/// What a pod uses, in bytes or units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub memory: u64,
    pub disk: u64,
    pub inodes: u64,
    pub pids: u64,
}

/// A pod that may be evicted, and what it uses.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub pod: &'a Pod,
    pub usage: Usage,
}

/// What one round does.
#[derive(Clone, Debug, PartialEq)]
pub enum EvictionStep {
    /// There is no pressure, or no pod that may be evicted.
    Nothing,
    /// The last round's pod has not stopped; look again by then.
    Wait { until: Mono },
    /// Remove files that no pod needs, then observe again: that may be enough.
    ReclaimDisk,
    /// Evict this pod.
    Evict { uid: Uid, termination: PodTermination },
}

/// The state of the current round.
#[derive(Clone, Debug)]
pub struct Evictor {
    max_grace: Duration,
    evicting: Option<(Uid, Mono)>,
    is_reclaimed: bool,
}

impl Evictor {
    /// `max_grace` is the longest grace period of a pod that is evicted for a soft threshold
    /// (`--eviction-max-pod-grace-period`).
    pub fn new(max_grace: Duration) -> Self {
        Self { max_grace, evicting: None, is_reclaimed: false }
    }

    /// Decides what this round does. `is_present` returns whether the pod still has processes or resources on the
    /// machine.
    pub fn decide(
        &self,
        state: &PressureState,
        candidates: &[Candidate<'_>],
        is_present: impl Fn(Uid) -> bool,
        now: Mono,
    ) -> EvictionStep {
        if let Some((uid, until)) = self.evicting
            && now < until
            && is_present(uid)
        {
            return EvictionStep::Wait { until };
        }
        let Some((threshold, is_hard)) = state.first_met() else {
            return EvictionStep::Nothing;
        };
        let resource = threshold.signal.resource();
        if matches!(resource, StarvedResource::Disk | StarvedResource::Inodes) && !self.is_reclaimed {
            return EvictionStep::ReclaimDisk;
        }
        match rank(resource, candidates).first() {
            Some(Candidate { pod, usage }) => match pod.meta.uid {
                Some(uid) => EvictionStep::Evict {
                    uid,
                    termination: self.termination(threshold, is_hard, pod, *usage),
                },
                None => EvictionStep::Nothing,
            },
            None => EvictionStep::Nothing,
        }
    }

    /// Files that no pod needs were removed.
    pub fn observe_reclaimed(&mut self) {
        self.is_reclaimed = true;
    }

    /// There is no pressure. The next time, files that no pod needs are removed first again.
    pub fn observe_no_pressure(&mut self) {
        self.is_reclaimed = false;
    }

    /// The pod was told to terminate.
    pub fn observe_evicted(&mut self, uid: Uid, now: Mono) {
        self.evicting = Some((uid, now + CLEANUP_TIMEOUT));
        self.is_reclaimed = false;
    }

    fn termination(&self, threshold: &Threshold, is_hard: bool, pod: &Pod, usage: Usage) -> PodTermination {
        let resource = threshold.signal.resource();
        let (used, asked) = (usage.of(resource), request(pod, resource));
        PodTermination {
            reason: "Evicted".to_owned(),
            message: format!(
                "The node ran low on {resource} ({threshold}); the pod used {used} and had asked for {asked}."
            ),
            grace: if is_hard { HARD_GRACE } else { self.max_grace.min(priority::own_grace(pod)) },
            is_disruption: true,
        }
    }
}

/// The pods that may be evicted, in order: first those that use more than they requested, then by lower priority, then
/// by larger excess. Static and critical pods are never evicted.
pub fn rank<'a>(resource: StarvedResource, candidates: &[Candidate<'a>]) -> Vec<Candidate<'a>> {
    let mut ranked: Vec<Candidate<'a>> =
        candidates.iter().filter(|each| !priority::is_critical(each.pod)).copied().collect();
    ranked.sort_by_key(|Candidate { pod, usage }| {
        let asked = i128::from(request(pod, resource).value());
        let excess = i128::from(usage.of(resource)) - asked;
        // Names make the order total: the same state gives the same choice.
        let name = (pod.meta.namespace.clone(), pod.meta.name.clone());
        (excess <= 0, priority::of(pod), Reverse(excess), name)
    });
    ranked
}

/// What the pod requested; inodes and process ids cannot be requested.
fn request(pod: &Pod, resource: StarvedResource) -> Quantity {
    let name = match resource {
        StarvedResource::Memory => "memory",
        StarvedResource::Disk => "ephemeral-storage",
        StarvedResource::Inodes | StarvedResource::Pids => return Quantity::ZERO,
    };
    requests::amount(&requests::of(&pod.spec), name)
}

impl Usage {
    fn of(&self, resource: StarvedResource) -> u64 {
        match resource {
            StarvedResource::Memory => self.memory,
            StarvedResource::Disk => self.disk,
            StarvedResource::Inodes => self.inodes,
            StarvedResource::Pids => self.pids,
        }
    }
}
