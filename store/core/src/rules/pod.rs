//! Rules for pods: creation, the fields that may change later, and binding to a node.
//!
//! [`deletion`] has graceful deletion, [`defaults`] the default grace period, requests and tolerations.

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::invalid::{Check, Path};
use muster_proto::name::Name;
use muster_proto::pod::{Pod, PodCondition, PodPhase, PodSpec, PodStatus, effects};
use muster_proto::taint::only_extended;
use muster_proto::wellknown::annotation;

use super::common::{check_preconditions, existing};
use super::refusal::Shortened;
use super::{Context, HasStatus, Outcome, Preconditions, RecordId, Refusal, Rules};

mod defaults;
mod deletion;
#[cfg(test)]
mod tests;

pub use deletion::delete_pod;
pub(super) use deletion::delete_with_grace;

impl Rules for Pod {
    fn prepare_create(&mut self, cx: &Context) {
        self.meta.generation = 1;
        defaults::fill(self, cx);
        self.status =
            PodStatus { phase: PodPhase::Pending, qos_class: Some(self.qos()), ..PodStatus::default() };
    }

    fn validate_create(&self, check: &mut Check) {
        effects::check(check, &self.spec);
    }

    fn prepare_update(&mut self, old: &Self, cx: &Context) {
        defaults::fill(self, cx);
        keep_priority(&mut self.spec, &old.spec);
        self.status.clone_from(&old.status);
        if self.spec != old.spec {
            self.meta.generation += 1;
        }
    }

    fn validate_update(&self, old: &Self, check: &mut Check) {
        check_spec_update(check, &self.spec, &old.spec);
        check_mirror(check, self, old);
    }
}

impl HasStatus for Pod {
    fn prepare_status_update(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
        self.status.qos_class = old.status.qos_class;
    }

    fn validate_status_update(&self, old: &Self, check: &mut Check) {
        check_mirror(check, self, old);
    }
}

/// Fills in what the pod got from its class: a user may send the original manifest again.
fn keep_priority(spec: &mut PodSpec, old: &PodSpec) {
    if spec.priority_class_name.is_empty() {
        spec.priority_class_name.clone_from(&old.priority_class_name);
    }
    if !old.priority_class_name.is_empty() {
        spec.priority = spec.priority.or(old.priority);
        spec.preemption_policy = spec.preemption_policy.or(old.preemption_policy);
    }
}

/// Reports every change of a spec except added tolerations, changed toleration times, and removed scheduling gates.
fn check_spec_update(check: &mut Check, new: &PodSpec, old: &PodSpec) {
    // Destructured, so that a new field does not compile until this function handles it.
    let PodSpec {
        node_name,
        node_selector,
        affinity,
        tolerations,
        containers,
        init_containers,
        overhead,
        priority,
        termination_grace_period_seconds,
        host_network,
        restart_policy,
        scheduling_gates,
        volumes,
        service_account_name,
        security_context,
        priority_class_name,
        preemption_policy,
    } = old;
    let root = Path::ROOT;
    let spec = root.key("spec");
    let grace = *termination_grace_period_seconds;
    for (field, same) in [
        ("nodeSelector", *node_selector == new.node_selector),
        ("affinity", *affinity == new.affinity),
        ("containers", *containers == new.containers),
        ("initContainers", *init_containers == new.init_containers),
        ("overhead", *overhead == new.overhead),
        ("priority", *priority == new.priority),
        ("terminationGracePeriodSeconds", grace == new.termination_grace_period_seconds),
        ("hostNetwork", *host_network == new.host_network),
        ("restartPolicy", *restart_policy == new.restart_policy),
        ("volumes", *volumes == new.volumes),
        ("serviceAccountName", *service_account_name == new.service_account_name),
        ("securityContext", *security_context == new.security_context),
        ("priorityClassName", *priority_class_name == new.priority_class_name),
        ("preemptionPolicy", *preemption_policy == new.preemption_policy),
    ] {
        check.ensure(&spec.key(field), same, "cannot be changed after creation");
    }
    if *node_name != new.node_name {
        let reason = match node_name {
            Some(node) => format!("cannot be changed: the pod is bound to {node}"),
            None => "cannot be set by an update: use BindPod".to_owned(),
        };
        check.fail(&spec.key("nodeName"), reason);
    }
    check.ensure(
        &spec.key("tolerations"),
        only_extended(tolerations, &new.tolerations),
        "must keep every toleration the pod has: one can be added, or its tolerationSeconds changed, \
         but none removed or changed otherwise",
    );
    let gates = spec.key("schedulingGates");
    for (i, gate) in new.scheduling_gates.iter().enumerate() {
        check.ensure(&gates.index(i), scheduling_gates.contains(gate), "cannot be added after creation");
    }
}

/// Reports a pod that becomes a mirror, stops being one, or mirrors something else.
fn check_mirror(check: &mut Check, new: &Pod, old: &Pod) {
    fn mirrors(pod: &Pod) -> Option<&String> {
        pod.meta.annotations.get(annotation::MIRROR)
    }
    let root = Path::ROOT;
    let metadata = root.key("metadata");
    let annotations = metadata.key("annotations");
    check.ensure(
        &annotations.entry(annotation::MIRROR),
        mirrors(new) == mirrors(old),
        "cannot be added, changed or removed after creation",
    );
}

/// The outcome of binding the pod to a node. The node need not exist.
pub fn bind(
    key: &RecordId,
    current: Option<&Pod>,
    node: Name,
    preconditions: &Preconditions,
    cx: &Context,
) -> Result<Outcome<Pod>, Refusal> {
    let current = existing(key, current)?;
    check_preconditions(current, preconditions)?;
    let conflict = |why: String| Err(Refusal::Conflict { key: key.clone(), why });
    if current.meta.is_deleting() {
        return conflict("is being deleted and cannot be bound".to_owned());
    }
    if let Some(holder) = &current.spec.node_name {
        return conflict(format!("is already bound to node {holder}"));
    }
    if !current.spec.scheduling_gates.is_empty() {
        let gates = Shortened(&current.spec.scheduling_gates);
        return conflict(format!("cannot be bound while it has scheduling gates: {gates}"));
    }
    let mut next = current.clone();
    // No new generation: a binding does not change what the pod runs.
    next.spec.node_name = Some(node);
    next.status.nominated_node_name = None;
    next.status.set_condition(PodCondition {
        kind: types::POD_SCHEDULED.to_owned(),
        status: ConditionStatus::True,
        reason: String::new(),
        message: String::new(),
        last_probe_time: None,
        last_transition_time: Some(cx.now),
    });
    Ok(Outcome::Store(next))
}
