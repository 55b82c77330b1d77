//! Tables in the style of kubectl: headers in capitals, three spaces between columns, no lines.
//!
//! Rows can be added after the first rows were printed: their columns keep the earlier widths, or grow if a cell does
//! not fit.

use anstyle::{AnsiColor, Color, Style};
use unicode_width::UnicodeWidthStr;

use super::Paint;
use super::wrap::wrap;

const GAP: usize = 3;
/// A column that is narrower than this is not wrapped: it would be harder to read than a long line.
const MIN_WRAPPED: usize = 20;

/// One cell of a row, with its colour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), style: Style::new() }
    }

    /// Green: the normal state.
    pub(crate) fn good(self) -> Cell {
        self.coloured(AnsiColor::Green)
    }

    /// Yellow: needs attention.
    pub(crate) fn doubtful(self) -> Cell {
        self.coloured(AnsiColor::Yellow)
    }

    /// Red: an error or a failure.
    pub(crate) fn bad(self) -> Cell {
        self.coloured(AnsiColor::Red)
    }

    /// With more text behind it.
    #[must_use]
    pub(crate) fn followed_by(self, more: &str) -> Cell {
        Cell { text: format!("{}{more}", self.text), ..self }
    }

    fn coloured(self, colour: AnsiColor) -> Cell {
        Cell { style: Style::new().fg_color(Some(Color::Ansi(colour))), ..self }
    }

    /// Replaces control characters by spaces, so that line breaks do not break the table and escape codes do not reach
    /// the terminal.
    #[must_use]
    pub(crate) fn on_one_line(self) -> Cell {
        if !self.text.contains(char::is_control) {
            return self;
        }
        let text = self.text.replace(char::is_control, " ").trim().to_owned();
        Cell { text, ..self }
    }

    /// The text with its colour, for use outside of tables.
    pub(crate) fn painted(&self, paint: Paint) -> String {
        match paint {
            Paint::Coloured if self.style != Style::new() => {
                format!("{}{}{}", self.style.render(), self.text, self.style.render_reset())
            }
            _ => self.text.clone(),
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::new(text)
    }
}

/// Rows with aligned columns.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    widths: Vec<usize>,
    rows: Vec<Vec<Cell>>,
    indent: usize,
}

impl Table {
    pub(crate) fn new(headers: impl IntoIterator<Item = impl Into<Cell>>) -> Table {
        let mut table = Table::without_headers();
        table.push(headers);
        table
    }

    pub(crate) fn without_headers() -> Table {
        Table { widths: Vec::new(), rows: Vec::new(), indent: 0 }
    }

    /// Indents every row by that many spaces.
    pub(crate) fn indented(self, indent: usize) -> Table {
        Table { indent, ..self }
    }

    pub(crate) fn push(&mut self, row: impl IntoIterator<Item = impl Into<Cell>>) {
        let row: Vec<Cell> = row.into_iter().map(|cell| cell.into().on_one_line()).collect();
        for (i, cell) in row.iter().enumerate() {
            let width = cell.text.width();
            match self.widths.get_mut(i) {
                Some(held) => *held = (*held).max(width),
                None => self.widths.push(width),
            }
        }
        self.rows.push(row);
    }

    /// The width of the widest possible row.
    pub(crate) fn width(&self) -> usize {
        let gaps = GAP * self.widths.len().saturating_sub(1);
        self.indent + self.widths.iter().sum::<usize>() + gaps
    }

    /// The text of the rows that were added since the last call.
    pub(crate) fn take(&mut self, paint: Paint) -> String {
        self.take_within(paint, usize::MAX)
    }

    /// The same, with the last column in several lines where a row would be wider than that.
    pub(crate) fn take_within(&mut self, paint: Paint, width: usize) -> String {
        let columns = self.widths.len();
        let mut text = String::new();
        for row in std::mem::take(&mut self.rows) {
            let last = row.iter().rposition(|cell| !cell.text.is_empty()).unwrap_or_default();
            text.push_str(&" ".repeat(self.indent));
            let mut start = self.indent;
            for (i, cell) in row.iter().take(last + 1).enumerate() {
                if i + 1 == columns && start + MIN_WRAPPED <= width {
                    let lines = wrap(&cell.text, width.saturating_sub(start));
                    let lines: Vec<String> = lines
                        .into_iter()
                        .map(|line| Cell { text: line, ..cell.clone() }.painted(paint))
                        .collect();
                    text.push_str(&lines.join(&format!("\n{}", " ".repeat(start))));
                } else {
                    text.push_str(&cell.painted(paint));
                }
                if i < last {
                    let space = self.widths[i] - cell.text.width() + GAP;
                    text.push_str(&" ".repeat(space));
                }
                start += self.widths[i] + GAP;
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_spaces() {
        let mut table = Table::new(["NAME", "STATUS", "NOTE"]);
        table.push(["a-long-name", "Ready", ""]);
        table.push(["b", "", "two\nlines"]);
        assert_eq!(
            table.take(Paint::Plain),
            "NAME          STATUS   NOTE\na-long-name   Ready\nb                      two lines\n"
        );
    }

    #[test]
    fn the_last_column_is_wrapped_to_the_width() {
        let table = || {
            let mut table = Table::new(["NAME", "WHY"]);
            table.push([Cell::new("a"), Cell::new("one two three four five").bad()]);
            table
        };
        assert_eq!(table().width(), 30);
        assert_eq!(
            table().take_within(Paint::Plain, 27),
            "NAME   WHY\na      one two three four\n       five\n"
        );
        assert_eq!(
            table().take_within(Paint::Plain, 26),
            table().take(Paint::Plain),
            "too narrow to be wrapped"
        );
        assert!(table().take_within(Paint::Coloured, 27).contains("\u{1b}[31mfive\u{1b}[0m\n"));
    }

    #[test]
    fn later_rows_keep_the_columns_aligned() {
        let mut table = Table::new(["NAME", "STATUS"]);
        table.push(["first", "Ready"]);
        table.take(Paint::Plain);
        table.push(["b", "Ready"]);
        assert_eq!(table.take(Paint::Plain), "b       Ready\n");
        table.push(["a-longer-one", "Ready"]);
        assert_eq!(table.take(Paint::Plain), "a-longer-one   Ready\n");
    }

    #[test]
    fn a_wide_character_takes_two_columns_and_a_combining_one_none() {
        let mut table = Table::new(["NAME", "STATUS"]);
        for name in ["漢字", "abcd", "cafe\u{301}"] {
            table.push([name, "Ready"]);
        }
        assert_eq!(
            table.take(Paint::Plain),
            "NAME   STATUS\n漢字   Ready\nabcd   Ready\ncafe\u{301}   Ready\n"
        );
    }

    #[test]
    fn colours_do_not_count_as_width() {
        let mut table = Table::new(["A", "B"]);
        table.push([Cell::new("é").good(), Cell::new("x")]);
        assert_eq!(table.take(Paint::Coloured), "A   B\n\u{1b}[32mé\u{1b}[0m   x\n");
    }
}
