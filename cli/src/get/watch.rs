//! `muster get --watch`: what there is, then every change.

use std::collections::BTreeSet;

use futures_util::StreamExt;
use muster_store_client::session::FailureKind;
use muster_store_client::{Event, Key, WatchOptions};

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
        let (mut known, mut initial, mut in_step) = (BTreeSet::new(), Vec::new(), false);
        while let Some(event) = watch.next().await {
            match event {
                Event::Applied { record } => {
                    let is_new = known.insert(Key::of(&record));
                    match (in_step, is_new) {
                        (false, _) => initial.push(record),
                        (true, true) => printer.say("ADDED", record)?,
                        (true, false) => printer.say("MODIFIED", record)?,
                    }
                }
                Event::Gone { key, last, .. } => {
                    known.remove(&key);
                    if let Some(record) = last {
                        printer.say("DELETED", record)?;
                    }
                }
                Event::Synced { .. } => {
                    in_step = true;
                    R::arrange(&mut initial);
                    printer.say_all("ADDED", initial.drain(..))?;
                }
                Event::Lost(failure) if !in_step => return Err(self.lost(&failure)),
                Event::Lost(failure) => aside(format_args!("warning: {}; trying again", failure.message)),
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

    fn lost(&self, failure: &muster_store_client::Failure) -> Failure {
        let exit = match failure.kind {
            FailureKind::Refused => Exit::Refused,
            FailureKind::Expired | FailureKind::FutureVersion | FailureKind::Unreachable => Exit::Unreachable,
        };
        self.store.peer.lost(exit, &failure.message)
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
