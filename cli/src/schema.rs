//! Records as JSON values: the schema's own JSON (names as grpcurl shows them, 64-bit numbers as text, times
//! in RFC 3339), headed by `apiVersion` and `kind`.

use std::sync::OnceLock;

use muster_proto::record::{Kind, Record};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::{Map, Value};

/// What records are headed with. There is one version so far, and it is the one that Kubernetes' manifests of
/// nodes and pods have.
pub(crate) const API_VERSION: &str = "v1";

/// The schema's description of a kind.
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

/// A record for programs to read.
pub(crate) fn to_json<R: Record>(record: R) -> Value {
    let value = message_to_json(&R::KIND.to_string(), &record.into());
    let Value::Object(fields) = value else { unreachable!("a message is a JSON object") };
    let mut headed = Map::new();
    headed.insert("apiVersion".to_owned(), API_VERSION.into());
    headed.insert("kind".to_owned(), R::KIND.to_string().into());
    headed.extend(fields);
    Value::Object(headed)
}

/// Several records for programs to read, as one document.
pub(crate) fn list(items: Vec<Value>) -> Value {
    let fields =
        [("apiVersion", API_VERSION.into()), ("kind", "List".into()), ("items", Value::Array(items))];
    Value::Object(fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect())
}

/// Any message of the schema, by its name, for programs to read.
pub(crate) fn message_to_json(name: &str, content: &impl Message) -> Value {
    let encoded = content.encode_to_vec();
    let message =
        DynamicMessage::decode(message(name), encoded.as_slice()).expect("what we encode we can decode");
    serde_json::to_value(message).expect("a message is valid JSON")
}

/// A message of the schema as the record it stands for.
pub(crate) fn from_message<R: Record>(message: &DynamicMessage) -> R::Pb {
    R::Pb::decode(message.encode_to_vec().as_slice()).expect("what we encode we can decode")
}
