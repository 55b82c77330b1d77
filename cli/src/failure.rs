//! Why a command failed: what its exit code tells a script, and what a person can do next.

use std::fmt;
use std::process::ExitCode;

/// What `muster --help` promises about exit codes.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed in a way that has no code of its own
  2  the command line, the config file or a manifest cannot be understood
  3  a record that was named does not exist
  4  refused: not permitted, against a rule, or not allowed now
  5  conflict: it exists already, changed meanwhile, or is another record of that name
  6  the store or the controller cannot be reached, or did not answer in time";

/// How a command ended, as scripts see it.
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

/// What ended a command before it was done.
#[derive(Debug)]
pub(crate) enum Failure {
    One {
        exit: Exit,
        message: String,
        /// What to do next, where the message does not say so itself.
        hint: Option<String>,
    },
    /// Several things were asked for, and these went wrong; the first decides on the exit code.
    Several(Vec<Failure>),
    /// Nobody reads our output any more, as behind `| head`: no failure at all.
    Closed,
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

    /// The same failure, saying first what it is about.
    #[must_use]
    pub(crate) fn about(mut self, subject: impl fmt::Display) -> Failure {
        if let Failure::One { message, .. } = &mut self {
            *message = format!("{subject}: {message}");
        }
        self
    }

    pub(crate) fn exit(&self) -> Option<Exit> {
        match self {
            Failure::One { exit, .. } => Some(*exit),
            Failure::Several(failures) => failures.first().and_then(Failure::exit),
            Failure::Closed => None,
        }
    }

    pub(crate) fn code(&self) -> ExitCode {
        self.exit().map_or(ExitCode::SUCCESS, |exit| ExitCode::from(exit as u8))
    }

    /// What to print, a line for each message and each hint. A hint that was just given is not repeated.
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
                        report.push_str(&format!("hint: `muster {command} --help` says how\n"));
                    }
                    _ => {}
                }
            }
            Failure::Several(failures) => {
                for failure in failures {
                    failure.write(command, report, last);
                }
            }
            Failure::Closed => {}
        }
    }
}

/// Goes on after a failure and remembers it, for commands that are asked for several things.
#[derive(Debug, Default)]
pub(crate) struct Failures(Vec<Failure>);

impl Failures {
    /// The value, or nothing and a failure to report at the end. What makes going on pointless ends it here.
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
    fn several_failures_are_all_reported_and_the_first_decides_on_the_code() {
        let gone = |name: &str| {
            let failure = Failure::new(Exit::NotFound, format!("node/{name} does not exist"));
            failure.hint("`muster get nodes` lists what there is")
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
            "muster get: node/a does not exist\nhint: `muster get nodes` lists what there is\n\
             muster get: node/b does not exist\nmuster get: no\n"
        );
    }

    #[test]
    fn a_store_that_is_gone_ends_it_at_once() {
        let mut failures = Failures::default();
        assert!(failures.keep::<()>(Err(Failure::new(Exit::Unreachable, "gone"))).is_err());
        assert!(failures.keep::<()>(Err(Failure::Closed)).is_err());
    }

    #[test]
    fn every_code_is_explained_to_the_user() {
        for exit in
            [Exit::Failed, Exit::Usage, Exit::NotFound, Exit::Refused, Exit::Conflict, Exit::Unreachable]
        {
            assert!(EXIT_CODES.contains(&format!("\n  {}  ", exit as u8)), "{exit:?}");
        }
    }
}
