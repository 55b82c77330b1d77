//! Records as JSON values: the JSON mapping of protobuf (field names as grpcurl shows them, times in RFC 3339) with
//! `apiVersion` and `kind` as first fields.
//!
//! Protobuf's mapping writes 64-bit numbers as texts. Here signed ones (seconds, counts, sizes) are numbers, as in
//! Kubernetes; reading accepts both. Unsigned ones are versions and digests, which are compared and never added: they
//! stay texts, as `resourceVersion` is in Kubernetes, since many JSON readers round numbers above 2^53.

use std::sync::OnceLock;

use muster_proto::record::{Kind, Record};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind as FieldKind, MessageDescriptor};
use serde_json::{Map, Value};

/// The `apiVersion` of all records. It is the one that Kubernetes has for nodes and pods.
pub const API_VERSION: &str = "v1";

/// The message descriptor of a kind.
pub fn descriptor(kind: Kind) -> MessageDescriptor {
    message(&kind.to_string())
}

pub(crate) fn message(name: &str) -> MessageDescriptor {
    static POOL: OnceLock<DescriptorPool> = OnceLock::new();
    let pool = POOL.get_or_init(|| {
        DescriptorPool::decode(muster_proto::DESCRIPTORS).expect("our own descriptors are readable")
    });
    pool.get_message_by_name(&format!("muster.v1.{name}")).expect("a message of the schema")
}

/// A record as a JSON object.
pub fn to_json<R: Record>(record: R) -> Value {
    let value = message_to_json(&R::KIND.to_string(), &record.into());
    let Value::Object(fields) = value else { unreachable!("a message is a JSON object") };
    let mut record_fields = Map::new();
    record_fields.insert("apiVersion".to_owned(), API_VERSION.into());
    record_fields.insert("kind".to_owned(), R::KIND.to_string().into());
    record_fields.extend(fields);
    Value::Object(record_fields)
}

/// Several records as one `List` object.
pub fn list(items: Vec<Value>) -> Value {
    let fields =
        [("apiVersion", API_VERSION.into()), ("kind", "List".into()), ("items", Value::Array(items))];
    Value::Object(fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect())
}

/// Any message of the schema, by its name, as a JSON object.
pub fn message_to_json(name: &str, content: &impl Message) -> Value {
    let encoded = content.encode_to_vec();
    let descriptor = message(name);
    let message =
        DynamicMessage::decode(descriptor.clone(), encoded.as_slice()).expect("what we encode we can decode");
    let mut value = serde_json::to_value(message).expect("a message is valid JSON");
    write_numbers(&mut value, &descriptor);
    value
}

/// Turns the texts of signed 64-bit fields into numbers, in a message and the messages in it.
fn write_numbers(value: &mut Value, descriptor: &MessageDescriptor) {
    // A time or a duration is a message of the schema and a text here.
    let Value::Object(fields) = value else { return };
    for field in descriptor.fields() {
        let Some(value) = fields.get_mut(field.json_name()) else { continue };
        let kind = match field.kind() {
            FieldKind::Message(entry) if field.is_map() => entry.map_entry_value_field().kind(),
            kind => kind,
        };
        let values: Vec<&mut Value> = match value {
            Value::Array(items) => items.iter_mut().collect(),
            Value::Object(entries) if field.is_map() => entries.values_mut().collect(),
            one => vec![one],
        };
        for value in values {
            match (&kind, &*value) {
                (FieldKind::Message(message), _) => write_numbers(value, message),
                (FieldKind::Int64 | FieldKind::Sint64 | FieldKind::Sfixed64, Value::String(text)) => {
                    if let Ok(number) = text.parse::<i64>() {
                        *value = number.into();
                    }
                }
                _ => {}
            }
        }
    }
}

/// Converts fields by their JSON names to a message; the error is the path of a field of the wrong type, and the reason.
pub(crate) fn to_message(kind: Kind, fields: Map<String, Value>) -> Result<DynamicMessage, (String, String)> {
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(Value::Object(fields), &mut track);
    let message = DynamicMessage::deserialize(descriptor(kind), deserializer);
    message.map_err(|error: serde_json::Error| (track.path().to_string(), error.to_string()))
}

/// Converts a dynamic message to the generated type of a record.
pub fn from_message<R: Record>(message: &DynamicMessage) -> R::Pb {
    R::Pb::decode(message.encode_to_vec().as_slice()).expect("what we encode we can decode")
}
