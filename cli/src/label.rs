//! `muster label`: sets and removes labels.

use muster_proto::key::Key;
use muster_proto::label::{Labels, check_label_key, check_label_value};
use muster_proto::record::Record;
use muster_store_client::Stored;

use crate::connection::{ConnectionFlags, NamespaceFlags, Namespaces, Store};
use crate::failure::{Exit, Failure, Failures};
use crate::kind::{Target, for_stored};
use crate::records::{Changed, change, spoken};
use crate::targets::{SelectionFlags, keys, names_and_changes, strip_kind};
use crate::terminal::Terminal;

/// Sets labels of records, or removes them
///
/// A change is KEY=VALUE to set a label, or KEY- to remove it: `muster label node a zone=x old-`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Kind of the records, or KIND/NAME
    #[arg(value_name = "KIND")]
    target: Target,

    /// Names of records, and changes to their labels
    #[arg(value_name = "NAME|CHANGE", required = true)]
    words: Vec<String>,

    #[command(flatten)]
    selection: SelectionFlags,

    /// Replace values that are there
    #[arg(long)]
    overwrite: bool,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// One change to a record's labels.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LabelChange {
    Set { key: String, value: String },
    Remove { key: String },
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let (names, changes) = names_and_changes(&flags.words);
    let changes = parse(&changes)?;
    let names = strip_kind(flags.target.kind, flags.target.name.as_ref(), &names)?;
    let connection = flags.connection.settle()?;
    let (store, namespaces) = (connection.store()?, connection.namespaces(&flags.namespace));
    for_stored!(
        flags.target.kind,
        label(&store, &names, &changes, &flags, &namespaces),
        else Err(crate::records::events_are_recorded())
    )
}

async fn label<R: Stored>(
    store: &Store,
    names: &[String],
    changes: &[LabelChange],
    flags: &Flags,
    namespaces: &Namespaces,
) -> Result<(), Failure> {
    let mut failures = Failures::default();
    for key in keys::<R>(store, names, &flags.selection, namespaces).await? {
        let changed = label_one::<R>(store, &key, changes, flags.overwrite).await;
        if let Some(line) = failures.keep(changed)? {
            Terminal::stdout().say(&line)?;
        }
    }
    failures.finish()
}

async fn label_one<R: Stored>(
    store: &Store,
    key: &Key,
    changes: &[LabelChange],
    overwrite: bool,
) -> Result<String, Failure> {
    let what = spoken(R::KIND, key);
    let edit = |record: &mut R| {
        relabel(&mut Record::meta_mut(record).labels, changes, overwrite)
            .map_err(|failure| failure.about(&what))
    };
    Ok(match change(store, key, edit).await? {
        Changed::Yes => format!("{what} labeled\n"),
        Changed::No => format!("{what} not labeled: it is so already\n"),
    })
}

fn parse(changes: &[String]) -> Result<Vec<LabelChange>, Failure> {
    if changes.is_empty() {
        return Err(Failure::usage("no change is named").hint("KEY=VALUE sets a label, KEY- removes it"));
    }
    changes.iter().map(|text| parse_one(text)).collect()
}

fn parse_one(text: &str) -> Result<LabelChange, Failure> {
    let wrong = |reason: String| {
        Failure::usage(format!("`{text}` is no change: {reason}"))
            .hint("KEY=VALUE sets a label, KEY- removes it")
    };
    let (key, change) = match text.split_once('=') {
        Some((key, value)) => {
            check_label_value(value).map_err(|error| wrong(format!("the value {error}")))?;
            (key, LabelChange::Set { key: key.to_owned(), value: value.to_owned() })
        }
        None => match text.strip_suffix('-') {
            Some(key) => (key, LabelChange::Remove { key: key.to_owned() }),
            None => return Err(wrong("it neither sets nor removes".to_owned())),
        },
    };
    check_label_key(key).map_err(|error| wrong(format!("the key {error}")))?;
    Ok(change)
}

/// Makes the changes, all or none.
fn relabel(labels: &mut Labels, changes: &[LabelChange], overwrite: bool) -> Result<(), Failure> {
    for change in changes {
        if let LabelChange::Set { key, value } = change
            && let Some(held) = labels.get(key)
            && held != value
            && !overwrite
        {
            let failure = Failure::new(Exit::Refused, format!("label {key} is {held} already"));
            return Err(failure.hint("--overwrite replaces it"));
        }
    }
    for change in changes {
        match change {
            LabelChange::Set { key, value } => drop(labels.insert(key.clone(), value.clone())),
            LabelChange::Remove { key } => drop(labels.remove(key)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relabelled(held: &str, changes: &str, overwrite: bool) -> Result<String, String> {
        let pairs = held.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        let mut labels: Labels = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let changes: Vec<String> = changes.split_whitespace().map(str::to_owned).collect();
        let report = |failure: Failure| failure.report("label");
        let changes = parse(&changes).map_err(report)?;
        relabel(&mut labels, &changes, overwrite).map_err(report)?;
        let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Ok(pairs.join(" "))
    }

    #[test]
    fn labels_are_set_and_removed() {
        for (held, changes, overwrite, expected) in [
            ("a=1", "b=2", false, "a=1 b=2"),
            ("a=1 b=2", "a- c-", false, "b=2"),
            ("a=1", "a=1", false, "a=1"),
            ("a=1", "a=2", true, "a=2"),
            ("", "example.com/a=", false, "example.com/a="),
        ] {
            assert_eq!(relabelled(held, changes, overwrite).as_deref(), Ok(expected), "{changes}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_a_way_out() {
        for (held, changes, said) in [
            ("a=1", "b=2 a=2", "label a is 1 already"),
            ("", "", "no change is named"),
            ("", "a", "neither sets nor removes"),
            ("", "=x", "the key"),
            ("", "a/b/c-", "the key"),
            ("", "a=-", "the value"),
        ] {
            let refused = relabelled(held, changes, false).unwrap_err();
            assert!(refused.contains(said) && refused.contains("\nhint: "), "{refused}");
        }
    }
}
