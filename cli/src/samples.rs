//! Sample records for the tests of the output.

use jiff::Timestamp;
use muster_proto::budget::DisruptionBudget;
use muster_proto::event::Event;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::priority_class::PriorityClass;
use muster_proto::record::Record;

/// The current time of the tests.
pub(crate) fn now() -> Timestamp {
    "2026-05-04T12:00:00Z".parse().expect("a time")
}

/// The record of a YAML manifest, with the fields that only the store writes.
pub(crate) fn record<R: Record>(yaml: &str) -> R {
    let manifests = muster_manifest::read("sample", yaml).expect("a manifest");
    manifests[0].to_stored_record().expect("a record")
}

/// A node with all fields set.
pub(crate) fn node() -> Node {
    record(include_str!("samples/node.yaml"))
}

/// A node whose agent has never connected.
pub(crate) fn new_node() -> Node {
    record(
        r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"10.240.79.157","labels":{"name":"my-first-k8s-node"},
            "creationTimestamp":"2026-05-04T11:59:30Z"}}"#,
    )
}

/// A running pod with a container that has restarted.
pub(crate) fn pod() -> Pod {
    record(include_str!("samples/pod.yaml"))
}

pub(crate) fn lease() -> Lease {
    record(include_str!("samples/lease.yaml"))
}

pub(crate) fn budget() -> DisruptionBudget {
    record(include_str!("samples/budget.yaml"))
}

pub(crate) fn priority_class() -> PriorityClass {
    record(include_str!("samples/priority-class.yaml"))
}

/// A warning that has been recorded three times.
pub(crate) fn event() -> Event {
    record(include_str!("samples/event.yaml"))
}

/// A protobuf timestamp.
pub(crate) fn at(text: &str) -> Option<prost_types::Timestamp> {
    let time: Timestamp = text.parse().expect("a time");
    Some(prost_types::Timestamp { seconds: time.as_second(), nanos: 0 })
}

/// A protobuf duration.
pub(crate) fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}
