//! The Ready condition: whether the node takes pods, and if not, every reason.

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
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(30);

/// The health of the agent's parts; an error is a sentence without a full stop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Errors of the container runtime, see [`runtime_errors`].
    pub runtime: Vec<String>,
    pub network: Option<String>,
    pub storage: Option<String>,
    pub shutting_down: bool,
    /// What is wrong but does not make the node unready.
    pub warnings: Vec<String>,
}

/// The Ready condition's status and texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyState {
    pub ready: bool,
    pub reason: &'static str,
    pub message: String,
}

/// Errors of the runtime: it never answered, not for too long, or it answered with an error.
pub fn runtime_errors(last_answer: Option<Mono>, errors: &[String], now: Mono) -> Vec<String> {
    let silence = match last_answer {
        None => Some("container runtime status check may not have completed yet"),
        Some(answered) if now - answered > RUNTIME_TIMEOUT => Some("container runtime is down"),
        Some(_) => None,
    };
    silence.map(str::to_owned).into_iter().chain(errors.iter().cloned()).collect()
}

/// Ready, unless any part has an error.
pub fn ready_state(health: &Health, capacity: &Resources, storage_isolation: bool) -> ReadyState {
    let shutdown = health.shutting_down.then(|| "node is shutting down".to_owned());
    let mut errors: Vec<&String> = Vec::new();
    let missing = missing(capacity, storage_isolation);
    for error in
        health.runtime.iter().chain(&health.network).chain(&health.storage).chain(&shutdown).chain(&missing)
    {
        // Two parts may report the same error; it is listed once.
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

/// Sets the Ready condition. Reason and message may change without a transition.
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

/// The resources of which the capacity must be known before pods can be scheduled onto the node.
fn missing(capacity: &Resources, storage_isolation: bool) -> Option<String> {
    let needed = [(CPU, true), (MEMORY, true), (PODS, true), (EPHEMERAL_STORAGE, storage_isolation)];
    let missing: Vec<&str> = needed
        .into_iter()
        .filter(|(name, wanted)| *wanted && !capacity.contains_key(*name))
        .map(|(name, _)| name)
        .collect();
    (!missing.is_empty()).then(|| format!("missing node capacity for resources: {}", missing.join(", ")))
}
