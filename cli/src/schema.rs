//! Records as JSON values: the JSON mapping of protobuf (field names as grpcurl shows them, 64-bit numbers as strings,
//! times in RFC 3339) with `apiVersion` and `kind` as first fields.

use std::sync::OnceLock;

use muster_proto::record::{Kind, Record};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::{Map, Value};

/// The `apiVersion` of all records. It is the one that Kubernetes has for nodes and pods.
pub(crate) const API_VERSION: &str = "v1";

/// The message descriptor of a kind.
pub(crate) fn descriptor(kind: Kind) -> MessageDescriptor {
    message(&kind.to_string())
}

fn message(name: &str) -> MessageDescriptor {
    static POOL: OnceLock<DescriptorPool> = OnceLock::new();
    let pool = POOL.get_or_init(|| {
        DescriptorPool::decode(muster_proto::DESCRIPTORS).expect("our own descriptors are readable")
    });
    pool.get_message_by_name(&format!("muster.v1.{name}")).expect("a message of the schema")
}

/// A record as a JSON object.
pub(crate) fn to_json<R: Record>(record: R) -> Value {
    let value = message_to_json(&R::KIND.to_string(), &record.into());
    let Value::Object(fields) = value else { unreachable!("a message is a JSON object") };
    let mut record_fields = Map::new();
    record_fields.insert("apiVersion".to_owned(), API_VERSION.into());
    record_fields.insert("kind".to_owned(), R::KIND.to_string().into());
    record_fields.extend(fields);
    Value::Object(record_fields)
}

/// Several records as one `List` object.
pub(crate) fn list(items: Vec<Value>) -> Value {
    let fields =
        [("apiVersion", API_VERSION.into()), ("kind", "List".into()), ("items", Value::Array(items))];
    Value::Object(fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect())
}

/// Any message of the schema, by its name, as a JSON object.
pub(crate) fn message_to_json(name: &str, content: &impl Message) -> Value {
    let encoded = content.encode_to_vec();
    let message =
        DynamicMessage::decode(message(name), encoded.as_slice()).expect("what we encode we can decode");
    serde_json::to_value(message).expect("a message is valid JSON")
}

/// Converts a dynamic message to the generated type of a record.
pub(crate) fn from_message<R: Record>(message: &DynamicMessage) -> R::Pb {
    R::Pb::decode(message.encode_to_vec().as_slice()).expect("what we encode we can decode")
}
