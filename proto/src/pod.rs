//! Pods: the containers that run on one node, and their state.
//!
//! `pod/qos.rs` computes the QoS class, [`requests`] the resources and [`ports`] the host ports that a pod needs.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use jiff::Timestamp;

use crate::condition::{ConditionStatus, types};
use crate::label::Labels;
use crate::meta::Metadata;
use crate::name::Name;
use crate::pb;
use crate::priority_class::{PreemptionPolicy, system_value};
use crate::quantity::Resources;
use crate::taint::Toleration;
use crate::wellknown::annotation;

pub mod effects;
pub mod ports;
mod qos;
mod references;
pub mod requests;

pub use qos::{QosClass, QosClassError};
pub use references::References;

#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    pub meta: Metadata,
    pub spec: PodSpec,
    pub status: PodStatus,
}

/// The containers of a pod and where they may run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSpec {
    /// `None` until the pod is bound.
    pub node_name: Option<Name>,
    pub node_selector: Labels,
    pub affinity: Option<pb::Affinity>,
    pub tolerations: Vec<Toleration>,
    /// At least one.
    pub containers: Vec<Container>,
    pub init_containers: Vec<Container>,
    pub overhead: Resources,
    pub priority: Option<i32>,
    /// 0 or more.
    pub termination_grace_period_seconds: Option<i64>,
    pub host_network: bool,
    pub restart_policy: RestartPolicy,
    pub scheduling_gates: Vec<String>,
    pub volumes: Vec<pb::Volume>,
    pub service_account_name: String,
    pub security_context: Option<pb::PodSecurityContext>,
    /// Empty if the pod has none.
    pub priority_class_name: String,
    /// `None` means [`PreemptionPolicy::PreemptLowerPriority`].
    pub preemption_policy: Option<PreemptionPolicy>,
}

/// One container of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Container {
    pub name: String,
    pub image: String,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub working_dir: String,
    pub env: Vec<pb::EnvVar>,
    pub resources: ResourceRequirements,
    pub ports: Vec<pb::ContainerPort>,
    /// Only for init containers: it keeps running beside the others (restartPolicy Always).
    pub sidecar: bool,
    pub lifecycle: Option<pb::Lifecycle>,
    pub volume_mounts: Vec<pb::VolumeMount>,
    pub security_context: Option<pb::SecurityContext>,
}

/// Resource requests and limits of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceRequirements {
    pub requests: Resources,
    pub limits: Resources,
}

/// Whether a container that terminated is restarted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RestartPolicy {
    #[default]
    Always,
    OnFailure,
    Never,
}

/// The text is not a restart policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be Always, OnFailure or Never")]
pub struct RestartPolicyError;

/// The observed state of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    pub phase: PodPhase,
    pub conditions: Vec<PodCondition>,
    pub reason: String,
    pub message: String,
    /// `None` before the store computed it; see [`Pod::qos`].
    pub qos_class: Option<QosClass>,
    /// At most one for each IP family.
    pub pod_ips: Vec<IpAddr>,
    pub start_time: Option<Timestamp>,
    pub container_statuses: Vec<pb::ContainerStatus>,
    pub init_container_statuses: Vec<pb::ContainerStatus>,
    pub observed_generation: i64,
    pub host_ip: Option<IpAddr>,
    /// Where pods of lower priority are being displaced for this pod.
    pub nominated_node_name: Option<Name>,
}

/// The phase of a pod's lifecycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodPhase {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

/// The text is not a phase.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be Pending, Running, Succeeded, Failed or Unknown")]
pub struct PodPhaseError;

/// One aspect of a pod's state.
#[derive(Clone, Debug, PartialEq)]
pub struct PodCondition {
    /// One of [`types`], or a custom type.
    pub kind: String,
    pub status: ConditionStatus,
    pub reason: String,
    pub message: String,
    pub last_probe_time: Option<Timestamp>,
    pub last_transition_time: Option<Timestamp>,
}

impl Pod {
    /// The first condition of that type; writers replace the first one, too.
    pub fn condition(&self, kind: &str) -> Option<&PodCondition> {
        self.status.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Whether Ready is True.
    pub fn is_ready(&self) -> bool {
        self.condition(types::READY).is_some_and(|ready| ready.status == ConditionStatus::True)
    }

    /// Whether all containers have terminated for good: Succeeded or Failed.
    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// Whether this is a mirror pod: the record of a static pod of a node.
    pub fn is_mirror(&self) -> bool {
        self.meta.annotations.contains_key(annotation::MIRROR)
    }

    /// Whether this is a static pod: it was read from a file of its node. The annotation alone proves nothing, since
    /// anybody who may create pods can set it; but every record of a store has a version.
    pub fn is_static(&self) -> bool {
        let source = self.meta.annotations.get(annotation::CONFIG_SOURCE);
        self.meta.resource_version == 0 && source.is_some_and(|source| source != "api")
    }

    /// Whether a daemon set manages the pod.
    pub fn is_daemon(&self) -> bool {
        self.meta.controller().is_some_and(|owner| owner.kind == "DaemonSet")
    }

    /// Whether the pod is bound to the node of that name.
    pub fn is_on(&self, node: &str) -> bool {
        self.spec.node_name.as_ref().is_some_and(|name| name == node)
    }

    /// The QoS class, computed from the pod's requests and limits.
    pub fn qos(&self) -> QosClass {
        qos::of(&self.spec)
    }

    /// The objects that the pod refers to.
    pub fn references(&self) -> References<'_> {
        References::of(&self.spec)
    }
}

impl PodSpec {
    /// The priority; 0 if the pod has none. In the store a pod has that of its class; a static pod may have one of the
    /// classes that need no record.
    pub fn priority(&self) -> i32 {
        self.priority.or_else(|| system_value(&self.priority_class_name)).unwrap_or(0)
    }

    /// Whether the pod may displace pods of lower priority.
    pub fn may_preempt(&self) -> bool {
        self.preemption_policy.unwrap_or_default() == PreemptionPolicy::PreemptLowerPriority
    }

    /// All containers, the init containers first.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.init_containers.iter().chain(&self.containers)
    }
}

impl PodStatus {
    /// The first of the pod's addresses.
    pub fn pod_ip(&self) -> Option<IpAddr> {
        self.pod_ips.first().copied()
    }

    /// Sets a condition, replacing the first of its type. Its transition time stays while its status is the same.
    pub fn set_condition(&mut self, mut condition: PodCondition) {
        match self.conditions.iter_mut().find(|held| held.kind == condition.kind) {
            Some(held) => {
                if held.status == condition.status {
                    condition.last_transition_time = held.last_transition_time;
                }
                *held = condition;
            }
            None => self.conditions.push(condition),
        }
    }
}

impl FromStr for RestartPolicy {
    type Err = RestartPolicyError;

    /// Empty text is Always, the default.
    fn from_str(text: &str) -> Result<Self, RestartPolicyError> {
        match text {
            "" | "Always" => Ok(Self::Always),
            "OnFailure" => Ok(Self::OnFailure),
            "Never" => Ok(Self::Never),
            _ => Err(RestartPolicyError),
        }
    }
}

impl fmt::Display for RestartPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Always => "Always",
            Self::OnFailure => "OnFailure",
            Self::Never => "Never",
        })
    }
}

impl FromStr for PodPhase {
    type Err = PodPhaseError;

    /// Empty text is Pending, the first phase of every pod.
    fn from_str(text: &str) -> Result<Self, PodPhaseError> {
        match text {
            "" | "Pending" => Ok(Self::Pending),
            "Running" => Ok(Self::Running),
            "Succeeded" => Ok(Self::Succeeded),
            "Failed" => Ok(Self::Failed),
            "Unknown" => Ok(Self::Unknown),
            _ => Err(PodPhaseError),
        }
    }
}

impl fmt::Display for PodPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        })
    }
}
