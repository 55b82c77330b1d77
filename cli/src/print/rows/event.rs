//! Events as rows, sorted by time.

use jiff::Timestamp;
use muster_proto::event::{Event, EventType};

use super::{Tabular, or_none};
use crate::kind::singular;
use crate::print::{Cell, age};

impl Tabular for Event {
    const COLUMNS: &'static [&'static str] = &["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
    const WIDE: &'static [&'static str] = &["SOURCE", "FIRST SEEN", "COUNT", "NAME"];

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let kind = Cell::new(self.kind.to_string());
        vec![
            Cell::new(age::since(self.last_timestamp, now)),
            if self.kind == EventType::Warning { kind.doubtful() } else { kind },
            Cell::new(&self.reason),
            Cell::new(format!("{}/{}", singular(self.involved.kind), self.involved.name)),
            Cell::new(self.message.trim()),
        ]
    }

    fn wide(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            Cell::new(or_none(&self.source_component)),
            Cell::new(age::since(self.first_timestamp, now)),
            Cell::new(self.count.to_string()),
            Cell::new(self.meta.name.as_str()),
        ]
    }

    fn sort(events: &mut [Event]) {
        events.sort_by_key(|event| event.last_timestamp);
    }
}
