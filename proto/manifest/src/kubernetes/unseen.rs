//! What an object does not show of its record: fields that only Muster has, and fractions of seconds.

use jiff::Timestamp;
use muster_proto::record::Kind;
use prost_reflect::{FieldDescriptor, Kind as FieldKind, MessageDescriptor};
use serde_json::{Map, Value};

use crate::names::{self, Shape};
use crate::schema;

/// Completes the fields that a client sent by what it could not see of the current record: fields that are not in the
/// object keep their values, and a time that was sent as it was shown is the current one, with its fraction.
pub fn keep_unseen(kind: Kind, wanted: &mut Map<String, Value>, current: &Map<String, Value>) {
    keep(&schema::descriptor(kind), wanted, current);
}

fn keep(message: &MessageDescriptor, wanted: &mut Map<String, Value>, current: &Map<String, Value>) {
    for field in message.fields() {
        let name = field.json_name();
        let Some(before) = current.get(name) else {
            if names::shape(&field) == Shape::Hidden {
                wanted.remove(name);
            }
            continue;
        };
        if names::shape(&field) == Shape::Hidden {
            wanted.insert(name.to_owned(), before.clone());
        } else if let Some(after) = wanted.get_mut(name) {
            keep_value(&field, after, before);
        } else if has_hidden(&field)
            && let Value::Object(before) = before
        {
            // The client left out an object of which it saw only a part.
            let mut rest = Map::new();
            if let FieldKind::Message(inner) = field.kind() {
                keep(&inner, &mut rest, before);
            }
            if !rest.is_empty() {
                wanted.insert(name.to_owned(), Value::Object(rest));
            }
        }
    }
}

fn has_hidden(field: &FieldDescriptor) -> bool {
    let FieldKind::Message(message) = field.kind() else { return false };
    !field.is_list() && !field.is_map() && message.fields().any(|field| names::shape(&field) == Shape::Hidden)
}

fn keep_value(field: &FieldDescriptor, after: &mut Value, before: &Value) {
    let FieldKind::Message(message) = field.kind() else { return };
    match (after, before) {
        (Value::Array(after), Value::Array(before)) => {
            for item in after {
                if let Some(same) = before.iter().find(|before| shows(before, item)) {
                    *item = same.clone();
                }
            }
        }
        (Value::Object(after), Value::Object(before)) if field.is_map() => {
            for (key, value) in after {
                if let Some(same) = before.get(key).filter(|before| shows(before, value)) {
                    *value = same.clone();
                }
            }
        }
        (Value::Object(after), Value::Object(before)) => keep(&message, after, before),
        (after, before) if shows(before, after) => *after = before.clone(),
        _ => {}
    }
}

/// Whether a client that sent `after` may have been shown `before`: they differ at most in fractions of seconds.
fn shows(before: &Value, after: &Value) -> bool {
    match (before, after) {
        (Value::String(before), Value::String(after)) => {
            before == after
                || match (before.parse::<Timestamp>(), after.parse::<Timestamp>()) {
                    (Ok(before), Ok(after)) => {
                        before.as_second() == after.as_second()
                            && (after.subsec_nanosecond() == 0
                                || before.as_microsecond() == after.as_microsecond())
                    }
                    _ => false,
                }
        }
        (Value::Array(before), Value::Array(after)) => {
            before.len() == after.len()
                && before.iter().zip(after).all(|(before, after)| shows(before, after))
        }
        (Value::Object(before), Value::Object(after)) => {
            before.len() == after.len()
                && before.iter().all(|(key, before)| after.get(key).is_some_and(|after| shows(before, after)))
        }
        // Numbers of 64 bits are texts where they come from our records, and numbers where clients send them.
        (Value::String(text), Value::Number(number)) => *text == number.to_string(),
        (before, after) => before == after,
    }
}
