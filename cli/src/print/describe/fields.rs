//! Blocks of `Label:  value` lines with aligned values.

use std::collections::BTreeMap;

use crate::print::{Cell, NONE, Paint};

/// The column of the values of the page's top fields. Nested blocks compute their own column.
const TOP_WIDTH: usize = 20;

/// A block of fields with aligned values.
#[derive(Clone, Debug)]
pub(super) struct Fields {
    indent: usize,
    width: usize,
    rows: Vec<(String, Vec<String>)>,
}

impl Fields {
    /// The top fields of a page.
    pub(super) fn top() -> Fields {
        Fields { indent: 0, width: TOP_WIDTH, rows: Vec::new() }
    }

    /// The fields of a nested block.
    pub(super) fn within(indent: usize) -> Fields {
        Fields { indent, width: 0, rows: Vec::new() }
    }

    #[must_use]
    pub(super) fn add(self, label: &str, value: impl Into<String>) -> Fields {
        self.all(label, [value.into()])
    }

    /// A field with a colour.
    #[must_use]
    pub(super) fn painted(mut self, label: &str, cell: Cell, paint: Paint) -> Fields {
        self.rows.push((label.to_owned(), vec![cell.on_one_line().painted(paint)]));
        self
    }

    /// A field that is omitted if its value is empty.
    #[must_use]
    pub(super) fn add_some(self, label: &str, value: &str) -> Fields {
        if value.is_empty() { self } else { self.add(label, value) }
    }

    /// A field with several values, one per line.
    #[must_use]
    pub(super) fn all(mut self, label: &str, values: impl IntoIterator<Item = String>) -> Fields {
        let mut values: Vec<String> =
            values.into_iter().flat_map(|value| lines(&value).collect::<Vec<_>>()).collect();
        if values.is_empty() {
            values.push(NONE.to_owned());
        }
        self.rows.push((label.to_owned(), values));
        self
    }

    /// A field with one line for each pair.
    #[must_use]
    pub(super) fn pairs(self, label: &str, pairs: &BTreeMap<String, String>, sign: &str) -> Fields {
        self.all(label, pairs.iter().map(|(key, value)| format!("{key}{sign}{value}")))
    }

    pub(super) fn text(&self) -> String {
        let longest = self.rows.iter().map(|(label, _)| label.len() + 3).max().unwrap_or_default();
        let width = self.width.max(longest);
        let mut text = String::new();
        for (label, values) in &self.rows {
            for (i, value) in values.iter().enumerate() {
                let label = if i == 0 { format!("{label}:") } else { String::new() };
                let line = format!("{:indent$}{label:width$}{value}", "", indent = self.indent);
                text.push_str(line.trim_end());
                text.push('\n');
            }
        }
        text
    }
}

/// The lines of a value, without control characters, which a terminal would interpret.
fn lines(value: &str) -> impl Iterator<Item = String> {
    let clean = |line: &str| line.replace(char::is_control, " ");
    let lines: Vec<String> = value.lines().map(clean).collect();
    if lines.is_empty() { vec![String::new()] } else { lines }.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_aligned_also_over_several_lines() {
        let labels = [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())].into();
        let fields = Fields::within(2)
            .add("Name", "x")
            .pairs("Labels", &labels, "=")
            .all("None", [])
            .add_some("Nothing", "")
            .add("Message", "two\nlines \u{1b}[31m");
        assert_eq!(
            fields.text(),
            "  Name:     x\n  Labels:   a=1\n            b=2\n  None:     <none>\n  Message:  two\n            lines  [31m\n"
        );
    }
}
