//! Errors in manifests: the location, the problem and a hint.

use std::fmt;
use std::io;

use muster_proto::invalid::Invalid;
use muster_proto::record::Kind;

/// A manifest that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{location}: {problem}")]
pub struct ManifestError {
    /// The file, the document in it, and the kind and name of the record if they are known.
    location: String,
    pub problem: Problem,
}

/// What is wrong with a manifest.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("is neither YAML nor JSON: {0}")]
    Syntax(String),
    #[error("has no record")]
    Empty,
    #[error("is not a record: expected fields such as `kind: Node`")]
    NoRecord,
    #[error("is a List without items")]
    NoItems,
    #[error("has no kind")]
    NoKind,
    #[error("has the unknown kind {0}")]
    UnknownKind(String),
    #[error("{kind} has {}: expected {expected}", Version(found.as_deref()))]
    Version { kind: Kind, found: Option<String>, expected: String },
    #[error("{}", Unknown(.0))]
    UnknownFields(Vec<UnknownField>),
    #[error("{path} is given twice: as {first} and as {second}")]
    Twice { path: String, first: String, second: String },
    #[error("{path}: {reason}")]
    Type { path: String, reason: String },
    #[error("has no metadata.name")]
    NoName,
    #[error("has the namespace {own}, but --namespace is {requested}")]
    OtherNamespace { own: String, requested: String },
    #[error("{0}")]
    Invalid(Invalid),
    /// The manifest alone is valid, but merged into the current record it is not.
    #[error("{0}")]
    InvalidWithCurrent(Invalid),
}

/// A field that the schema does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownField {
    pub path: String,
    /// The fields that the schema has there.
    pub known: Vec<String>,
}

impl Problem {
    pub fn at(self, location: impl fmt::Display) -> ManifestError {
        ManifestError { location: location.to_string(), problem: self }
    }

    /// What to do, if the message does not say it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Problem::Unreadable(_) => Some("-f takes a file in YAML or JSON, or - for standard input"),
            Problem::NoKind | Problem::UnknownKind(_) => {
                Some("kind is one of Node, Lease, Pod, DisruptionBudget, PriorityClass and Event")
            }
            Problem::Empty | Problem::NoRecord | Problem::NoItems | Problem::NoName => {
                Some("`muster get nodes -o yaml` prints manifests as examples")
            }
            Problem::OtherNamespace { .. } => Some("remove one of the two"),
            Problem::InvalidWithCurrent(_) => Some(
                "fields that a manifest does not name keep their values: set a field to null to remove it, such as \
                 `minAvailable: null`",
            ),
            Problem::Syntax(_)
            | Problem::Version { .. }
            | Problem::UnknownFields(_)
            | Problem::Twice { .. }
            | Problem::Type { .. }
            | Problem::Invalid(_) => None,
        }
    }
}

struct Version<'a>(Option<&'a str>);

impl fmt::Display for Version<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(version) => write!(f, "apiVersion {version}"),
            None => f.write_str("no apiVersion"),
        }
    }
}

struct Unknown<'a>(&'a [UnknownField]);

impl fmt::Display for Unknown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, UnknownField { path, known }) in self.0.iter().enumerate() {
            let known = known.join(", ");
            write!(f, "{}unknown field {path} (known fields: {known})", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}
