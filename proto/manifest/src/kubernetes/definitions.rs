//! The types of objects as OpenAPI describes them, made of the schema: what is described is what is served.

use std::collections::BTreeMap;

use muster_proto::record::Kind;
use prost_reflect::{FieldDescriptor, Kind as FieldKind, MessageDescriptor};
use serde_json::{Map, Value, json};

use crate::names::{self, Shape};
use crate::schema;

/// Where the types of a document refer to each other.
const REFERENCE: &str = "#/components/schemas/";

/// How a list is patched and compared, for the types of one kind: its path in the object, and the field by which its
/// elements are known; `None` for a set of scalars.
pub type Lists<'a> = &'a dyn Fn(&str) -> Option<Option<&'static str>>;

/// The types that the objects of a kind consist of, by name. The first result is the name of the object's own type.
pub fn definitions(kind: Kind, lists: Lists<'_>) -> (String, BTreeMap<String, Value>) {
    let mut writer = Writer { lists, definitions: BTreeMap::new() };
    let message = schema::descriptor(kind);
    let name = writer.message(&message, None, "");
    if let Some(definition) = writer.definitions.get_mut(&name) {
        for (field, text) in
            [("apiVersion", "The version of this type."), ("kind", "The type of the object.")]
        {
            definition["properties"][field] = json!({"type": "string", "description": text});
        }
    }
    (name, writer.definitions)
}

struct Writer<'a> {
    lists: Lists<'a>,
    definitions: BTreeMap<String, Value>,
}

impl Writer<'_> {
    /// Describes a message and those in it; returns its name.
    fn message(&mut self, message: &MessageDescriptor, name_is: Option<&'static str>, path: &str) -> String {
        let own = match (message.full_name(), name_is) {
            // As clients know it.
            ("muster.v1.Metadata", _) => "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta".to_owned(),
            // A message whose field is named differently in different places has different names.
            (_, Some(other)) => format!("dev.muster.v1.{}.{other}", message.name()),
            _ => format!("dev.muster.v1.{}", message.name()),
        };
        if self.definitions.contains_key(&own) {
            return own;
        }
        self.definitions.insert(own.clone(), Value::Null);
        let mut properties = Map::new();
        for field in message.fields() {
            let shape = names::shape(&field);
            if shape == Shape::Hidden {
                continue;
            }
            let name = match name_is {
                Some(other) if field.name() == "name" => other.to_owned(),
                _ => names::kubernetes_name(&field).into_owned(),
            };
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let mut property = self.field(&field, shape, &path);
            if let Shape::In(inner) = shape {
                let outer =
                    properties.entry(name).or_insert_with(|| json!({"type": "object", "properties": {}}));
                outer["properties"][inner] = property;
            } else {
                describe(&mut property, &comment(&field));
                properties.insert(name, property);
            }
        }
        let mut definition = json!({"type": "object", "properties": properties});
        describe(&mut definition, &comment_at(message.parent_file().file_descriptor_proto(), message.path()));
        self.definitions.insert(own.clone(), definition);
        own
    }

    fn field(&mut self, field: &FieldDescriptor, shape: Shape, path: &str) -> Value {
        if field.is_map() {
            let FieldKind::Message(entry) = field.kind() else { return json!({"type": "object"}) };
            let value = self.one(&entry.map_entry_value_field(), shape, path);
            return json!({"type": "object", "additionalProperties": value});
        }
        if !field.is_list() {
            return self.one(field, shape, path);
        }
        let item = match shape {
            Shape::EachIn(inner) => json!({"type": "object", "properties": {inner: {"type": "string"}}}),
            _ => self.one(field, shape, path),
        };
        let mut list = json!({"type": "array", "items": item});
        match (self.lists)(path) {
            None => list["x-kubernetes-list-type"] = "atomic".into(),
            Some(None) => {
                list["x-kubernetes-list-type"] = "set".into();
                list["x-kubernetes-patch-strategy"] = "merge".into();
            }
            Some(Some(key)) => {
                list["x-kubernetes-list-type"] = "map".into();
                list["x-kubernetes-list-map-keys"] = json!([key]);
                list["x-kubernetes-patch-strategy"] = "merge".into();
                list["x-kubernetes-patch-merge-key"] = key.into();
            }
        }
        list
    }

    fn one(&mut self, field: &FieldDescriptor, shape: Shape, path: &str) -> Value {
        match field.kind() {
            FieldKind::Message(message) if message.full_name() == "google.protobuf.Timestamp" => {
                json!({"type": "string", "format": "date-time"})
            }
            FieldKind::Message(message) => {
                let name_is = match shape {
                    Shape::NameIs(name) => Some(name),
                    _ => None,
                };
                let name = self.message(&message, name_is, path);
                json!({"allOf": [{"$ref": format!("{REFERENCE}{name}")}]})
            }
            FieldKind::Bool => json!({"type": "boolean"}),
            FieldKind::Int32 | FieldKind::Uint32 => json!({"type": "integer", "format": "int32"}),
            FieldKind::Int64 => json!({"type": "integer", "format": "int64"}),
            _ if shape == Shape::IntOrText || crate::field_names::is_number_as_text(field) => {
                json!({"oneOf": [{"type": "string"}, {"type": "number"}]})
            }
            _ => json!({"type": "string"}),
        }
    }
}

fn describe(definition: &mut Value, text: &str) {
    if !text.is_empty() {
        definition["description"] = text.into();
    }
}

fn comment(field: &FieldDescriptor) -> String {
    comment_at(field.parent_message().parent_file().file_descriptor_proto(), field.path())
}

/// The comment of the schema at this place.
fn comment_at(file: &prost_types::FileDescriptorProto, path: &[i32]) -> String {
    let locations = file.source_code_info.iter().flat_map(|info| &info.location);
    let found = locations.into_iter().find(|location| location.path == path);
    let text = found.map_or("", |location| location.leading_comments());
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
