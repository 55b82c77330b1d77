//! Pods.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::affinity::check_affinity;
use super::container::{Seen, check_container_status, check_volume, container_in};
use super::meta::meta_in;
use super::security::check_pod_security;
use super::{address_in, name_in, one_per_family, resources_in, resources_out, time_in, time_out};
use crate::invalid::{Check, Invalid, Path};
use crate::label::{check_label_key, check_labels};
use crate::pb;
use crate::pod::{Pod, PodCondition, PodSpec, PodStatus};
use crate::record::Kind;
use crate::taint::{TaintEffect, Toleration, TolerationOperator, check_toleration};

#[cfg(test)]
mod tests;

impl TryFrom<pb::Pod> for Pod {
    type Error = Invalid;

    fn try_from(pod: pb::Pod) -> Result<Self, Invalid> {
        let pb::Pod { metadata, spec, status } = pod;
        let mut check = Check::new();
        let meta = meta_in(&mut check, &Path::ROOT.key("metadata"), Kind::Pod, metadata);
        let spec = spec_in(&mut check, &Path::ROOT.key("spec"), spec.unwrap_or_default());
        let status = status_in(&mut check, &Path::ROOT.key("status"), status.unwrap_or_default());
        check.finish_some(meta.map(|meta| Pod { meta, spec, status }))
    }
}

/// A status without its pod, for callers that post only the status.
impl TryFrom<pb::PodStatus> for PodStatus {
    type Error = Invalid;

    fn try_from(status: pb::PodStatus) -> Result<Self, Invalid> {
        let mut check = Check::new();
        let status = status_in(&mut check, &Path::ROOT.key("status"), status);
        check.finish(status)
    }
}

fn spec_in(check: &mut Check, path: &Path<'_>, spec: pb::PodSpec) -> PodSpec {
    let pb::PodSpec {
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
    } = spec;
    let node_name = match node_name.as_str() {
        "" => None,
        name => check.field(&path.key("nodeName"), name.parse()),
    };
    check_labels(check, &path.key("nodeSelector"), &node_selector);
    if let Some(affinity) = &affinity {
        check_affinity(check, &path.key("affinity"), affinity);
    }
    let mut seen = Seen::default();
    // Volumes are checked before containers: a container may mount only declared volumes.
    for (i, volume) in volumes.iter().enumerate() {
        check_volume(check, &path.key("volumes").index(i), volume, &mut seen);
    }
    check.ensure(&path.key("containers"), !containers.is_empty(), "must hold at least one container");
    let containers = check.each(&path.key("containers"), containers, |check, path, container| {
        Some(container_in(check, path, container, false, &mut seen))
    });
    let init_containers =
        check.each(&path.key("initContainers"), init_containers, |check, path, container| {
            Some(container_in(check, path, container, true, &mut seen))
        });
    check.ensure(
        &path.key("terminationGracePeriodSeconds"),
        termination_grace_period_seconds.is_none_or(|seconds| seconds >= 0),
        "must not be negative",
    );
    let restart_policy = check.field(&path.key("restartPolicy"), restart_policy.parse());
    // An unknown class is refused by its name when the pod is created; what is no name at all is refused here.
    name_in(check, &path.key("priorityClassName"), &priority_class_name);
    let preemption_policy = match preemption_policy.as_str() {
        "" => None,
        policy => check.field(&path.key("preemptionPolicy"), policy.parse()),
    };
    if let Some(security) = &security_context {
        check_pod_security(check, &path.key("securityContext"), security);
    }
    PodSpec {
        node_name,
        node_selector,
        affinity,
        tolerations: check.each(&path.key("tolerations"), tolerations, toleration_in),
        containers,
        init_containers,
        overhead: resources_in(check, &path.key("overhead"), overhead),
        priority,
        termination_grace_period_seconds,
        host_network,
        restart_policy: restart_policy.unwrap_or_default(),
        scheduling_gates: gates_in(check, &path.key("schedulingGates"), scheduling_gates),
        volumes,
        service_account_name,
        security_context,
        priority_class_name,
        preemption_policy,
    }
}

fn toleration_in(check: &mut Check, path: &Path<'_>, toleration: pb::Toleration) -> Option<Toleration> {
    let pb::Toleration { key, operator, value, effect, toleration_seconds } = toleration;
    let operator: Option<TolerationOperator> = check.field(&path.key("operator"), operator.parse());
    let effect: Option<Option<TaintEffect>> = match effect.as_str() {
        "" => Some(None),
        effect => check.field(&path.key("effect"), effect.parse()).map(Some),
    };
    let toleration = Toleration { key, operator: operator?, value, effect: effect?, toleration_seconds };
    check_toleration(check, path, &toleration);
    Some(toleration)
}

fn gates_in(check: &mut Check, path: &Path<'_>, gates: Vec<pb::PodSchedulingGate>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    check.each(path, gates, |check, path, gate| {
        let pb::PodSchedulingGate { name } = gate;
        check.field(&path.key("name"), check_label_key(&name));
        let is_new = seen.insert(name.clone());
        check.ensure(&path.key("name"), is_new, "must not be the name of an earlier gate");
        Some(name)
    })
}

fn status_in(check: &mut Check, path: &Path<'_>, status: pb::PodStatus) -> PodStatus {
    let pb::PodStatus {
        phase,
        conditions,
        reason,
        message,
        qos_class,
        pod_ip,
        pod_ips,
        start_time,
        container_statuses,
        init_container_statuses,
        observed_generation,
        host_ip,
        nominated_node_name,
    } = status;
    let phase = check.field(&path.key("phase"), phase.parse());
    let qos_class = match qos_class.as_str() {
        "" => None,
        class => check.field(&path.key("qosClass"), class.parse()),
    };
    let host_ip = match host_ip.as_str() {
        "" => None,
        address => address_in(check, &path.key("hostIp"), address),
    };
    let pod_ips = one_per_family(
        check,
        (&path.key("podIp"), &pod_ip),
        (&path.key("podIps"), &pod_ips),
        address_in,
        IpAddr::is_ipv4,
    );
    for (field, statuses) in
        [("containerStatuses", &container_statuses), ("initContainerStatuses", &init_container_statuses)]
    {
        for (i, status) in statuses.iter().enumerate() {
            check_container_status(check, &path.key(field).index(i), status);
        }
    }
    check.ensure(&path.key("observedGeneration"), observed_generation >= 0, "must not be negative");
    PodStatus {
        phase: phase.unwrap_or_default(),
        conditions: check.each(&path.key("conditions"), conditions, condition_in),
        reason,
        message,
        qos_class,
        pod_ips,
        start_time: time_in(check, &path.key("startTime"), start_time),
        container_statuses,
        init_container_statuses,
        observed_generation,
        host_ip,
        nominated_node_name: name_in(check, &path.key("nominatedNodeName"), &nominated_node_name),
    }
}

fn condition_in(check: &mut Check, path: &Path<'_>, condition: pb::PodCondition) -> Option<PodCondition> {
    let pb::PodCondition { r#type, status, reason, message, last_probe_time, last_transition_time } =
        condition;
    check.ensure(&path.key("type"), !r#type.is_empty(), "is required");
    let status = check.field(&path.key("status"), status.parse());
    let last_probe_time = time_in(check, &path.key("lastProbeTime"), last_probe_time);
    let last_transition_time = time_in(check, &path.key("lastTransitionTime"), last_transition_time);
    Some(PodCondition {
        kind: r#type,
        status: status?,
        reason,
        message,
        last_probe_time,
        last_transition_time,
    })
}

impl From<Pod> for pb::Pod {
    fn from(pod: Pod) -> Self {
        let Pod { meta, spec, status } = pod;
        Self { metadata: Some(meta.into()), spec: Some(spec.into()), status: Some(status.into()) }
    }
}

impl From<PodSpec> for pb::PodSpec {
    fn from(spec: PodSpec) -> Self {
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
        } = spec;
        let gates = scheduling_gates.into_iter();
        Self {
            node_name: node_name.map(String::from).unwrap_or_default(),
            node_selector,
            affinity,
            tolerations: tolerations.into_iter().map(Into::into).collect(),
            containers: containers.into_iter().map(Into::into).collect(),
            init_containers: init_containers.into_iter().map(Into::into).collect(),
            overhead: resources_out(overhead),
            priority,
            termination_grace_period_seconds,
            host_network,
            restart_policy: restart_policy.to_string(),
            scheduling_gates: gates.map(|name| pb::PodSchedulingGate { name }).collect(),
            volumes,
            service_account_name,
            security_context,
            priority_class_name,
            preemption_policy: preemption_policy.map(|policy| policy.to_string()).unwrap_or_default(),
        }
    }
}

impl From<Toleration> for pb::Toleration {
    fn from(toleration: Toleration) -> Self {
        let Toleration { key, operator, value, effect, toleration_seconds } = toleration;
        let effect = effect.map(|effect| effect.to_string()).unwrap_or_default();
        Self { key, operator: operator.to_string(), value, effect, toleration_seconds }
    }
}

impl From<PodStatus> for pb::PodStatus {
    fn from(status: PodStatus) -> Self {
        let PodStatus {
            phase,
            conditions,
            reason,
            message,
            qos_class,
            pod_ips,
            start_time,
            container_statuses,
            init_container_statuses,
            observed_generation,
            host_ip,
            nominated_node_name,
        } = status;
        let pod_ips: Vec<String> = pod_ips.iter().map(IpAddr::to_string).collect();
        Self {
            phase: phase.to_string(),
            conditions: conditions.into_iter().map(Into::into).collect(),
            reason,
            message,
            qos_class: qos_class.map(|class| class.to_string()).unwrap_or_default(),
            pod_ip: pod_ips.first().cloned().unwrap_or_default(),
            pod_ips,
            start_time: time_out(start_time),
            container_statuses,
            init_container_statuses,
            observed_generation,
            host_ip: host_ip.map(|address| address.to_string()).unwrap_or_default(),
            nominated_node_name: nominated_node_name.map(String::from).unwrap_or_default(),
        }
    }
}

impl From<PodCondition> for pb::PodCondition {
    fn from(condition: PodCondition) -> Self {
        let PodCondition { kind, status, reason, message, last_probe_time, last_transition_time } = condition;
        Self {
            r#type: kind,
            status: status.to_string(),
            reason,
            message,
            last_probe_time: time_out(last_probe_time),
            last_transition_time: time_out(last_transition_time),
        }
    }
}
