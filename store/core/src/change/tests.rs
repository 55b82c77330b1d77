use super::*;
use crate::selectors::Selectors;
use muster_proto::watch::WatchFrame;

pub(crate) fn node(labels: &[(&str, &str)], version: u64) -> pb::Node {
    let metadata = pb::Metadata {
        name: "a".into(),
        resource_version: version,
        labels: labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
        ..Default::default()
    };
    pb::Node { metadata: Some(metadata), ..Default::default() }
}

pub(crate) fn change(previous: Option<pb::Node>, record: pb::Node, deleted: bool) -> Change {
    let version = record.metadata.as_ref().unwrap().resource_version;
    let bytes = |node: pb::Node| Bytes::from(node.encode_to_vec());
    let previous = previous.map(bytes);
    Change::new(
        Kind::Node,
        version,
        NamespacedName::new("", "a"),
        deleted,
        bytes(record),
        previous,
        "00-t-s-01".into(),
    )
}

#[test]
fn an_event_is_encoded_as_prost_would_encode_it() {
    let record = node(&[("zone", "a")], 7);
    let expected = pb::NodeWatchEvent {
        r#type: "MODIFIED".into(),
        node: Some(record.clone()),
        traceparent: "00-t-s-01".into(),
    };
    let bytes = encode_event("MODIFIED", &record.encode_to_vec(), "00-t-s-01");
    assert_eq!(bytes, WatchFrame::encode_one(expected));
    let bookmark = encode_bookmark(9, true);
    let event = &WatchFrame::<pb::NodeWatchEvent>::decode(bookmark).unwrap().events[0];
    assert_eq!(event.r#type, "BOOKMARK");
    let metadata = event.node.as_ref().unwrap().metadata.as_ref().unwrap();
    assert_eq!(metadata.resource_version, 9);
    assert_eq!(metadata.annotations[INITIAL_EVENTS_END], "true");
}

#[test]
fn an_event_is_encoded_once_for_all_watchers() {
    let change = change(None, node(&[], 2), false);
    let selectors = Selectors::default();
    let (first, second) = (selectors.event(&change).unwrap(), selectors.event(&change).unwrap());
    assert_eq!(first.as_ptr(), second.as_ptr(), "the same bytes, not a copy");
}
