//! `muster get --watch`: what there is, then every change.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use muster_proto::key::Key;
use muster_proto::watch_event::WatchEvent;
use muster_proto::watch_event::WatchFailureKind;
use muster_store_client::WatchOptions;

use super::{Get, Output, spoken_line};
use crate::failure::{Exit, Failure};
use crate::print::document::document;
use crate::print::{Cell, Table};
use crate::records::Readable;
use crate::schema;
use crate::terminal::aside;

impl Get<'_> {
    pub(super) async fn watch<R: Readable>(&self) -> Result<(), Failure> {
        let mut watch = self.store.client.watch::<R>(self.watch_options::<R>()?);
        let mut printer = Printer { get: self, table: self.watch_table::<R>(), said: false };
        let (mut seen, mut initial, mut in_step) = (Seen(BTreeMap::new()), Vec::new(), false);
        while let Some(event) = watch.next().await {
            match event {
                WatchEvent::Applied { record } => {
                    let change = seen.apply(&record);
                    if in_step { printer.say(change, record)? } else { initial.push(record) }
                }
                WatchEvent::Gone { key, last, .. } => {
                    if let Some(record) = seen.remove(&key, last) {
                        printer.say("DELETED", record)?;
                    }
                }
                WatchEvent::Synced { .. } => {
                    in_step = true;
                    R::arrange(&mut initial);
                    printer.say_all("ADDED", initial.drain(..))?;
                }
                WatchEvent::Lost(failure) if !in_step => return Err(self.lost(&failure)),
                WatchEvent::Lost(failure) => {
                    aside(format_args!("warning: {}; trying again", failure.message))
                }
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
                    Failure::usage("several names cannot be watched").hint("watch one, or select by labels")
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

    fn lost(&self, failure: &muster_proto::watch_event::WatchFailure) -> Failure {
        let exit = match failure.kind {
            WatchFailureKind::Refused => Exit::Refused,
            WatchFailureKind::Expired | WatchFailureKind::FutureVersion | WatchFailureKind::Unreachable => {
                Exit::Unreachable
            }
        };
        self.store.peer.lost(exit, &failure.message)
    }
}

/// Every record as it was last told.
struct Seen<R>(BTreeMap<Key, R>);

impl<R: Readable> Seen<R> {
    /// What the change is to whoever has followed so far.
    fn apply(&mut self, record: &R) -> &'static str {
        match self.0.insert(Key::of(record), record.clone()) {
            None => "ADDED",
            Some(_) => "MODIFIED",
        }
    }

    /// How a record was that is gone. One that went while the store was not heard is missing from the next list, and
    /// nobody but us knows how it was.
    fn remove(&mut self, key: &Key, last: Option<R>) -> Option<R> {
        let known = self.0.remove(key);
        last.or(known)
    }
}

/// Says one change after the other.
struct Printer<'a> {
    get: &'a Get<'a>,
    table: Table,
    said: bool,
}

impl Printer<'_> {
    fn say_all<R: Readable>(
        &mut self,
        change: &str,
        records: impl Iterator<Item = R>,
    ) -> Result<(), Failure> {
        if self.get.flags.output.is_some_and(|output| output != Output::Wide) {
            return records.into_iter().try_for_each(|record| self.say(change, record));
        }
        let mut any = false;
        for record in records {
            self.push(change, &record);
            any = true;
        }
        // Headings alone say nothing; they come with the first record.
        if any { self.flush() } else { Ok(()) }
    }

    fn say<R: Readable>(&mut self, change: &str, record: R) -> Result<(), Failure> {
        let events = self.get.flags.output_watch_events;
        let text = match self.get.flags.output {
            None | Some(Output::Wide) => {
                self.push(change, &record);
                return self.flush();
            }
            Some(Output::Name) if events => format!("{change} {}", spoken_line(&record)),
            Some(Output::Name) => spoken_line(&record),
            Some(output) => {
                let language = output.language().expect("what is no table and no name is a document");
                let value = schema::to_json(record);
                let value = if events { serde_json::json!({"type": change, "object": value}) } else { value };
                document(&value, language, self.said)
            }
        };
        self.said = true;
        self.get.terminal.say(&text)
    }

    fn push<R: Readable>(&mut self, change: &str, record: &R) {
        let event = self.get.flags.output_watch_events.then(|| Cell::new(change));
        self.table.push(event.into_iter().chain(self.get.view().row(record, self.get.now())));
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.said = true;
        let text = self.table.take(self.get.terminal.paint);
        self.get.terminal.say(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::fleet_spec::Blueprint;
    use jiff::Timestamp;

    #[test]
    fn a_record_that_went_unheard_is_told_as_it_was_known() {
        let node = Blueprint { nodes: 1, zones: 1 }.node(0, Timestamp::UNIX_EPOCH);
        let mut later = node.clone();
        later.meta.labels.insert("rack".to_owned(), "7".to_owned());
        let key = Key::of(&node);
        let mut seen = Seen(BTreeMap::new());
        assert_eq!((seen.apply(&node), seen.apply(&later)), ("ADDED", "MODIFIED"));
        assert_eq!(seen.remove(&key, None), Some(later.clone()));
        assert_eq!(seen.apply(&node), "ADDED", "it is another one");
        assert_eq!(seen.remove(&key, Some(later.clone())), Some(later), "the store knows best");
        assert_eq!(seen.remove(&key, None), None);
    }
}
