//! The pages of `muster describe`.

mod fields;
pub(crate) mod node;
pub(crate) mod pod;
pub(crate) mod priority_class;
mod resources;

use jiff::Timestamp;
use muster_proto::event::{Event, EventType};

use self::fields::Fields;
use super::table::Table;
use super::{Cell, NONE, Paint, age};

/// The events of the record, the latest one last.
fn events(events: &[Event], now: Timestamp, paint: Paint) -> String {
    if events.is_empty() {
        return Fields::top().add("Events", NONE).text();
    }
    let mut sorted: Vec<&Event> = events.iter().collect();
    sorted.sort_by_key(|event| event.last_timestamp);
    let mut table = Table::new(["Type", "Reason", "Age", "From", "Message"]).indented(2);
    for event in sorted {
        let kind = Cell::new(event.kind.to_string());
        let seen = age::since(event.last_timestamp, now);
        let seen = match event.count {
            ..=1 => seen,
            count => format!("{seen} (x{count} over {})", age::since(event.first_timestamp, now)),
        };
        table.push([
            if event.kind == EventType::Warning { kind.doubtful() } else { kind },
            Cell::new(&event.reason),
            Cell::new(seen),
            Cell::new(&event.source_component),
            Cell::new(event.message.trim()),
        ]);
    }
    format!("Events:\n{}", table.take(paint))
}

/// A moment in RFC 3339.
fn time(moment: Option<Timestamp>) -> String {
    moment.map_or_else(|| "<unset>".to_owned(), |moment| moment.to_string())
}

#[cfg(test)]
mod tests;
