//! Records as objects of the Kubernetes API, in both directions. Pure.
//!
//! [`to_object`] writes a record as Kubernetes would; [`from_object`] reads what a client of Kubernetes sends. What both
//! have survives the way there and back unchanged. What only Muster has is not in the object, and a client that sends
//! the object back must not erase it by that: [`keep_unseen`].

mod definitions;
mod read;
#[cfg(test)]
mod tests;
mod unseen;
mod write;

use muster_proto::record::{Kind, Record};
use prost_reflect::DynamicMessage;
use serde_json::{Map, Value};

pub use self::definitions::{Lists, definitions};
pub use self::read::{Findings, Unreadable, from_object};
pub use self::unseen::keep_unseen;
pub use self::write::{message_to_object, metadata_to_object, to_object};
use crate::names;
use crate::schema;

/// The name of a kind in Kubernetes.
pub fn kind_name(kind: Kind) -> String {
    match kind {
        Kind::DisruptionBudget => "PodDisruptionBudget".to_owned(),
        kind => kind.to_string(),
    }
}

/// The kind of this name in Kubernetes.
pub fn kind_named(name: &str) -> Option<Kind> {
    match name {
        "PodDisruptionBudget" => Some(Kind::DisruptionBudget),
        name => name.parse().ok(),
    }
}

/// The `apiVersion` that Kubernetes has for a kind.
pub fn api_version(kind: Kind) -> &'static str {
    match kind {
        Kind::Lease => "coordination.k8s.io/v1",
        Kind::DisruptionBudget => "policy/v1",
        Kind::PriorityClass => "scheduling.k8s.io/v1",
        _ => "v1",
    }
}

/// A path of our schema in the spelling of Kubernetes: `spec.podCIDRs[0]` for `spec.podCidrs[0]`.
pub fn path(ours: &str) -> String {
    let renamed = |segment: &str| -> String {
        let (name, rest) = segment.find('[').map_or((segment, ""), |start| segment.split_at(start));
        format!("{}{rest}", names::with_capitals(name))
    };
    ours.split('.').map(renamed).collect::<Vec<_>>().join(".")
}

/// The fields of an encoded record by their names in the schema, as [`from_object`] returns them.
pub fn schema_fields(kind: Kind, record: &[u8]) -> Map<String, Value> {
    let message = DynamicMessage::decode(schema::descriptor(kind), record);
    match message.ok().and_then(|message| serde_json::to_value(message).ok()) {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// The message of fields by their names in the schema.
///
/// # Errors
/// When a field has a value of the wrong type.
pub fn to_message<R: Record>(fields: Map<String, Value>) -> Result<R::Pb, Unreadable> {
    let (path, reason) = match schema::to_message(R::KIND, fields) {
        Ok(message) => return Ok(schema::from_message::<R>(&message)),
        Err(mistyped) => mistyped,
    };
    Err(Unreadable { path: self::path(&path), reason })
}
