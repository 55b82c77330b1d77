//! What can be wrong with a manifest: where, what, and what would be right.

use std::fmt;
use std::io;

use muster_proto::invalid::Invalid;
use muster_proto::record::Kind;

/// A manifest that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {problem}")]
pub(crate) struct ManifestError {
    /// The file, the document in it, and the record as far as it is known.
    place: String,
    pub(crate) problem: Problem,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("is neither YAML nor JSON: {0}")]
    Syntax(String),
    #[error("holds no record")]
    Empty,
    #[error("is no record: expected fields such as `kind: Node`")]
    NoRecord,
    #[error("is a List without items")]
    NoItems,
    #[error("has no kind")]
    NoKind,
    #[error("is of an unknown kind, {0}")]
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
    #[error("is in namespace {own}, not in {asked} as --namespace says")]
    OtherNamespace { own: String, asked: String },
    #[error("{0}")]
    Invalid(Invalid),
    /// By itself it would be good; with what is there already it is not.
    #[error("{0}")]
    Together(Invalid),
}

/// A field that the schema does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownField {
    pub(crate) path: String,
    /// What there is in its place.
    pub(crate) known: Vec<String>,
}

impl Problem {
    pub(crate) fn at(self, place: impl fmt::Display) -> ManifestError {
        ManifestError { place: place.to_string(), problem: self }
    }

    /// What to do about it, where the message does not say so itself.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Problem::Unreadable(_) => Some("-f names a file of YAML or JSON, or - for what is piped in"),
            Problem::NoKind | Problem::UnknownKind(_) => {
                Some("kind is one of Node, Lease, Pod, DisruptionBudget and Event")
            }
            Problem::Empty | Problem::NoRecord | Problem::NoItems | Problem::NoName => {
                Some("`muster get nodes -o yaml` shows what manifests look like")
            }
            Problem::OtherNamespace { .. } => Some("leave one of the two out"),
            Problem::Together(_) => Some(
                "what a manifest does not mention stays as it is: give a field as null to remove it, such as \
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
            write!(f, "{}unknown field {path} (there are {known})", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}
