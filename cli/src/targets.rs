//! Which records a command is about: those named, those selected, or all.

use muster_proto::key::Key;
use muster_proto::name::Namespace;
use muster_proto::record::Kind;
use muster_store_client::{ListOptions, Resource};

use crate::connection::{At, Namespaces, Store};
use crate::failure::{Exit, Failure};
use crate::kind::plural;
use crate::records::key;

/// A choice besides names.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct SelectionFlags {
    /// Those with these labels, such as `zone=a,tier in (x,y),!old`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,

    /// All there are, in the namespace if they have one
    #[arg(long, conflicts_with = "selector")]
    pub(crate) all: bool,
}

/// The records meant. At least one has to be named or selected by somebody: nothing is done to everything by
/// accident.
pub(crate) async fn keys<R: Resource>(
    store: &Store,
    names: &[String],
    selection: &SelectionFlags,
    namespaces: &Namespaces,
) -> Result<Vec<Key>, Failure> {
    let chosen = selection.all || selection.selector.is_some();
    match (names.is_empty(), chosen) {
        (false, false) => names.iter().map(|name| key(R::KIND, name, namespaces)).collect(),
        (true, true) => selected::<R>(store, selection, namespaces).await,
        (false, true) => Err(Failure::usage("names cannot be combined with --selector or --all")),
        (true, false) => Err(Failure::usage(format!("no {} are named", plural(R::KIND)))
            .hint("give names, --selector or --all")),
    }
}

async fn selected<R: Resource>(
    store: &Store,
    selection: &SelectionFlags,
    namespaces: &Namespaces,
) -> Result<Vec<Key>, Failure> {
    let namespace: Option<Namespace> = R::KIND.is_namespaced().then(|| namespaces.of(R::KIND));
    let label_selector = selection.selector.clone().unwrap_or_default();
    let options = ListOptions { namespace, label_selector, ..ListOptions::default() };
    let found = store.client.list::<R>(options).await.at(&store.peer)?;
    let keys: Vec<Key> = found.records.iter().map(Key::of).collect();
    if keys.is_empty() {
        return Err(Failure::new(Exit::NotFound, format!("no {} match", plural(R::KIND)))
            .hint(format!("`muster get {} --show-labels` shows what there is", plural(R::KIND))));
    }
    Ok(keys)
}

/// Takes words of the command line apart into names and what to do to them: changes have a `=` or a `:` or
/// end in `-`.
pub(crate) fn names_and_changes(words: &[String]) -> (Vec<String>, Vec<String>) {
    let is_change = |word: &&String| word.contains(['=', ':']) || word.ends_with('-');
    let changes: Vec<String> = words.iter().filter(is_change).cloned().collect();
    let names = words.iter().filter(|word| !is_change(word)).cloned().collect();
    (names, changes)
}

/// A kind with the names after it: `node a b`, `node/a node/b`.
pub(crate) fn strip_kind(
    kind: Kind,
    first: Option<&String>,
    names: &[String],
) -> Result<Vec<String>, Failure> {
    let mut stripped: Vec<String> = first.cloned().into_iter().collect();
    for name in names {
        match name.split_once('/') {
            None => stripped.push(name.clone()),
            Some((word, name)) if crate::kind::parse(word) == Ok(kind) => stripped.push(name.to_owned()),
            Some(_) => {
                let failure = Failure::usage(format!("`{name}` is not one of the {}", plural(kind)));
                return Err(failure.hint("one command is about one kind"));
            }
        }
    }
    Ok(stripped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn names_and_changes_are_told_apart() {
        for (given, names, changes) in [
            ("a b zone=x", "a b", "zone=x"),
            ("a zone- tier=", "a", "zone- tier="),
            ("a gpu=yes:NoSchedule gpu:NoExecute- gpu-", "a", "gpu=yes:NoSchedule gpu:NoExecute- gpu-"),
            ("10.0.0.1", "10.0.0.1", ""),
            ("", "", ""),
        ] {
            assert_eq!(names_and_changes(&words(given)), (words(names), words(changes)), "{given}");
        }
    }

    #[test]
    fn names_may_carry_their_kind() {
        let first = "a".to_owned();
        assert_eq!(strip_kind(Kind::Node, Some(&first), &words("node/b c")).unwrap(), words("a b c"));
        assert!(strip_kind(Kind::Node, None, &words("pod/b")).is_err());
    }
}
