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

/// The events of the record, the latest one last. In a narrow terminal without their source.
fn events(events: &[Event], now: Timestamp, paint: Paint, width: usize) -> String {
    if events.is_empty() {
        return Fields::top().add("Events", NONE).text();
    }
    let mut sorted: Vec<&Event> = events.iter().collect();
    sorted.sort_by_key(|event| event.last_timestamp);
    let table = |is_wide: bool| {
        let headers = ["Type", "Reason", "Age", "From", "Message"];
        let shown = |column: &usize| is_wide || *column != 3;
        let mut table = Table::new((0..5).filter(shown).map(|column| headers[column])).indented(2);
        for event in &sorted {
            let kind = Cell::new(event.kind.to_string());
            let seen = age::since(event.last_timestamp, now);
            let seen = match event.count {
                ..=1 => seen,
                count => format!("{seen} (x{count} over {})", age::since(event.first_timestamp, now)),
            };
            let cells = [
                if event.kind == EventType::Warning { kind.doubtful() } else { kind },
                Cell::new(&event.reason),
                Cell::new(seen),
                Cell::new(&event.source_component),
                Cell::new(event.message.trim()),
            ];
            table.push(
                cells.into_iter().enumerate().filter(|(column, _)| shown(column)).map(|(_, cell)| cell),
            );
        }
        table
    };
    format!("Events:\n{}", fitting(table, paint, width))
}

/// The wide form of a table if it fits, else its narrow form, with the last column in several lines.
fn fitting(table: impl Fn(bool) -> Table, paint: Paint, width: usize) -> String {
    let mut wide = table(true);
    if wide.width() <= width { wide.take(paint) } else { table(false).take_within(paint, width) }
}

/// One condition, of a node or a pod.
struct ConditionRow<'a> {
    kind: &'a str,
    status: String,
    /// The heartbeat time, of nodes only, and the time of the last transition, with their headers.
    times: Vec<(&'static str, Option<Timestamp>)>,
    reason: &'a str,
    message: &'a str,
}

/// The conditions with all of their times; in a narrow terminal with the age of the last transition, and the reason
/// before the message.
fn conditions(rows: &[ConditionRow<'_>], now: Timestamp, paint: Paint, width: usize) -> String {
    let Some(first) = rows.first() else { return Fields::top().add("Conditions", NONE).text() };
    let wide_headers = ["Type", "Status"].into_iter().chain(first.times.iter().map(|(header, _)| *header));
    let wide_headers: Vec<&str> = wide_headers.chain(["Reason", "Message"]).collect();
    let table = |is_wide: bool| {
        let headers = if is_wide { wide_headers.clone() } else { vec!["Type", "Status", "Since", "Why"] };
        let mut table = Table::new(headers).indented(2);
        for row in rows {
            let mut cells = vec![row.kind.to_owned(), row.status.clone()];
            if is_wide {
                cells.extend(row.times.iter().map(|(_, moment)| time(*moment)));
                cells.extend([row.reason.to_owned(), row.message.to_owned()]);
            } else {
                cells.push(age::since(row.times.last().and_then(|(_, moment)| *moment), now));
                let parts = [row.reason, row.message].into_iter().filter(|part| !part.is_empty());
                cells.push(parts.collect::<Vec<_>>().join(": "));
            }
            table.push(cells);
        }
        table
    };
    format!("Conditions:\n{}", fitting(table, paint, width))
}

/// A moment in RFC 3339, to the second.
fn time(moment: Option<Timestamp>) -> String {
    moment.map_or_else(|| "<unset>".to_owned(), age::moment)
}

#[cfg(test)]
mod tests;
