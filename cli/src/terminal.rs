//! Standard output and standard error, which can be a terminal or a pipe.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};

use crate::failure::{Exit, Failure};
use unicode_width::UnicodeWidthStr;

use crate::print::Paint;
use crate::print::wrap::hanging;

/// Standard output, where a command prints its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    /// Whether the output is a terminal, so that a screen can be drawn over the last one.
    pub(crate) is_tty: bool,
    pub(crate) paint: Paint,
    /// The width in which lines are broken.
    pub(crate) width: usize,
}

impl Terminal {
    pub(crate) fn stdout() -> Terminal {
        let is_tty = io::stdout().is_terminal();
        Terminal {
            is_tty,
            paint: paint(is_tty, std::env::var_os("NO_COLOR").as_deref()),
            width: width(is_tty),
        }
    }

    /// Writes the text and flushes it. A closed pipe, as behind `| head`, is [`Failure::Closed`].
    pub(crate) fn print(self, text: &str) -> Result<(), Failure> {
        self.print_bytes(text.as_bytes())
    }

    /// Writes what a container has written, as it is, and flushes it.
    pub(crate) fn print_bytes(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::new(Exit::Failed, format!("cannot write the answer: {error}")).hint(
                "the command may have taken effect: check that before you repeat it, and check where the output goes",
            ),
        })
    }

    /// Draws a screen over the last one; prints it below the last one if the output is not a terminal.
    pub(crate) fn redraw(self, screen: &str, is_first: bool) -> Result<(), Failure> {
        // Cursor home, the new screen, then clear the rest: clearing the old screen first would flicker.
        match (self.is_tty, is_first) {
            (true, _) => {
                let lines = screen.replace('\n', "\x1b[K\n");
                self.print(&format!("{}{lines}\x1b[J", if is_first { "\x1b[2J\x1b[H" } else { "\x1b[H" }))
            }
            (false, true) => self.print(screen),
            (false, false) => self.print(&format!("\n{screen}")),
        }
    }
}

/// Prints a line to standard error, for messages that are not part of the answer.
pub(crate) fn print_stderr(text: impl std::fmt::Display) {
    // A closed standard error does not make the answer wrong.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes what a container has written to its standard error, as it is.
pub(crate) fn stderr_bytes(bytes: &[u8]) {
    let _ = io::stderr().lock().write_all(bytes);
}

/// Prints why a command failed. A closed standard error is ignored, because the exit code reports the failure too.
pub(crate) fn report_failure(report: &str) {
    let width = width(io::stderr().is_terminal());
    // Programs get the lines as they are.
    let fitting = |line: &str| if line.width() > width { hanging(line, width) } else { format!("{line}\n") };
    let report: String = report.lines().map(fitting).collect();
    let _ = io::stderr().lock().write_all(report.as_bytes());
}

/// The width of the terminal. Without a terminal lines are not broken, since programs read them.
fn width(is_tty: bool) -> usize {
    let size = if is_tty { ratatui::crossterm::terminal::size().ok() } else { None };
    size.filter(|(width, _)| *width > 0).map_or(usize::MAX, |(width, _)| usize::from(width))
}

/// Colours are for terminals, unless NO_COLOR is set (no-color.org).
fn paint(is_tty: bool, no_color: Option<&OsStr>) -> Paint {
    if is_tty && no_color.is_none_or(OsStr::is_empty) { Paint::Coloured } else { Paint::Plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_without_no_color() {
        for (is_tty, no_color, expected) in [
            (true, None, Paint::Coloured),
            (true, Some(""), Paint::Coloured),
            (true, Some("1"), Paint::Plain),
            (false, None, Paint::Plain),
            (false, Some(""), Paint::Plain),
        ] {
            assert_eq!(paint(is_tty, no_color.map(OsStr::new)), expected, "{is_tty} {no_color:?}");
        }
    }
}
