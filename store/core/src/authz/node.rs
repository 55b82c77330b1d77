//! What a node may do: its own Node, its own lease, the pods it runs.
//!
//! A machine that was taken over must not be able to draw work to itself, to hide what others put on it, or
//! to reach what belongs to another.

use std::collections::BTreeSet;

use muster_proto::label::Labels;
use muster_proto::meta::OwnerReference;
use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::record::Kind;
use muster_proto::restriction::node_may_set_label;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;

use super::{Call, Content, Rule, Verb};

/// What stands against a node's call.
pub(super) enum Rejection {
    Broken(Rule),
    /// The mirror pod is as it should be, but the Node to own it is not there.
    MissingNode,
}

impl From<Rule> for Rejection {
    fn from(rule: Rule) -> Self {
        Self::Broken(rule)
    }
}

pub(super) fn authorize(own: &str, call: &Call<'_>, content: &Content<'_>) -> Result<(), Rejection> {
    match call.kind {
        Kind::Node => Ok(authorize_node(own, call, content)?),
        Kind::Lease => Ok(authorize_lease(own, call)?),
        Kind::Pod => authorize_pod(own, call, content),
        Kind::Event => Ok(ensure(call.verb == Verb::Record, Rule::NotAllowed)?),
        Kind::DisruptionBudget => Err(Rule::NotAllowed.into()),
    }
}

fn ensure(holds: bool, rule: Rule) -> Result<(), Rule> {
    if holds { Ok(()) } else { Err(rule) }
}

fn authorize_node(own: &str, call: &Call<'_>, content: &Content<'_>) -> Result<(), Rule> {
    match call.verb {
        // Its own name may be read before there is such a Node: registration begins with that.
        Verb::Get => ensure(call.name == Some(own), Rule::OwnNode),
        Verb::List | Verb::Watch => ensure_selects(own, call, "metadata.name"),
        Verb::Create | Verb::Update | Verb::UpdateStatus => {
            ensure(call.name == Some(own), Rule::OwnNode)?;
            let Content::Node { old, new: Some(new) } = content else {
                return Err(Rule::MissingContent);
            };
            ensure(new.meta.name == own, Rule::OwnNode)?;
            match (call.verb, old) {
                // Taints are welcome here: a machine may ask to be left alone.
                (Verb::Create, _) => ensure_label_changes_allowed(&Labels::new(), &new.meta.labels),
                (_, Some(old)) => authorize_node_change(old, new),
                (_, None) => Ok(()),
            }
        }
        Verb::Delete | Verb::Renew | Verb::Bind | Verb::Evict | Verb::Record => Err(Rule::NotAllowed),
    }
}

/// Holds for status updates too: they carry labels, and must not look as if they changed anything else.
fn authorize_node_change(old: &Node, new: &Node) -> Result<(), Rule> {
    ensure(old.spec.taints == new.spec.taints, Rule::Taints)?;
    ensure(old.meta.owner_references == new.meta.owner_references, Rule::Owners)?;
    let asked = old.spec.cordon == new.spec.cordon && old.spec.drain == new.spec.drain;
    ensure(asked, Rule::Intent)?;
    ensure_label_changes_allowed(&old.meta.labels, &new.meta.labels)
}

/// Forbidden labels may be there, as long as the node leaves them alone.
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
        Verb::List | Verb::Watch | Verb::UpdateStatus | Verb::Bind | Verb::Evict | Verb::Record => {
            Err(Rule::NotAllowed)
        }
    }
}

fn authorize_pod(own: &str, call: &Call<'_>, content: &Content<'_>) -> Result<(), Rejection> {
    let seen = match content {
        Content::Pod { old, new, node_uid } => Ok((*old, *new, *node_uid)),
        Content::None | Content::Node { .. } => Err(Rule::MissingContent),
    };
    match call.verb {
        Verb::List | Verb::Watch => Ok(ensure_selects(own, call, "spec.nodeName")?),
        Verb::Get => {
            let (old, ..) = seen?;
            Ok(ensure(old.is_some_and(|pod| pod.is_on(own)), Rule::OwnPod)?)
        }
        Verb::Delete | Verb::Evict => {
            let (old, ..) = seen?;
            Ok(ensure(old.is_none_or(|pod| pod.is_on(own)), Rule::OwnPod)?)
        }
        Verb::UpdateStatus => {
            let (old, new, _) = seen?;
            let new = new.ok_or(Rule::MissingContent)?;
            let Some(old) = old else {
                return Ok(());
            };
            ensure(old.is_on(own), Rule::OwnPod)?;
            Ok(ensure(old.meta.labels == new.meta.labels, Rule::PodLabels)?)
        }
        Verb::Create => {
            let (_, new, node_uid) = seen?;
            authorize_mirror(own, new.ok_or(Rule::MissingContent)?, node_uid)
        }
        Verb::Update | Verb::Bind | Verb::Renew | Verb::Record => Err(Rule::NotAllowed.into()),
    }
}

fn authorize_mirror(own: &str, pod: &Pod, node_uid: Option<&Uid>) -> Result<(), Rejection> {
    ensure(pod.is_mirror(), Rule::MirrorOnly)?;
    ensure(pod.is_on(own), Rule::MirrorNode)?;
    let references = pod.references();
    for (what, is_free) in [
        ("secret", references.secrets.is_empty()),
        ("config map", references.config_maps.is_empty()),
        ("service account", references.service_account.is_none()),
        ("claim", references.claims.is_empty()),
    ] {
        ensure(is_free, Rule::MirrorReference { what })?;
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
