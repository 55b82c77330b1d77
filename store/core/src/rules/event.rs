//! Rules for events: repeated events are one record with a count.
//!
//! Two events are the same if their content is the same. The record's name is a digest of the content, so writers on
//! different machines find the same record without coordination.

use muster_proto::event::Event;
use muster_proto::invalid::{Check, Invalid, Path};
use muster_proto::name::{MAX_NAME, Name};
use uuid::Uuid;

use super::Context;

#[cfg(test)]
mod tests;

/// The UUID namespace of event names: an arbitrary value that must never change.
const NAMES: Uuid = Uuid::from_u128(0x6d75_7374_6572_4576_8e74_4e61_6d65_7331);

/// The longest name of the part that recorded an event, in bytes: that of a name.
const MAX_SOURCE: usize = MAX_NAME;

/// Checks what the conversion of an event does not. An event that was stored before there was this limit can still be
/// read, and expires.
pub fn validate_event(event: &Event) -> Result<(), Invalid> {
    let mut check = Check::new();
    let fits = event.source_component.len() <= MAX_SOURCE;
    check.ensure(&Path::ROOT.key("sourceComponent"), fits, "must be 253 bytes or fewer");
    check.finish(())
}

/// The record to store for an event, given the current record named [`event_name`].
pub fn record_event(current: Option<&Event>, wanted: Event, cx: &Context) -> Event {
    // A timestamp in the future must not keep an event longer than its time to live.
    let last = wanted.last_timestamp.unwrap_or(cx.now).min(cx.now);
    match current {
        Some(current) => {
            let mut event = current.clone();
            event.count = event.count.saturating_add(1);
            // The reports of two writers may arrive in either order; the later timestamp counts.
            event.last_timestamp = event.last_timestamp.max(Some(last));
            event
        }
        None => {
            let mut event = wanted;
            event.meta.name = event_name(&event);
            super::common::set_creation_metadata(&mut event.meta, cx);
            event.count = 1;
            event.first_timestamp.get_or_insert(last);
            event.last_timestamp = Some(last);
            event
        }
    }
}

/// The name of an event's record: the involved record's name, and a digest of the event's content.
pub fn event_name(event: &Event) -> Name {
    let digest = Uuid::new_v5(&NAMES, &identity_bytes(event)).simple().to_string();
    let limit = MAX_NAME - digest.len() - 1;
    let involved = event.involved.name.as_str();
    // A name is ASCII, so it can be cut at any byte, but must not end in a dash or dot.
    let shown = involved[..involved.len().min(limit)].trim_end_matches(['-', '.']);
    format!("{shown}.{digest}").parse().expect("a cut name and a hexadecimal digest make a name")
}

/// The event's content as bytes. Each part ends in a byte that UTF-8 never contains, so different contents cannot yield
/// the same bytes.
fn identity_bytes(event: &Event) -> Vec<u8> {
    const END: u8 = 0xff;
    let Event { involved, kind, reason, message, source_component, .. } = event;
    let parts = [
        involved.kind.to_string(),
        involved.namespace.as_ref().map(ToString::to_string).unwrap_or_default(),
        involved.name.to_string(),
        involved.uid.as_ref().map(ToString::to_string).unwrap_or_default(),
        kind.to_string(),
        reason.clone(),
        message.clone(),
        source_component.clone(),
    ];
    parts.into_iter().flat_map(|part| part.into_bytes().into_iter().chain([END])).collect()
}
