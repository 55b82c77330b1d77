//! Why a command failed: the exit code for scripts, and the message and hint for people.

use std::fmt;
use std::process::ExitCode;

/// The meaning of the exit codes, as `muster --help` prints it.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  failed for a reason that has no code of its own
  2  the command line, the config file or a manifest is wrong
  3  a named record does not exist
  4  refused: not permitted, invalid, or not allowed at the moment
  5  conflict: the record exists already, was changed by another client, or has another uid
  6  the store, the controller or an agent cannot be reached or did not answer in time

The exit code of `muster exec` is that of its command, once it runs.";

/// The exit code of a command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Refused = 4,
    Conflict = 5,
    Unreachable = 6,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    One {
        exit: Exit,
        message: String,
        /// What to do next, if the message does not say it.
        hint: Option<String>,
    },
    /// Several parts of the command failed. The first one decides the exit code.
    Several(Vec<Failure>),
    /// The reader closed our standard output, as behind `| head`. This is not an error: the exit code is 0.
    Closed,
    /// `muster diff` found differences and has printed them: the exit code is 1, as that of `diff`.
    Differences,
    /// The command that `muster exec` ran has ended with this exit code, which is passed on.
    Exited(u8),
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl fmt::Display) -> Failure {
        Failure::One { exit, message: message.to_string(), hint: None }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    #[must_use]
    pub(crate) fn hint(mut self, text: impl fmt::Display) -> Failure {
        if let Failure::One { hint, .. } = &mut self {
            *hint = Some(text.to_string());
        }
        self
    }

    /// The same failure with its subject, such as a file or a record, at the start of the message.
    #[must_use]
    pub(crate) fn about(mut self, subject: impl fmt::Display) -> Failure {
        if let Failure::One { message, .. } = &mut self {
            *message = format!("{subject}: {message}");
        }
        self
    }

    /// The message and the hint, for what has a place of its own for them; those of the first of several failures.
    pub(crate) fn into_text(self) -> (String, Option<String>) {
        match self {
            Failure::One { message, hint, .. } => (message, hint),
            Failure::Several(failures) => match failures.into_iter().next() {
                Some(first) => first.into_text(),
                None => (String::new(), None),
            },
            Failure::Closed | Failure::Differences | Failure::Exited(_) => (String::new(), None),
        }
    }

    pub(crate) fn exit(&self) -> Option<Exit> {
        match self {
            Failure::One { exit, .. } => Some(*exit),
            Failure::Several(failures) => failures.first().and_then(Failure::exit),
            Failure::Closed => None,
            Failure::Differences | Failure::Exited(_) => Some(Exit::Failed),
        }
    }

    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Failure::Exited(code) => ExitCode::from(*code),
            other => other.exit().map_or(ExitCode::SUCCESS, |exit| ExitCode::from(exit as u8)),
        }
    }

    /// The text to print: a line for each message and each hint. Equal hints in a row are printed once.
    pub(crate) fn report(&self, command: &str) -> String {
        let mut report = String::new();
        let mut last = None;
        self.write(command, &mut report, &mut last);
        report
    }

    fn write<'a>(&'a self, command: &str, report: &mut String, last: &mut Option<&'a str>) {
        match self {
            Failure::One { exit, message, hint } => {
                report.push_str(&format!("muster {command}: {message}\n"));
                match hint.as_deref() {
                    Some(hint) if *last != Some(hint) => {
                        report.push_str(&format!("hint: {hint}\n"));
                        *last = Some(hint);
                    }
                    None if *exit == Exit::Usage => {
                        report.push_str(&format!("hint: `muster {command} --help` shows the usage\n"));
                    }
                    _ => {}
                }
            }
            Failure::Several(failures) => {
                for failure in failures {
                    failure.write(command, report, last);
                }
            }
            Failure::Closed | Failure::Differences | Failure::Exited(_) => {}
        }
    }
}

/// Collects the failures of a command that acts on several things and continues after a failure.
#[derive(Debug, Default)]
pub(crate) struct Failures(Vec<Failure>);

impl Failures {
    /// Returns the value, or keeps the failure for [`finish`](Self::finish) and returns `None`. An unreachable server
    /// or a closed output is returned as an error, because it makes the rest of the command pointless.
    pub(crate) fn keep<T>(&mut self, result: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(failure @ Failure::Closed) => Err(failure),
            Err(failure) if failure.exit() == Some(Exit::Unreachable) => Err(failure),
            Err(failure) => {
                self.0.push(failure);
                Ok(None)
            }
        }
    }

    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        match self.0.len() {
            0 => Ok(()),
            1 => Err(self.0.remove(0)),
            _ => Err(Failure::Several(self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_failures_are_reported_and_the_first_one_decides_the_exit_code() {
        let gone = |name: &str| {
            let failure = Failure::new(Exit::NotFound, format!("node/{name} does not exist"));
            failure.hint("`muster get nodes` lists the nodes")
        };
        let mut failures = Failures::default();
        assert!(failures.keep(Ok(1)).unwrap().is_some());
        for failure in [gone("a"), gone("b"), Failure::new(Exit::Refused, "no")] {
            assert!(failures.keep::<()>(Err(failure)).unwrap().is_none());
        }
        let failure = failures.finish().unwrap_err();
        assert_eq!(failure.exit(), Some(Exit::NotFound));
        assert_eq!(
            failure.report("get"),
            "muster get: node/a does not exist\nhint: `muster get nodes` lists the nodes\n\
             muster get: node/b does not exist\nmuster get: no\n"
        );
    }

    #[test]
    fn an_unreachable_store_or_closed_output_ends_the_command_at_once() {
        let mut failures = Failures::default();
        assert!(failures.keep::<()>(Err(Failure::new(Exit::Unreachable, "gone"))).is_err());
        assert!(failures.keep::<()>(Err(Failure::Closed)).is_err());
    }

    #[test]
    fn every_exit_code_is_in_the_help_text() {
        for exit in
            [Exit::Failed, Exit::Usage, Exit::NotFound, Exit::Refused, Exit::Conflict, Exit::Unreachable]
        {
            assert!(EXIT_CODES.contains(&format!("\n  {}  ", exit as u8)), "{exit:?}");
        }
    }
}
