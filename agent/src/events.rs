//! Events: what the agent tells of its node and its pods.

use muster_proto::event::{DEFAULT_NAMESPACE, Event, EventType, ObjectReference};
use muster_proto::meta::Metadata;
use muster_proto::name::{Name, Uid};
use muster_proto::pod::Pod;
use muster_proto::record::Kind;
use muster_store_client::StoreClient;

/// The node, to be spoken of.
pub fn node(name: Name, uid: Option<Uid>) -> ObjectReference {
    ObjectReference { kind: Kind::Node, namespace: None, name, uid }
}

/// A pod, to be spoken of.
pub fn pod(pod: &Pod) -> ObjectReference {
    let meta = &pod.meta;
    ObjectReference {
        kind: Kind::Pod,
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid,
    }
}

pub fn event(involved: ObjectReference, kind: EventType, reason: &str, message: String) -> Event {
    let namespace = involved.namespace.clone().or_else(|| DEFAULT_NAMESPACE.parse().ok());
    let meta = Metadata::new(namespace, involved.name.clone());
    Event {
        meta,
        involved,
        kind,
        reason: reason.to_owned(),
        message,
        source_component: "agent".to_owned(),
        count: 0,
        first_timestamp: None,
        last_timestamp: None,
    }
}

/// Records an event. Telling must not fail the deed, so a store that does not listen is only logged.
pub async fn record(client: &StoreClient, event: Event) {
    if let Err(error) = client.record_event(event).await {
        tracing::debug!(%error, "an event was not recorded");
    }
}
