//! Records for the tests of how things look, in few words.

use jiff::Timestamp;
use muster_proto::budget::DisruptionBudget;
use muster_proto::event::Event;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::record::Record;

use crate::manifest;

/// When everything is looked at.
pub(crate) fn now() -> Timestamp {
    "2026-05-04T12:00:00Z".parse().expect("a time")
}

/// The record that a manifest in YAML writes down, with what only a store would write.
pub(crate) fn record<R: Record>(yaml: &str) -> R {
    let manifests = manifest::read("sample", yaml).expect("a manifest");
    manifests[0].whole().expect("a record")
}

/// A node with much to say.
pub(crate) fn node() -> Node {
    record(include_str!("samples/node.yaml"))
}

/// A node that nobody ever heard.
pub(crate) fn silent_node() -> Node {
    record(
        r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"10.240.79.157","labels":{"name":"my-first-k8s-node"},
            "creationTimestamp":"2026-05-04T11:59:30Z"}}"#,
    )
}

/// A pod that runs, with a container that was started again.
pub(crate) fn pod() -> Pod {
    record(include_str!("samples/pod.yaml"))
}

pub(crate) fn lease() -> Lease {
    record(include_str!("samples/lease.yaml"))
}

pub(crate) fn budget() -> DisruptionBudget {
    record(include_str!("samples/budget.yaml"))
}

/// Something that went wrong, some while ago, for the third time.
pub(crate) fn event() -> Event {
    record(include_str!("samples/event.yaml"))
}
