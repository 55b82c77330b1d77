//! Manifests: records as people write them, in YAML or JSON, checked field by field.
//!
//! A manifest says which record it means (`kind`, `metadata.name`) and some of its fields. It can be turned
//! into a whole record, or laid over one that exists: what it names is set, `null` removes, the rest stays as
//! it is.

mod documents;
mod error;
mod field_names;
mod merge;

use std::io::Read;
use std::path::Path;

use muster_proto::key::Key;
use muster_proto::record::{Kind, Record};
use prost_reflect::DynamicMessage;
use serde_json::{Map, Value};

pub(crate) use self::error::{ManifestError, Problem};
use crate::connection::Namespaces;
use crate::schema::{self, API_VERSION};

/// One record as somebody wrote it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Manifest {
    /// Where it stands: a file, and which of its documents.
    pub(crate) place: String,
    pub(crate) kind: Kind,
    /// Its fields by their names in the schema.
    fields: Map<String, Value>,
}

/// What only the store writes of a record's metadata; in a manifest it is there because it was printed.
const OF_THE_STORE: [&str; 7] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "traceparent",
];

/// The manifests of a file, or of what is piped in for `-`.
pub(crate) fn read_file(path: &Path) -> Result<Vec<Manifest>, ManifestError> {
    let mut text = String::new();
    let (place, outcome) = if path == Path::new("-") {
        ("standard input".to_owned(), std::io::stdin().lock().read_to_string(&mut text).map(drop))
    } else {
        let read = std::fs::read_to_string(path).map(|read| text = read);
        (path.display().to_string(), read)
    };
    outcome.map_err(|error| Problem::Unreadable(error).at(&place))?;
    read(&place, &text)
}

/// The manifests of a text. A `List` stands for its items.
pub(crate) fn read(place: &str, text: &str) -> Result<Vec<Manifest>, ManifestError> {
    let documents = documents::parse(text).map_err(|problem| problem.at(place))?;
    if documents.is_empty() {
        return Err(Problem::Empty.at(place));
    }
    let several = documents.len() > 1;
    let mut manifests = Vec::new();
    for (i, document) in documents.into_iter().enumerate() {
        let place = if several { format!("{place}, document {}", i + 1) } else { place.to_owned() };
        collect(place, document, &mut manifests)?;
    }
    Ok(manifests)
}

fn collect(place: String, document: Value, manifests: &mut Vec<Manifest>) -> Result<(), ManifestError> {
    let Value::Object(mut fields) = document else { return Err(Problem::NoRecord.at(&place)) };
    if fields.get("kind").and_then(Value::as_str) == Some("List") {
        let Some(Value::Array(items)) = fields.remove("items") else {
            return Err(Problem::NoItems.at(&place));
        };
        for (i, item) in items.into_iter().enumerate() {
            collect(format!("{place}, item {}", i + 1), item, manifests)?;
        }
        return Ok(());
    }
    manifests.push(Manifest::new(place, fields)?);
    Ok(())
}

impl Manifest {
    fn new(place: String, mut fields: Map<String, Value>) -> Result<Manifest, ManifestError> {
        let kind = heading(&mut fields).map_err(|problem| problem.at(&place))?;
        let spelled = field_names::spell(&schema::descriptor(kind), fields);
        let fields = spelled.map_err(|problem| problem.at(format_args!("{place} ({kind})")))?;
        let manifest = Manifest { place, kind, fields };
        manifest.in_the_schema(without_nulls(&manifest.fields))?;
        Ok(manifest)
    }

    fn metadata(&self, field: &str) -> Option<&str> {
        self.fields.get("metadata")?.get(field)?.as_str().filter(|text| !text.is_empty())
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.metadata("name")
    }

    /// Whether it says which version of the record it speaks of.
    pub(crate) fn has_version(&self) -> bool {
        self.metadata("resourceVersion").is_some_and(|version| version != "0")
    }

    fn problem(&self, problem: Problem) -> ManifestError {
        let who = self.name().map(|name| format!(" {name}")).unwrap_or_default();
        problem.at(format_args!("{} ({}{who})", self.place, self.kind))
    }

    /// Puts a record that names no namespace into the one it belongs in.
    pub(crate) fn settle(&mut self, namespaces: &Namespaces) -> Result<(), ManifestError> {
        if !self.kind.is_namespaced() {
            return Ok(());
        }
        let own = self.metadata("namespace").map(str::to_owned);
        match (own, &namespaces.asked) {
            (Some(own), Some(asked)) if own != asked.as_str() => {
                let asked = asked.as_str().to_owned();
                Err(self.problem(Problem::OtherNamespace { own, asked }))
            }
            (Some(_), _) => Ok(()),
            (None, _) => {
                let namespace = namespaces.of(self.kind).as_str().to_owned();
                let metadata = self.fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(metadata) = metadata {
                    metadata.insert("namespace".to_owned(), namespace.into());
                }
                Ok(())
            }
        }
    }

    /// Which record it means.
    pub(crate) fn key(&self) -> Result<Key, ManifestError> {
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

    /// The record as it stands here and nowhere else, without what only the store can have written.
    pub(crate) fn record<R: Record>(&self) -> Result<R, ManifestError> {
        let mut fields = without_nulls(&self.fields);
        forget_the_store(&mut fields);
        self.check(fields)
    }

    /// The record that this makes of the one there is.
    ///
    /// It carries the version to be replaced: the manifest's own, unless nothing would change. A manifest
    /// that was printed a while ago and never edited has nothing to be in conflict about.
    pub(crate) fn over<R: Record>(&self, current: &R) -> Result<R, ManifestError> {
        let Value::Object(mut there) = schema::to_json(current.clone()) else {
            unreachable!("a record is a JSON object")
        };
        for heading in ["apiVersion", "kind"] {
            there.remove(heading);
        }
        let mut merged = there.clone();
        merge::lay_over(&mut merged, self.fields.clone());
        // The status is not ours to write, and an update would leave it alone anyway.
        match there.get("status") {
            Some(status) => merged.insert("status".to_owned(), status.clone()),
            None => merged.remove("status"),
        };
        let mut wanted: R = self.check(merged).map_err(|error| match error.problem {
            Problem::Invalid(invalid) if self.record::<R>().is_ok() => {
                self.problem(Problem::Together(invalid))
            }
            _ => error,
        })?;
        if without_the_store(&wanted) == without_the_store(current) {
            wanted.meta_mut().resource_version = current.meta().resource_version;
        }
        Ok(wanted)
    }

    fn check<R: Record>(&self, fields: Map<String, Value>) -> Result<R, ManifestError> {
        let message: R::Pb = schema::from_message::<R>(&self.in_the_schema(fields)?);
        R::try_from(message).map_err(|invalid| self.problem(Problem::Invalid(invalid)))
    }

    /// The fields as a message of the schema, each of its type.
    fn in_the_schema(&self, fields: Map<String, Value>) -> Result<DynamicMessage, ManifestError> {
        let mut track = serde_path_to_error::Track::new();
        let deserializer = serde_path_to_error::Deserializer::new(Value::Object(fields), &mut track);
        let message = DynamicMessage::deserialize(schema::descriptor(self.kind), deserializer);
        message.map_err(|error: serde_json::Error| {
            let (path, reason) = (track.path().to_string(), error.to_string());
            self.problem(Problem::Type { path, reason })
        })
    }
}

/// Laid over nothing, `null` has nothing to remove.
fn without_nulls(fields: &Map<String, Value>) -> Map<String, Value> {
    let mut left = Map::new();
    merge::lay_over(&mut left, fields.clone());
    left
}

/// Takes `apiVersion` and `kind` off a document; they say what it is.
fn heading(fields: &mut Map<String, Value>) -> Result<Kind, Problem> {
    let text = |value: Option<Value>| match value {
        Some(Value::String(text)) => Some(text),
        _ => None,
    };
    let word = text(fields.remove("kind")).ok_or(Problem::NoKind)?;
    let kind = match word.as_str() {
        "PodDisruptionBudget" => Kind::DisruptionBudget,
        word => word.parse().map_err(|_| Problem::UnknownKind(word.to_owned()))?,
    };
    let versions: &[&str] = match kind {
        Kind::Lease => &[API_VERSION, "coordination.k8s.io/v1"],
        Kind::DisruptionBudget => &[API_VERSION, "policy/v1"],
        Kind::Node | Kind::Pod | Kind::Event => &[API_VERSION],
    };
    match text(fields.remove("apiVersion")) {
        Some(version) if versions.contains(&version.as_str()) => Ok(kind),
        found => Err(Problem::Version { kind, found, expected: versions.join(" or ") }),
    }
}

fn forget_the_store(fields: &mut Map<String, Value>) {
    if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
        for field in OF_THE_STORE {
            metadata.remove(field);
        }
    }
}

fn without_the_store<R: Record>(record: &R) -> R::Pb {
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

/// A kind's own fields, for the tests of what is printed.
#[cfg(test)]
impl Manifest {
    pub(crate) fn whole<R: Record>(&self) -> Result<R, ManifestError> {
        self.check(self.fields.clone())
    }
}

#[cfg(test)]
mod tests;
