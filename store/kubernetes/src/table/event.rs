//! The cells of an event.

use jiff::Timestamp;
use muster_manifest::kubernetes;
use muster_proto::pb;
use serde_json::Value;

use super::moment;
use crate::age::age;

pub(super) fn cells(event: &pb::Event, now: Timestamp) -> Vec<Value> {
    let involved = event.involved_object.clone().unwrap_or_default();
    let kind = involved.kind.parse().map_or(involved.kind.clone(), kubernetes::kind_name);
    let object = format!("{}/{}", kind.to_lowercase(), involved.name);
    let source = match event.source_host.as_str() {
        "" => event.source_component.clone(),
        host => format!("{}, {host}", event.source_component),
    };
    let first = moment(event.first_timestamp.map(|time| time.seconds));
    let last = moment(event.last_timestamp.map(|time| time.seconds)).or(first);
    vec![
        age(last, now).into(),
        event.r#type.as_str().into(),
        event.reason.as_str().into(),
        object.into(),
        "".into(),
        source.into(),
        event.message.trim().into(),
        age(first, now).into(),
        event.count.max(1).into(),
        event.metadata.as_ref().map_or("", |meta| meta.name.as_str()).into(),
    ]
}
