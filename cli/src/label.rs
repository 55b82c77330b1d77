//! `muster label`: sets and removes labels of records.

use muster_proto::label::{Labels, check_label_key, check_label_value};
use muster_proto::record::Record;
use muster_store_client::Stored;

use crate::connection::{ConnectionFlags, NamespaceFlags, Namespaces, Store};
use crate::failure::{Exit, Failure};
use crate::kind::{Target, for_stored};
use crate::records::{change_each, events_are_read_only};
use crate::targets::{SelectionFlags, names_and_changes, strip_kind, target_keys};

/// Sets or removes labels of records
///
/// KEY=VALUE sets a label, KEY- removes it: `muster label node a zone=x old-`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Kind of the records, or KIND/NAME
    #[arg(value_name = "KIND")]
    target: Target,

    /// Names of the records, and changes to their labels
    #[arg(value_name = "NAME|CHANGE", required = true)]
    words: Vec<String>,

    #[command(flatten)]
    selection: SelectionFlags,

    /// Replace the values of existing labels
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
    let connection = flags.connection.resolve()?;
    let (store, namespaces) = (connection.store()?, connection.namespaces(&flags.namespace));
    for_stored!(
        flags.target.kind,
        label(&store, &names, &changes, &flags, &namespaces),
        else Err(events_are_read_only())
    )
}

async fn label<R: Stored>(
    store: &Store,
    names: &[String],
    changes: &[LabelChange],
    flags: &Flags,
    namespaces: &Namespaces,
) -> Result<(), Failure> {
    let keys = target_keys::<R>(store, names, &flags.selection, namespaces).await?;
    let edit = |record: &mut R| change_labels(&mut Record::meta_mut(record).labels, changes, flags.overwrite);
    change_each(store, &keys, "labeled", edit).await
}

const SYNTAX: &str = "KEY=VALUE sets a label, KEY- removes it";

fn parse(changes: &[String]) -> Result<Vec<LabelChange>, Failure> {
    if changes.is_empty() {
        return Err(Failure::usage("no change is given").hint(SYNTAX));
    }
    changes.iter().map(|text| parse_one(text)).collect()
}

fn parse_one(text: &str) -> Result<LabelChange, Failure> {
    let wrong = |reason: String| Failure::usage(format!("`{text}` is not a change: {reason}")).hint(SYNTAX);
    let (key, change) = match text.split_once('=') {
        Some((key, value)) => {
            check_label_value(value).map_err(|error| wrong(format!("the value {error}")))?;
            (key, LabelChange::Set { key: key.to_owned(), value: value.to_owned() })
        }
        None => match text.strip_suffix('-') {
            Some(key) => (key, LabelChange::Remove { key: key.to_owned() }),
            None => return Err(wrong("it neither sets nor removes a label".to_owned())),
        },
    };
    check_label_key(key).map_err(|error| wrong(format!("the key {error}")))?;
    Ok(change)
}

/// Makes all the changes, or none of them.
fn change_labels(labels: &mut Labels, changes: &[LabelChange], overwrite: bool) -> Result<(), Failure> {
    for change in changes {
        if let LabelChange::Set { key, value } = change
            && let Some(held) = labels.get(key)
            && held != value
            && !overwrite
        {
            let failure = Failure::new(Exit::Refused, format!("label {key} is already {held}"));
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

    fn changed_labels(held: &str, changes: &str, overwrite: bool) -> Result<String, String> {
        let pairs = held.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        let mut labels: Labels = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let changes: Vec<String> = changes.split_whitespace().map(str::to_owned).collect();
        let report = |failure: Failure| failure.report("label");
        let changes = parse(&changes).map_err(report)?;
        change_labels(&mut labels, &changes, overwrite).map_err(report)?;
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
            assert_eq!(changed_labels(held, changes, overwrite).as_deref(), Ok(expected), "{changes}");
        }
    }

    #[test]
    fn a_wrong_change_is_refused_with_a_hint() {
        for (held, changes, expected) in [
            ("a=1", "b=2 a=2", "label a is already 1"),
            ("", "", "no change is given"),
            ("", "a", "neither sets nor removes"),
            ("", "=x", "the key"),
            ("", "a/b/c-", "the key"),
            ("", "a=-", "the value"),
        ] {
            let refused = changed_labels(held, changes, false).unwrap_err();
            assert!(refused.contains(expected) && refused.contains("\nhint: "), "{refused}");
        }
    }
}
