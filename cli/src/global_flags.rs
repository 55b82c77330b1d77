//! Flags before the command: `muster --context lab get nodes` is `muster get --context lab nodes`, as in kubectl.
//!
//! Each command has the flags that it uses, so that its help shows those and no others. This moves the flags of the
//! connection and the namespace behind the command before the arguments are parsed.

use std::ffi::{OsStr, OsString};

use clap::{Args, Command};

use crate::connection::{ConnectionFlags, NamespaceFlags};

/// The arguments with the flags before the command moved behind it.
pub(crate) fn behind_the_command(
    arguments: impl IntoIterator<Item = OsString>,
    commands: &Command,
) -> Vec<OsString> {
    let mut arguments = arguments.into_iter();
    let mut moved: Vec<OsString> = arguments.by_ref().take(1).collect();
    let known = NamespaceFlags::augment_args(ConnectionFlags::augment_args(Command::new("muster")));
    let (mut flags, mut rest) = (Vec::new(), arguments.peekable());
    while let Some(argument) = rest.next_if(|argument| takes_value(argument, &known).is_some()) {
        let needs_next = takes_value(&argument, &known) == Some(Value::Next);
        flags.push(argument);
        if needs_next {
            flags.extend(rest.next());
        }
    }
    let mut current = commands;
    while let Some(inner) = rest.peek().and_then(|word| current.find_subcommand(word)) {
        current = inner;
        moved.extend(rest.next());
    }
    moved.extend(flags);
    moved.extend(rest);
    moved
}

/// Where the value of a flag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// In the same argument: `--store=URL`, `-nNAME`.
    Same,
    /// The next argument.
    Next,
}

/// Where the value of a known flag is; `None` for everything else.
fn takes_value(argument: &OsStr, known: &Command) -> Option<Value> {
    let text = argument.to_str()?;
    if let Some(long) = text.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, _)) => (name, Value::Same),
            None => (long, Value::Next),
        };
        return known.get_arguments().any(|flag| flag.get_long() == Some(name)).then_some(value);
    }
    let mut letters = text.strip_prefix('-')?.chars();
    let letter = letters.next()?;
    let value = if letters.next().is_some() { Value::Same } else { Value::Next };
    known.get_arguments().any(|flag| flag.get_short() == Some(letter)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::CommandFactory;

    #[test]
    fn flags_before_the_command_are_moved_behind_it() {
        for (given, expected) in [
            ("muster get nodes", "muster get nodes"),
            ("muster --context lab get nodes", "muster get --context lab nodes"),
            ("muster -n shop --store=http://a get pods -A", "muster get -n shop --store=http://a pods -A"),
            ("muster -nshop get pods", "muster get -nshop pods"),
            ("muster --store a config set-context lab", "muster config set-context --store a lab"),
            ("muster --help", "muster --help"),
            ("muster --version", "muster --version"),
            ("muster --nix get", "muster --nix get"),
            ("muster --context", "muster --context"),
            ("muster", "muster"),
        ] {
            let arguments = given.split_whitespace().map(OsString::from);
            let moved: Vec<String> = behind_the_command(arguments, &Arguments::command())
                .into_iter()
                .map(|argument| argument.into_string().unwrap())
                .collect();
            assert_eq!(moved.join(" "), expected, "{given}");
        }
    }
}
