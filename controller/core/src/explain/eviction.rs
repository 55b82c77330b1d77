//! When a pod is evicted from its node, and what decides it.

use std::time::Duration;

use muster_proto::key::Key;
use muster_proto::pod::Pod;
use muster_proto::taint::{Taint, TaintEffect, Toleration};
use muster_proto::time::{Mono, Now};

use super::fleet::words;
use super::node::View;
use super::{EvictionDecision, Explanation};
use crate::controllers::Controllers;
use crate::drain::progress::{PodState, ProgressState};
use crate::node_lifecycle::noexecute_taints::is_health_taint;
use crate::node_lifecycle::noschedule_taints::ready_taint;
use crate::plan::uid;
use crate::reconciler::Reconciler;
use crate::taint_eviction::toleration_time::{TolerationTime, toleration_time};

/// Whether a pod may stay on its node, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct PodEviction {
    pub decision: EvictionDecision,
    /// The reason, in a sentence.
    pub reason: String,
    /// The earliest time of the eviction; `None` when the pod stays.
    pub earliest: Option<Mono>,
    /// The taint that decides.
    pub taint: Option<Taint>,
    /// The toleration that decides; `None` when the pod has none for the taint.
    pub toleration: Option<Toleration>,
}

/// When a pod is evicted from its node; `None` if it has no node, or the node does not exist.
pub(super) fn explain(
    reconciler: &Reconciler,
    controllers: &Controllers,
    pod: &Pod,
    now: Now,
) -> Option<PodEviction> {
    let name = pod.spec.node_name.as_ref()?;
    let node = reconciler.world().node(name.as_str())?;
    let status = controllers.node_lifecycle.taint_status(name)?;
    let view = View::new(reconciler, controllers, node, status, now);
    Some(view.eviction(pod, &view.taint()))
}

impl PodEviction {
    fn new(decision: EvictionDecision, reason: impl Into<String>) -> PodEviction {
        PodEviction { decision, reason: reason.into(), earliest: None, taint: None, toleration: None }
    }

    /// Of a pod whose node does not exist: pod GC removes it.
    pub(super) fn of_orphan(pod_gc: &Explanation) -> PodEviction {
        PodEviction {
            earliest: pod_gc.earliest,
            ..PodEviction::new(EvictionDecision::Evict, pod_gc.reason.clone())
        }
    }
}

impl View<'_> {
    /// When a pod of the node is evicted. `taint` is the explanation of the node's health taint.
    pub(super) fn eviction(&self, pod: &Pod, taint: &Explanation) -> PodEviction {
        if pod.meta.is_deleting() {
            let reason = "The pod is being deleted; its agent has not confirmed yet that it has stopped.";
            return PodEviction::new(EvictionDecision::Terminating, reason);
        }
        let (taints, tainted_at) = self.taints_to_come(taint);
        let taints: Vec<&Taint> = taints.iter().collect();
        let (decides, toleration, time, reason) = match toleration_time(&taints, &pod.spec.tolerations) {
            TolerationTime::Unlimited if taints.is_empty() => {
                return self
                    .drained(pod)
                    .unwrap_or_else(|| PodEviction::new(EvictionDecision::Keep, "No taint evicts the pod."));
            }
            TolerationTime::Unlimited => {
                let reason = "The pod tolerates every taint of its node without a time limit.";
                return self.drained(pod).unwrap_or_else(|| PodEviction::new(EvictionDecision::Keep, reason));
            }
            TolerationTime::Limited(time, taint, toleration) => {
                let reason = format!("The pod tolerates {taint} for {}.", words(time));
                (taint, Some(toleration.clone()), time, reason)
            }
            TolerationTime::NotTolerated(taint) => {
                (taint, None, Duration::ZERO, format!("The pod does not tolerate {taint}."))
            }
        };
        let (key, evictions) = (Key::of(pod), &self.controllers.taint_evictions);
        let earliest = if evictions.is_pending(&key) {
            evictions.due_at(&key, self.controllers.node_lifecycle.health_evictions_from())
        } else {
            tainted_at.map(|at| at + time)
        };
        let (decision, reason) = match earliest {
            Some(_) => (EvictionDecision::Evict, reason),
            None => {
                let reason = format!("{reason} The taint is not written: {}", lower_first(&taint.reason));
                (EvictionDecision::Keep, reason)
            }
        };
        PodEviction { decision, reason, earliest, taint: Some(decides.clone()), toleration }
    }

    /// When the node's drain evicts a pod that no taint evicts; `None` if it does not.
    fn drained(&self, pod: &Pod) -> Option<PodEviction> {
        let drain = self.drain.as_ref().filter(|drain| drain.state == ProgressState::Draining)?;
        let uid = uid(&pod.meta);
        let progress = drain.pods.iter().find(|progress| progress.uid == uid)?;
        let reason = match progress.state {
            PodState::Waiting => "The drain of the node evicts the pod.".to_owned(),
            PodState::Blocked => {
                format!("The drain of the node tries again: {}.", lower_first(&progress.reason))
            }
            PodState::Stopping | PodState::Gone | PodState::Stays => return None,
        };
        Some(PodEviction {
            earliest: Some(progress.retry_at.unwrap_or(self.now.mono)),
            ..PodEviction::new(EvictionDecision::Evict, reason)
        })
    }

    /// The NoExecute taints, with the health taint that is still to be written, and when all of them are there.
    fn taints_to_come(&self, taint: &Explanation) -> (Vec<Taint>, Option<Mono>) {
        let held = self.node.spec.taints.iter().filter(|taint| taint.effect == TaintEffect::NoExecute);
        let mut taints: Vec<Taint> = held.cloned().collect();
        let Some(key) = ready_taint(self.ready) else { return (taints, Some(self.now.mono)) };
        if taints.iter().any(is_health_taint) {
            return (taints, Some(self.now.mono));
        }
        taints.push(Taint::new(key, "", TaintEffect::NoExecute));
        (taints, taint.earliest)
    }
}

fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}
