//! `muster get --watch`: prints the current records, then every change.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use muster_proto::key::Key;
use muster_proto::watch_event::WatchEvent;
use muster_proto::watch_event::WatchFailureKind;
use muster_store_client::WatchOptions;
use serde_json::Value;

use super::output::Output;
use super::{Get, name_line};
use crate::failure::{Exit, Failure};
use crate::print::document::document;
use crate::print::rows::View;
use crate::print::{Cell, Table};
use crate::records::Readable;
use crate::terminal::print_stderr;
use muster_manifest::schema;

impl Get<'_> {
    pub(super) async fn watch<R: Readable>(&self, names: &[String]) -> Result<(), Failure> {
        let mut watch = self.store.client.watch::<R>(self.watch_options::<R>(names)?);
        let view = self.view(R::KIND);
        let mut printer = Printer { table: self.watch_table::<R>(&view), get: self, view, is_first: true };
        let (mut seen, mut initial, mut is_synced) = (Seen(BTreeMap::new()), Vec::new(), false);
        while let Some(event) = watch.next().await {
            match event {
                WatchEvent::Applied { record } => {
                    let change = seen.apply(&record);
                    if is_synced { printer.print(change, record)? } else { initial.push(record) }
                }
                WatchEvent::Gone { key, last, .. } => {
                    if let Some(record) = seen.remove(&key, last) {
                        printer.print("DELETED", record)?;
                    }
                }
                WatchEvent::Synced { .. } => {
                    is_synced = true;
                    R::sort(&mut initial);
                    printer.print_all("ADDED", initial.drain(..))?;
                }
                WatchEvent::Lost(failure) if !is_synced => return Err(self.watch_failure(&failure)),
                WatchEvent::Lost(failure) => print_stderr(format_args!(
                    "warning: the watch was lost: {}; reconnecting",
                    failure.message
                )),
            }
        }
        Ok(())
    }

    fn watch_options<R: Readable>(&self, names: &[String]) -> Result<WatchOptions, Failure> {
        let field_selector = match names {
            [] => self.flags.field_selector.clone().unwrap_or_default(),
            [name] => format!("metadata.name={name}"),
            _ => {
                return Err(
                    Failure::usage("only one name can be watched").hint("give one name, or a selector")
                );
            }
        };
        Ok(WatchOptions {
            namespace: self.namespace::<R>(),
            label_selector: self.flags.selector.clone().unwrap_or_default(),
            field_selector,
            ..WatchOptions::default()
        })
    }

    fn watch_table<R: Readable>(&self, view: &View) -> Table {
        if self.flags.no_headers {
            return Table::without_headers();
        }
        let event = self.flags.output_watch_events.then(|| Cell::new("EVENT"));
        let headers = match &self.flags.output {
            Some(Output::Columns(columns)) => columns.headers().into_iter().map(Cell::new).collect(),
            _ => view.headers::<R>(),
        };
        Table::new(event.into_iter().chain(headers))
    }

    fn watch_failure(&self, failure: &muster_proto::watch_event::WatchFailure) -> Failure {
        let exit = match failure.kind {
            WatchFailureKind::Refused => Exit::Refused,
            WatchFailureKind::Expired | WatchFailureKind::FutureVersion | WatchFailureKind::Unreachable => {
                Exit::Unreachable
            }
        };
        self.store.peer.watch_failure(exit, &failure.message)
    }
}

/// The last seen version of every record.
struct Seen<R>(BTreeMap<Key, R>);

impl<R: Readable> Seen<R> {
    /// The type of the change, given the changes before it.
    fn apply(&mut self, record: &R) -> &'static str {
        match self.0.insert(Key::of(record), record.clone()) {
            None => "ADDED",
            Some(_) => "MODIFIED",
        }
    }

    /// The last content of a deleted record. A record that is deleted while the watch is disconnected is only missing
    /// from the next list: the store does not send its content, so the last seen version is used.
    fn remove(&mut self, key: &Key, last: Option<R>) -> Option<R> {
        let known = self.0.remove(key);
        last.or(known)
    }
}

/// Prints one change after the other.
struct Printer<'a> {
    get: &'a Get<'a>,
    view: View,
    table: Table,
    is_first: bool,
}

impl Printer<'_> {
    fn print_all<R: Readable>(
        &mut self,
        change: &str,
        records: impl Iterator<Item = R>,
    ) -> Result<(), Failure> {
        if !matches!(self.get.flags.output, None | Some(Output::Wide | Output::Columns(_))) {
            return records.into_iter().try_for_each(|record| self.print(change, record));
        }
        let mut any = false;
        for record in records {
            self.push(change, &record);
            any = true;
        }
        // The headers are printed with the first record, not alone.
        if any { self.flush() } else { Ok(()) }
    }

    fn print<R: Readable>(&mut self, change: &str, record: R) -> Result<(), Failure> {
        let events = self.get.flags.output_watch_events;
        let text = match &self.get.flags.output {
            None | Some(Output::Wide | Output::Columns(_)) => {
                self.push(change, &record);
                return self.flush();
            }
            Some(Output::Name) if events => format!("{change} {}", name_line(&record)),
            Some(Output::Name) => name_line(&record),
            Some(Output::Document(language)) => {
                document(&as_event(change, record, events), *language, self.is_first)
            }
            // A line for each change, as `kubectl get -w -o jsonpath` has it.
            Some(Output::JsonPath(template)) => {
                format!("{}\n", template.render(&as_event(change, record, events)))
            }
        };
        self.is_first = false;
        self.get.terminal.print(&text)
    }

    fn push<R: Readable>(&mut self, change: &str, record: &R) {
        let event = self.get.flags.output_watch_events.then(|| Cell::new(change));
        let row = match &self.get.flags.output {
            Some(Output::Columns(columns)) => {
                columns.row(&schema::to_json(record.clone())).into_iter().map(Cell::new).collect()
            }
            _ => self.view.row(record, self.get.now()),
        };
        self.table.push(event.into_iter().chain(row));
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.is_first = false;
        let text = self.table.take(self.get.terminal.paint);
        self.get.terminal.print(&text)
    }
}

/// The record, or the change with the record in it.
fn as_event<R: Readable>(change: &str, record: R, events: bool) -> Value {
    let value = schema::to_json(record);
    if events { serde_json::json!({"type": change, "object": value}) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::fleet_spec::FleetSpec;
    use jiff::Timestamp;

    #[test]
    fn a_record_deleted_while_disconnected_is_shown_as_last_seen() {
        let node = FleetSpec { nodes: 1, zones: 1 }.node(0, Timestamp::UNIX_EPOCH);
        let mut later = node.clone();
        later.meta.labels.insert("rack".to_owned(), "7".to_owned());
        let key = Key::of(&node);
        let mut seen = Seen(BTreeMap::new());
        assert_eq!((seen.apply(&node), seen.apply(&later)), ("ADDED", "MODIFIED"));
        assert_eq!(seen.remove(&key, None), Some(later.clone()));
        assert_eq!(seen.apply(&node), "ADDED", "a new record of the same name");
        assert_eq!(seen.remove(&key, Some(later.clone())), Some(later), "the store's content wins");
        assert_eq!(seen.remove(&key, None), None);
    }
}
