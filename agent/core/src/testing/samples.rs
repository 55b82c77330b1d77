//! Builders for sample pods: `pod("a").priority(3).build()`.

use jiff::Timestamp;
use muster_proto::condition::ConditionStatus;
use muster_proto::label::Labels;
use muster_proto::meta::Metadata;
use muster_proto::name::Uid;
use muster_proto::pb;
use muster_proto::pod::{Container, Pod, PodCondition, PodPhase, PodSpec, PodStatus, RestartPolicy};
use muster_proto::quantity::Resources;
use muster_proto::taint::Toleration;
use muster_proto::wellknown::annotation;
use uuid::Uuid;

use crate::pod_security::PodSecurityPolicy;

/// The node all sample pods are bound to.
pub const NODE: &str = "n1";

/// Parses amounts such as `cpu=1 memory=1Gi`.
pub fn amounts(text: &str) -> Resources {
    pairs(text).map(|(name, amount)| (name.to_owned(), amount.parse().unwrap())).collect()
}

/// Parses labels such as `zone=a disk=ssd`.
pub fn labels(text: &str) -> Labels {
    pairs(text).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split_whitespace().map(|pair| pair.split_once('=').unwrap())
}

/// The uid of the sample pod of that name.
pub fn uid(name: &str) -> Uid {
    Uid::new(Uuid::new_v5(&Uuid::NAMESPACE_DNS, name.as_bytes()))
}

/// What the agent of the sample node allows pods to ask for: nothing.
pub fn security_policy() -> PodSecurityPolicy {
    PodSecurityPolicy {
        own_ids: Some("2000-2999".parse().unwrap()),
        agent: (0, 0),
        allowed_ids: Vec::new(),
        allow_privileged: false,
    }
}

pub fn container(name: &str) -> Container {
    Container { name: name.to_owned(), image: "image".to_owned(), ..Container::default() }
}

pub trait ContainerBuilder: Sized {
    fn requests(self, text: &str) -> Self;
    fn limits(self, text: &str) -> Self;
    fn sidecar(self) -> Self;
    fn hook(self) -> Self;
    fn port(self, host_port: i32, host_ip: &str, protocol: &str) -> Self;
}

impl ContainerBuilder for Container {
    fn requests(mut self, text: &str) -> Self {
        self.resources.requests = amounts(text);
        self
    }

    fn limits(mut self, text: &str) -> Self {
        self.resources.limits = amounts(text);
        self
    }

    fn sidecar(self) -> Self {
        Self { sidecar: true, ..self }
    }

    fn hook(self) -> Self {
        let pre_stop = Some(pb::ExecAction { command: vec!["stop".to_owned()] });
        Self { lifecycle: Some(pb::Lifecycle { pre_stop }), ..self }
    }

    fn port(mut self, host_port: i32, host_ip: &str, protocol: &str) -> Self {
        self.ports.push(pb::ContainerPort {
            container_port: 80,
            host_port,
            host_ip: host_ip.to_owned(),
            protocol: protocol.to_owned(),
            ..Default::default()
        });
        self
    }
}

#[derive(Clone)]
pub struct PodBuilder(Pod);

/// A bound pod with one container, `main`, that is Pending.
pub fn pod(name: &str) -> PodBuilder {
    let meta = Metadata {
        uid: Some(uid(name)),
        resource_version: 1,
        generation: 1,
        creation_timestamp: Some(Timestamp::UNIX_EPOCH),
        ..Metadata::new(Some("default".parse().unwrap()), name.parse().unwrap())
    };
    let spec = PodSpec {
        node_name: Some(NODE.parse().unwrap()),
        containers: vec![container("main")],
        ..PodSpec::default()
    };
    PodBuilder(Pod { meta, spec, status: PodStatus::default() })
}

impl PodBuilder {
    pub fn build(self) -> Pod {
        self.0
    }

    fn with(mut self, change: impl FnOnce(&mut Pod)) -> Self {
        change(&mut self.0);
        self
    }

    pub fn containers(self, containers: Vec<Container>) -> Self {
        self.with(|pod| pod.spec.containers = containers)
    }

    pub fn inits(self, inits: Vec<Container>) -> Self {
        self.with(|pod| pod.spec.init_containers = inits)
    }

    /// Its one container requests this.
    pub fn requests(self, text: &str) -> Self {
        self.with(|pod| pod.spec.containers = vec![container("main").requests(text)])
    }

    pub fn priority(self, priority: i32) -> Self {
        self.with(|pod| pod.spec.priority = Some(priority))
    }

    pub fn grace(self, seconds: i64) -> Self {
        self.with(|pod| pod.spec.termination_grace_period_seconds = Some(seconds))
    }

    pub fn restart(self, policy: RestartPolicy) -> Self {
        self.with(|pod| pod.spec.restart_policy = policy)
    }

    pub fn tolerates(self, toleration: Toleration) -> Self {
        self.with(|pod| pod.spec.tolerations.push(toleration))
    }

    pub fn source(self, source: &str) -> Self {
        self.annotation(annotation::CONFIG_SOURCE, source)
    }

    /// It never was in a store.
    pub fn unstored(self) -> Self {
        self.with(|pod| pod.meta.resource_version = 0)
    }

    pub fn mirror(self) -> Self {
        self.annotation(annotation::MIRROR, "hash")
    }

    fn annotation(self, key: &str, value: &str) -> Self {
        self.with(|pod| {
            pod.meta.annotations.insert(key.to_owned(), value.to_owned());
        })
    }

    pub fn phase(self, phase: PodPhase) -> Self {
        self.with(|pod| pod.status.phase = phase)
    }

    pub fn condition(self, kind: &str, status: ConditionStatus) -> Self {
        self.with(|pod| {
            pod.status.conditions.push(PodCondition {
                kind: kind.to_owned(),
                status,
                reason: String::new(),
                message: String::new(),
                last_probe_time: None,
                last_transition_time: None,
            });
        })
    }

    /// A client deleted it.
    pub fn deleting(self, grace: i64) -> Self {
        self.with(|pod| {
            pod.meta.deletion_timestamp = Some(Timestamp::UNIX_EPOCH);
            pod.meta.deletion_grace_period_seconds = Some(grace);
            pod.meta.resource_version += 1;
            pod.meta.generation += 1;
        })
    }
}
