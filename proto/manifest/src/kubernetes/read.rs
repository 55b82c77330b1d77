//! Reads objects as clients of Kubernetes send them.

use muster_proto::record::Kind;
use prost_reflect::{FieldDescriptor, Kind as FieldKind, MessageDescriptor};
use serde_json::{Map, Value};

use super::write::our_kind;
use crate::names::{self, Shape};
use crate::schema;

/// What was found in an object that the record will not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Paths of fields that Kubernetes does not have either.
    pub unknown: Vec<String>,
    /// Paths of fields that Kubernetes has and Muster does not keep.
    pub not_kept: Vec<String>,
}

/// A field whose value has the wrong type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct Unreadable {
    pub path: String,
    pub reason: String,
}

/// The fields of an object by their names in the schema. `kind` and `apiVersion` are to be removed before.
///
/// # Errors
/// When an object is expected and something else found.
pub fn from_object(
    kind: Kind,
    object: Map<String, Value>,
) -> Result<(Map<String, Value>, Findings), Unreadable> {
    let mut reader = Reader { findings: Findings::default() };
    let fields = reader.message(&schema::descriptor(kind), None, object, "")?;
    Ok((fields, reader.findings))
}

struct Reader {
    findings: Findings,
}

impl Reader {
    /// `name_is`: what Kubernetes calls the message's field `name`, if not that.
    fn message(
        &mut self,
        message: &MessageDescriptor,
        name_is: Option<&'static str>,
        object: Map<String, Value>,
        path: &str,
    ) -> Result<Map<String, Value>, Unreadable> {
        let mut fields = Map::new();
        for (key, value) in object {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let ours = match name_is {
                Some(other) if key == other => "name",
                Some(_) if key == "name" => "",
                _ => key.as_str(),
            };
            let found = names::fields_named(message, ours);
            if found.is_empty() {
                self.missing(message, &key, &value, path);
                continue;
            }
            if value.is_null() {
                continue;
            }
            for (field, value) in self.split(&found, value, &path)? {
                let value = self.value(&field, value, &path)?;
                fields.insert(field.json_name().to_owned(), value);
            }
        }
        Ok(fields)
    }

    fn missing(&mut self, message: &MessageDescriptor, key: &str, value: &Value, path: String) {
        if !names::is_not_kept(message, key) {
            self.findings.unknown.push(path);
        } else if !names::is_without_effect(message, key, value) {
            self.findings.not_kept.push(path);
        }
    }

    /// The values of our fields in the value of one field of Kubernetes.
    fn split(
        &mut self,
        found: &[FieldDescriptor],
        value: Value,
        path: &str,
    ) -> Result<Vec<(FieldDescriptor, Value)>, Unreadable> {
        let [Shape::In(_), ..] = found.iter().map(names::shape).collect::<Vec<_>>()[..] else {
            return Ok(found.iter().take(1).map(|field| (field.clone(), value.clone())).collect());
        };
        let mut inner = object(value, path)?;
        let mut values = Vec::new();
        for field in found {
            if let Shape::In(name) = names::shape(field)
                && let Some(value) = inner.remove(name).filter(|value| !value.is_null())
            {
                values.push((field.clone(), value));
            }
        }
        self.findings.not_kept.extend(inner.into_iter().map(|(key, _)| format!("{path}.{key}")));
        Ok(values)
    }

    fn value(&mut self, field: &FieldDescriptor, value: Value, path: &str) -> Result<Value, Unreadable> {
        let shape = names::shape(field);
        if field.is_map() {
            return Ok(match value {
                Value::Object(entries) => entries
                    .into_iter()
                    .filter(|(_, value)| !value.is_null())
                    .map(|(key, value)| (key, self.amount(field, value)))
                    .collect(),
                other => other,
            });
        }
        if !field.is_list() {
            return self.one(field, shape, value, path);
        }
        let Value::Array(items) = value else { return Ok(value) };
        let mut read = Vec::with_capacity(items.len());
        for (i, item) in items.into_iter().enumerate() {
            let path = format!("{path}[{i}]");
            let item = match shape {
                Shape::EachIn(inner) => object(item, &path)?.remove(inner).unwrap_or_default(),
                _ => item,
            };
            read.push(self.one(field, shape, item, &path)?);
        }
        Ok(Value::Array(read))
    }

    fn one(
        &mut self,
        field: &FieldDescriptor,
        shape: Shape,
        value: Value,
        path: &str,
    ) -> Result<Value, Unreadable> {
        match field.kind() {
            FieldKind::Message(message) if !message.full_name().starts_with("google.protobuf.") => {
                let name_is = match shape {
                    Shape::NameIs(name) => Some(name),
                    _ => None,
                };
                Ok(Value::Object(self.message(&message, name_is, object(value, path)?, path)?))
            }
            FieldKind::String if shape == Shape::KindName => match value {
                Value::String(name) => Ok(our_kind(&name).into()),
                other => Ok(other),
            },
            FieldKind::String if shape == Shape::IntOrText => match value {
                // As Kubernetes has it: a text is a percentage.
                Value::String(text) if text.parse::<i64>().is_ok() => {
                    let reason = "must be a number, or a percentage such as \"20%\"".to_owned();
                    Err(Unreadable { path: path.to_owned(), reason })
                }
                value => Ok(self.amount(field, value)),
            },
            _ => Ok(self.amount(field, value)),
        }
    }

    /// A quantity or count that may be written as a number.
    fn amount(&self, field: &FieldDescriptor, value: Value) -> Value {
        match value {
            Value::Number(number) if crate::field_names::is_number_as_text(field) => {
                number.to_string().into()
            }
            other => other,
        }
    }
}

fn object(value: Value, path: &str) -> Result<Map<String, Value>, Unreadable> {
    match value {
        Value::Object(fields) => Ok(fields),
        _ => Err(Unreadable { path: path.to_owned(), reason: "must be an object".to_owned() }),
    }
}
