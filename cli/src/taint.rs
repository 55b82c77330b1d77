//! `muster taint`: puts taints on nodes and takes them off.

use jiff::Timestamp;
use muster_proto::label::check_label_key;
use muster_proto::node::Node;
use muster_proto::record::Kind;
use muster_proto::taint::{Taint, TaintEffect, add_or_update};
use muster_rpc::clock::{Clock, SystemClock};

use crate::connection::{ConnectionFlags, NamespaceFlags};
use crate::failure::{Exit, Failure, Failures};
use crate::kind::{Target, plural};
use crate::records::{Changed, change, spoken};
use crate::targets::{SelectionFlags, keys, names_and_changes, strip_kind};
use crate::terminal::Terminal;

/// Puts taints on nodes, or takes them off
///
/// A change is KEY=VALUE:EFFECT or KEY:EFFECT to put a taint on, KEY:EFFECT- or KEY- to take it off; effects
/// are NoSchedule, PreferNoSchedule and NoExecute. `muster taint node a gpu=yes:NoSchedule old-`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// node, or node/NAME
    #[arg(value_name = "KIND")]
    target: Target,

    /// Names of nodes, and changes to their taints
    #[arg(value_name = "NAME|CHANGE", required = true)]
    words: Vec<String>,

    #[command(flatten)]
    selection: SelectionFlags,

    /// Replace taints of the same key and effect
    #[arg(long)]
    overwrite: bool,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// One change to a node's taints.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TaintChange {
    Add(Taint),
    /// Of that effect, or of all.
    Remove {
        key: String,
        effect: Option<TaintEffect>,
    },
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    if flags.target.kind != Kind::Node {
        let failure = Failure::usage(format!("{} bear no taints: only nodes do", plural(flags.target.kind)));
        return Err(failure.hint("muster taint node NAME CHANGE"));
    }
    let (names, changes) = names_and_changes(&flags.words);
    let changes = parse(&changes)?;
    let names = strip_kind(Kind::Node, flags.target.name.as_ref(), &names)?;
    let connection = flags.connection.settle()?;
    let (store, namespaces) = (connection.store()?, connection.namespaces(&NamespaceFlags::default()));
    let now = SystemClock::new().wall();
    let mut failures = Failures::default();
    for key in keys::<Node>(&store, &names, &flags.selection, &namespaces).await? {
        let what = spoken(Kind::Node, &key);
        let edit = |node: &mut Node| {
            let changed = retaint(&mut node.spec.taints, &changes, flags.overwrite, now);
            changed.map_err(|failure| failure.about(&what))
        };
        let line = change(&store, &key, edit).await.map(|changed| match changed {
            Changed::Yes => format!("{what} tainted\n"),
            Changed::No => format!("{what} not tainted: it is so already\n"),
        });
        if let Some(line) = failures.keep(line)? {
            Terminal::stdout().say(&line)?;
        }
    }
    failures.finish()
}

const HOW: &str = "KEY=VALUE:EFFECT or KEY:EFFECT puts a taint on, KEY:EFFECT- or KEY- takes it off; effects are \
                   NoSchedule, PreferNoSchedule and NoExecute";

fn parse(changes: &[String]) -> Result<Vec<TaintChange>, Failure> {
    if changes.is_empty() {
        return Err(Failure::usage("no change is named").hint(HOW));
    }
    changes.iter().map(|text| parse_one(text)).collect()
}

fn parse_one(text: &str) -> Result<TaintChange, Failure> {
    let wrong = |reason: String| Failure::usage(format!("`{text}` is no change: it {reason}")).hint(HOW);
    let Some(removed) = text.strip_suffix('-') else {
        return text.parse().map(TaintChange::Add).map_err(|error| wrong(format!("{error}")));
    };
    // A value would be beside the point, but kubectl takes it.
    let (mark, effect) = match removed.split_once(':') {
        Some((mark, effect)) => (
            mark,
            Some(
                effect
                    .parse()
                    .map_err(|error| wrong(format!("has an effect that is not valid: it {error}")))?,
            ),
        ),
        None => (removed, None),
    };
    let key = mark.split_once('=').map_or(mark, |(key, _)| key);
    check_label_key(key).map_err(|error| wrong(format!("has a key that is not valid: it {error}")))?;
    Ok(TaintChange::Remove { key: key.to_owned(), effect })
}

/// Makes the changes, all or none.
fn retaint(
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
                    let failure = Failure::new(Exit::Refused, format!("it bears {held} already"));
                    return Err(failure.hint("--overwrite replaces it"));
                }
            }
            TaintChange::Remove { key, effect } => {
                if !taints.iter().any(|held| concerns(held, key, *effect)) {
                    let effect = effect.map(|effect| format!(":{effect}")).unwrap_or_default();
                    let failure = Failure::new(Exit::NotFound, format!("it bears no taint {key}{effect}"));
                    return Err(failure.hint("`muster describe node` shows its taints"));
                }
            }
        }
    }
    for change in changes {
        match change {
            // One that is there already keeps its time: nothing was put on now.
            TaintChange::Add(taint)
                if taints.iter().any(|held| held.matches(taint) && held.value == taint.value) => {}
            TaintChange::Add(taint) => {
                add_or_update(taints, taint.clone().added_at(now));
            }
            TaintChange::Remove { key, effect } => taints.retain(|held| !concerns(held, key, *effect)),
        }
    }
    Ok(())
}

fn concerns(held: &Taint, key: &str, effect: Option<TaintEffect>) -> bool {
    held.key == key && effect.is_none_or(|effect| held.effect == effect)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: &str = "gpu=yes:NoSchedule gpu:NoExecute old:NoSchedule";

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn retainted(changes: &str, overwrite: bool) -> Result<String, String> {
        let mut taints: Vec<Taint> = words(HELD).iter().map(|text| text.parse().unwrap()).collect();
        let report = |failure: Failure| failure.report("taint");
        let changes = parse(&words(changes)).map_err(report)?;
        retaint(&mut taints, &changes, overwrite, Timestamp::UNIX_EPOCH).map_err(report)?;
        let shown: Vec<String> = taints
            .iter()
            .map(|taint| format!("{taint}{}", if taint.time_added.is_some() { " (now)" } else { "" }))
            .collect();
        Ok(shown.join(" "))
    }

    #[test]
    fn taints_are_put_on_and_taken_off() {
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
            assert_eq!(retainted(changes, overwrite).as_deref(), Ok(expected), "{changes}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_a_way_out() {
        for (changes, said) in [
            ("new:NoExecute gpu=no:NoSchedule", "it bears gpu=yes:NoSchedule already"),
            ("nix-", "it bears no taint nix"),
            ("old:NoExecute-", "it bears no taint old:NoExecute"),
            ("", "no change is named"),
            ("a=b", "key=value:effect"),
            ("a:NoRun", "NoSchedule, PreferNoSchedule or NoExecute"),
            ("a:NoRun-", "NoSchedule, PreferNoSchedule or NoExecute"),
            ("/-", "has a key that is not valid"),
        ] {
            let refused = retainted(changes, false).unwrap_err();
            assert!(refused.contains(said) && refused.contains("\nhint: "), "{refused}");
        }
    }
}
