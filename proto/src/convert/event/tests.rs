use proptest::prelude::*;

use super::*;
use crate::convert::testing::{any_time, at, complaints, named, stored};
use crate::event::EventType;

fn about(kind: &str, namespace: &str, name: &str) -> pb::Event {
    let involved_object = Some(pb::ObjectReference {
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
        uid: String::new(),
    });
    pb::Event { involved_object, reason: "NodeReady".into(), ..Default::default() }
}

#[test]
fn an_event_without_metadata_takes_it_from_what_is_involved() {
    for (event, namespace, name) in [
        (about("Node", "", "a"), "default", "a"),
        (about("Pod", "x", "p"), "x", "p"),
        (pb::Event { metadata: named("", "n.1"), ..about("Node", "", "a") }, "default", "n.1"),
        (pb::Event { metadata: named("default", ""), ..about("Node", "", "a") }, "default", "a"),
        (pb::Event { metadata: named("x", "p.1"), ..about("Pod", "x", "p") }, "x", "p.1"),
    ] {
        let event = stored::<Event>(event);
        assert_eq!(event.meta.namespace.as_ref().map(Namespace::as_str), Some(namespace));
        assert_eq!(event.meta.name, name);
        assert_eq!((event.kind, event.count), (EventType::Normal, 0));
    }
}

#[test]
fn what_is_involved_is_a_record_of_ours() {
    let wrong_kind = "involvedObject.kind: must be Node, Lease, Pod or DisruptionBudget";
    let wrong_namespace = "metadata.namespace: must be that of involvedObject, or `default` for a node";
    for (event, expected) in [
        (about("Job", "x", "j"), wrong_kind),
        (about("Event", "x", "e"), wrong_kind),
        (about("Node", "x", "a"), "involvedObject.namespace: must be empty: a Node is in no namespace"),
        (about("Pod", "", "a"), "involvedObject.namespace: must not be empty"),
        (about("Node", "", ""), "involvedObject.name: must not be empty"),
        (pb::Event { metadata: named("y", ""), ..about("Pod", "x", "p") }, wrong_namespace),
        (pb::Event { metadata: named("x", ""), ..about("Node", "", "a") }, wrong_namespace),
    ] {
        assert_eq!(complaints::<Event>(event), expected);
    }
}

#[test]
fn everything_wrong_with_an_event_is_reported_at_once() {
    let event = pb::Event {
        metadata: named("X", "Y"),
        r#type: "Bad".into(),
        count: -1,
        first_timestamp: at(0, -1),
        last_timestamp: at(0, -1),
        involved_object: Some(pb::ObjectReference { uid: "u".into(), ..Default::default() }),
        ..Default::default()
    };
    let found = Event::try_from(event).unwrap_err();
    let fields: Vec<&str> = found.violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.uid",
            "metadata.name",
            "metadata.namespace",
            "type",
            "reason",
            "count",
            "firstTimestamp",
            "lastTimestamp",
        ]
    );
}

proptest! {
    #[test]
    fn an_event_comes_back_as_it_was_stored(
        (is_node, warning, count) in (any::<bool>(), any::<bool>(), 0..i32::MAX),
        message in ".{0,20}",
        uid in any::<Option<u128>>(),
        (first_timestamp, last_timestamp) in (any_time(), any_time()),
    ) {
        let mut event = if is_node { about("Node", "", "a") } else { about("Pod", "x", "p") };
        event.involved_object.as_mut().unwrap().uid =
            uid.map(|uid| uuid::Uuid::from_u128(uid).to_string()).unwrap_or_default();
        let r#type = if warning { "Warning".into() } else { String::new() };
        stored::<Event>(pb::Event { r#type, message, count, first_timestamp, last_timestamp, ..event });
    }
}
