//! Reads single fields of an encoded record without decoding all of it.
//!
//! Records are kept encoded. Selectors and indexes need only their metadata or one field; prost skips the rest.

use muster_proto::pb;
use muster_proto::record::Kind;
use muster_proto::wellknown::annotation;
use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct MetaOnly {
    #[prost(message, optional, tag = "1")]
    metadata: Option<pb::Metadata>,
}

#[derive(Clone, PartialEq, Message)]
struct PodNode {
    #[prost(message, optional, tag = "2")]
    spec: Option<PodNodeSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct PodNodeSpec {
    #[prost(string, tag = "1")]
    node_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct EventHost {
    #[prost(string, tag = "10")]
    source_host: String,
}

/// The record's metadata.
pub fn metadata(record: &[u8]) -> pb::Metadata {
    MetaOnly::decode(record).ok().and_then(|decoded| decoded.metadata).unwrap_or_default()
}

/// The node a pod is bound to; empty if there is none.
pub fn pod_node(record: &[u8]) -> String {
    PodNode::decode(record).ok().and_then(|decoded| decoded.spec).unwrap_or_default().node_name
}

/// The node that a mirror pod belongs to; `None` for all other pods.
pub fn mirror_node(pod: &[u8]) -> Option<String> {
    metadata(pod).annotations.contains_key(annotation::MIRROR).then(|| pod_node(pod))
}

/// The node whose agent recorded an event; empty if another part did.
pub fn event_host(event: &[u8]) -> String {
    EventHost::decode(event).unwrap_or_default().source_host
}

/// The fields of a kind that field selectors may name.
pub fn selectable(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Node => &["metadata.name", "spec.unschedulable"],
        Kind::Lease | Kind::DisruptionBudget => &["metadata.name", "metadata.namespace"],
        Kind::Pod => &[
            "metadata.name",
            "metadata.namespace",
            "spec.nodeName",
            "spec.restartPolicy",
            "status.phase",
            "status.podIP",
            "spec.serviceAccountName",
            "spec.hostNetwork",
        ],
        Kind::PriorityClass => &["metadata.name"],
        Kind::JoinToken | Kind::Revocation => &["metadata.name", "spec.nodeName"],
        Kind::CertificateRequest => &["metadata.name", "spec.nodeName", "status.state"],
        Kind::Event => &[
            "metadata.name",
            "metadata.namespace",
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "reason",
            "type",
            "source",
            "reportingComponent",
            "involvedObject.apiVersion",
        ],
    }
}

/// The values of the selectable fields, in the order of [`selectable`].
pub fn fields(kind: Kind, record: &[u8]) -> Vec<String> {
    match kind {
        Kind::Node => {
            let node = pb::Node::decode(record).unwrap_or_default();
            let name = node.metadata.unwrap_or_default().name;
            vec![name, node.spec.unwrap_or_default().unschedulable.to_string()]
        }
        Kind::Lease | Kind::DisruptionBudget => {
            let metadata = metadata(record);
            vec![metadata.name, metadata.namespace]
        }
        Kind::Pod => {
            let pod = pb::Pod::decode(record).unwrap_or_default();
            let (metadata, spec, status) = (
                pod.metadata.unwrap_or_default(),
                pod.spec.unwrap_or_default(),
                pod.status.unwrap_or_default(),
            );
            let (name, namespace) = (metadata.name, metadata.namespace);
            vec![
                name,
                namespace,
                spec.node_name,
                spec.restart_policy,
                status.phase,
                status.pod_ip,
                spec.service_account_name,
                spec.host_network.to_string(),
            ]
        }
        Kind::PriorityClass => vec![metadata(record).name],
        Kind::JoinToken => {
            let token = pb::JoinToken::decode(record).unwrap_or_default();
            vec![token.metadata.unwrap_or_default().name, token.spec.unwrap_or_default().node_name]
        }
        Kind::Revocation => {
            let revocation = pb::Revocation::decode(record).unwrap_or_default();
            vec![revocation.metadata.unwrap_or_default().name, revocation.spec.unwrap_or_default().node_name]
        }
        Kind::CertificateRequest => {
            let request = pb::CertificateRequest::decode(record).unwrap_or_default();
            let (name, node) =
                (request.metadata.unwrap_or_default().name, request.spec.unwrap_or_default().node_name);
            vec![name, node, request.status.unwrap_or_default().state]
        }
        Kind::Event => {
            let event = pb::Event::decode(record).unwrap_or_default();
            let (metadata, object) =
                (event.metadata.unwrap_or_default(), event.involved_object.unwrap_or_default());
            let (name, namespace) = (metadata.name, metadata.namespace);
            let api_version = match object.kind.as_str() {
                "Lease" => "coordination.k8s.io/v1",
                "DisruptionBudget" => "policy/v1",
                _ => "v1",
            };
            vec![
                name,
                namespace,
                object.kind,
                object.namespace,
                object.name,
                object.uid,
                event.reason,
                event.r#type,
                event.source_component.clone(),
                event.source_component,
                api_version.to_owned(),
            ]
        }
    }
}
