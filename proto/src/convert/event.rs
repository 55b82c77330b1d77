//! Events.

use super::meta::meta_in;
use super::{time_in, time_out};
use crate::event::{DEFAULT_NAMESPACE, Event, ObjectReference};
use crate::invalid::{Check, Invalid, Path};
use crate::name::{Name, Namespace};
use crate::pb;
use crate::record::Kind;

#[cfg(test)]
mod tests;

/// The maximum length of an event's message: events are not a place to store data.
const MAX_REASON: usize = 128;
const MAX_MESSAGE: usize = 1024;

/// Metadata may be absent, in part or whole: the namespace is that of the involved record, and the name is that of the
/// involved record until the store has named the event.
impl TryFrom<pb::Event> for Event {
    type Error = Invalid;

    fn try_from(event: pb::Event) -> Result<Self, Invalid> {
        let pb::Event {
            metadata,
            involved_object,
            r#type,
            reason,
            message,
            source_component,
            count,
            first_timestamp,
            last_timestamp,
            source_host,
        } = event;
        let mut check = Check::new();
        let path = Path::ROOT;
        let involved =
            reference_in(&mut check, &path.key("involvedObject"), involved_object.unwrap_or_default());
        let metadata = metadata_with_defaults(&mut check, metadata.unwrap_or_default(), involved.as_ref());
        let meta = meta_in(&mut check, &path.key("metadata"), Kind::Event, Some(metadata));
        let kind = check.field(&path.key("type"), r#type.parse());
        check.ensure(&path.key("reason"), !reason.is_empty(), "is required");
        check.ensure(&path.key("reason"), reason.len() <= MAX_REASON, "must be 128 bytes or fewer");
        check.ensure(&path.key("message"), message.len() <= MAX_MESSAGE, "must be 1024 bytes or fewer");
        check.ensure(&path.key("count"), count >= 0, "must not be negative");
        let first_timestamp = time_in(&mut check, &path.key("firstTimestamp"), first_timestamp);
        let last_timestamp = time_in(&mut check, &path.key("lastTimestamp"), last_timestamp);
        let parts = meta.zip(involved).zip(kind);
        check.finish_some(parts.map(|((meta, involved), kind)| Event {
            meta,
            involved,
            kind,
            reason,
            message,
            source_component,
            source_host,
            count,
            first_timestamp,
            last_timestamp,
        }))
    }
}

fn metadata_with_defaults(
    check: &mut Check,
    mut metadata: pb::Metadata,
    involved: Option<&ObjectReference>,
) -> pb::Metadata {
    let namespace = involved.and_then(|involved| involved.namespace.as_ref());
    let namespace = namespace.map_or(DEFAULT_NAMESPACE, Namespace::as_str);
    if metadata.name.is_empty() {
        // Without a valid involved record the event is refused anyway; the name is not reported a second time.
        metadata.name = involved.map_or("unnamed", |involved| involved.name.as_str()).to_owned();
    }
    if metadata.namespace.is_empty() {
        namespace.clone_into(&mut metadata.namespace);
    }
    check.ensure(
        &Path::ROOT.key("metadata").key("namespace"),
        involved.is_none() || metadata.namespace == namespace,
        format_args!("must be that of involvedObject, or `{DEFAULT_NAMESPACE}` for a node"),
    );
    metadata
}

fn reference_in(
    check: &mut Check,
    path: &Path<'_>,
    reference: pb::ObjectReference,
) -> Option<ObjectReference> {
    let pb::ObjectReference { kind, namespace, name, uid } = reference;
    let kind = kind.parse().ok();
    let kind =
        kind.filter(|kind| matches!(kind, Kind::Node | Kind::Lease | Kind::Pod | Kind::DisruptionBudget));
    let kind = check.field(&path.key("kind"), kind.ok_or("must be Node, Lease, Pod or DisruptionBudget"));
    let name: Option<Name> = check.field(&path.key("name"), name.parse());
    let uid = match uid.as_str() {
        "" => None,
        uid => check.field(&path.key("uid"), uid.parse()),
    };
    let namespace: Option<Namespace> = match (kind?, namespace.as_str()) {
        (Kind::Node, "") => None,
        (Kind::Node, _) => {
            check.fail(&path.key("namespace"), "must be empty: a Node is in no namespace");
            None
        }
        (_, namespace) => Some(check.field(&path.key("namespace"), namespace.parse())?),
    };
    Some(ObjectReference { kind: kind?, namespace, name: name?, uid })
}

impl From<Event> for pb::Event {
    fn from(event: Event) -> Self {
        let Event {
            meta,
            involved,
            kind,
            reason,
            message,
            source_component,
            source_host,
            count,
            first_timestamp,
            last_timestamp,
        } = event;
        Self {
            metadata: Some(meta.into()),
            involved_object: Some(involved.into()),
            r#type: kind.to_string(),
            reason,
            message,
            source_component,
            count,
            first_timestamp: time_out(first_timestamp),
            last_timestamp: time_out(last_timestamp),
            source_host,
        }
    }
}

impl From<ObjectReference> for pb::ObjectReference {
    fn from(reference: ObjectReference) -> Self {
        let ObjectReference { kind, namespace, name, uid } = reference;
        Self {
            kind: kind.to_string(),
            namespace: namespace.map(String::from).unwrap_or_default(),
            name: name.into(),
            uid: uid.map(|uid| uid.to_string()).unwrap_or_default(),
        }
    }
}
