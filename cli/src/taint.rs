//! `muster taint`: adds and removes taints of nodes.

use jiff::Timestamp;
use muster_proto::label::check_label_key;
use muster_proto::node::Node;
use muster_proto::record::Kind;
use muster_proto::taint::{Taint, TaintEffect, add_or_update};
use muster_rpc::clock::{Clock, SystemClock};

use crate::completion;
use crate::connection::{ConnectionFlags, NamespaceFlags};
use crate::dry_run::DryRunFlags;
use crate::failure::{Exit, Failure};
use crate::kind::{Target, plural};
use crate::records::change_each;
use crate::targets::{SelectionFlags, names_and_changes, strip_kind, target_keys};

/// Adds taints to nodes, or removes them
///
/// KEY=VALUE:EFFECT or KEY:EFFECT adds a taint, KEY:EFFECT- or KEY- removes it. Effects are NoSchedule,
/// PreferNoSchedule and NoExecute. Example: `muster taint node a gpu=yes:NoSchedule old-`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// node, or node/NAME
    #[arg(value_name = "KIND", add = completion::kinds())]
    target: Target,

    /// Names of the nodes, and changes to their taints
    #[arg(value_name = "NAME|CHANGE", required = true, add = completion::names())]
    words: Vec<String>,

    #[command(flatten)]
    selection: SelectionFlags,

    #[command(flatten)]
    dry_run: DryRunFlags,

    /// Replace the values of existing taints that have the same key and effect
    #[arg(long)]
    overwrite: bool,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// One change to a node's taints.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TaintChange {
    Add(Taint),
    /// `None` removes the taints of all effects.
    Remove {
        key: String,
        effect: Option<TaintEffect>,
    },
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    if flags.target.kind != Kind::Node {
        let failure = Failure::usage(format!("only nodes have taints, not {}", plural(flags.target.kind)));
        return Err(failure.hint("muster taint node NAME CHANGE"));
    }
    let (names, changes) = names_and_changes(&flags.words);
    let changes = parse(&changes)?;
    let names = strip_kind(Kind::Node, flags.target.name.as_ref(), &names)?;
    let connection = flags.connection.resolve()?;
    let (store, namespaces) = (connection.store()?, connection.namespaces(&NamespaceFlags::default()));
    let now = SystemClock::new().wall();
    let keys = target_keys::<Node>(&store, &names, &flags.selection, &namespaces).await?;
    let edit = |node: &mut Node| change_taints(&mut node.spec.taints, &changes, flags.overwrite, now);
    change_each(&store, &keys, done(&changes), flags.dry_run, edit).await
}

/// What the changes do to a node, in kubectl's words.
fn done(changes: &[TaintChange]) -> &'static str {
    let is_removal = |change: &TaintChange| matches!(change, TaintChange::Remove { .. });
    match (changes.iter().any(is_removal), changes.iter().all(is_removal)) {
        (false, _) => "tainted",
        (true, true) => "untainted",
        (true, false) => "modified",
    }
}

const SYNTAX: &str = "KEY=VALUE:EFFECT or KEY:EFFECT adds a taint, KEY:EFFECT- or KEY- removes it; effects are \
                      NoSchedule, PreferNoSchedule and NoExecute";

fn parse(changes: &[String]) -> Result<Vec<TaintChange>, Failure> {
    if changes.is_empty() {
        return Err(Failure::usage("no change is given").hint(SYNTAX));
    }
    changes.iter().map(|text| parse_one(text)).collect()
}

fn parse_one(text: &str) -> Result<TaintChange, Failure> {
    let wrong =
        |reason: String| Failure::usage(format!("`{text}` is not a change: it {reason}")).hint(SYNTAX);
    let Some(removed) = text.strip_suffix('-') else {
        return text.parse().map(TaintChange::Add).map_err(|error| wrong(format!("{error}")));
    };
    // A value has no meaning in a removal, but kubectl accepts one.
    let (key_and_value, effect) = match removed.split_once(':') {
        Some((key_and_value, effect)) => (
            key_and_value,
            Some(
                effect
                    .parse()
                    .map_err(|error| wrong(format!("has an effect that is not valid: it {error}")))?,
            ),
        ),
        None => (removed, None),
    };
    let key = key_and_value.split_once('=').map_or(key_and_value, |(key, _)| key);
    check_label_key(key).map_err(|error| wrong(format!("has a key that is not valid: it {error}")))?;
    Ok(TaintChange::Remove { key: key.to_owned(), effect })
}

/// Makes all the changes, or none of them.
fn change_taints(
    taints: &mut Vec<Taint>,
    changes: &[TaintChange],
    overwrite: bool,
    now: Timestamp,
) -> Result<(), Failure> {
    for change in changes {
        match change {
            TaintChange::Add(taint) => {
                let held = taints.iter().find(|held| held.matches(taint));
                if let Some(held) = held.filter(|held| held.value != taint.value && !overwrite) {
                    let failure = Failure::new(Exit::Refused, format!("the node already has {held}"));
                    return Err(failure.hint("--overwrite replaces it"));
                }
            }
            TaintChange::Remove { key, effect } => {
                if !taints.iter().any(|held| is_selected(held, key, *effect)) {
                    let effect = effect.map(|effect| format!(":{effect}")).unwrap_or_default();
                    let failure =
                        Failure::new(Exit::NotFound, format!("the node has no taint {key}{effect}"));
                    return Err(failure.hint("`muster describe node` shows its taints"));
                }
            }
        }
    }
    for change in changes {
        match change {
            // An existing taint keeps its time: it was not added now.
            TaintChange::Add(taint)
                if taints.iter().any(|held| held.matches(taint) && held.value == taint.value) => {}
            TaintChange::Add(taint) => {
                add_or_update(taints, taint.clone().added_at(now));
            }
            TaintChange::Remove { key, effect } => taints.retain(|held| !is_selected(held, key, *effect)),
        }
    }
    Ok(())
}

fn is_selected(held: &Taint, key: &str, effect: Option<TaintEffect>) -> bool {
    held.key == key && effect.is_none_or(|effect| held.effect == effect)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: &str = "gpu=yes:NoSchedule gpu:NoExecute old:NoSchedule";

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn changed_taints(changes: &str, overwrite: bool) -> Result<String, String> {
        let mut taints: Vec<Taint> = words(HELD).iter().map(|text| text.parse().unwrap()).collect();
        let report = |failure: Failure| failure.report("taint");
        let changes = parse(&words(changes)).map_err(report)?;
        change_taints(&mut taints, &changes, overwrite, Timestamp::UNIX_EPOCH).map_err(report)?;
        let shown: Vec<String> = taints
            .iter()
            .map(|taint| format!("{taint}{}", if taint.time_added.is_some() { " (now)" } else { "" }))
            .collect();
        Ok(shown.join(" "))
    }

    #[test]
    fn taints_are_added_and_removed() {
        for (changes, overwrite, expected) in [
            (
                "new=1:NoExecute",
                false,
                "gpu=yes:NoSchedule gpu:NoExecute old:NoSchedule new=1:NoExecute (now)",
            ),
            ("gpu=yes:NoSchedule", false, HELD),
            ("gpu=no:NoSchedule", true, "gpu=no:NoSchedule (now) gpu:NoExecute old:NoSchedule"),
            ("gpu-", false, "old:NoSchedule"),
            ("gpu:NoExecute-", false, "gpu=yes:NoSchedule old:NoSchedule"),
            ("gpu=yes:NoSchedule- old-", false, "gpu:NoExecute"),
        ] {
            assert_eq!(changed_taints(changes, overwrite).as_deref(), Ok(expected), "{changes}");
        }
    }

    #[test]
    fn the_word_for_the_change_is_that_of_kubectl() {
        for (changes, expected) in
            [("a:NoSchedule", "tainted"), ("a-", "untainted"), ("a:NoExecute b:NoSchedule-", "modified")]
        {
            assert_eq!(done(&parse(&words(changes)).unwrap()), expected, "{changes}");
        }
    }

    #[test]
    fn a_wrong_change_is_refused_with_a_hint() {
        for (changes, expected) in [
            ("new:NoExecute gpu=no:NoSchedule", "the node already has gpu=yes:NoSchedule"),
            ("nix-", "the node has no taint nix"),
            ("old:NoExecute-", "the node has no taint old:NoExecute"),
            ("", "no change is given"),
            ("a=b", "key=value:effect"),
            ("a:NoRun", "NoSchedule, PreferNoSchedule or NoExecute"),
            ("a:NoRun-", "NoSchedule, PreferNoSchedule or NoExecute"),
            ("/-", "has a key that is not valid"),
        ] {
            let refused = changed_taints(changes, false).unwrap_err();
            assert!(refused.contains(expected) && refused.contains("\nhint: "), "{refused}");
        }
    }
}
