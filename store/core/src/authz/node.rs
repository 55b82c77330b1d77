//! Authorization of nodes: their own Node, their own lease, the pods bound to them.
//!
//! A compromised machine must not be able to attract pods, to remove taints or labels that others set on its Node, to take
//! the addresses of other nodes, to access their records, or to report in the name of others.

use std::collections::BTreeSet;

use muster_proto::event::Event;
use muster_proto::label::Labels;
use muster_proto::meta::OwnerReference;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::record::Kind;
use muster_proto::restriction::node_may_set_label;
use muster_proto::wellknown::{AGENT_COMPONENT, NODE_LEASE_NAMESPACE};

use super::{Call, Content, Rule, Verb};

/// Why a node's call is not authorized.
pub(super) enum Rejection {
    Violated(Rule),
    /// The mirror pod is valid, but the Node that must own it does not exist.
    MissingNode,
}

impl From<Rule> for Rejection {
    fn from(rule: Rule) -> Self {
        Self::Violated(rule)
    }
}

pub(super) fn authorize(own: &str, call: &Call<'_>, content: &Content<'_>) -> Result<(), Rejection> {
    match call.kind {
        Kind::Node => Ok(authorize_node(own, call, content)?),
        Kind::Lease => Ok(authorize_lease(own, call)?),
        Kind::Pod => authorize_pod(own, call, content),
        Kind::Event => Ok(authorize_event(own, call, content)?),
        // An agent with a server of its own must know which callers to refuse.
        Kind::Revocation => Ok(ensure(matches!(call.verb, Verb::List | Verb::Watch), Rule::NotAllowed)?),
        Kind::DisruptionBudget | Kind::JoinToken | Kind::CertificateRequest | Kind::PriorityClass => {
            Err(Rule::NotAllowed.into())
        }
    }
}

fn ensure(holds: bool, rule: Rule) -> Result<(), Rule> {
    if holds { Ok(()) } else { Err(rule) }
}

fn authorize_node(own: &str, call: &Call<'_>, content: &Content<'_>) -> Result<(), Rule> {
    match call.verb {
        // Allowed before the Node exists: registration begins by reading it.
        Verb::Get => ensure(call.name == Some(own), Rule::OwnNode),
        Verb::List | Verb::Watch => ensure_selects(own, call, "metadata.name"),
        Verb::Create | Verb::Update | Verb::UpdateStatus => {
            ensure(call.name == Some(own), Rule::OwnNode)?;
            let Content::Node { old, new: Some(new) } = content else {
                return Err(Rule::MissingContent);
            };
            ensure(new.meta.name == own, Rule::OwnNode)?;
            match (call.verb, old) {
                // Taints are allowed at creation: a machine may keep pods away from itself.
                (Verb::Create, _) => {
                    ensure(new.spec.pod_cidrs.is_empty(), Rule::PodCidrs)?;
                    ensure_label_changes_allowed(&Labels::new(), &new.meta.labels)
                }
                (_, Some(old)) => authorize_node_change(old, new),
                (_, None) => Ok(()),
            }
        }
        Verb::Delete | Verb::Renew | Verb::Bind | Verb::Evict | Verb::Record | Verb::Approve => {
            Err(Rule::NotAllowed)
        }
    }
}

/// Applies to status updates too: they carry labels, and a request to change other fields is denied, not ignored.
fn authorize_node_change(old: &Node, new: &Node) -> Result<(), Rule> {
    ensure(old.spec.taints == new.spec.taints, Rule::Taints)?;
    ensure(old.meta.owner_references == new.meta.owner_references, Rule::Owners)?;
    let same_intent = old.spec.cordons == new.spec.cordons && old.spec.drain == new.spec.drain;
    ensure(same_intent, Rule::Intent)?;
    ensure(old.spec.pod_cidrs == new.spec.pod_cidrs, Rule::PodCidrs)?;
    ensure_label_changes_allowed(&old.meta.labels, &new.meta.labels)
}

/// Restricted labels may be present as long as the node does not change them.
fn ensure_label_changes_allowed(old: &Labels, new: &Labels) -> Result<(), Rule> {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let mut changed = keys.into_iter().filter(|key| old.get(*key) != new.get(*key));
    match changed.find(|key| !node_may_set_label(key)) {
        Some(key) => Err(Rule::Label { key: key.clone() }),
        None => Ok(()),
    }
}

fn ensure_selects(own: &str, call: &Call<'_>, field: &'static str) -> Result<(), Rule> {
    let selected = call.field_selector.and_then(|selector| selector.requires(field));
    ensure(selected == Some(own), Rule::OwnSelection { field })
}

fn authorize_lease(own: &str, call: &Call<'_>) -> Result<(), Rule> {
    match call.verb {
        Verb::Get | Verb::Create | Verb::Update | Verb::Renew | Verb::Delete => {
            let is_own = call.namespace == Some(NODE_LEASE_NAMESPACE) && call.name == Some(own);
            ensure(is_own, Rule::OwnLease)
        }
        Verb::List
        | Verb::Watch
        | Verb::UpdateStatus
        | Verb::Bind
        | Verb::Evict
        | Verb::Record
        | Verb::Approve => Err(Rule::NotAllowed),
    }
}

fn authorize_pod(own: &str, call: &Call<'_>, content: &Content<'_>) -> Result<(), Rejection> {
    let records = match content {
        Content::Pod { old, new, node_uid } => Ok((*old, *new, *node_uid)),
        Content::None | Content::Node { .. } | Content::Event { .. } => Err(Rule::MissingContent),
    };
    match call.verb {
        Verb::List | Verb::Watch => Ok(ensure_selects(own, call, "spec.nodeName")?),
        Verb::Get => {
            let (old, ..) = records?;
            Ok(ensure(old.is_some_and(|pod| pod.is_on(own)), Rule::OwnPod)?)
        }
        Verb::Delete | Verb::Evict => {
            let (old, ..) = records?;
            Ok(ensure(old.is_none_or(|pod| pod.is_on(own)), Rule::OwnPod)?)
        }
        Verb::UpdateStatus => {
            let (old, new, _) = records?;
            let new = new.ok_or(Rule::MissingContent)?;
            let Some(old) = old else {
                return Ok(());
            };
            ensure(old.is_on(own), Rule::OwnPod)?;
            Ok(ensure(old.meta.labels == new.meta.labels, Rule::PodLabels)?)
        }
        Verb::Create => {
            let (_, new, node_uid) = records?;
            authorize_mirror(own, new.ok_or(Rule::MissingContent)?, node_uid)
        }
        Verb::Update | Verb::Bind | Verb::Renew | Verb::Record | Verb::Approve => {
            Err(Rule::NotAllowed.into())
        }
    }
}

fn authorize_mirror(own: &str, pod: &Pod, node_uid: Option<&Uid>) -> Result<(), Rejection> {
    ensure(pod.is_mirror(), Rule::MirrorOnly)?;
    ensure(pod.is_on(own), Rule::MirrorNode)?;
    let references = pod.references();
    for (what, is_unused) in [
        ("secret", references.secrets.is_empty()),
        ("config map", references.config_maps.is_empty()),
        ("service account", references.service_account.is_none()),
        ("claim", references.claims.is_empty()),
    ] {
        ensure(is_unused, Rule::MirrorReference { what })?;
    }
    let [OwnerReference { api_version, kind, name, uid, controller, block_owner_deletion }] =
        pod.meta.owner_references.as_slice()
    else {
        return Err(Rule::MirrorOwner.into());
    };
    let is_node = api_version == "v1" && kind == "Node" && name == own;
    ensure(is_node && *controller && !block_owner_deletion, Rule::MirrorOwner)?;
    let node_uid = node_uid.ok_or(Rejection::MissingNode)?;
    Ok(ensure(uid.parse().is_ok_and(|uid: Uid| uid == *node_uid), Rule::MirrorOwner)?)
}

fn authorize_event(own: &str, call: &Call<'_>, content: &Content<'_>) -> Result<(), Rule> {
    ensure(call.verb == Verb::Record, Rule::NotAllowed)?;
    let Content::Event { event, pod } = content else {
        return Err(Rule::MissingContent);
    };
    ensure(event.source_component == AGENT_COMPONENT, Rule::EventSource)?;
    ensure(is_about_own(own, event, *pod), Rule::EventSubject)
}

/// Whether the event is about the node itself or a pod bound to it. A pod of the same name with another uid is another
/// pod, and nobody can tell to which node a pod was bound that is gone.
fn is_about_own(own: &str, event: &Event, pod: Option<&Pod>) -> bool {
    let involved = &event.involved;
    match involved.kind {
        Kind::Node => involved.name == own,
        Kind::Pod => {
            let is_same = |pod: &Pod| involved.uid.is_none() || involved.uid == pod.meta.uid;
            pod.is_some_and(|pod| pod.is_on(own) && is_same(pod))
        }
        _ => false,
    }
}
