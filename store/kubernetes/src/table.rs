//! Tables: what `kubectl get` prints. Pure.

mod event;
mod node;
mod pod;

use jiff::Timestamp;
use muster_proto::pb;
use muster_proto::record::Kind;
use prost::Message;
use serde_json::{Value, json};

use crate::age::age;
use crate::object;
use crate::resources::{Resource, Source};
use crate::status::Failure;

/// What the rows of a table have of their objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    None,
    Metadata,
    Object,
}

impl IncludeObject {
    pub(crate) fn parse(text: &str) -> Result<IncludeObject, Failure> {
        match text {
            "" | "Metadata" => Ok(IncludeObject::Metadata),
            "Object" => Ok(IncludeObject::Object),
            "None" => Ok(IncludeObject::None),
            other => Err(Failure::bad_request(format!("unrecognized includeObject value: {other:?}"))),
        }
    }
}

/// A column: its name, and whether it is only for `-o wide`.
#[derive(Clone, Copy, Debug)]
struct Column(&'static str, bool);

const NODE: &[Column] = &[
    Column("Name", false),
    Column("Status", false),
    Column("Roles", false),
    Column("Age", false),
    Column("Version", false),
    Column("Internal-IP", true),
    Column("External-IP", true),
    Column("OS-Image", true),
    Column("Kernel-Version", true),
    Column("Container-Runtime", true),
];
const POD: &[Column] = &[
    Column("Name", false),
    Column("Ready", false),
    Column("Status", false),
    Column("Restarts", false),
    Column("Age", false),
    Column("IP", true),
    Column("Node", true),
    Column("Nominated Node", true),
    Column("Readiness Gates", true),
];
const LEASE: &[Column] = &[Column("Name", false), Column("Holder", false), Column("Age", false)];
const BUDGET: &[Column] = &[
    Column("Name", false),
    Column("Min Available", false),
    Column("Max Unavailable", false),
    Column("Allowed Disruptions", false),
    Column("Age", false),
];
const EVENT: &[Column] = &[
    Column("Last Seen", false),
    Column("Type", false),
    Column("Reason", false),
    Column("Object", false),
    Column("Subobject", true),
    Column("Source", true),
    Column("Message", false),
    Column("First Seen", true),
    Column("Count", true),
    Column("Name", true),
];
const NAMESPACE: &[Column] = &[Column("Name", false), Column("Status", false), Column("Age", false)];
const OTHER: &[Column] = &[Column("Name", false), Column("Age", false)];

fn columns_of(resource: &Resource) -> &'static [Column] {
    match resource.source {
        Source::Record(Kind::Node) => NODE,
        Source::Record(Kind::Pod) => POD,
        Source::Record(Kind::Lease) => LEASE,
        Source::Record(Kind::DisruptionBudget) => BUDGET,
        Source::Record(Kind::Event) => EVENT,
        Source::Namespaces => NAMESPACE,
        _ => OTHER,
    }
}

/// The definitions of a resource's columns.
pub(crate) fn columns(resource: &Resource) -> Value {
    let column = |Column(name, wide): &Column| {
        let kind = if *name == "Allowed Disruptions" { "integer" } else { "string" };
        let format = if *name == "Name" { "name" } else { "" };
        json!({"name": name, "type": kind, "format": format, "priority": i32::from(*wide), "description": ""})
    };
    columns_of(resource).iter().map(column).collect()
}

/// The row of a record.
pub(crate) fn row(
    resource: &Resource,
    kind: Kind,
    record: &[u8],
    include: IncludeObject,
    now: Timestamp,
) -> Value {
    let (cells, conditions) = cells(kind, record, now);
    let shown = match include {
        IncludeObject::None => Value::Null,
        IncludeObject::Metadata => object::metadata_object(record),
        IncludeObject::Object => object::object(resource, kind, record),
    };
    let mut row = json!({"cells": cells, "object": shown});
    if let Some(conditions) = conditions {
        row["conditions"] = conditions;
    }
    row
}

/// A table of these rows.
pub(crate) fn table(columns: &Value, rows: &[Value], metadata: &Value) -> Value {
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": columns, "rows": rows,
    })
}

fn cells(kind: Kind, record: &[u8], now: Timestamp) -> (Vec<Value>, Option<Value>) {
    match kind {
        Kind::Node => (node::cells(&pb::Node::decode(record).unwrap_or_default(), now), None),
        Kind::Pod => {
            let pod = pb::Pod::decode(record).unwrap_or_default();
            (pod::cells(&pod, now), pod::row_conditions(&pod))
        }
        Kind::Lease => {
            let lease = pb::Lease::decode(record).unwrap_or_default();
            let holder = lease.spec.unwrap_or_default().holder_identity;
            let meta = lease.metadata.unwrap_or_default();
            (vec![meta.name.clone().into(), holder.into(), created(&meta, now)], None)
        }
        Kind::DisruptionBudget => {
            let budget = pb::DisruptionBudget::decode(record).unwrap_or_default();
            let (spec, status) = (budget.spec.unwrap_or_default(), budget.status.unwrap_or_default());
            let meta = budget.metadata.unwrap_or_default();
            let bound = |text: &str| if text.is_empty() { "N/A".into() } else { Value::from(text) };
            let (min, max) = (bound(&spec.min_available), bound(&spec.max_unavailable));
            (
                vec![
                    meta.name.clone().into(),
                    min,
                    max,
                    status.disruptions_allowed.into(),
                    created(&meta, now),
                ],
                None,
            )
        }
        Kind::Event => (event::cells(&pb::Event::decode(record).unwrap_or_default(), now), None),
        _ => {
            let meta = object::metadata(record);
            (vec![meta.name.clone().into(), created(&meta, now)], None)
        }
    }
}

fn created(meta: &pb::Metadata, now: Timestamp) -> Value {
    age(moment(meta.creation_timestamp.map(|time| time.seconds)), now).into()
}

/// A moment of the schema.
fn moment(seconds: Option<i64>) -> Option<Timestamp> {
    seconds.and_then(|seconds| Timestamp::from_second(seconds).ok())
}

/// The text, or what stands for none.
fn or(text: &str, none: &str) -> Value {
    if text.is_empty() { none.into() } else { text.into() }
}
