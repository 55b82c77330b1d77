//! Everything the page shows of one node: the controller's explanation, the record, its pods and its events.

use std::sync::Arc;

use muster_manifest::schema::message_to_json;
use muster_proto::event::Event;
use muster_proto::key::Key;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::record::Kind;
use muster_store_client::ListOptions;
use serde_json::{Value, json};
use tonic::Status;

use super::Pages;
use crate::connection::OrFailure;
use crate::failure::{Exit, Failure};

/// The newest events that are shown.
const EVENTS_SHOWN: usize = 12;

/// Calls the controller and the store at the same time. What one of them cannot answer is missing, with the reason;
/// only a node that neither knows is a failure.
pub(super) async fn node_answer(pages: &Arc<Pages>, name: &str) -> Result<Value, Failure> {
    let name = name.parse().map_err(|error| Failure::usage(format!("the node's name {error}")))?;
    let key = Key::node(name);
    let store = pages.connection.store()?;
    let pods =
        ListOptions { field_selector: format!("spec.nodeName={}", key.name), ..ListOptions::default() };
    let events = ListOptions {
        field_selector: format!("involvedObject.kind={},involvedObject.name={}", Kind::Node, key.name),
        ..ListOptions::default()
    };
    let (explanation, node, pods, events, trace) = tokio::join!(
        explain(pages, key.name.as_str()),
        store.client.get::<Node>(&key),
        store.client.list::<Pod>(pods),
        store.client.list::<Event>(events),
        pages.feed.trace(key.name.as_str()),
    );
    let node = node.or_failure(&store.peer);
    if let (Err(failure), Err(_)) = (&explanation, &node)
        && failure.exit() == Some(Exit::NotFound)
    {
        return Err(Failure::new(Exit::NotFound, format!("there is no node {}", key.name)));
    }
    let pods = pods.map(|pods| pods.records).unwrap_or_default();
    let events = events.map(|events| events.records).unwrap_or_default();
    let uid = node.as_ref().ok().and_then(|node| node.meta.uid);
    let is_own = |event: &Event| event.involved.uid.is_none() || event.involved.uid == uid;
    let events = newest(events.into_iter().filter(is_own).collect());
    Ok(json!({
        "explanation": or_reason(explanation.map(|answer| message_to_json("ExplainNodeResponse", &answer))),
        "node": or_reason(node.map(|node| message_to_json("Node", &brief(node)))),
        "pods": pods.iter().map(pod).collect::<Vec<Value>>(),
        "events": events.into_iter().map(event).collect::<Vec<Value>>(),
        "trace": trace.map(|trace| trace.to_string()),
    }))
}

fn or_reason(answer: Result<Value, Failure>) -> Value {
    answer.unwrap_or_else(|failure| json!({ "failure": failure.into_text().0 }))
}

async fn explain(pages: &Arc<Pages>, name: &str) -> Result<pb::ExplainNodeResponse, Failure> {
    let controller = pages.connection.controller().await?;
    let request = controller.with_timeout(pb::ExplainNodeRequest { name: name.to_owned() });
    let answer: Result<_, Status> = controller.client.clone().explain_node(request).await;
    Ok(answer.or_failure(&controller.peer)?.into_inner())
}

/// The record without its longest lists.
fn brief(mut node: Node) -> pb::Node {
    node.status.images.clear();
    node.status.volumes_in_use.clear();
    pb::Node::from(node)
}

fn pod(pod: &Pod) -> Value {
    let namespace = pod.meta.namespace.as_ref().map(ToString::to_string);
    json!({ "namespace": namespace, "name": pod.meta.name.as_str(), "phase": pod.status.phase.to_string() })
}

fn event(event: Event) -> Value {
    message_to_json("Event", &pb::Event::from(event))
}

fn newest(mut events: Vec<Event>) -> Vec<Event> {
    events.sort_by_key(|event| std::cmp::Reverse(event.last_timestamp));
    events.truncate(EVENTS_SHOWN);
    events
}
