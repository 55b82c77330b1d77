//! Defaults of a pod: grace period, requests equal to its limits, and tolerations.
//!
//! Set again at every update, so that a user may send the original manifest again.

use muster_proto::pod::{Container, Pod, QosClass};
use muster_proto::taint::{
    Taint, TaintEffect, add_or_update_toleration, daemon_tolerations, default_tolerations,
    memory_pressure_toleration,
};
use muster_proto::wellknown::taint;

use super::super::Context;

/// Seconds between TERM and KILL for pods without a grace period of their own.
const GRACE_PERIOD_SECONDS: i64 = 30;

pub(super) fn fill(pod: &mut Pod, cx: &Context) {
    let spec = &mut pod.spec;
    spec.termination_grace_period_seconds.get_or_insert(GRACE_PERIOD_SECONDS);
    spec.init_containers.iter_mut().chain(&mut spec.containers).for_each(default_requests_to_limits);
    add_tolerations(pod, cx);
}

/// A resource with a limit and no request gets a request equal to the limit.
fn default_requests_to_limits(container: &mut Container) {
    let resources = &mut container.resources;
    for (resource, limit) in &resources.limits {
        resources.requests.entry(resource.clone()).or_insert(*limit);
    }
}

/// A daemon's tolerations are added first: they have no time limit, so the default ones of five minutes are left out.
fn add_tolerations(pod: &mut Pod, cx: &Context) {
    let daemon = pod.is_daemon();
    let qos = pod.qos();
    let host_network = pod.spec.host_network;
    let tolerations = &mut pod.spec.tolerations;
    if daemon {
        for toleration in daemon_tolerations(host_network) {
            add_or_update_toleration(tolerations, toleration);
        }
    }
    let seconds = &cx.defaults;
    default_tolerations(
        tolerations,
        seconds.not_ready_toleration_seconds,
        seconds.unreachable_toleration_seconds,
    );
    let memory_pressure = Taint::new(taint::MEMORY_PRESSURE, "", TaintEffect::NoSchedule);
    if qos != QosClass::BestEffort && !tolerations.iter().any(|held| held.tolerates(&memory_pressure)) {
        tolerations.push(memory_pressure_toleration());
    }
}
