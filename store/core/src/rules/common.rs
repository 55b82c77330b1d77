//! The steps that all kinds share: create, update, status update, deletion without grace.
//!
//! An update has a fixed order: the record exists, the preconditions hold, fields that the caller cannot set are
//! restored, the change is allowed, and there is a change at all.

use jiff::Timestamp;
use muster_proto::invalid::{Check, Invalid, Path};
use muster_proto::meta::Metadata;
use muster_proto::record::Record;

use super::{Context, DeletedWithoutGrace, HasStatus, Outcome, Preconditions, RecordId, Refusal, Rules};

#[cfg(test)]
mod tests;

/// The record to store for a creation.
pub fn create<R: Rules>(current: Option<&R>, wanted: R, cx: &Context) -> Result<R, Refusal> {
    if current.is_some() {
        return Err(Refusal::AlreadyExists { key: RecordId::of(&wanted) });
    }
    let mut check = Check::new();
    wanted.validate_create(&mut check);
    let key = RecordId::of(&wanted);
    let mut wanted = check.finish(wanted).map_err(|invalid| Refusal::Invalid { key, invalid })?;
    set_creation_metadata(wanted.meta_mut(), cx);
    wanted.prepare_create(cx);
    Ok(wanted)
}

/// The outcome of an update of metadata and spec.
pub fn update<R: Rules>(current: Option<&R>, wanted: R, cx: &Context) -> Result<Outcome<R>, Refusal> {
    let Some(current) = current else {
        return if R::UPDATE_CREATES { create_by_update(wanted, cx) } else { Err(missing(&wanted)) };
    };
    let expected = preconditions_of(wanted.meta());
    check_preconditions(current, &expected)?;
    if R::UPDATE_CREATES && expected.resource_version.is_none() {
        let invalid = Invalid::of("metadata.resourceVersion", "is required to update a record that exists");
        return Err(Refusal::Invalid { key: RecordId::of(&wanted), invalid });
    }
    let mut next = wanted;
    keep_store_fields(next.meta_mut(), current.meta());
    next.prepare_update(current, cx);

    let mut check = Check::new();
    check_finalizers(&mut check, next.meta(), current.meta());
    next.validate_update(current, &mut check);
    finish_update(current, next, check)
}

/// The outcome of a status update.
pub fn update_status<R: HasStatus>(
    current: Option<&R>,
    wanted: R,
    _cx: &Context,
) -> Result<Outcome<R>, Refusal> {
    let current = current.ok_or_else(|| missing(&wanted))?;
    check_preconditions(current, &preconditions_of(wanted.meta()))?;
    let mut next = wanted;
    keep_store_fields(next.meta_mut(), current.meta());
    next.meta_mut().finalizers.clone_from(&current.meta().finalizers);
    next.meta_mut().owner_references.clone_from(&current.meta().owner_references);
    next.prepare_status_update(current);

    let mut check = Check::new();
    next.validate_status_update(current, &mut check);
    finish_update(current, next, check)
}

/// The outcome of a deletion without grace: removal, or a deletion timestamp while finalizers remain.
pub fn delete<R: DeletedWithoutGrace>(
    key: &RecordId,
    current: Option<&R>,
    preconditions: &Preconditions,
    cx: &Context,
) -> Result<Outcome<R>, Refusal> {
    let current = existing(key, current)?;
    check_preconditions(current, preconditions)?;
    if current.meta().finalizers.is_empty() {
        return Ok(Outcome::Remove(current.clone()));
    }
    if current.meta().is_deleting() {
        return Ok(Outcome::Unchanged(current.clone()));
    }
    let mut next = current.clone();
    next.meta_mut().deletion_timestamp = Some(cx.now);
    next.meta_mut().deletion_grace_period_seconds = Some(0);
    Ok(Outcome::Store(next))
}

/// The current record, or `NotFound`.
pub(super) fn existing<'a, R>(key: &RecordId, current: Option<&'a R>) -> Result<&'a R, Refusal> {
    current.ok_or_else(|| Refusal::NotFound { key: key.clone() })
}

/// Refuses when the record's uid or resource version is not the expected one.
///
/// The uid is checked first: when the name belongs to a new record, comparing versions is meaningless.
pub fn check_preconditions<R: Record>(current: &R, expected: &Preconditions) -> Result<(), Refusal> {
    let meta = current.meta();
    match expected.uid {
        Some(expected) if meta.uid != Some(expected) => {
            return Err(Refusal::UidMismatch { key: RecordId::of(current), expected, found: meta.uid });
        }
        _ => {}
    }
    match expected.resource_version {
        Some(expected) if meta.resource_version != expected => {
            Err(Refusal::Stale { key: RecordId::of(current), expected, found: meta.resource_version })
        }
        _ => Ok(()),
    }
}

fn missing<R: Record>(wanted: &R) -> Refusal {
    Refusal::NotFound { key: RecordId::of(wanted) }
}

/// An update that carries a uid was made for a record that has been deleted since. It must not create another record
/// with the same name.
fn create_by_update<R: Rules>(wanted: R, cx: &Context) -> Result<Outcome<R>, Refusal> {
    if let Some(expected) = wanted.meta().uid {
        return Err(Refusal::UidMismatch { key: RecordId::of(&wanted), expected, found: None });
    }
    create(None, wanted, cx).map(Outcome::Store)
}

/// The preconditions that an update carries in its own metadata.
fn preconditions_of(wanted: &Metadata) -> Preconditions {
    let resource_version = Some(wanted.resource_version).filter(|version| *version != 0);
    Preconditions { uid: wanted.uid, resource_version }
}

/// Sets the metadata that the store assigns at creation.
pub(super) fn set_creation_metadata(meta: &mut Metadata, cx: &Context) {
    meta.uid = Some(cx.uid);
    meta.resource_version = 0;
    meta.generation = 0;
    meta.creation_timestamp = Some(to_the_second(cx.now));
    meta.deletion_timestamp = None;
    meta.deletion_grace_period_seconds = None;
    meta.traceparent = None;
}

/// Restores the metadata that only the store writes.
fn keep_store_fields(meta: &mut Metadata, old: &Metadata) {
    meta.name.clone_from(&old.name);
    meta.namespace.clone_from(&old.namespace);
    meta.uid = old.uid;
    meta.resource_version = old.resource_version;
    meta.generation = old.generation;
    meta.creation_timestamp = old.creation_timestamp;
    meta.deletion_timestamp = old.deletion_timestamp;
    meta.deletion_grace_period_seconds = old.deletion_grace_period_seconds;
    meta.traceparent.clone_from(&old.traceparent);
}

fn check_finalizers(check: &mut Check, meta: &Metadata, old: &Metadata) {
    if !old.is_deleting() {
        return;
    }
    let root = Path::ROOT;
    let metadata = root.key("metadata");
    let path = metadata.key("finalizers");
    for (i, finalizer) in meta.finalizers.iter().enumerate() {
        let held = old.finalizers.contains(finalizer);
        check.ensure(&path.index(i), held, "cannot be added: the record is being deleted");
    }
}

/// The last steps of an update: is it allowed, does it change anything, does it complete a deletion.
fn finish_update<R: Record>(current: &R, next: R, check: Check) -> Result<Outcome<R>, Refusal> {
    let next =
        check.finish(next).map_err(|invalid| Refusal::Invalid { key: RecordId::of(current), invalid })?;
    if next == *current {
        return Ok(Outcome::Unchanged(next));
    }
    let meta = next.meta();
    // A pod whose grace period runs stays even after its last finalizer was removed.
    let over = meta.deletion_grace_period_seconds.is_none_or(|grace| grace == 0);
    if meta.is_deleting() && meta.finalizers.is_empty() && over {
        return Ok(Outcome::Remove(next));
    }
    Ok(Outcome::Store(next))
}

fn to_the_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
