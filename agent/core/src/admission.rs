//! Admission: the node's own check of a pod that was bound to it.
//!
//! The scheduler decided by what the store knew; the node decides by its current state. All objections are collected,
//! and the first becomes the reason of a pod that has failed for good.

use std::fmt;

use muster_proto::affinity;
use muster_proto::label::Labels;
use muster_proto::name::Name;
use muster_proto::pod::{Pod, QosClass, ports, requests};
use muster_proto::quantity::Resources;
use muster_proto::taint::{Taint, TaintEffect};
use muster_proto::wellknown::taint as keys;

use crate::pod_security::PodSecurityPolicy;
use crate::pressure::PressureConditions;
use crate::resources::priority;

#[cfg(test)]
mod tests;

/// What admission needs to know about the node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    pub name: Name,
    pub labels: Labels,
    pub taints: Vec<Taint>,
    pub allocatable: Resources,
    pub pressure: PressureConditions,
    pub shutting_down: bool,
    pub security: PodSecurityPolicy,
}

/// An objection to a pod: the reason and message of its failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
}

const NODE_AFFINITY: &str = "NodeAffinity";
const COUNT: &str = "pods";

impl Rejection {
    pub fn new(reason: impl Into<String>, message: impl fmt::Display) -> Self {
        Self { reason: reason.into(), message: format!("Pod was rejected: {message}") }
    }
}

/// All objections to the pod on this node; empty means that the pod may run.
///
/// `others` are the pods that the node already has: admitted and not yet stopped, including those that are stopping.
pub fn rejections(pod: &Pod, node: &NodeFacts, others: &[&Pod]) -> Vec<Rejection> {
    let mut found = Vec::new();
    found.extend(shutdown(node));
    found.extend(shortage(pod, node));
    found.extend(resources(pod, node, others));
    if !affinity::accepts(&pod.spec, &node.name, &node.labels) {
        let message = "the labels of the node do not satisfy the pod's node selector or affinity";
        found.push(Rejection::new(NODE_AFFINITY, message));
    }
    if !pod.is_on(node.name.as_str()) {
        found.push(Rejection::new("NodeName", "it is bound to another node"));
    }
    if let Some(port) = ports::conflict(pod, others) {
        found.push(Rejection::new("NodePorts", format_args!("host port {port} is taken")));
    }
    found.extend(taint(pod, node));
    found.extend(node.security.rejection(pod));
    found
}

/// Whether newer labels of the node might change the answer: then the node is read again before the pod fails.
pub fn may_be_stale(rejections: &[Rejection]) -> bool {
    !rejections.is_empty() && rejections.iter().all(|each| each.reason == NODE_AFFINITY)
}

fn shutdown(node: &NodeFacts) -> Option<Rejection> {
    node.shutting_down.then(|| Rejection::new("NodeShutdown", "the node is shutting down"))
}

/// A node under pressure admits critical pods; under memory pressure alone, also pods that requested resources.
fn shortage(pod: &Pod, node: &NodeFacts) -> Option<Rejection> {
    let PressureConditions { memory, disk, pid } = node.pressure;
    if !(memory || disk || pid) || priority::is_critical(pod) {
        return None;
    }
    if !disk && !pid {
        let mark = Taint::new(keys::MEMORY_PRESSURE, "", TaintEffect::NoSchedule);
        let bears_it = || pod.spec.tolerations.iter().any(|toleration| toleration.tolerates(&mark));
        if pod.qos() != QosClass::BestEffort || bears_it() {
            return None;
        }
    }
    let named = [(memory, "MemoryPressure"), (disk, "DiskPressure"), (pid, "PIDPressure")];
    let conditions: Vec<&str> = named.into_iter().filter(|(holds, _)| *holds).map(|(_, name)| name).collect();
    Some(Rejection::new("Evicted", format_args!("the node has {}", conditions.join(", "))))
}

/// First the number of pods, then cpu, memory and local storage, then other resources by name.
fn resources(pod: &Pod, node: &NodeFacts, others: &[&Pod]) -> Vec<Rejection> {
    let mut found = Vec::new();
    let room = requests::amount(&node.allocatable, COUNT);
    let count = i64::try_from(others.len()).unwrap_or(i64::MAX).saturating_add(1);
    if count > room.value() {
        let message = format_args!("the node has room for {room} pods and holds {}", others.len());
        found.push(Rejection::new(format!("OutOf{COUNT}"), message));
    }
    let wanted = requests::of(&pod.spec);
    let used = requests::sum(others.iter().copied());
    let first = ["cpu", "memory", "ephemeral-storage"];
    let rest = wanted.keys().map(String::as_str).filter(|name| !first.contains(name) && *name != COUNT);
    for name in first.into_iter().chain(rest) {
        let [asked, taken, all] = [&wanted, &used, &node.allocatable].map(|of| requests::amount(of, name));
        // A difference too large to express counts as a shortage: no machine has such amounts.
        let fits = asked.is_zero() || all.sub(&taken).is_ok_and(|free| asked <= free);
        if !fits {
            let message =
                format_args!("it asks for {asked} {name}, of {all} the node has given away {taken}");
            found.push(Rejection::new(format!("OutOf{name}"), message));
        }
    }
    found
}

/// Only NoExecute taints count here: NoSchedule is for the scheduler, which has already chosen.
fn taint(pod: &Pod, node: &NodeFacts) -> Option<Rejection> {
    if pod.is_static() {
        return None;
    }
    let drives_off = |taint: &&Taint| {
        taint.effect == TaintEffect::NoExecute
            && !pod.spec.tolerations.iter().any(|toleration| toleration.tolerates(taint))
    };
    let taint = node.taints.iter().find(drives_off)?;
    Some(Rejection::new("TaintToleration", format_args!("it does not tolerate the taint {taint}")))
}
