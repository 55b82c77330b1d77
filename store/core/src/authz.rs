//! Authorization: one pure function, called before every read and write.
//!
//! A call that no rule allows is denied. Nodes are restricted to their own records, by name and by content (`node`);
//! the other roles are restricted by verb and kind only. A write must be authorized against the record it replaces, in the
//! same commit: a record that was read earlier may have changed.

use std::fmt;

use muster_proto::event::Event;
use muster_proto::identity::Caller;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::record::Kind;
use muster_proto::selector::FieldSelector;
use muster_proto::wellknown::{AGENT_COMPONENT, CLOUD_BRAKE_LEASE, CONTROLLER_LEASE, SYSTEM_NAMESPACE};

mod node;
#[cfg(test)]
mod tests;

/// The operation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    UpdateStatus,
    /// Renew a lease, by RenewLease or on a heartbeat stream.
    Renew,
    Bind,
    Evict,
    Delete,
    /// Record an event.
    Record,
    /// Approve or deny a request for a certificate.
    Approve,
}

/// One call: an operation on a record or a set of records.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub verb: Verb,
    pub kind: Kind,
    /// `None` for kinds without one, and for lists and watches over all namespaces.
    pub namespace: Option<&'a str>,
    /// `None` for lists, watches and events.
    pub name: Option<&'a str>,
    /// The field selector of a list or watch.
    pub field_selector: Option<&'a FieldSelector>,
}

/// The record of a call, where its verb has one: as stored (`old`) and as requested (`new`).
///
/// The rules for nodes need it: `old` when the record exists, `new` when the call carries a record. With
/// [`Content::None`] instead, a node's call is denied.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// Lists, watches, and calls about other kinds.
    None,
    Node {
        old: Option<&'a Node>,
        new: Option<&'a Node>,
    },
    Pod {
        old: Option<&'a Pod>,
        new: Option<&'a Pod>,
        /// The current uid of the caller's own Node; needed for the creation of a mirror pod.
        node_uid: Option<&'a Uid>,
    },
    Event {
        event: &'a Event,
        /// The stored Pod that the event is about; `None` if there is none, or it is about another kind.
        pod: Option<&'a Pod>,
    },
}

/// The rule that a call violates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    #[error("the caller's certificate gives it no role")]
    NoRole,
    #[error("no rule allows this for the caller's role")]
    NotAllowed,
    #[error("a node may access only its own Node")]
    OwnNode,
    #[error("a node must use the field selector {field}=<its own name>")]
    OwnSelection { field: &'static str },
    #[error("a node may access only the Lease with its own name in kube-node-lease")]
    OwnLease,
    #[error("a node may access only Pods that are bound to it")]
    OwnPod,
    #[error("a node may neither add, change nor remove its label {key}")]
    Label { key: String },
    #[error("a node may not change its own taints")]
    Taints,
    #[error("a node may not change its own owners")]
    Owners,
    #[error("a node may not change the cordon or drain that was requested for it")]
    Intent,
    #[error("a node may not set or change its own podCidrs: the controller or an administrator assigns them")]
    PodCidrs,
    #[error("a node may create only mirror pods, which have the annotation kubernetes.io/config.mirror")]
    MirrorOnly,
    #[error("a mirror pod must be bound to the node that creates it")]
    MirrorNode,
    #[error(
        "a mirror pod must have one owner: the v1 Node that creates it, by its current uid, as controller \
         and not blocking the owner's deletion"
    )]
    MirrorOwner,
    #[error("a mirror pod must not refer to a {what}")]
    MirrorReference { what: &'static str },
    #[error("a node may not change the labels of a pod")]
    PodLabels,
    #[error("a node may record events only about its own Node and about Pods that are bound to it")]
    EventSubject,
    #[error("a node may record events only as the component `{}`", AGENT_COMPONENT)]
    EventSource,
    #[error("a node's call is authorized by its record, and none was given")]
    MissingContent,
}

/// A denied call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{caller} may not {what}: {rule}")]
pub struct Denial {
    pub caller: Caller,
    pub rule: Rule,
    /// Verb and record, such as `update Node b`.
    pub what: String,
}

/// Why a call is not authorized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// PERMISSION_DENIED.
    #[error(transparent)]
    Denied(#[from] Denial),
    /// NOT_FOUND: the Node that must own the mirror pod does not exist.
    #[error("Node {0} does not exist, so it cannot own a mirror pod")]
    MissingNode(String),
}

/// Whether the caller may make this call.
///
/// When a node deletes, evicts or reports on a pod that does not exist, the call is allowed, so that it fails with
/// NOT_FOUND.
pub fn authorize(caller: &Caller, call: &Call<'_>, content: &Content<'_>) -> Result<(), Refused> {
    let violated = match caller {
        Caller::Admin => return Ok(()),
        Caller::Unknown(_) => Some(Rule::NoRole),
        Caller::Node(name) if name.is_empty() => Some(Rule::NoRole),
        Caller::Node(name) => match node::authorize(name, call, content) {
            Ok(()) => None,
            Err(node::Rejection::Violated(rule)) => Some(rule),
            Err(node::Rejection::MissingNode) => return Err(Refused::MissingNode(name.clone())),
        },
        Caller::Controller => (!controller_may(call)).then_some(Rule::NotAllowed),
        Caller::Scheduler => (!scheduler_may(call)).then_some(Rule::NotAllowed),
        Caller::Viewer => (!is_read(call.verb)).then_some(Rule::NotAllowed),
    };
    match violated {
        None => Ok(()),
        Some(rule) => Err(Denial { caller: caller.clone(), rule, what: call.to_string() }.into()),
    }
}

/// A call about decisions. They are no records: they have a log of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionVerb {
    Record,
    List,
    Watch,
}

/// Whether the caller may make this call about decisions.
///
/// Only controllers record them. Nodes may not read them: a decision about one node names pods of others.
pub fn authorize_decisions(caller: &Caller, verb: DecisionVerb) -> Result<(), Refused> {
    let violated = match (caller, verb) {
        (Caller::Admin | Caller::Controller, _) => return Ok(()),
        (Caller::Viewer, DecisionVerb::List | DecisionVerb::Watch) => return Ok(()),
        (Caller::Unknown(_), _) => Rule::NoRole,
        (Caller::Viewer | Caller::Node(_) | Caller::Scheduler, _) => Rule::NotAllowed,
    };
    let what = match verb {
        DecisionVerb::Record => "record decisions",
        DecisionVerb::List => "list decisions",
        DecisionVerb::Watch => "watch decisions",
    };
    Err(Denial { caller: caller.clone(), rule: violated, what: what.to_owned() }.into())
}

fn is_read(verb: Verb) -> bool {
    matches!(verb, Verb::Get | Verb::List | Verb::Watch)
}

/// The controller updates nodes, and binds, evicts and deletes pods, but creates neither. Taint eviction deletes pods;
/// a drain evicts them, so that disruption budgets apply.
fn controller_may(call: &Call<'_>) -> bool {
    use Verb::{Bind, Create, Delete, Evict, Record, Renew, Update, UpdateStatus};
    match (call.kind, call.verb) {
        (Kind::Node | Kind::Lease | Kind::Pod | Kind::DisruptionBudget | Kind::PriorityClass, verb)
            if is_read(verb) =>
        {
            true
        }
        (Kind::Node, Update | UpdateStatus | Delete) => true,
        (Kind::Pod, UpdateStatus | Bind | Evict | Delete) => true,
        (Kind::Lease, Create | Update | Renew) => {
            let is_own = |name| name == CONTROLLER_LEASE || name == CLOUD_BRAKE_LEASE;
            call.namespace == Some(SYSTEM_NAMESPACE) && call.name.is_some_and(is_own)
        }
        (Kind::Event, Record) => true,
        // It signs approved requests. Who may join is not for it to decide.
        (Kind::CertificateRequest, verb) => is_read(verb) || verb == UpdateStatus,
        (Kind::Revocation, verb) => is_read(verb),
        _ => false,
    }
}

fn scheduler_may(call: &Call<'_>) -> bool {
    match (call.kind, call.verb) {
        (Kind::Node | Kind::Pod, verb) if is_read(verb) => true,
        (Kind::Pod, Verb::Bind | Verb::UpdateStatus) => true,
        (Kind::Event, Verb::Record) => true,
        _ => false,
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::UpdateStatus => "update the status of",
            Self::Renew => "renew",
            Self::Bind => "bind",
            Self::Evict => "evict",
            Self::Delete => "delete",
            Self::Record => "record an",
            Self::Approve => "approve or deny",
        })
    }
}

/// Verb and record: `update the status of Pod x/p`.
impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, kind, namespace, name, field_selector } = self;
        write!(f, "{verb} {kind}")?;
        match (namespace, name) {
            (Some(namespace), Some(name)) => write!(f, " {namespace}/{name}")?,
            (None, Some(name)) => write!(f, " {name}")?,
            (Some(namespace), None) => write!(f, " records of {namespace}")?,
            (None, None) if matches!(verb, Verb::List | Verb::Watch) => write!(f, " records")?,
            (None, None) => {}
        }
        match field_selector {
            Some(selector) if !selector.is_everything() => write!(f, " with {selector}"),
            _ => Ok(()),
        }
    }
}
