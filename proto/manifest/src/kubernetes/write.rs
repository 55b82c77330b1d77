//! Writes messages of the schema as Kubernetes does.

use jiff::Timestamp;
use muster_proto::record::Kind as RecordKind;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage, Value as Field};
use serde_json::{Map, Value};

use super::{kind_name, kind_named};
use crate::names::{self, Shape};
use crate::schema;

/// An encoded record as an object, without `kind` and `apiVersion`.
pub fn to_object(kind: RecordKind, record: &[u8]) -> Map<String, Value> {
    let message = DynamicMessage::decode(schema::descriptor(kind), record);
    message.map_or_else(|_| Map::new(), |message| message_to_object(&message))
}

/// The metadata of an encoded record as an object.
pub fn metadata_to_object(metadata: &[u8]) -> Map<String, Value> {
    let message = DynamicMessage::decode(schema::message("Metadata"), metadata);
    message.map_or_else(|_| Map::new(), |message| message_to_object(&message))
}

/// A message as an object.
pub fn message_to_object(message: &DynamicMessage) -> Map<String, Value> {
    write_message(message, None)
}

/// `name_is`: what Kubernetes calls the message's field `name`, if not that.
fn write_message(message: &DynamicMessage, name_is: Option<&'static str>) -> Map<String, Value> {
    let mut object = Map::new();
    for (field, value) in message.fields() {
        let shape = names::shape(&field);
        if shape == Shape::Hidden {
            continue;
        }
        let name = match name_is {
            Some(other) if field.name() == "name" => other.into(),
            _ => names::kubernetes_name(&field),
        };
        let value = write_value(&field, shape, value);
        match shape {
            Shape::In(inner) => {
                let outer = object.entry(name).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(outer) = outer {
                    outer.insert(inner.to_owned(), value);
                }
            }
            _ => {
                object.insert(name.into_owned(), value);
            }
        }
    }
    for (name, value) in names::always_written(&message.descriptor()) {
        if object.contains_key(name) {
            continue;
        }
        let found = names::fields_named(&message.descriptor(), name);
        let value = match found.first().map(|field| (field, field.kind())) {
            Some((field, Kind::Message(inner))) if value == "{}" && names::shape(field) == Shape::Same => {
                Value::Object(write_message(&DynamicMessage::new(inner), None))
            }
            _ => serde_json::from_str(value).unwrap_or_default(),
        };
        object.insert(name.to_owned(), value);
    }
    object
}

fn write_value(field: &FieldDescriptor, shape: Shape, value: &Field) -> Value {
    match value {
        Field::List(items) => items
            .iter()
            .map(|item| match shape {
                Shape::EachIn(inner) => {
                    Value::Object([(inner.to_owned(), write_one(shape, item))].into_iter().collect())
                }
                _ => write_one(shape, item),
            })
            .collect(),
        Field::Map(entries) => {
            let mut entries: Vec<_> = entries.iter().map(|(key, value)| (map_key(key), value)).collect();
            // A map of the schema has no order; the answers to two equal requests should be equal.
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            let entries = entries.into_iter().map(|(key, value)| (key, write_one(shape, value)));
            Value::Object(entries.collect())
        }
        one => {
            debug_assert!(!field.is_list(), "{}", field.full_name());
            write_one(shape, one)
        }
    }
}

fn map_key(key: &MapKey) -> String {
    match key {
        MapKey::String(text) => text.clone(),
        MapKey::Bool(flag) => flag.to_string(),
        MapKey::I32(number) => number.to_string(),
        MapKey::I64(number) => number.to_string(),
        MapKey::U32(number) => number.to_string(),
        MapKey::U64(number) => number.to_string(),
    }
}

fn write_one(shape: Shape, value: &Field) -> Value {
    match value {
        Field::Bool(flag) => (*flag).into(),
        Field::I32(number) => (*number).into(),
        Field::I64(number) => (*number).into(),
        Field::U32(number) => (*number).into(),
        // A version: opaque, and for many readers too large for a number.
        Field::U64(number) => number.to_string().into(),
        Field::F32(number) => (*number).into(),
        Field::F64(number) => (*number).into(),
        Field::EnumNumber(number) => (*number).into(),
        Field::String(text) => write_text(shape, text),
        Field::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned().into(),
        Field::Message(message) if is_time(message) => write_time(shape, message),
        Field::Message(message) => {
            let name_is = match shape {
                Shape::NameIs(name) => Some(name),
                _ => None,
            };
            Value::Object(write_message(message, name_is))
        }
        Field::List(_) | Field::Map(_) => Value::Null,
    }
}

fn write_text(shape: Shape, text: &str) -> Value {
    match shape {
        Shape::IntOrText => text.parse::<i64>().map_or_else(|_| text.into(), Value::from),
        Shape::KindName => text.parse().map_or_else(|_| text.into(), |kind| kind_name(kind).into()),
        _ => text.into(),
    }
}

/// The kind of a record by its name in Kubernetes, in our words.
pub(super) fn our_kind(name: &str) -> String {
    kind_named(name).map_or_else(|| name.to_owned(), |kind| kind.to_string())
}

fn is_time(message: &DynamicMessage) -> bool {
    message.descriptor().full_name() == "google.protobuf.Timestamp"
}

fn write_time(shape: Shape, message: &DynamicMessage) -> Value {
    let number = |name: &str| {
        message.get_field_by_name(name).and_then(|field| field.as_i64().or(field.as_i32().map(i64::from)))
    };
    let (seconds, nanos) = (number("seconds").unwrap_or_default(), number("nanos").unwrap_or_default());
    let micros = i32::try_from(nanos / 1000 * 1000).unwrap_or_default();
    let written = match shape {
        Shape::MicroTime => Timestamp::new(seconds, micros).map(|time| format!("{time:.6}")),
        _ => Timestamp::new(seconds, 0).map(|time| time.to_string()),
    };
    written.map_or(Value::Null, Value::from)
}
