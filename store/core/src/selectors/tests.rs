use super::*;
use crate::change::tests::{change, node};
use muster_proto::pb;
use muster_proto::watch::WatchFrame;
use prost::Message;

fn event_for(selectors: &Selectors, change: &Change) -> Option<pb::NodeWatchEvent> {
    let frame = selectors.event(change)?;
    let mut events = WatchFrame::<pb::NodeWatchEvent>::decode(frame).unwrap().events;
    assert_eq!(events.len(), 1);
    events.pop()
}

/// Scenario 19: the events of a watcher with a selector.
#[test]
fn s019_a_selector_turns_changes_into_additions_and_deletions() {
    let in_zone = |version: u64| node(&[("zone", "a"), ("v", &version.to_string())], version);
    let outside = |version| node(&[], version);
    let zone = Selectors { labels: "zone=a".parse().unwrap(), ..Default::default() };
    let everything = Selectors::default();
    for (previous, record, deleted, in_selection, to_all) in [
        (None, in_zone(2), false, Some(("ADDED", "2")), "ADDED"),
        (None, outside(2), false, None, "ADDED"),
        (Some(outside(1)), in_zone(2), false, Some(("ADDED", "2")), "MODIFIED"),
        (Some(in_zone(1)), in_zone(2), false, Some(("MODIFIED", "2")), "MODIFIED"),
        (Some(in_zone(1)), outside(2), false, Some(("DELETED", "1")), "MODIFIED"),
        (Some(outside(1)), outside(2), false, None, "MODIFIED"),
        (Some(in_zone(1)), in_zone(2), true, Some(("DELETED", "2")), "DELETED"),
        (Some(outside(1)), outside(2), true, None, "DELETED"),
    ] {
        let change = change(previous, record, deleted);
        assert_eq!(event_for(&everything, &change).unwrap().r#type, to_all);
        let event = event_for(&zone, &change);
        assert_eq!(event.as_ref().map(|e| e.r#type.as_str()), in_selection.map(|(kind, _)| kind));
        if let (Some(event), Some((_, content))) = (event, in_selection) {
            let metadata = event.node.unwrap().metadata.unwrap();
            assert_eq!(metadata.resource_version, 2, "the version is that of the change");
            assert_eq!(metadata.labels["v"], content, "the DELETED event has the old content");
            assert_eq!(event.traceparent, "00-t-s-01");
        }
    }
}

#[test]
fn namespaces_and_field_selectors_select_events() {
    let mut record = node(&[], 2);
    record.spec = Some(pb::NodeSpec { unschedulable: true, ..Default::default() });
    let change = change(None, record, false);
    let select = |text: &str| Selectors {
        fields: FieldSelector::parse(text, partial_decode::selectable(Kind::Node)).unwrap(),
        ..Default::default()
    };
    for (text, expected) in [
        ("metadata.name=a", true),
        ("metadata.name=b", false),
        ("spec.unschedulable=true", true),
        ("spec.unschedulable!=true", false),
        ("metadata.name=a,spec.unschedulable=false", false),
    ] {
        assert_eq!(select(text).event(&change).is_some(), expected, "{text}");
    }
    let elsewhere = Selectors { namespace: "ns".into(), ..Default::default() };
    assert!(elsewhere.event(&change).is_none());
    assert_eq!(select("metadata.name=a").node(Kind::Node), Some("a"));
    assert_eq!(select("metadata.name=").node(Kind::Node), None);
    assert_eq!(nodes_of(&change).collect::<Vec<_>>(), ["a"]);
}
