//! The progress of a drain as clients see it, from the same state that the controller decides by.

use std::fmt;

use muster_proto::drain::{DrainOptions, DrainState};
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::time::Mono;

use super::eviction_state::{EvictionState, binding_text};
use super::filters::{DrainPlan, PlannedPod, PodAction, plan};
use super::{Drains, under_way};
use crate::world::World;
use muster_proto::time::Now;

/// How far a drain has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainProgress {
    pub state: ProgressState,
    /// The state in a sentence.
    pub message: String,
    /// The node's pods in the order they leave, those that have left first.
    pub pods: Vec<PodProgress>,
}

/// The progress of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodProgress {
    pub key: Key,
    pub uid: Uid,
    pub action: PodAction,
    pub state: PodState,
    /// Why, in a sentence: the rule, what prevents the eviction, or what is at risk.
    pub reason: String,
    /// When its eviction is requested again; `None` unless it is blocked for a time.
    pub retry_at: Option<Mono>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProgressState {
    /// No drain was requested: this is what one would do.
    Planned,
    /// Some pods must not leave, so none is evicted.
    Refused,
    Draining,
    Complete,
    Failed,
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodState {
    /// Its eviction is to be requested.
    Waiting,
    /// A disruption budget or something else prevents it.
    Blocked,
    /// Its agent has to confirm that it has stopped.
    Stopping,
    Gone,
    Stays,
}

impl ProgressState {
    /// Whether the state cannot change any more.
    pub fn is_final(self) -> bool {
        !matches!(self, ProgressState::Draining)
    }
}

/// What a drain with these options would do now; `None` if there is no such node.
pub fn preview(world: &World, node: &str, options: &DrainOptions, now: Now) -> Option<DrainProgress> {
    world.node(node)?;
    let plan = plan(world.pods_on(node).map(|pod| &**pod), options, now.wall);
    let (state, message) = match plan.refusal() {
        Some(refusal) => (ProgressState::Refused, refusal),
        None => (ProgressState::Planned, plan_text(&plan)),
    };
    let pods = plan.pods.into_iter().map(|planned| {
        let state = if planned.action.moves() { PodState::Waiting } else { PodState::Stays };
        pod_progress(planned, state, None, None)
    });
    Some(DrainProgress { state, message, pods: pods.collect() })
}

impl Drains {
    /// How far the drain of a node has come, or its result; `None` if none was requested.
    pub fn progress(&self, world: &World, node: &str, now: Now) -> Option<DrainProgress> {
        let record = world.node(node)?;
        let drain = record.spec.drain.as_ref()?;
        let plan = plan(world.pods_on(node).map(|pod| &**pod), &drain.options, now.wall);
        let refusal = plan.refusal();
        let gone = self.nodes.get(node).map(|drain| drain.gone.as_slice()).unwrap_or_default();
        let gone = gone.iter().cloned().map(|planned| pod_progress(planned, PodState::Gone, None, None));
        let here = plan.pods.into_iter().map(|planned| match under_way(record) {
            Some(_) => self.pod_progress_now(world, planned, &drain.options, now),
            None => pod_progress(planned, PodState::Stays, None, None),
        });
        let pods: Vec<PodProgress> = gone.chain(here).collect();
        let (state, message) = match drain.state {
            DrainState::Complete => (ProgressState::Complete, drain.message.clone()),
            DrainState::Failed => (ProgressState::Failed, drain.message.clone()),
            DrainState::Draining if !record.spec.unschedulable => {
                (ProgressState::Cancelled, "the node was uncordoned".to_owned())
            }
            DrainState::Draining => match refusal {
                Some(refusal) => (ProgressState::Refused, refusal),
                None => {
                    let binding = self.nodes.get(node).map_or(0, |drain| drain.binding);
                    (ProgressState::Draining, counts_text(&pods, binding))
                }
            },
        };
        Some(DrainProgress { state, message, pods })
    }

    fn pod_progress_now(
        &self,
        world: &World,
        planned: PlannedPod,
        options: &DrainOptions,
        now: Now,
    ) -> PodProgress {
        let Some(pod) = world.pod(&planned.key).filter(|_| planned.action.moves()) else {
            return pod_progress(planned, PodState::Stays, None, None);
        };
        match self.eviction_state(pod, options, now) {
            EvictionState::Due { why: None } | EvictionState::InFlight { why: None } => {
                pod_progress(planned, PodState::Waiting, None, None)
            }
            // It counts as blocked until the next answer.
            EvictionState::Due { why } | EvictionState::InFlight { why } => {
                pod_progress(planned, PodState::Blocked, why, None)
            }
            EvictionState::Blocked { why, until } => {
                pod_progress(planned, PodState::Blocked, Some(why), until)
            }
            EvictionState::Stopping => {
                let why = "is ending; its node has not confirmed the stop yet".to_owned();
                pod_progress(planned, PodState::Stopping, Some(why), None)
            }
        }
    }
}

fn pod_progress(
    planned: PlannedPod,
    state: PodState,
    why: Option<String>,
    retry_at: Option<Mono>,
) -> PodProgress {
    let PlannedPod { key, uid, action, reason, warnings } = planned;
    let mut reason = match state {
        PodState::Gone => "has stopped".to_owned(),
        _ => why.unwrap_or_else(|| reason.to_owned()),
    };
    if matches!(state, PodState::Waiting | PodState::Stays) {
        for warning in warnings {
            reason = format!("{reason}; {warning}");
        }
    }
    PodProgress { key, uid, action, state, reason, retry_at }
}

fn plan_text(plan: &DrainPlan) -> String {
    let going = plan.going().count();
    format!("{going} of {} pods would go", plan.pods.len())
}

fn counts_text(pods: &[PodProgress], binding: usize) -> String {
    let count = |state| pods.iter().filter(|pod| pod.state == state).count();
    let [waiting, blocked, stopping, gone] =
        [PodState::Waiting, PodState::Blocked, PodState::Stopping, PodState::Gone].map(count);
    let left = waiting + blocked + stopping;
    let parts = [(waiting, "waiting"), (blocked, "blocked"), (stopping, "stopping")];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, state)| format!("{count} {state}"))
        .collect();
    let mut text =
        if left == 1 { "1 pod has".to_owned() } else { format!("{left} pods have") } + " still to go";
    if !parts.is_empty() {
        text += &format!(": {}", parts.join(", "));
    }
    if gone > 0 {
        text += &format!("; {gone} gone");
    }
    if binding == 0 { text } else { format!("{text}; {}", binding_text(binding)) }
}

impl fmt::Display for ProgressState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ProgressState::Planned => "Planned",
            ProgressState::Refused => "Refused",
            ProgressState::Draining => "Draining",
            ProgressState::Complete => "Complete",
            ProgressState::Failed => "Failed",
            ProgressState::Cancelled => "Cancelled",
        })
    }
}

impl fmt::Display for PodState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PodState::Waiting => "Waiting",
            PodState::Blocked => "Blocked",
            PodState::Stopping => "Stopping",
            PodState::Gone => "Gone",
            PodState::Stays => "Stays",
        })
    }
}
