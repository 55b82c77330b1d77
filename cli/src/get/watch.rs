//! `muster get --watch`: prints the current records, then every change.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use muster_proto::key::Key;
use muster_proto::watch_event::WatchEvent;
use muster_proto::watch_event::WatchFailureKind;
use muster_store_client::WatchOptions;

use super::{Get, Output, name_line};
use crate::failure::{Exit, Failure};
use crate::print::document::document;
use crate::print::{Cell, Table};
use crate::records::Readable;
use crate::schema;
use crate::terminal::print_stderr;

impl Get<'_> {
    pub(super) async fn watch<R: Readable>(&self) -> Result<(), Failure> {
        let mut watch = self.store.client.watch::<R>(self.watch_options::<R>()?);
        let mut printer = Printer { get: self, table: self.watch_table::<R>(), is_first: true };
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

    fn watch_options<R: Readable>(&self) -> Result<WatchOptions, Failure> {
        let field_selector = match self.names.as_slice() {
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

    fn watch_table<R: Readable>(&self) -> Table {
        if self.flags.no_headers {
            return Table::without_headers();
        }
        let event = self.flags.output_watch_events.then(|| Cell::new("EVENT"));
        Table::new(event.into_iter().chain(self.view().headers::<R>()))
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
    table: Table,
    is_first: bool,
}

impl Printer<'_> {
    fn print_all<R: Readable>(
        &mut self,
        change: &str,
        records: impl Iterator<Item = R>,
    ) -> Result<(), Failure> {
        if self.get.flags.output.is_some_and(|output| output != Output::Wide) {
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
        let text = match self.get.flags.output {
            None | Some(Output::Wide) => {
                self.push(change, &record);
                return self.flush();
            }
            Some(Output::Name) if events => format!("{change} {}", name_line(&record)),
            Some(Output::Name) => name_line(&record),
            Some(output) => {
                let language = output.language().expect("the other outputs are documents");
                let value = schema::to_json(record);
                let value = if events { serde_json::json!({"type": change, "object": value}) } else { value };
                document(&value, language, self.is_first)
            }
        };
        self.is_first = false;
        self.get.terminal.print(&text)
    }

    fn push<R: Readable>(&mut self, change: &str, record: &R) {
        let event = self.get.flags.output_watch_events.then(|| Cell::new(change));
        self.table.push(event.into_iter().chain(self.get.view().row(record, self.get.now())));
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.is_first = false;
        let text = self.table.take(self.get.terminal.paint);
        self.get.terminal.print(&text)
    }
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
