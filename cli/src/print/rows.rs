//! Records as table rows, one module per kind.

mod budget;
mod event;
mod lease;
mod node;
mod pod;
pub(crate) mod pod_status;

pub(crate) use node::{status as node_status, zone as node_zone};

use jiff::Timestamp;
use muster_proto::label::Labels;
use muster_store_client::Resource;

use super::{Cell, NONE};

/// A kind that can be shown in a table.
pub(crate) trait Tabular: Resource {
    /// The headers of the columns that are always shown.
    const COLUMNS: &'static [&'static str];
    /// The headers of the additional columns of `-o wide`.
    const WIDE: &'static [&'static str];

    /// The cells under [`COLUMNS`](Self::COLUMNS).
    fn row(&self, now: Timestamp) -> Vec<Cell>;

    /// The cells under [`WIDE`](Self::WIDE).
    fn wide(&self, now: Timestamp) -> Vec<Cell>;

    /// Sorts a list for display. The default keeps the order of the store, which is by name.
    fn sort(_records: &mut [Self]) {}
}

/// The columns that are shown in addition to [`Tabular::COLUMNS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) wide: bool,
    /// The namespace, for lists of several namespaces.
    pub(crate) namespaces: bool,
    pub(crate) labels: bool,
}

impl View {
    pub(crate) fn headers<R: Tabular>(self) -> Vec<Cell> {
        let namespace = self.namespaces.then_some("NAMESPACE");
        let wide = if self.wide { R::WIDE } else { &[] };
        let labels = self.labels.then_some("LABELS");
        namespace.iter().chain(R::COLUMNS).chain(wide).chain(&labels).map(|text| Cell::new(*text)).collect()
    }

    pub(crate) fn row<R: Tabular>(self, record: &R, now: Timestamp) -> Vec<Cell> {
        let mut row = Vec::new();
        let meta = record.meta();
        if self.namespaces {
            row.push(Cell::new(meta.namespace.as_ref().map(ToString::to_string).unwrap_or_default()));
        }
        row.extend(record.row(now));
        if self.wide {
            row.extend(record.wide(now));
        }
        if self.labels {
            row.push(Cell::new(labels(&meta.labels)));
        }
        row
    }
}

/// Labels in the syntax of selectors.
pub(crate) fn labels(labels: &Labels) -> String {
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    or_none(&pairs.join(","))
}

/// The text, or `<none>` if it is empty.
pub(crate) fn or_none(text: &str) -> String {
    if text.is_empty() { NONE.to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests;
