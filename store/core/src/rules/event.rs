//! Rules for events: the same happening is one record that counts.
//!
//! What makes two happenings the same is all that they say; so their shared name is worked out of just
//! that, and writers on different machines need not agree on anything.

use muster_proto::event::Event;
use muster_proto::name::{MAX_NAME, Name};
use uuid::Uuid;

use super::Context;

#[cfg(test)]
mod tests;

/// The space our event names are drawn from; any fixed value will do, as long as it never changes.
const NAMES: Uuid = Uuid::from_u128(0x6d75_7374_6572_4576_8e74_4e61_6d65_7331);

/// The record to store for something that happened, given what is stored under [`event_name`].
pub fn record_event(current: Option<&Event>, wanted: Event, cx: &Context) -> Event {
    // A clock that runs ahead must not keep an event for longer than others.
    let last = wanted.last_timestamp.unwrap_or(cx.now).min(cx.now);
    match current {
        Some(current) => {
            let mut event = current.clone();
            event.count = event.count.saturating_add(1);
            // Reports of two writers may cross on their way; the later one stands.
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

/// What an event is called: the involved record's name, and a digest of all that the event says.
pub fn event_name(event: &Event) -> Name {
    let digest = Uuid::new_v5(&NAMES, &identity_bytes(event)).simple().to_string();
    let room = MAX_NAME - digest.len() - 1;
    let involved = event.involved.name.as_str();
    // A name is ASCII, so it can be cut anywhere; only its end must not be a dash or dot.
    let shown = involved[..involved.len().min(room)].trim_end_matches(['-', '.']);
    format!("{shown}.{digest}").parse().expect("a cut name and a hexadecimal digest make a name")
}

/// The event's content as bytes. Each part ends in a byte that no text holds, so that parts cannot run
/// into each other.
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
