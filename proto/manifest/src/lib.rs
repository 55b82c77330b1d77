//! Manifests: records in YAML or JSON files, checked field by field.
//!
//! A manifest identifies a record (`kind`, `metadata.name`) and has some of its fields. It can be converted to a
//! new record or merged into an existing one (JSON Merge Patch): named fields are set, `null` removes a field, all
//! other fields stay.

pub mod documents;
mod error;
mod field_names;
pub mod kubernetes;
mod merge;
mod names;
pub mod schema;

use std::io::Read;
use std::path::Path;

use muster_proto::key::Key;
use muster_proto::name::Namespace;
use muster_proto::record::{Kind, Record};
use prost_reflect::DynamicMessage;
use serde_json::{Map, Value};

pub use self::error::{ManifestError, Problem};
use crate::schema::API_VERSION;

/// One record of a manifest file.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The file, and the document in the file.
    pub location: String,
    pub kind: Kind,
    /// The fields by their JSON names in the schema.
    fields: Map<String, Value>,
}

/// The metadata fields that only the store writes. A manifest that was printed by `muster get` has them.
pub const STORE_FIELDS: [&str; 7] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "traceparent",
];

/// Reads the manifests of a file, or of standard input for `-`.
pub fn read_file(path: &Path) -> Result<Vec<Manifest>, ManifestError> {
    let mut text = String::new();
    let (location, outcome) = if path == Path::new("-") {
        ("standard input".to_owned(), std::io::stdin().lock().read_to_string(&mut text).map(drop))
    } else {
        let read = std::fs::read_to_string(path).map(|read| text = read);
        (path.display().to_string(), read)
    };
    outcome.map_err(|error| Problem::Unreadable(error).at(&location))?;
    read(&location, &text)
}

/// Parses the manifests of a text. A `List` yields its items.
pub fn read(location: &str, text: &str) -> Result<Vec<Manifest>, ManifestError> {
    let documents = documents::parse(text).map_err(|problem| problem.at(location))?;
    if documents.is_empty() {
        return Err(Problem::Empty.at(location));
    }
    let several = documents.len() > 1;
    let mut manifests = Vec::new();
    for (i, document) in documents.into_iter().enumerate() {
        let location = if several { format!("{location}, document {}", i + 1) } else { location.to_owned() };
        collect(location, document, &mut manifests)?;
    }
    Ok(manifests)
}

fn collect(location: String, document: Value, manifests: &mut Vec<Manifest>) -> Result<(), ManifestError> {
    let Value::Object(mut fields) = document else { return Err(Problem::NoRecord.at(&location)) };
    if fields.get("kind").and_then(Value::as_str) == Some("List") {
        let Some(Value::Array(items)) = fields.remove("items") else {
            return Err(Problem::NoItems.at(&location));
        };
        for (i, item) in items.into_iter().enumerate() {
            collect(format!("{location}, item {}", i + 1), item, manifests)?;
        }
        return Ok(());
    }
    manifests.push(Manifest::new(location, fields)?);
    Ok(())
}

impl Manifest {
    fn new(location: String, mut fields: Map<String, Value>) -> Result<Manifest, ManifestError> {
        let kind = take_kind(&mut fields).map_err(|problem| problem.at(&location))?;
        let fields = field_names::to_schema_names(&schema::descriptor(kind), fields)
            .map_err(|problem| problem.at(format_args!("{location} ({kind})")))?;
        let manifest = Manifest { location, kind, fields };
        manifest.to_message(without_nulls(&manifest.fields))?;
        Ok(manifest)
    }

    fn metadata(&self, field: &str) -> Option<&str> {
        self.fields.get("metadata")?.get(field)?.as_str().filter(|text| !text.is_empty())
    }

    pub fn name(&self) -> Option<&str> {
        self.metadata("name")
    }

    /// Whether the manifest names the version of the record that it changes.
    pub fn has_version(&self) -> bool {
        self.metadata("resourceVersion").is_some_and(|version| version != "0")
    }

    fn problem(&self, problem: Problem) -> ManifestError {
        let name = self.name().map(|name| format!(" {name}")).unwrap_or_default();
        problem.at(format_args!("{} ({}{name})", self.location, self.kind))
    }

    /// Sets the namespace of a manifest that has none. A namespace that contradicts the requested one is an error.
    pub fn set_namespace(
        &mut self,
        requested: Option<&Namespace>,
        default: &Namespace,
    ) -> Result<(), ManifestError> {
        if !self.kind.is_namespaced() {
            return Ok(());
        }
        let own = self.metadata("namespace").map(str::to_owned);
        match (own, requested) {
            (Some(own), Some(requested)) if own != requested.as_str() => {
                let requested = requested.as_str().to_owned();
                Err(self.problem(Problem::OtherNamespace { own, requested }))
            }
            (Some(_), _) => Ok(()),
            (None, _) => {
                let namespace = requested.unwrap_or(default).as_str().to_owned();
                let metadata = self.fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(metadata) = metadata {
                    metadata.insert("namespace".to_owned(), namespace.into());
                }
                Ok(())
            }
        }
    }

    /// The key of the record.
    pub fn key(&self) -> Result<Key, ManifestError> {
        let name = self.name().ok_or_else(|| self.problem(Problem::NoName))?;
        let invalid = |field: &str, error: &dyn std::fmt::Display| {
            self.problem(Problem::Invalid(muster_proto::invalid::Invalid::of(field, error)))
        };
        let name = name.parse().map_err(|error| invalid("metadata.name", &error))?;
        let namespace = match self.metadata("namespace") {
            Some(text) => Some(text.parse().map_err(|error| invalid("metadata.namespace", &error))?),
            None => None,
        };
        Ok(Key { namespace, name })
    }

    /// The manifest as a new record, without the fields that only the store writes.
    pub fn to_record<R: Record>(&self) -> Result<R, ManifestError> {
        let mut fields = without_nulls(&self.fields);
        remove_store_fields(&mut fields);
        self.check(fields)
    }

    /// The current record with the manifest merged into it.
    ///
    /// Its version is the manifest's own, so that the store refuses it if the record has changed. If the manifest would
    /// change nothing, it is the current version: a manifest that was printed earlier and not edited causes no
    /// conflict.
    pub fn merged_into<R: Record>(&self, current: &R) -> Result<R, ManifestError> {
        let fields = to_fields(current);
        let mut merged = fields.clone();
        merge::merge_patch(&mut merged, self.fields.clone());
        // An update does not change the status, so the manifest's status is ignored.
        match fields.get("status") {
            Some(status) => merged.insert("status".to_owned(), status.clone()),
            None => merged.remove("status"),
        };
        let mut wanted: R = self.check(merged).map_err(|error| match error.problem {
            Problem::Invalid(invalid) if self.to_record::<R>().is_ok() => {
                self.problem(Problem::InvalidWithCurrent(invalid))
            }
            _ => error,
        })?;
        if without_store_fields(&wanted) == without_store_fields(current) {
            wanted.meta_mut().resource_version = current.meta().resource_version;
        }
        Ok(wanted)
    }

    /// The record with exactly the manifest's fields, those that only the store writes included.
    pub fn to_stored_record<R: Record>(&self) -> Result<R, ManifestError> {
        self.check(without_nulls(&self.fields))
    }

    /// The current record with a merge patch applied. Errors name this manifest.
    pub fn patched<R: Record>(&self, current: &R, patch: Map<String, Value>) -> Result<R, ManifestError> {
        let mut fields = to_fields(current);
        merge::merge_patch(&mut fields, patch);
        self.check(fields)
    }

    fn check<R: Record>(&self, fields: Map<String, Value>) -> Result<R, ManifestError> {
        let message: R::Pb = schema::from_message::<R>(&self.to_message(fields)?);
        R::try_from(message).map_err(|invalid| self.problem(Problem::Invalid(invalid)))
    }

    /// Converts the fields to a message of the schema; a field of the wrong type is an error.
    fn to_message(&self, fields: Map<String, Value>) -> Result<DynamicMessage, ManifestError> {
        schema::to_message(self.kind, fields)
            .map_err(|(path, reason)| self.problem(Problem::Type { path, reason }))
    }
}

/// The fields of a record, without `apiVersion` and `kind`.
pub fn to_fields<R: Record>(record: &R) -> Map<String, Value> {
    let Value::Object(mut fields) = schema::to_json(record.clone()) else {
        unreachable!("a record is a JSON object")
    };
    for heading in ["apiVersion", "kind"] {
        fields.remove(heading);
    }
    fields
}

/// Drops the fields that are `null`: in a new record they have nothing to remove.
fn without_nulls(fields: &Map<String, Value>) -> Map<String, Value> {
    let mut left = Map::new();
    merge::merge_patch(&mut left, fields.clone());
    left
}

/// Removes `apiVersion` and `kind` from a document, checks them and returns the kind.
fn take_kind(fields: &mut Map<String, Value>) -> Result<Kind, Problem> {
    let text = |value: Option<Value>| match value {
        Some(Value::String(text)) => Some(text),
        _ => None,
    };
    let word = text(fields.remove("kind")).ok_or(Problem::NoKind)?;
    let kind = kubernetes::kind_named(&word).ok_or(Problem::UnknownKind(word))?;
    let mut versions = vec![API_VERSION];
    if kubernetes::api_version(kind) != API_VERSION {
        versions.push(kubernetes::api_version(kind));
    }
    match text(fields.remove("apiVersion")) {
        Some(version) if versions.contains(&version.as_str()) => Ok(kind),
        found => Err(Problem::Version { kind, found, expected: versions.join(" or ") }),
    }
}

fn remove_store_fields(fields: &mut Map<String, Value>) {
    if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
        for field in STORE_FIELDS {
            metadata.remove(field);
        }
    }
}

fn without_store_fields<R: Record>(record: &R) -> R::Pb {
    let mut record = record.clone();
    let meta = record.meta_mut();
    meta.resource_version = 0;
    meta.generation = 0;
    meta.creation_timestamp = None;
    meta.deletion_timestamp = None;
    meta.deletion_grace_period_seconds = None;
    meta.traceparent = None;
    record.into()
}
