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
        "token" | "tokens" | "jointoken" | "jointokens" => Ok(Kind::JoinToken),
        "certificaterequest" | "certificaterequests" | "csr" => Ok(Kind::CertificateRequest),
        "revocation" | "revocations" => Ok(Kind::Revocation),
        "priorityclass" | "priorityclasses" | "pc" => Ok(Kind::PriorityClass),
        _ => Err(format!(
            "`{word}` is not a kind; the kinds are nodes, leases, pods, events, budgets, tokens, certificaterequests, \
             revocations and priorityclasses"
        )),
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
        Kind::JoinToken => "token",
        Kind::CertificateRequest => "certificaterequest",
        Kind::Revocation => "revocation",
        Kind::PriorityClass => "priorityclass",
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
        Kind::JoinToken => "tokens",
        Kind::CertificateRequest => "certificaterequests",
        Kind::Revocation => "revocations",
        Kind::PriorityClass => "priorityclasses",
    }
}

/// Shorter names that `parse` accepts.
pub(crate) fn short_names(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Node => &["no"],
        Kind::Lease => &[],
        Kind::Pod => &["po"],
        Kind::Event => &["ev"],
        Kind::DisruptionBudget => &["pdb"],
        Kind::JoinToken | Kind::Revocation => &[],
        Kind::CertificateRequest => &["csr"],
        Kind::PriorityClass => &["pc"],
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

/// One kind or several (`nodes,pods`), or one record of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Targets(pub(crate) Vec<Target>);

impl std::str::FromStr for Targets {
    type Err = String;

    fn from_str(text: &str) -> Result<Targets, String> {
        let mut targets: Vec<Target> = Vec::new();
        for part in text.split(',') {
            let target: Target = part.parse()?;
            if target.name.is_some() && text.contains(',') {
                return Err(format!("`{part}` is a record; separate records by spaces: node/a pod/b"));
            }
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        Ok(Targets(targets))
    }
}

/// Calls an async function that is generic over the kinds that manifests have, with the type for `$kind`. For the other
/// kinds, which other commands write, the macro yields `$otherwise`.
macro_rules! for_stored {
    ($kind:expr, $($call:ident)::+($($argument:expr),* $(,)?), else $otherwise:expr) => {
        match $kind {
            muster_proto::record::Kind::Node => $($call)::+::<muster_proto::node::Node>($($argument),*).await,
            muster_proto::record::Kind::Lease => $($call)::+::<muster_proto::lease::Lease>($($argument),*).await,
            muster_proto::record::Kind::Pod => $($call)::+::<muster_proto::pod::Pod>($($argument),*).await,
            muster_proto::record::Kind::DisruptionBudget => {
                $($call)::+::<muster_proto::budget::DisruptionBudget>($($argument),*).await
            }
            muster_proto::record::Kind::PriorityClass => {
                $($call)::+::<muster_proto::priority_class::PriorityClass>($($argument),*).await
            }
            muster_proto::record::Kind::Event
            | muster_proto::record::Kind::JoinToken
            | muster_proto::record::Kind::CertificateRequest
            | muster_proto::record::Kind::Revocation => $otherwise,
        }
    };
}
pub(crate) use for_stored;

/// The same for the kinds that can be read and deleted by name: all but events.
macro_rules! for_named {
    ($kind:expr, $($call:ident)::+($($argument:expr),* $(,)?), else $otherwise:expr) => {
        match $kind {
            muster_proto::record::Kind::JoinToken => {
                $($call)::+::<muster_proto::join_token::JoinToken>($($argument),*).await
            }
            muster_proto::record::Kind::CertificateRequest => {
                $($call)::+::<muster_proto::certificate_request::CertificateRequest>($($argument),*).await
            }
            muster_proto::record::Kind::Revocation => {
                $($call)::+::<muster_proto::revocation::Revocation>($($argument),*).await
            }
            stored => $crate::kind::for_stored!(stored, $($call)::+($($argument),*), else $otherwise),
        }
    };
}
pub(crate) use for_named;

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
        for kind in Kind::ALL {
            for word in short_names(kind) {
                assert_eq!(parse(word), Ok(kind), "{word}");
            }
        }
        assert_eq!(parse("csr"), Ok(Kind::CertificateRequest));
        assert!(parse("machines").unwrap_err().contains("nodes, leases, pods, events, budgets, tokens"));
    }

    #[test]
    fn a_target_is_a_kind_or_one_record_of_it() {
        let target = |text: &str| text.parse::<Target>().unwrap();
        assert_eq!(target("nodes"), Target { kind: Kind::Node, name: None });
        assert_eq!(target("pod/web-1"), Target { kind: Kind::Pod, name: Some("web-1".to_owned()) });
        assert!("thing/a".parse::<Target>().is_err());
    }

    #[test]
    fn several_kinds_are_separated_by_commas() {
        let kinds = |text: &str| -> Result<Vec<Kind>, String> {
            Ok(text.parse::<Targets>()?.0.into_iter().map(|target| target.kind).collect())
        };
        assert_eq!(kinds("nodes,po,node"), Ok(vec![Kind::Node, Kind::Pod]));
        assert!(kinds("nodes,").is_err());
        assert!(kinds("node/a,pod/b").unwrap_err().contains("separate records by spaces"));
    }
}
