//! Ready: whether the node takes pods, and if not, everything that stands in the way.

use std::time::Duration;

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::name::Name;
use muster_proto::node::{NodeCondition, NodeStatus};
use muster_proto::quantity::Resources;
use muster_proto::time::Mono;

use super::NodeEvent;
use super::capacity::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS};
use super::conditions::{entry, stamp};

/// How long a runtime may go without an answer before the node is not ready.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(30);

/// What the parts of the agent say of themselves; an error is a sentence without a full stop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// What is wrong with what runs the pods, see [`runtime_errors`].
    pub runtime: Vec<String>,
    pub network: Option<String>,
    pub storage: Option<String>,
    pub shutting_down: bool,
    /// What is not right but does not keep pods away.
    pub warnings: Vec<String>,
}

/// Whether the node is ready, and in what words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyState {
    pub ready: bool,
    pub reason: &'static str,
    pub message: String,
}

/// What is wrong with the runtime: it was never heard, not for a while, or it says so itself.
pub fn runtime_errors(last_answer: Option<Mono>, errors: &[String], now: Mono) -> Vec<String> {
    let silence = match last_answer {
        None => Some("container runtime status check may not have completed yet"),
        Some(heard) if now - heard > RUNTIME_PATIENCE => Some("container runtime is down"),
        Some(_) => None,
    };
    silence.map(str::to_owned).into_iter().chain(errors.iter().cloned()).collect()
}

/// Weighs what the parts say.
pub fn ready_state(health: &Health, capacity: &Resources, storage_isolation: bool) -> ReadyState {
    let shutdown = health.shutting_down.then(|| "node is shutting down".to_owned());
    let mut errors: Vec<&String> = Vec::new();
    let missing = missing(capacity, storage_isolation);
    for error in
        health.runtime.iter().chain(&health.network).chain(&health.storage).chain(&shutdown).chain(&missing)
    {
        // Two parts may trip over the same thing; it is said once.
        if !errors.contains(&error) {
            errors.push(error);
        }
    }
    let (reason, mut message) = match &errors[..] {
        [] => ("KubeletReady", "kubelet is posting ready status".to_owned()),
        [error] => ("KubeletNotReady", (*error).clone()),
        errors => {
            let joined: Vec<&str> = errors.iter().map(|error| error.as_str()).collect();
            ("KubeletNotReady", format!("[{}]", joined.join(", ")))
        }
    };
    for warning in &health.warnings {
        message = format!("{message}. WARNING: {warning}");
    }
    ReadyState { ready: errors.is_empty(), reason, message }
}

/// Puts the state down as the Ready condition. Words may change without a transition.
pub fn set_ready(
    conditions: &mut Vec<NodeCondition>,
    name: &Name,
    state: ReadyState,
    now: Timestamp,
) -> Option<NodeEvent> {
    let is_new = !conditions.iter().any(|condition| condition.kind == types::READY);
    let condition = entry(conditions, types::READY);
    let status = if state.ready { ConditionStatus::True } else { ConditionStatus::False };
    let changed = stamp(condition, status, now);
    condition.reason = state.reason.to_owned();
    condition.message = state.message;
    let event = if state.ready { "NodeReady" } else { "NodeNotReady" };
    (changed && !is_new).then(|| NodeEvent::node_status(name, event))
}

/// Whether a status says that the node is ready.
pub fn is_ready(status: &NodeStatus) -> bool {
    let ready = status.conditions.iter().find(|condition| condition.kind == types::READY);
    ready.is_some_and(|ready| ready.status == ConditionStatus::True)
}

/// Resources a node must know of before anything can be placed on it.
fn missing(capacity: &Resources, storage_isolation: bool) -> Option<String> {
    let needed = [(CPU, true), (MEMORY, true), (PODS, true), (EPHEMERAL_STORAGE, storage_isolation)];
    let missing: Vec<&str> = needed
        .into_iter()
        .filter(|(name, wanted)| *wanted && !capacity.contains_key(*name))
        .map(|(name, _)| name)
        .collect();
    (!missing.is_empty()).then(|| format!("missing node capacity for resources: {}", missing.join(", ")))
}
