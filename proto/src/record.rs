//! The kinds of records, and what all records have in common.

use std::fmt;
use std::str::FromStr;

use crate::invalid::Invalid;
use crate::meta::Metadata;
use crate::{
    budget, certificate_request, event, join_token, lease, node, pb, pod, priority_class, revocation,
};

/// The kinds of records in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    Node = 1,
    Lease = 2,
    Pod = 3,
    DisruptionBudget = 4,
    Event = 5,
    JoinToken = 6,
    CertificateRequest = 7,
    Revocation = 8,
    PriorityClass = 9,
}

impl Kind {
    pub const ALL: [Kind; 9] = [
        Kind::Node,
        Kind::Lease,
        Kind::Pod,
        Kind::DisruptionBudget,
        Kind::Event,
        Kind::JoinToken,
        Kind::CertificateRequest,
        Kind::Revocation,
        Kind::PriorityClass,
    ];

    /// Whether records of this kind have a namespace.
    pub fn is_namespaced(self) -> bool {
        match self {
            Kind::Lease | Kind::Pod | Kind::DisruptionBudget | Kind::Event => true,
            Kind::Node
            | Kind::JoinToken
            | Kind::CertificateRequest
            | Kind::Revocation
            | Kind::PriorityClass => false,
        }
    }

    /// The kind with this number, as keys on disk have it.
    pub fn from_byte(byte: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Node => "Node",
            Kind::Lease => "Lease",
            Kind::Pod => "Pod",
            Kind::DisruptionBudget => "DisruptionBudget",
            Kind::Event => "Event",
            Kind::JoinToken => "JoinToken",
            Kind::CertificateRequest => "CertificateRequest",
            Kind::Revocation => "Revocation",
            Kind::PriorityClass => "PriorityClass",
        })
    }
}

/// The text is not a kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be Node, Lease, Pod, DisruptionBudget, Event, JoinToken, CertificateRequest, Revocation or PriorityClass"
)]
pub struct KindError;

impl FromStr for Kind {
    type Err = KindError;

    fn from_str(text: &str) -> Result<Self, KindError> {
        match text {
            "Node" => Ok(Kind::Node),
            "Lease" => Ok(Kind::Lease),
            "Pod" => Ok(Kind::Pod),
            "DisruptionBudget" => Ok(Kind::DisruptionBudget),
            "Event" => Ok(Kind::Event),
            "JoinToken" => Ok(Kind::JoinToken),
            "CertificateRequest" => Ok(Kind::CertificateRequest),
            "Revocation" => Ok(Kind::Revocation),
            "PriorityClass" => Ok(Kind::PriorityClass),
            _ => Err(KindError),
        }
    }
}

/// A validated record of one kind: a value of this type breaks no rule that can
/// be checked on the record alone.
pub trait Record:
    Clone + fmt::Debug + PartialEq + Send + Sync + 'static + TryFrom<Self::Pb, Error = Invalid> + Into<Self::Pb>
{
    /// The schema's message of this kind.
    type Pb: prost::Message + fmt::Debug + Default + Clone + PartialEq + Send + Sync + 'static;

    const KIND: Kind;

    fn meta(&self) -> &Metadata;

    fn meta_mut(&mut self) -> &mut Metadata;

    /// The metadata of a message that was not validated yet.
    fn wire_meta(wire: &Self::Pb) -> Option<&pb::Metadata>;
}

macro_rules! records {
    ($($kind:ident: $record:ty),* $(,)?) => {
        $(impl Record for $record {
            type Pb = pb::$kind;

            const KIND: Kind = Kind::$kind;

            fn meta(&self) -> &Metadata {
                &self.meta
            }

            fn meta_mut(&mut self) -> &mut Metadata {
                &mut self.meta
            }

            fn wire_meta(wire: &pb::$kind) -> Option<&pb::Metadata> {
                wire.metadata.as_ref()
            }
        })*
    };
}

records! {
    Node: node::Node,
    Lease: lease::Lease,
    Pod: pod::Pod,
    DisruptionBudget: budget::DisruptionBudget,
    Event: event::Event,
    JoinToken: join_token::JoinToken,
    CertificateRequest: certificate_request::CertificateRequest,
    Revocation: revocation::Revocation,
    PriorityClass: priority_class::PriorityClass,
}
