//! The person in front of us, or the program behind a pipe.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};

use crate::failure::{Exit, Failure};
use crate::print::Paint;

/// Where a command's answer goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    /// Whether a person is watching, so that a picture may be drawn over the last one.
    pub(crate) live: bool,
    pub(crate) paint: Paint,
}

impl Terminal {
    pub(crate) fn stdout() -> Terminal {
        let live = io::stdout().is_terminal();
        Terminal { live, paint: paint(live, std::env::var_os("NO_COLOR").as_deref()) }
    }

    /// Says it at once.
    pub(crate) fn say(self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::new(Exit::Failed, format!("cannot write the answer: {error}")).hint(
                "what was to be done may be done: look before you repeat it, and see where the output goes",
            ),
        })
    }

    /// Shows a picture in the place of the one before, or after it where there is no screen.
    pub(crate) fn show(self, picture: &str, first: bool) -> Result<(), Failure> {
        // Home, the picture, and away with what is left of the old one: it does not flicker.
        match (self.live, first) {
            (true, _) => {
                let lines = picture.replace('\n', "\x1b[K\n");
                self.say(&format!("{}{lines}\x1b[J", if first { "\x1b[2J\x1b[H" } else { "\x1b[H" }))
            }
            (false, true) => self.say(picture),
            (false, false) => self.say(&format!("\n{picture}")),
        }
    }
}

/// Says something beside the answer, to whoever reads errors.
pub(crate) fn aside(text: impl std::fmt::Display) {
    // If nobody does, the answer still counts.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Says why a command failed. Its exit code says so too, whether anybody reads this or not.
pub(crate) fn complain(report: &str) {
    let _ = io::stderr().lock().write_all(report.as_bytes());
}

/// Colours are for terminals, unless their owner wants none (no-color.org).
fn paint(live: bool, no_color: Option<&OsStr>) -> Paint {
    if live && no_color.is_none_or(OsStr::is_empty) { Paint::Coloured } else { Paint::Plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_whose_owner_wants_them() {
        for (live, no_color, expected) in [
            (true, None, Paint::Coloured),
            (true, Some(""), Paint::Coloured),
            (true, Some("1"), Paint::Plain),
            (false, None, Paint::Plain),
            (false, Some(""), Paint::Plain),
        ] {
            assert_eq!(paint(live, no_color.map(OsStr::new)), expected, "{live} {no_color:?}");
        }
    }
}
