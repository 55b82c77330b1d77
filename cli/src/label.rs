//! `muster label` and `muster annotate`: set and remove labels and annotations of records.

use std::collections::BTreeMap;

use muster_proto::label::{check_label_key, check_label_value};
use muster_proto::record::Record;
use muster_store_client::Stored;

use crate::completion;
use crate::connection::{ConnectionFlags, NamespaceFlags, Namespaces, Store};
use crate::dry_run::DryRunFlags;
use crate::failure::{Exit, Failure};
use crate::kind::{Target, for_stored};
use crate::records::{change_each, not_writable};
use crate::targets::{SelectionFlags, names_and_changes, strip_kind, target_keys};

/// The flags of both commands.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Kind of the records, or KIND/NAME
    #[arg(value_name = "KIND", add = completion::kinds())]
    target: Target,

    /// Names of the records, and changes: KEY=VALUE sets, KEY- removes
    #[arg(value_name = "NAME|CHANGE", required = true, add = completion::names())]
    words: Vec<String>,

    #[command(flatten)]
    selection: SelectionFlags,

    /// Replace existing values
    #[arg(long)]
    overwrite: bool,

    #[command(flatten)]
    dry_run: DryRunFlags,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// Which map of the metadata a command changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Map {
    Labels,
    Annotations,
}

impl Map {
    /// The name of one entry.
    fn noun(self) -> &'static str {
        match self {
            Map::Labels => "label",
            Map::Annotations => "annotation",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Map::Labels => "labeled",
            Map::Annotations => "annotated",
        }
    }

    fn of<R: Record>(self, record: &mut R) -> &mut BTreeMap<String, String> {
        match self {
            Map::Labels => &mut record.meta_mut().labels,
            Map::Annotations => &mut record.meta_mut().annotations,
        }
    }
}

/// One change to a map.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Set { key: String, value: String },
    Remove { key: String },
}

pub(crate) async fn label(flags: Flags) -> Result<(), Failure> {
    run(&flags, Map::Labels).await
}

pub(crate) async fn annotate(flags: Flags) -> Result<(), Failure> {
    run(&flags, Map::Annotations).await
}

async fn run(flags: &Flags, map: Map) -> Result<(), Failure> {
    let (names, changes) = names_and_changes(&flags.words);
    let changes = parse(map, &changes)?;
    let names = strip_kind(flags.target.kind, flags.target.name.as_ref(), &names)?;
    let connection = flags.connection.resolve()?;
    let (store, namespaces) = (connection.store()?, connection.namespaces(&flags.namespace));
    for_stored!(
        flags.target.kind,
        change_records(&store, &names, map, &changes, flags, &namespaces),
        else Err(not_writable(flags.target.kind))
    )
}

async fn change_records<R: Stored>(
    store: &Store,
    names: &[String],
    map: Map,
    changes: &[Change],
    flags: &Flags,
    namespaces: &Namespaces,
) -> Result<(), Failure> {
    let keys = target_keys::<R>(store, names, &flags.selection, namespaces).await?;
    let edit = |record: &mut R| apply(map, map.of(record), changes, flags.overwrite);
    change_each(store, &keys, map.done(), flags.dry_run, edit).await
}

fn parse(map: Map, changes: &[String]) -> Result<Vec<Change>, Failure> {
    if changes.is_empty() {
        return Err(Failure::usage("no change is given").hint(syntax(map)));
    }
    changes.iter().map(|text| parse_one(map, text)).collect()
}

fn syntax(map: Map) -> String {
    format!("KEY=VALUE sets the {}, KEY- removes it", map.noun())
}

fn parse_one(map: Map, text: &str) -> Result<Change, Failure> {
    let wrong =
        |reason: String| Failure::usage(format!("`{text}` is not a change: {reason}")).hint(syntax(map));
    let (key, change) = match text.split_once('=') {
        Some((key, value)) => {
            if map == Map::Labels {
                check_label_value(value).map_err(|error| wrong(format!("the value {error}")))?;
            }
            (key, Change::Set { key: key.to_owned(), value: value.to_owned() })
        }
        None => match text.strip_suffix('-') {
            Some(key) => (key, Change::Remove { key: key.to_owned() }),
            None => return Err(wrong(format!("it neither sets nor removes the {}", map.noun()))),
        },
    };
    // Keys of annotations have the syntax of labels' keys.
    check_label_key(key).map_err(|error| wrong(format!("the key {error}")))?;
    Ok(change)
}

/// Makes all the changes, or none of them.
fn apply(
    map: Map,
    entries: &mut BTreeMap<String, String>,
    changes: &[Change],
    overwrite: bool,
) -> Result<(), Failure> {
    for change in changes {
        if let Change::Set { key, value } = change
            && let Some(held) = entries.get(key)
            && held != value
            && !overwrite
        {
            let message = format!("{} {key} is already {held}", map.noun());
            return Err(Failure::new(Exit::Refused, message).hint("--overwrite replaces it"));
        }
    }
    for change in changes {
        match change {
            Change::Set { key, value } => drop(entries.insert(key.clone(), value.clone())),
            Change::Remove { key } => drop(entries.remove(key)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(map: Map, held: &str, changes: &[&str], overwrite: bool) -> Result<String, String> {
        let pairs = held.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        let mut entries: BTreeMap<String, String> =
            pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let changes: Vec<String> = changes.iter().map(|text| (*text).to_owned()).collect();
        let report = |failure: Failure| failure.report("label");
        let changes = parse(map, &changes).map_err(report)?;
        apply(map, &mut entries, &changes, overwrite).map_err(report)?;
        let pairs: Vec<String> = entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Ok(pairs.join(" "))
    }

    #[test]
    fn entries_are_set_and_removed() {
        for (held, changes, overwrite, expected) in [
            ("a=1", vec!["b=2"], false, "a=1 b=2"),
            ("a=1 b=2", vec!["a-", "c-"], false, "b=2"),
            ("a=1", vec!["a=1"], false, "a=1"),
            ("a=1", vec!["a=2"], true, "a=2"),
            ("", vec!["example.com/a="], false, "example.com/a="),
        ] {
            for map in [Map::Labels, Map::Annotations] {
                assert_eq!(changed(map, held, &changes, overwrite).as_deref(), Ok(expected), "{changes:?}");
            }
        }
        let note = changed(Map::Annotations, "", &["note=fans: new, since = May"], false);
        assert_eq!(note.as_deref(), Ok("note=fans: new, since = May"), "an annotation may be any text");
    }

    #[test]
    fn a_wrong_change_is_refused_with_a_hint() {
        for (held, changes, expected) in [
            ("a=1", vec!["b=2", "a=2"], "label a is already 1"),
            ("", vec![], "no change is given"),
            ("", vec!["a"], "neither sets nor removes"),
            ("", vec!["=x"], "the key"),
            ("", vec!["a/b/c-"], "the key"),
            ("", vec!["a=-"], "the value"),
        ] {
            let refused = changed(Map::Labels, held, &changes, false).unwrap_err();
            assert!(refused.contains(expected) && refused.contains("\nhint: "), "{refused}");
        }
    }
}
