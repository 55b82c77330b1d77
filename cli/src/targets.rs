//! Which records a command is about: named on the command line, selected by labels, or all.

use muster_proto::key::Key;
use muster_proto::name::Namespace;
use muster_proto::record::Kind;
use muster_store_client::{ListOptions, Resource};

use crate::completion;
use crate::connection::{Namespaces, OrFailure, Store};
use crate::failure::{Exit, Failure};
use crate::kind::{Target, plural, singular};
use crate::records::key;

/// Selects records without naming them.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct SelectionFlags {
    /// Select records by labels, such as `zone=a,tier in (x,y),!old`
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,

    /// Select all records of the kind, in the namespace if the kind has namespaces
    #[arg(long, conflicts_with = "selector")]
    pub(crate) all: bool,
}

/// The kind and names of a command that shows records one by one.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ShownFlags {
    /// node, pod or another kind that the command shows, or KIND/NAME
    #[arg(value_name = "KIND", add = completion::kinds())]
    target: Target,

    /// Names of records
    #[arg(value_name = "NAME", add = completion::names())]
    names: Vec<String>,
}

impl ShownFlags {
    pub(crate) fn kind(&self) -> Kind {
        self.target.kind
    }

    /// The names, at least one. The kind must be one of `shown`.
    pub(crate) fn names(&self, shown: &[Kind]) -> Result<Vec<String>, Failure> {
        let Target { kind, name } = &self.target;
        if !shown.contains(kind) {
            let (last, others) = shown.split_last().expect("a command shows records of some kind");
            let others: Vec<&str> = others.iter().map(|kind| plural(*kind)).collect();
            let shown = format!("{} and {}", others.join(", "), plural(*last));
            let failure = Failure::usage(format!("only {shown} are supported, not {}", plural(*kind)));
            let hint = format!("`muster get {} NAME -o yaml` shows the whole record", singular(*kind));
            return Err(failure.hint(hint));
        }
        let names = strip_kind(*kind, name.as_ref(), &self.names)?;
        if names.is_empty() {
            let failure = Failure::usage(format!("the name of a {} is missing", singular(*kind)));
            return Err(failure.hint(format!("`muster get {}` lists the names", plural(*kind))));
        }
        Ok(names)
    }
}

/// The keys of the records that a command changes. No names and no selection is an error, so that no command changes
/// all records by accident.
pub(crate) async fn target_keys<R: Resource>(
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
        (true, false) => Err(Failure::usage(format!("no {} are given", plural(R::KIND)))
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
    let found = store.client.list::<R>(options).await.or_failure(&store.peer)?;
    let keys: Vec<Key> = found.records.iter().map(Key::of).collect();
    if keys.is_empty() {
        return Err(Failure::new(Exit::NotFound, format!("no {} match", plural(R::KIND)))
            .hint(format!("`muster get {} --show-labels` shows the labels", plural(R::KIND))));
    }
    Ok(keys)
}

/// Splits the words of the command line into names and changes. A change contains `=` or `:` or ends in `-`.
pub(crate) fn names_and_changes(words: &[String]) -> (Vec<String>, Vec<String>) {
    let is_change = |word: &&String| word.contains(['=', ':']) || word.ends_with('-');
    let changes: Vec<String> = words.iter().filter(is_change).cloned().collect();
    let names = words.iter().filter(|word| !is_change(word)).cloned().collect();
    (names, changes)
}

/// The names without their kind: `a` and `b` for `node a b` and for `node/a node/b`.
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
                let failure = Failure::usage(format!("`{name}` does not name one of the {}", plural(kind)));
                return Err(failure.hint("all names of a command must have the same kind"));
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
    fn words_are_split_into_names_and_changes() {
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
    fn a_name_may_have_its_kind_as_prefix() {
        let first = "a".to_owned();
        assert_eq!(strip_kind(Kind::Node, Some(&first), &words("node/b c")).unwrap(), words("a b c"));
        assert!(strip_kind(Kind::Node, None, &words("pod/b")).is_err());
    }
}
