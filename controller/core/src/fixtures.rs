//! Builders of records for tests: `node("a").zone("z1").ready(True).build()`.

#![allow(clippy::unwrap_used, reason = "for tests only")]

pub mod simulator;

use std::time::Duration;

use jiff::Timestamp;
use muster_proto::condition::ConditionStatus;
use muster_proto::drain::{Drain, DrainOptions, DrainState};
use muster_proto::key::Key;
use muster_proto::meta::{Metadata, OwnerReference};
use muster_proto::name::Uid;
use muster_proto::node::{Node, NodeCondition, NodeSpec, NodeStatus};
use muster_proto::pb;
use muster_proto::pod::{Container, Pod, PodCondition, PodPhase, PodSpec, PodStatus};
use muster_proto::quantity::Resources;
use muster_proto::taint::{Taint, Toleration};
use muster_proto::time::Mono;
use muster_proto::wellknown::{annotation, label};
use uuid::Uuid;

use muster_proto::time::Now;

/// The wall-clock time at which tests begin, in seconds since 1970.
pub const EPOCH: i64 = 1_700_000_000;

/// The time this many milliseconds after the beginning.
pub fn at_ms(millis: u64) -> Now {
    let elapsed = Duration::from_millis(millis);
    // The origin of the clock is well before the beginning, like that of the system's clock.
    let mono = Mono::since_origin(Duration::from_secs(100_000) + elapsed);
    Now { mono, wall: epoch().checked_add(elapsed).unwrap() }
}

/// The time this many seconds after the beginning.
pub fn at(seconds: u64) -> Now {
    at_ms(seconds * 1000)
}

/// The wall-clock time at which tests begin.
pub fn epoch() -> Timestamp {
    Timestamp::from_second(EPOCH).unwrap()
}

/// The uid of the sample of that name, unless [`NodeSample::identity`] or [`PodSample::identity`] set another.
pub fn uid(identity: &str) -> Uid {
    Uid::new(Uuid::new_v5(&Uuid::NAMESPACE_DNS, identity.as_bytes()))
}

/// The key of a pod in `default`.
pub fn key(name: &str) -> Key {
    Key::namespaced("default".parse().unwrap(), name.parse().unwrap())
}

/// Parses amounts such as `cpu=1 memory=1Gi`.
pub fn amounts(text: &str) -> Resources {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(name, amount)| (name.to_owned(), amount.parse().unwrap())).collect()
}

fn metadata(namespace: Option<&str>, name: &str) -> Metadata {
    Metadata {
        uid: Some(uid(name)),
        resource_version: 1,
        creation_timestamp: Some(epoch()),
        ..Metadata::new(namespace.map(|namespace| namespace.parse().unwrap()), name.parse().unwrap())
    }
}

pub struct NodeSample(pub Node);

/// A node created at the beginning, with nothing but a name.
pub fn node(name: &str) -> NodeSample {
    let (spec, status) = (NodeSpec::default(), NodeStatus::default());
    NodeSample(Node { meta: metadata(None, name), spec, status })
}

impl NodeSample {
    pub fn build(self) -> Node {
        self.0
    }

    pub fn with(mut self, change: impl FnOnce(&mut Node)) -> Self {
        change(&mut self.0);
        self
    }

    pub fn identity(self, identity: &str) -> Self {
        self.with(|node| node.meta.uid = Some(uid(identity)))
    }

    pub fn at(self, version: u64) -> Self {
        self.with(|node| node.meta.resource_version = version)
    }

    pub fn label(self, key: &str, value: &str) -> Self {
        self.with(|node| drop(node.meta.labels.insert(key.to_owned(), value.to_owned())))
    }

    pub fn zone(self, zone: &str) -> Self {
        self.label(label::ZONE, zone)
    }

    /// A condition whose times are the beginning.
    pub fn condition(self, kind: &str, status: ConditionStatus) -> Self {
        let condition = NodeCondition {
            kind: kind.to_owned(),
            status,
            reason: String::new(),
            message: String::new(),
            last_heartbeat_time: Some(epoch()),
            last_transition_time: Some(epoch()),
        };
        self.with(|node| {
            node.status.conditions.retain(|held| held.kind != kind);
            node.status.conditions.push(condition);
        })
    }

    pub fn ready(self, status: ConditionStatus) -> Self {
        self.condition("Ready", status)
    }

    /// A taint written `key=value:effect`.
    pub fn taint(self, text: &str) -> Self {
        let taint: Taint = text.parse().unwrap();
        self.with(|node| node.spec.taints.push(taint))
    }

    pub fn cordoned(self) -> Self {
        self.with(|node| node.spec.unschedulable = true)
    }

    /// Cordoned, with this drain requested.
    pub fn draining(self, drain: Drain) -> Self {
        self.cordoned().with(|node| node.spec.drain = Some(drain))
    }

    pub fn allocatable(self, text: &str) -> Self {
        self.with(|node| node.status.allocatable = amounts(text))
    }

    pub fn cidrs(self, cidrs: &[&str]) -> Self {
        self.with(|node| node.spec.pod_cidrs = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect())
    }

    pub fn deleting(self) -> Self {
        self.with(|node| node.meta.deletion_timestamp = Some(epoch()))
    }
}

/// A drain that eva requested this many seconds after the beginning, without a deadline.
pub fn drain(requested_at: u64) -> Drain {
    Drain {
        requested_by: "eva".to_owned(),
        reason: "new kernel".to_owned(),
        requested_at: at(requested_at).wall,
        deadline: None,
        options: DrainOptions::default(),
        state: DrainState::Draining,
        message: String::new(),
        finished_at: None,
    }
}

/// A requirement on labels or the name, such as `zone In a,b`.
pub fn wish(text: &str) -> pb::LabelSelectorRequirement {
    let mut parts = text.split(' ').map(str::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    let (key, operator, values) = (next(), next(), next());
    let values = values.split(',').filter(|value| !value.is_empty()).map(str::to_owned).collect();
    pb::LabelSelectorRequirement { key, operator, values }
}

fn term(requirements: &[pb::LabelSelectorRequirement]) -> pb::NodeSelectorTerm {
    let (match_fields, match_expressions) =
        requirements.iter().cloned().partition(|requirement| requirement.key == "metadata.name");
    pb::NodeSelectorTerm { match_expressions, match_fields }
}

fn node_affinity(pod: &mut Pod) -> &mut pb::NodeAffinity {
    pod.spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default()
}

pub struct PodSample(pub Pod);

/// A pending pod of one container in `default`, created at the beginning.
pub fn pod(name: &str) -> PodSample {
    let container = Container { name: "main".to_owned(), image: "image".to_owned(), ..Container::default() };
    let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
    PodSample(Pod { meta: metadata(Some("default"), name), spec, status: PodStatus::default() })
}

impl PodSample {
    pub fn build(self) -> Pod {
        self.0
    }

    pub fn with(mut self, change: impl FnOnce(&mut Pod)) -> Self {
        change(&mut self.0);
        self
    }

    pub fn identity(self, identity: &str) -> Self {
        self.with(|pod| pod.meta.uid = Some(uid(identity)))
    }

    pub fn at(self, version: u64) -> Self {
        self.with(|pod| pod.meta.resource_version = version)
    }

    pub fn on(self, node: &str) -> Self {
        self.with(|pod| pod.spec.node_name = Some(node.parse().unwrap()))
    }

    pub fn phase(self, phase: PodPhase) -> Self {
        self.with(|pod| pod.status.phase = phase)
    }

    /// Running, with its Ready condition at that status.
    pub fn running(self, ready: ConditionStatus) -> Self {
        let condition = PodCondition {
            kind: "Ready".to_owned(),
            status: ready,
            reason: String::new(),
            message: String::new(),
            last_probe_time: None,
            last_transition_time: Some(epoch()),
        };
        self.phase(PodPhase::Running).with(|pod| pod.status.conditions = vec![condition])
    }

    pub fn tolerates(self, toleration: Toleration) -> Self {
        self.with(|pod| pod.spec.tolerations.push(toleration))
    }

    pub fn requests(self, text: &str) -> Self {
        self.with(|pod| pod.spec.containers[0].resources.requests = amounts(text))
    }

    /// Requires one of these terms, each with all of its requirements; one on `metadata.name` goes to `match_fields`.
    pub fn requires(self, terms: &[&[pb::LabelSelectorRequirement]]) -> Self {
        let terms: Vec<_> = terms.iter().map(|requirements| term(requirements)).collect();
        let required = (!terms.is_empty()).then_some(pb::NodeSelector { node_selector_terms: terms });
        self.with(|pod| {
            node_affinity(pod).required_during_scheduling_ignored_during_execution = required;
        })
    }

    /// Prefers nodes that meet the requirement.
    pub fn prefers(self, weight: i32, requirement: pb::LabelSelectorRequirement) -> Self {
        let term = pb::PreferredSchedulingTerm { weight, preference: Some(term(&[requirement])) };
        self.with(|pod| node_affinity(pod).preferred_during_scheduling_ignored_during_execution.push(term))
    }

    pub fn selects(self, key: &str, value: &str) -> Self {
        self.with(|pod| drop(pod.spec.node_selector.insert(key.to_owned(), value.to_owned())))
    }

    /// Its container uses this host port.
    pub fn port(self, host_port: i32) -> Self {
        let port = pb::ContainerPort { container_port: 80, host_port, ..Default::default() };
        self.with(|pod| pod.spec.containers[0].ports.push(port))
    }

    pub fn priority(self, priority: i32) -> Self {
        self.with(|pod| pod.spec.priority = Some(priority))
    }

    /// Its controller is this owner.
    pub fn owned_by(self, kind: &str, name: &str) -> Self {
        let owner = OwnerReference {
            api_version: "apps/v1".to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: uid(name).to_string(),
            controller: true,
            block_owner_deletion: false,
        };
        self.with(|pod| pod.meta.owner_references.push(owner))
    }

    /// The mirror of a static pod, which the node runs by itself.
    pub fn mirror(self) -> Self {
        self.with(|pod| drop(pod.meta.annotations.insert(annotation::MIRROR.to_owned(), "hash".to_owned())))
    }

    pub fn empty_dir(self) -> Self {
        let source = Some(pb::volume::Source::EmptyDir(pb::EmptyDirVolume::default()));
        let volume = pb::Volume { name: "scratch".to_owned(), source };
        self.with(|pod| pod.spec.volumes.push(volume))
    }

    /// Being deleted since the beginning, with this grace period in seconds.
    pub fn deleting(self, grace: i64) -> Self {
        self.with(|pod| {
            pod.meta.deletion_timestamp = epoch().checked_add(jiff::SignedDuration::from_secs(grace)).ok();
            pod.meta.deletion_grace_period_seconds = Some(grace);
        })
    }
}

/// A toleration of unreachable nodes for this many seconds.
pub fn for_unreachable(seconds: i64) -> Toleration {
    Toleration::exists("node.kubernetes.io/unreachable", muster_proto::taint::TaintEffect::NoExecute)
        .for_seconds(seconds)
}
