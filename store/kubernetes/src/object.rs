//! Records as the objects of a resource: kind and version, and what Kubernetes derives from other fields. Pure.

use bytes::Bytes;
use jiff::Timestamp;
use muster_manifest::kubernetes;
use muster_proto::pb;
use muster_proto::record::Kind;
use prost::Message;
use serde_json::{Map, Value, json};

use crate::resources::{Resource, Source};

/// Conditions of a node that are made of its drain, by the names of KEP-5683. They are not stored.
const DRAIN_CONDITIONS: [&str; 2] = ["DrainInProgress", "Drained"];

/// The fields of an event in `v1` and in `events.k8s.io/v1`.
const EVENT_NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

const EVENTS_GROUP: &str = "events.k8s.io";

/// A record as an object.
pub(crate) fn object(resource: &Resource, kind: Kind, record: &[u8]) -> Value {
    let mut object = kubernetes::to_object(kind, record);
    match kind {
        Kind::Node => add_drain_conditions(&mut object, record),
        Kind::Event => complete_event(&mut object),
        Kind::Pod => complete_pod(&mut object),
        _ => {}
    }
    if kind == Kind::Event && resource.group == EVENTS_GROUP {
        // It is required there. What has none in its record happened when it was first seen.
        if let Some(first) = object.get("firstTimestamp").and_then(Value::as_str) {
            let micros = first.trim_end_matches('Z').to_owned() + ".000000Z";
            object.insert("eventTime".to_owned(), micros.into());
        }
        rename(&mut object, |(v1, events)| (v1, events));
    }
    head(resource, object)
}

/// Adds kind and version.
pub(crate) fn head(resource: &Resource, mut object: Map<String, Value>) -> Value {
    object.insert("kind".to_owned(), resource.kind.into());
    object.insert("apiVersion".to_owned(), resource.group_version().into());
    Value::Object(object)
}

/// Only the metadata of a record, as an object of its own.
pub(crate) fn metadata_object(record: &[u8]) -> Value {
    let metadata = kubernetes::metadata_to_object(&encoded_metadata(record));
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
}

#[derive(Clone, PartialEq, Message)]
struct MetadataOnly {
    #[prost(bytes = "bytes", optional, tag = "1")]
    metadata: Option<Bytes>,
}

fn encoded_metadata(record: &[u8]) -> Bytes {
    MetadataOnly::decode(record).ok().and_then(|decoded| decoded.metadata).unwrap_or_default()
}

/// The metadata of a record.
pub(crate) fn metadata(record: &[u8]) -> pb::Metadata {
    pb::Metadata::decode(encoded_metadata(record)).unwrap_or_default()
}

/// What a client sent, without what is derived: as [`kubernetes::from_object`] reads it.
pub(crate) fn sent(resource: &Resource, mut object: Map<String, Value>) -> Map<String, Value> {
    object.remove("kind");
    object.remove("apiVersion");
    match resource.source {
        Source::Record(Kind::Node) => {
            let conditions = object.get_mut("status").and_then(|status| status.get_mut("conditions"));
            if let Some(Value::Array(conditions)) = conditions {
                conditions.retain(|condition| {
                    condition["type"].as_str().is_none_or(|kind| !DRAIN_CONDITIONS.contains(&kind))
                });
            }
        }
        Source::Record(Kind::Event) => {
            if resource.group == EVENTS_GROUP {
                rename(&mut object, |(v1, events)| (events, v1));
            }
            settle_event(&mut object);
        }
        _ => {}
    }
    object
}

fn rename(
    object: &mut Map<String, Value>,
    pair: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    for (from, to) in EVENT_NAMES.map(pair) {
        if let Some(value) = object.remove(from) {
            object.insert(to.to_owned(), value);
        }
    }
}

/// A field selector of `events.k8s.io` in the names of `v1`, and what our records have under other names.
pub(crate) fn field_selector(resource: &Resource, selector: &str) -> String {
    if resource.source != Source::Record(Kind::Event) {
        return selector.to_owned();
    }
    let renamed = |term: &str| {
        let term = term.trim();
        let term = term
            .strip_prefix("regarding.")
            .map_or_else(|| term.to_owned(), |rest| format!("involvedObject.{rest}"));
        let term = term
            .strip_prefix("reportingController")
            .map_or_else(|| term.clone(), |rest| format!("reportingComponent{rest}"));
        match term
            .strip_prefix("involvedObject.kind")
            .and_then(|rest| rest.strip_suffix("PodDisruptionBudget"))
        {
            Some(comparison) => format!("involvedObject.kind{comparison}DisruptionBudget"),
            None => term,
        }
    };
    selector.split(',').map(renamed).collect::<Vec<_>>().join(",")
}

fn add_drain_conditions(object: &mut Map<String, Value>, record: &[u8]) {
    let node = pb::Node::decode(record).unwrap_or_default();
    let Some(drain) = node.spec.and_then(|spec| spec.drain) else { return };
    let since =
        drain.finished_at.or(drain.requested_at).and_then(|time| Timestamp::from_second(time.seconds).ok());
    let since = since.map_or(Value::Null, |since| since.to_string().into());
    let statuses = match drain.state.as_str() {
        "Draining" => ["True", "False"],
        "Complete" => ["False", "True"],
        _ => ["False", "False"],
    };
    let conditions = DRAIN_CONDITIONS.into_iter().zip(statuses).map(|(kind, status)| {
        json!({
            "type": kind, "status": status, "reason": drain.state, "message": drain.message,
            "lastHeartbeatTime": null, "lastTransitionTime": since,
        })
    });
    let status = object.entry("status").or_insert_with(|| json!({}));
    let known = status["conditions"].take();
    let mut all = match known {
        Value::Array(known) => known,
        _ => Vec::new(),
    };
    all.extend(conditions);
    status["conditions"] = Value::Array(all);
}

/// Kubernetes names the component twice, and the version of the object.
fn complete_event(event: &mut Map<String, Value>) {
    let component = event.get("source").and_then(|source| source["component"].as_str()).unwrap_or_default();
    event.insert("reportingComponent".to_owned(), component.to_owned().into());
    if let Some(Value::Object(involved)) = event.get_mut("involvedObject") {
        let kind = involved.get("kind").and_then(Value::as_str).and_then(kubernetes::kind_named);
        if let Some(kind) = kind {
            involved.insert("apiVersion".to_owned(), kubernetes::api_version(kind).into());
        }
    }
}

/// What a client that writes events of the newer kind leaves out.
fn settle_event(event: &mut Map<String, Value>) {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let reporting = text(event.get("reportingComponent"));
    let source = event.entry("source").or_insert_with(|| json!({}));
    if text(source.get("component")).is_empty() && !reporting.is_empty() && source.is_object() {
        source["component"] = reporting.into();
    }
    let time = text(event.get("eventTime"));
    if !time.is_empty() {
        for field in ["firstTimestamp", "lastTimestamp"] {
            if event.get(field).is_none_or(Value::is_null) {
                event.insert(field.to_owned(), time.clone().into());
            }
        }
    }
    if let Some(last) = event.get("series").and_then(|series| series["lastObservedTime"].as_str()) {
        let last = last.to_owned();
        event.insert("lastTimestamp".to_owned(), last.into());
    }
}

/// Kubernetes writes the node's address as a list, too, and the account under its old name.
fn complete_pod(pod: &mut Map<String, Value>) {
    if let Some(Value::Object(status)) = pod.get_mut("status")
        && let Some(address) = status.get("hostIP").cloned()
    {
        status.insert("hostIPs".to_owned(), json!([{"ip": address}]));
    }
    if let Some(Value::Object(spec)) = pod.get_mut("spec")
        && let Some(account) = spec.get("serviceAccountName").cloned()
    {
        spec.insert("serviceAccount".to_owned(), account);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources;

    fn resource(group: &str, plural: &str) -> &'static Resource {
        resources::find(group, plural).expect("a resource")
    }

    #[test]
    fn a_drain_is_shown_as_conditions_that_are_not_stored() {
        for (state, in_progress, drained) in
            [("Draining", "True", "False"), ("Complete", "False", "True"), ("Failed", "False", "False")]
        {
            let drain =
                pb::NodeDrain { state: state.to_owned(), message: "m".to_owned(), ..Default::default() };
            let spec = pb::NodeSpec { drain: Some(drain), ..Default::default() };
            let ready =
                pb::NodeCondition { r#type: "Ready".into(), status: "True".into(), ..Default::default() };
            let status = pb::NodeStatus { conditions: vec![ready], ..Default::default() };
            let node = pb::Node { metadata: None, spec: Some(spec), status: Some(status) };
            let shown = object(resource("", "nodes"), Kind::Node, &node.encode_to_vec());
            let found: Vec<_> = shown["status"]["conditions"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|condition| (condition["type"].clone(), condition["status"].clone()))
                .collect();
            let expected = [("Ready", "True"), ("DrainInProgress", in_progress), ("Drained", drained)];
            assert_eq!(found, expected.map(|(kind, status)| (json!(kind), json!(status))), "{state}");

            let Value::Object(shown) = shown else { unreachable!() };
            let back = sent(resource("", "nodes"), shown);
            assert_eq!(back["status"]["conditions"].as_array().map(Vec::len), Some(1));
        }
    }

    #[test]
    fn an_event_has_two_forms_of_one_content() {
        let event = pb::Event {
            metadata: None,
            involved_object: Some(pb::ObjectReference {
                kind: "Node".into(),
                name: "n".into(),
                ..Default::default()
            }),
            message: "m".into(),
            reason: "R".into(),
            r#type: "Normal".into(),
            source_component: "agent".into(),
            count: 2,
            first_timestamp: Some(Default::default()),
            last_timestamp: Some(Default::default()),
            ..Default::default()
        };
        let bytes = event.encode_to_vec();
        let old = object(resource("", "events"), Kind::Event, &bytes);
        let new = object(resource(EVENTS_GROUP, "events"), Kind::Event, &bytes);
        for (v1, events) in EVENT_NAMES {
            assert_eq!(old[v1], new[events], "{v1}");
            assert!(!old[v1].is_null() || v1.ends_with("Timestamp"), "{v1}");
            assert!(new.get(v1).is_none() && old.get(events).is_none(), "{v1}");
        }
        assert_eq!(old["involvedObject"], json!({"kind": "Node", "name": "n", "apiVersion": "v1"}));
        assert_eq!(new["apiVersion"], "events.k8s.io/v1");
        assert_eq!(
            (&old["eventTime"], &new["eventTime"]),
            (&Value::Null, &json!("1970-01-01T00:00:00.000000Z"))
        );
        let (Value::Object(old), Value::Object(new)) = (old, new) else { unreachable!() };
        let mut sent = [sent(resource("", "events"), old), sent(resource(EVENTS_GROUP, "events"), new)];
        sent.iter_mut().for_each(|event| drop(event.remove("eventTime")));
        assert_eq!(sent[0], sent[1]);
    }

    #[test]
    fn selectors_of_events_are_translated() {
        let events = resource(EVENTS_GROUP, "events");
        assert_eq!(
            field_selector(
                events,
                "regarding.kind=PodDisruptionBudget,regarding.name=b,reportingController!=x,type=Normal"
            ),
            "involvedObject.kind=DisruptionBudget,involvedObject.name=b,reportingComponent!=x,type=Normal"
        );
        assert_eq!(field_selector(resource("", "pods"), "spec.nodeName=n"), "spec.nodeName=n");
    }
}
