//! Records as table rows, one module per kind.

mod budget;
mod certificate_request;
mod event;
mod join_token;
mod lease;
mod node;
mod pod;
pub(crate) mod pod_status;
mod priority_class;
mod revocation;

pub(crate) use node::{status as node_status, zone as node_zone};

use std::collections::BTreeMap;
use std::rc::Rc;

use jiff::Timestamp;
use muster_proto::label::Labels;
use muster_store_client::Resource;

use super::{Cell, NONE, UNKNOWN, age, natural};
use crate::kind::singular;

/// A kind that can be shown in a table.
pub(crate) trait Tabular: Resource {
    /// The headers of the columns that are always shown.
    const COLUMNS: &'static [&'static str];
    /// The headers of the additional columns of `-o wide`.
    const WIDE: &'static [&'static str];
    /// The words of the STATUS column, as an error message lists them; empty if there is no such column.
    const STATUSES: &'static [&'static str] = &[];

    /// The cells under [`COLUMNS`](Self::COLUMNS).
    fn row(&self, now: Timestamp) -> Vec<Cell>;

    /// The cells under [`WIDE`](Self::WIDE).
    fn wide(&self, now: Timestamp) -> Vec<Cell>;

    /// The words of the STATUS column of this record.
    fn status_words(&self) -> Vec<String> {
        Vec::new()
    }

    /// Sorts a list for display. The default is by namespace and name, with n2 before n10.
    fn sort(records: &mut [Self]) {
        records.sort_by(|a, b| {
            let (a, b) = (a.meta(), b.meta());
            a.namespace.cmp(&b.namespace).then_with(|| natural::compare(a.name.as_str(), b.name.as_str()))
        });
    }
}

/// The columns that are shown in addition to [`Tabular::COLUMNS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) wide: bool,
    /// The namespace, for lists of several namespaces.
    pub(crate) namespaces: bool,
    /// A column for each of these labels.
    pub(crate) label_columns: Vec<String>,
    pub(crate) labels: bool,
    /// The kind before each name, for lists of several kinds.
    pub(crate) kinds: bool,
    /// When each node was last heard, as an additional column.
    pub(crate) heard: Option<Rc<BTreeMap<String, Timestamp>>>,
}

impl View {
    pub(crate) fn headers<R: Tabular>(&self) -> Vec<Cell> {
        let namespace = self.namespaces.then_some("NAMESPACE");
        let heard = self.heard.is_some().then_some("HEARD");
        let wide = if self.wide { R::WIDE } else { &[] };
        let fixed = namespace.iter().chain(R::COLUMNS).chain(&heard).chain(wide);
        let mut headers: Vec<Cell> = fixed.map(|text| Cell::new(*text)).collect();
        // As kubectl: the part of the key that tells it from others.
        let short = |key: &String| key.rsplit('/').next().unwrap_or(key).to_uppercase();
        headers.extend(self.label_columns.iter().map(|key| Cell::new(short(key))));
        headers.extend(self.labels.then(|| Cell::new("LABELS")));
        headers
    }

    pub(crate) fn row<R: Tabular>(&self, record: &R, now: Timestamp) -> Vec<Cell> {
        let meta = record.meta();
        let mut row = record.row(now);
        if self.kinds && R::COLUMNS.first() == Some(&"NAME") {
            row[0] = Cell::new(format!("{}/{}", singular(R::KIND), meta.name));
        }
        if self.namespaces {
            row.insert(0, Cell::new(meta.namespace.as_ref().map(ToString::to_string).unwrap_or_default()));
        }
        if let Some(heard) = &self.heard {
            row.push(Cell::new(match heard.get(meta.name.as_str()) {
                Some(heard) => format!("{} ago", age::since(Some(*heard), now)),
                None => UNKNOWN.to_owned(),
            }));
        }
        if self.wide {
            row.extend(record.wide(now));
        }
        let label =
            |key: &String| Cell::new(or_none(meta.labels.get(key).map(String::as_str).unwrap_or_default()));
        row.extend(self.label_columns.iter().map(label));
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
