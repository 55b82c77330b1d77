//! The kinds of records as the command line names them.

use muster_proto::record::Kind;

/// Parses the name of a kind: singular, plural, short, or as manifests write it.
pub(crate) fn parse(word: &str) -> Result<Kind, String> {
    match word.to_ascii_lowercase().as_str() {
        "node" | "nodes" | "no" => Ok(Kind::Node),
        "lease" | "leases" => Ok(Kind::Lease),
        "pod" | "pods" | "po" => Ok(Kind::Pod),
        "event" | "events" | "ev" => Ok(Kind::Event),
        "budget"
        | "budgets"
        | "disruptionbudget"
        | "disruptionbudgets"
        | "poddisruptionbudget"
        | "poddisruptionbudgets"
        | "pdb" => Ok(Kind::DisruptionBudget),
        _ => Err(format!("`{word}` is not a kind; the kinds are nodes, leases, pods, events and budgets")),
    }
}

/// The singular name, as in `node/a`.
pub(crate) fn singular(kind: Kind) -> &'static str {
    match kind {
        Kind::Node => "node",
        Kind::Lease => "lease",
        Kind::Pod => "pod",
        Kind::Event => "event",
        Kind::DisruptionBudget => "budget",
    }
}

/// The plural name, as in `get nodes`.
pub(crate) fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::Node => "nodes",
        Kind::Lease => "leases",
        Kind::Pod => "pods",
        Kind::Event => "events",
        Kind::DisruptionBudget => "budgets",
    }
}

/// A kind, or one record of a kind: `nodes`, `node/a`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) name: Option<String>,
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let (word, name) = match text.split_once('/') {
            Some((word, name)) => (word, Some(name.to_owned())),
            None => (text, None),
        };
        Ok(Target { kind: parse(word)?, name })
    }
}

/// Calls an async function that is generic over the kinds that clients write, with the type for `$kind`.
/// Events are not written by clients: for them the macro yields `$otherwise`.
macro_rules! for_stored {
    ($kind:expr, $($call:ident)::+($($argument:expr),* $(,)?), else $otherwise:expr) => {
        match $kind {
            muster_proto::record::Kind::Node => $($call)::+::<muster_proto::node::Node>($($argument),*).await,
            muster_proto::record::Kind::Lease => $($call)::+::<muster_proto::lease::Lease>($($argument),*).await,
            muster_proto::record::Kind::Pod => $($call)::+::<muster_proto::pod::Pod>($($argument),*).await,
            muster_proto::record::Kind::DisruptionBudget => {
                $($call)::+::<muster_proto::budget::DisruptionBudget>($($argument),*).await
            }
            muster_proto::record::Kind::Event => $otherwise,
        }
    };
}
pub(crate) use for_stored;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_a_kind_is_parsed() {
        for kind in Kind::ALL {
            for word in [singular(kind), plural(kind), &kind.to_string()] {
                assert_eq!(parse(word), Ok(kind), "{word}");
            }
        }
        for (word, kind) in [("no", Kind::Node), ("po", Kind::Pod), ("pdb", Kind::DisruptionBudget)] {
            assert_eq!(parse(word), Ok(kind));
        }
        assert!(parse("machines").unwrap_err().contains("nodes, leases, pods, events and budgets"));
    }

    #[test]
    fn a_target_is_a_kind_or_one_record_of_it() {
        let target = |text: &str| text.parse::<Target>().unwrap();
        assert_eq!(target("nodes"), Target { kind: Kind::Node, name: None });
        assert_eq!(target("pod/web-1"), Target { kind: Kind::Pod, name: Some("web-1".to_owned()) });
        assert!("thing/a".parse::<Target>().is_err());
    }
}
