//! `muster wait`: waits until records meet a condition.

use std::str::FromStr;
use std::time::Duration;

use futures_util::StreamExt;
use muster_manifest::schema;
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::record::Record;
use muster_proto::time::Mono;
use muster_proto::watch_event::{WatchEvent, WatchFailureKind};
use muster_rpc::clock::{Clock, SystemClock};
use muster_rpc::config::parse_duration;
use muster_store_client::WatchOptions;
use serde_json::Value;

use crate::completion;
use crate::connection::{ConnectionFlags, NamespaceFlags, Namespaces, Store};
use crate::failure::{Exit, Failure, Failures};
use crate::jsonpath::{Path, joined};
use crate::kind::{Target, for_named};
use crate::records::{Readable, kind_and_name, not_writable};
use crate::targets::{SelectionFlags, strip_kind, target_keys};
use crate::terminal::Terminal;

/// Waits until records meet a condition
///
/// CONDITION is `condition=TYPE` or `condition=TYPE=STATUS` for a condition of the status (STATUS is True if it is not
/// given), `delete`, `create`, or `jsonpath='{PATH}'=VALUE`; without a value the path must find something. The exit
/// code is 1 if the time is over first. Example: `muster wait node/a --for=condition=Ready --timeout=2m`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Kind of the records, or KIND/NAME
    #[arg(value_name = "KIND", add = completion::kinds())]
    target: Target,

    /// Names of the records
    #[arg(value_name = "NAME", add = completion::names())]
    names: Vec<String>,

    /// What to wait for: condition=TYPE[=STATUS], delete, create or jsonpath='{PATH}'[=VALUE]
    #[arg(long = "for", value_name = "CONDITION")]
    condition: Condition,

    #[command(flatten)]
    selection: SelectionFlags,

    /// How long to wait for all records together; 0 means no limit
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// What a record must be like.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Condition {
    /// A condition of the status, such as Ready, has this status.
    Status {
        condition: String,
        status: String,
    },
    /// The record does not exist, or has another uid than this one.
    Gone {
        uid: Option<Uid>,
    },
    Exists,
    /// The path finds this value, or anything.
    Path {
        path: Path,
        value: Option<String>,
    },
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Condition, String> {
        match text.split_once('=') {
            None if text == "delete" => Ok(Condition::Gone { uid: None }),
            None if text == "create" => Ok(Condition::Exists),
            Some(("condition", condition)) if !condition.is_empty() => {
                let (condition, status) = condition.split_once('=').unwrap_or((condition, "True"));
                Ok(Condition::Status { condition: condition.to_owned(), status: status.to_owned() })
            }
            Some(("jsonpath", text)) => {
                let (path, value) = split_path(text);
                let path = path.parse().map_err(|error| format!("jsonpath: {error}"))?;
                Ok(Condition::Path { path, value: value.map(str::to_owned) })
            }
            _ => Err(
                "expected condition=TYPE, condition=TYPE=STATUS, delete, create or jsonpath='{PATH}'=VALUE"
                    .to_owned(),
            ),
        }
    }
}

/// Splits `{PATH}=VALUE`. Without braces the path has no `=` in it.
fn split_path(text: &str) -> (&str, Option<&str>) {
    let split = if text.starts_with('{') {
        text.rfind('}')
            .map(|end| text.split_at(end + 1))
            .and_then(|(path, rest)| Some((path, rest.strip_prefix('=')?)))
    } else {
        text.split_once('=')
    };
    match split {
        Some((path, value)) => (path, Some(value)),
        None => (text, None),
    }
}

impl Condition {
    /// Whether a record meets the condition; `None` is a record that does not exist.
    fn is_met<R: Record>(&self, record: Option<&R>) -> bool {
        match (self, record) {
            (Condition::Gone { .. }, None) => true,
            (Condition::Gone { uid }, Some(record)) => uid.is_some() && record.meta().uid != *uid,
            (Condition::Exists, found) => found.is_some(),
            (_, None) => false,
            (Condition::Status { condition, status }, Some(record)) => {
                let value = schema::to_json(record.clone());
                status_of(&value, condition).is_some_and(|found| found.eq_ignore_ascii_case(status))
            }
            (Condition::Path { path, value }, Some(record)) => {
                let document = schema::to_json(record.clone());
                let found = path.find(&document);
                match value {
                    Some(value) => found.iter().any(|found| joined(&[found], "") == *value),
                    None => !found.is_empty(),
                }
            }
        }
    }

    /// What a record is like now, for the message after a wait that was in vain.
    fn state<R: Record>(&self, record: Option<&R>) -> String {
        let Some(record) = record else { return "it does not exist".to_owned() };
        let document = schema::to_json(record.clone());
        match self {
            Condition::Gone { .. } if record.meta().is_deleting() => "it is still being deleted".to_owned(),
            Condition::Gone { .. } | Condition::Exists => "it exists".to_owned(),
            Condition::Status { condition, .. } => match status_of(&document, condition) {
                Some(status) => format!("its {condition} is {status}"),
                None => format!("it has no condition {condition}"),
            },
            Condition::Path { path, .. } => match path.find(&document).as_slice() {
                [] => "the path finds nothing".to_owned(),
                found => format!("the path finds {}", joined(found, " ")),
            },
        }
    }
}

fn status_of<'a>(document: &'a Value, condition: &str) -> Option<&'a str> {
    let conditions = document["status"]["conditions"].as_array()?;
    let found = conditions
        .iter()
        .find(|held| held["type"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case(condition)));
    found?["status"].as_str()
}

/// When a command stops waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    clock: SystemClock,
    at: Option<Mono>,
    after: Duration,
}

impl Deadline {
    /// After this time; never if it is 0.
    pub(crate) fn after(after: Duration) -> Deadline {
        let clock = SystemClock::new();
        let at = (!after.is_zero()).then(|| clock.mono() + after);
        Deadline { clock, at, after }
    }

    const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

    fn left(&self) -> Duration {
        self.at.map_or(Deadline::FOREVER, |at| at - self.clock.mono())
    }
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let names = strip_kind(flags.target.kind, flags.target.name.as_ref(), &flags.names)?;
    let connection = flags.connection.resolve()?;
    let (store, namespaces) = (connection.store()?, connection.namespaces(&flags.namespace));
    for_named!(
        flags.target.kind,
        wait_for_all(&store, &names, &flags, &namespaces),
        else Err(not_writable(flags.target.kind))
    )
}

async fn wait_for_all<R: Readable>(
    store: &Store,
    names: &[String],
    flags: &Flags,
    namespaces: &Namespaces,
) -> Result<(), Failure> {
    let deadline = Deadline::after(flags.timeout);
    let mut failures = Failures::default();
    for key in target_keys::<R>(store, names, &flags.selection, namespaces).await? {
        let waited = wait_for::<R>(store, &key, &flags.condition, &deadline).await;
        if failures.keep(waited)?.is_some() {
            Terminal::stdout().print(&format!("{} condition met\n", kind_and_name(R::KIND, &key)))?;
        }
    }
    failures.finish()
}

/// Waits until a record meets a condition. The record is read once in any case, however short the time is.
pub(crate) async fn wait_for<R: Readable>(
    store: &Store,
    key: &Key,
    condition: &Condition,
    deadline: &Deadline,
) -> Result<(), Failure> {
    let name = kind_and_name(R::KIND, key);
    let options = WatchOptions {
        namespace: key.namespace.clone(),
        field_selector: format!("metadata.name={}", key.name),
        ..WatchOptions::default()
    };
    let mut watch = store.client.watch::<R>(options);
    let (mut current, mut is_synced): (Option<R>, bool) = (None, false);
    loop {
        let left = if is_synced { deadline.left() } else { Deadline::FOREVER };
        match tokio::time::timeout(left, watch.next()).await {
            Ok(Some(WatchEvent::Applied { record })) => current = Some(record),
            Ok(Some(WatchEvent::Gone { .. })) => current = None,
            Ok(Some(WatchEvent::Synced { .. })) => {
                let may_be_absent = matches!(condition, Condition::Gone { .. } | Condition::Exists);
                if current.is_none() && !is_synced && !may_be_absent {
                    return Err(Failure::new(Exit::NotFound, format!("{name} does not exist"))
                        .hint("--for=create waits until it exists; -n sets the namespace"));
                }
                is_synced = true;
            }
            Ok(Some(WatchEvent::Lost(failure))) => {
                let refused = failure.kind == WatchFailureKind::Refused;
                if refused || !is_synced {
                    let exit = if refused { Exit::Refused } else { Exit::Unreachable };
                    return Err(store.peer.watch_failure(exit, &failure.message));
                }
            }
            Ok(None) => unreachable!("a watch reconnects and does not end"),
            Err(_) => {
                let state = condition.state(current.as_ref());
                let message =
                    format!("{name} did not meet the condition within {:?}: {state}", deadline.after);
                return Err(Failure::new(Exit::Failed, message).hint(format!(
                    "--timeout sets the time; `muster describe` and `muster explain` tell more of {name}"
                )));
            }
        }
        // Only after the first list is complete does an absent record count as absent.
        if is_synced && condition.is_met(current.as_ref()) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use muster_proto::node::Node;

    #[test]
    fn a_condition_is_met_by_the_status_the_path_or_the_absence() {
        let node = samples::node();
        for (condition, expected) in [
            ("condition=Ready", true),
            ("condition=ready=true", true),
            ("condition=Ready=Unknown", false),
            ("condition=MemoryPressure", false),
            ("condition=MemoryPressure=False", true),
            ("condition=Nix", false),
            ("jsonpath={.spec.unschedulable}=true", true),
            ("jsonpath=.spec.unschedulable=false", false),
            ("jsonpath={.status.conditions[?(@.type==\"Ready\")].status}=True", true),
            ("jsonpath={.spec.podCIDR}", true),
            ("jsonpath={.spec.nix}", false),
            ("create", true),
            ("delete", false),
        ] {
            let parsed: Condition = condition.parse().unwrap();
            assert_eq!(parsed.is_met(Some(&node)), expected, "{condition}");
            assert_eq!(parsed.is_met::<Node>(None), condition == "delete", "{condition} of no record");
        }
        let other = Uid::from_str("00000000-0000-4000-8000-000000000001").unwrap();
        assert!(Condition::Gone { uid: Some(other) }.is_met(Some(&node)), "a new record of the same name");
        assert!(!Condition::Gone { uid: node.meta.uid }.is_met(Some(&node)));
    }

    #[test]
    fn a_wrong_condition_is_refused() {
        for (condition, expected) in [
            ("", "expected condition=TYPE"),
            ("ready", "expected condition=TYPE"),
            ("condition=", "expected condition=TYPE"),
            ("jsonpath={.a[}=b", "jsonpath: expected a number"),
        ] {
            let refused = condition.parse::<Condition>().unwrap_err();
            assert!(refused.contains(expected), "{condition}: {refused}");
        }
    }
}
