//! Metadata and owners.

use super::{time_in, time_out};
use crate::invalid::{Check, Invalid, Path};
use crate::label::{check_annotations, check_label_key, check_labels};
use crate::meta::{Metadata, OwnerReference};
use crate::name::{Name, Namespace};
use crate::pb;
use crate::record::Kind;

#[cfg(test)]
mod tests;

impl Metadata {
    /// The metadata of a record of that kind, checked; paths start at `metadata`.
    pub fn checked(kind: Kind, metadata: pb::Metadata) -> Result<Self, Invalid> {
        let mut check = Check::new();
        let meta = meta_in(&mut check, &Path::ROOT.key("metadata"), kind, Some(metadata));
        check.finish_some(meta)
    }
}

pub(super) fn meta_in(
    check: &mut Check,
    path: &Path<'_>,
    kind: Kind,
    metadata: Option<pb::Metadata>,
) -> Option<Metadata> {
    let pb::Metadata {
        name,
        namespace,
        uid,
        resource_version,
        generation,
        creation_timestamp,
        deletion_timestamp,
        deletion_grace_period_seconds,
        labels,
        annotations,
        finalizers,
        owner_references,
        traceparent,
    } = metadata.unwrap_or_default();

    let name: Option<Name> = check.field(&path.key("name"), name.parse());
    let namespace = namespace_in(check, &path.key("namespace"), kind, &namespace);
    let uid = match uid.as_str() {
        "" => None,
        uid => check.field(&path.key("uid"), uid.parse()),
    };
    check.ensure(&path.key("generation"), generation >= 0, "must not be negative");
    check.ensure(
        &path.key("deletionGracePeriodSeconds"),
        deletion_grace_period_seconds.is_none_or(|seconds| seconds >= 0),
        "must not be negative",
    );
    check_labels(check, &path.key("labels"), &labels);
    check_annotations(check, &path.key("annotations"), &annotations);
    for (i, finalizer) in finalizers.iter().enumerate() {
        check.field(&path.key("finalizers").index(i), check_label_key(finalizer));
    }
    Some(Metadata {
        uid,
        resource_version,
        generation,
        creation_timestamp: time_in(check, &path.key("creationTimestamp"), creation_timestamp),
        deletion_timestamp: time_in(check, &path.key("deletionTimestamp"), deletion_timestamp),
        deletion_grace_period_seconds,
        labels,
        annotations,
        finalizers,
        owner_references: owners_in(check, &path.key("ownerReferences"), owner_references),
        traceparent: Some(traceparent).filter(|text| !text.is_empty()),
        name: name?,
        namespace: namespace?,
    })
}

/// The outer `None` means that the namespace is invalid, the inner one that there is none.
fn namespace_in(check: &mut Check, path: &Path<'_>, kind: Kind, text: &str) -> Option<Option<Namespace>> {
    if kind.is_namespaced() {
        return check.field(path, text.parse()).map(Some);
    }
    check.ensure(path, text.is_empty(), format_args!("must be empty: a {kind} is in no namespace"));
    Some(None)
}

fn owners_in(check: &mut Check, path: &Path<'_>, owners: Vec<pb::OwnerReference>) -> Vec<OwnerReference> {
    let mut managed = false;
    check.each(path, owners, |check, path, owner| {
        let pb::OwnerReference { api_version, kind, name, uid, controller, block_owner_deletion } = owner;
        for (field, text) in [("apiVersion", &api_version), ("kind", &kind), ("name", &name), ("uid", &uid)] {
            check.required(&path.key(field), Some(text).filter(|text| !text.is_empty()));
        }
        check.ensure(
            &path.key("controller"),
            !(controller && managed),
            "must not be set: an earlier owner is the controller, and there can be one only",
        );
        managed |= controller;
        Some(OwnerReference { api_version, kind, name, uid, controller, block_owner_deletion })
    })
}

impl From<Metadata> for pb::Metadata {
    fn from(meta: Metadata) -> Self {
        let Metadata {
            name,
            namespace,
            uid,
            resource_version,
            generation,
            creation_timestamp,
            deletion_timestamp,
            deletion_grace_period_seconds,
            labels,
            annotations,
            finalizers,
            owner_references,
            traceparent,
        } = meta;
        Self {
            name: name.into(),
            namespace: namespace.map(String::from).unwrap_or_default(),
            uid: uid.map(|uid| uid.to_string()).unwrap_or_default(),
            resource_version,
            generation,
            creation_timestamp: time_out(creation_timestamp),
            deletion_timestamp: time_out(deletion_timestamp),
            deletion_grace_period_seconds,
            labels,
            annotations,
            finalizers,
            owner_references: owner_references.into_iter().map(Into::into).collect(),
            traceparent: traceparent.unwrap_or_default(),
        }
    }
}

impl From<OwnerReference> for pb::OwnerReference {
    fn from(owner: OwnerReference) -> Self {
        let OwnerReference { api_version, kind, name, uid, controller, block_owner_deletion } = owner;
        Self { api_version, kind, name, uid, controller, block_owner_deletion }
    }
}
