//! Records and contexts for the tests of the rules.

use jiff::{SignedDuration, Timestamp};
use muster_proto::budget::{
    DisruptionBudget, DisruptionBudgetSpec, DisruptionBudgetStatus, DisruptionLimit,
    UnhealthyPodEvictionPolicy,
};
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::lease::{Lease, LeaseSpec};
use muster_proto::meta::{Metadata, OwnerReference};
use muster_proto::name::Uid;
use muster_proto::node::{Node, NodeSpec, NodeStatus};
use muster_proto::pod::{Container, Pod, PodCondition, PodPhase, PodSpec, PodStatus};
use muster_proto::record::Record;
use muster_proto::selector::LabelSelector;
use uuid::Uuid;

use super::{Context, Defaults, Refusal, create};

/// 2026-01-01T00:00:00.25Z: not a whole second, so that rounding shows.
pub(super) fn t0() -> Timestamp {
    Timestamp::from_millisecond(1_767_225_600_250).unwrap()
}

pub(super) fn after(seconds: i64) -> Timestamp {
    t0() + SignedDuration::from_secs(seconds)
}

pub(super) fn uid(number: u128) -> Uid {
    Uid::new(Uuid::from_u128(number))
}

/// A context so many seconds after [`t0`].
pub(super) fn at(seconds: i64) -> Context {
    Context { now: after(seconds), uid: uid(1), defaults: Defaults::default() }
}

fn meta(name: &str, namespace: Option<&str>) -> Metadata {
    Metadata::new(namespace.map(|namespace| namespace.parse().unwrap()), name.parse().unwrap())
}

/// A node as a user would send it.
pub(super) fn node(name: &str) -> Node {
    Node { meta: meta(name, None), spec: NodeSpec::default(), status: NodeStatus::default() }
}

pub(super) fn lease(name: &str) -> Lease {
    Lease { meta: meta(name, Some("kube-node-lease")), spec: LeaseSpec::default() }
}

/// A pod as a user would send it.
pub(super) fn pod(name: &str) -> Pod {
    let container = Container { name: "main".into(), image: "web:1".into(), ..Container::default() };
    let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
    Pod { meta: meta(name, Some("default")), spec, status: PodStatus::default() }
}

/// A pod that is running and Ready on node n1, labelled app=web.
pub(super) fn ready_pod(name: &str) -> Pod {
    let mut pod = pod(name);
    pod.spec.node_name = Some("n1".parse().unwrap());
    pod.meta.labels.insert("app".into(), "web".into());
    let mut pod = stored(create(None, pod, &at(0)));
    pod.status.phase = PodPhase::Running;
    set_ready(&mut pod, ConditionStatus::True);
    pod
}

pub(super) fn set_ready(pod: &mut Pod, status: ConditionStatus) {
    pod.status.conditions.retain(|condition| condition.kind != types::READY);
    pod.status.conditions.push(PodCondition {
        kind: types::READY.into(),
        status,
        reason: String::new(),
        message: String::new(),
        last_probe_time: None,
        last_transition_time: Some(t0()),
    });
}

/// A budget for the pods labelled app=web.
pub(super) fn budget(name: &str, limit: DisruptionLimit) -> DisruptionBudget {
    let selector: LabelSelector = "app=web".parse().unwrap();
    let unhealthy_pod_eviction_policy = UnhealthyPodEvictionPolicy::IfHealthyBudget;
    DisruptionBudget {
        meta: meta(name, Some("default")),
        spec: DisruptionBudgetSpec { selector, limit, unhealthy_pod_eviction_policy },
        status: DisruptionBudgetStatus::default(),
    }
}

pub(super) fn owned_by(kind: &str) -> OwnerReference {
    OwnerReference {
        api_version: "apps/v1".into(),
        kind: kind.into(),
        name: "owner".into(),
        uid: "owner-uid".into(),
        controller: true,
        block_owner_deletion: false,
    }
}

/// The record as the writer stores it, at resource version 7.
pub(super) fn stored<R: Record>(created: Result<R, Refusal>) -> R {
    let mut record = created.unwrap();
    record.meta_mut().resource_version = 7;
    record
}

/// The fields that a refusal names as invalid.
pub(super) fn invalid_fields<T: std::fmt::Debug>(result: Result<T, Refusal>) -> Vec<String> {
    match result {
        Err(Refusal::Invalid { invalid, .. }) => {
            invalid.violations.into_iter().map(|violation| violation.field).collect()
        }
        other => panic!("expected an invalid request, got {other:?}"),
    }
}
