use muster_proto::event::{EventType, ObjectReference};
use muster_proto::record::Kind;

use super::super::fixtures::*;
use super::*;

fn node_ready() -> Event {
    Event {
        meta: {
            let mut meta = pod("n1").meta;
            meta.namespace = Some("default".parse().unwrap());
            meta
        },
        involved: ObjectReference {
            kind: Kind::Node,
            namespace: None,
            name: "n1".parse().unwrap(),
            uid: Some(uid(3)),
        },
        kind: EventType::Normal,
        reason: "NodeReady".into(),
        message: "node n1 is ready".into(),
        source_component: "controller".into(),
        source_host: String::new(),
        count: 0,
        first_timestamp: None,
        last_timestamp: None,
    }
}

#[test]
fn a_repeated_event_is_counted() {
    let mut wanted = node_ready();
    wanted.count = 50;
    let first = record_event(None, wanted.clone(), &at(0));
    assert_eq!(first.meta.name, event_name(&node_ready()));
    assert_eq!((first.meta.uid, first.meta.generation), (Some(uid(1)), 0));
    assert_eq!((first.count, first.first_timestamp, first.last_timestamp), (1, Some(t0()), Some(t0())));

    let again = record_event(Some(&first), wanted.clone(), &at(60));
    assert_eq!((again.count, again.first_timestamp, again.last_timestamp), (2, Some(t0()), Some(after(60))));
    assert_eq!(again.meta, first.meta);

    let mut endless = again;
    endless.count = i32::MAX;
    assert_eq!(record_event(Some(&endless), wanted, &at(61)).count, i32::MAX);
}

#[test]
fn given_timestamps_are_kept_and_the_last_one_never_decreases() {
    let mut wanted = node_ready();
    wanted.last_timestamp = Some(after(-5));
    let first = record_event(None, wanted.clone(), &at(0));
    assert_eq!((first.first_timestamp, first.last_timestamp), (Some(after(-5)), Some(after(-5))));

    wanted.first_timestamp = Some(after(-9));
    let both = record_event(None, wanted.clone(), &at(0));
    assert_eq!((both.first_timestamp, both.last_timestamp), (Some(after(-9)), Some(after(-5))));

    wanted.last_timestamp = Some(after(-7));
    let again = record_event(Some(&both), wanted, &at(0));
    assert_eq!((again.count, again.last_timestamp), (2, Some(after(-5))));
}

#[test]
fn the_name_depends_on_the_content_and_on_nothing_else() {
    let name = event_name(&node_ready());
    assert!(name.as_str().starts_with("n1."), "{name}");

    let mut same = node_ready();
    same.count = 9;
    same.first_timestamp = Some(t0());
    same.last_timestamp = Some(after(9));
    same.meta.name = "other".parse().unwrap();
    assert_eq!(event_name(&same), name);

    type Change = fn(&mut Event);
    let changes: [(&str, Change); 9] = [
        ("kind", |event| event.involved.kind = Kind::Lease),
        ("namespace", |event| event.involved.namespace = Some("default".parse().unwrap())),
        ("name", |event| event.involved.name = "n2".parse().unwrap()),
        ("uid", |event| event.involved.uid = None),
        ("type", |event| event.kind = EventType::Warning),
        ("reason", |event| event.reason = "NodeNotReady".into()),
        ("message", |event| event.message.push('!')),
        ("source", |event| event.source_component = "agent".into()),
        ("parts run together", |event| {
            event.reason.push_str(&event.message);
            event.message.clear();
        }),
    ];
    for (what, change) in changes {
        let mut other = node_ready();
        change(&mut other);
        assert_ne!(event_name(&other), name, "{what}");
    }
}

#[test]
fn the_digest_of_a_name_never_changes() {
    // Stored events are looked up by name: with another digest every event would be counted from 1 again.
    assert_eq!(event_name(&node_ready()).as_str(), "n1.9d4fbc745f4f5949a914547be20c9b03");
}

#[test]
fn the_longest_involved_name_yields_a_valid_event_name() {
    let mut event = node_ready();
    event.involved.name = "a".repeat(MAX_NAME).parse().unwrap();
    assert_eq!(event_name(&event).as_str().len(), MAX_NAME);
    // Cut directly after a dash, and after a dot.
    for tail in ["-b", ".b"] {
        let mut event = node_ready();
        event.involved.name = format!("{}{tail}{}", "a".repeat(219), "c".repeat(20)).parse().unwrap();
        assert!(event_name(&event).as_str().starts_with(&format!("{}.", "a".repeat(219))), "{tail}");
    }
}

#[test]
fn the_source_of_an_event_is_limited() {
    for (bytes, expected) in
        [(0, None), (253, None), (254, Some("sourceComponent")), (1_000_000, Some("sourceComponent"))]
    {
        let event = Event { source_component: "x".repeat(bytes), ..node_ready() };
        let refused = validate_event(&event).err();
        let field = refused.as_ref().map(|invalid| invalid.violations[0].field.as_str());
        assert_eq!(field, expected, "{bytes} bytes");
    }
}
