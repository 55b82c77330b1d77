//! `muster token`: join tokens, with which machines join the fleet.
//!
//! The secret is made here. The store gets its hash, so nobody can read the token again: it is printed once.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use muster_proto::join_token::{JoinToken, JoinTokenSpec, JoinTokenStatus, SecretToken};
use muster_proto::key::Key;
use muster_proto::label::Labels;
use muster_proto::meta::Metadata;
use muster_proto::name::Name;
use muster_proto::record::Kind;
use muster_rpc::clock::{Clock, SystemClock};
use muster_rpc::config::parse_duration;
use muster_rpc::pki::CertificateFacts;
use muster_store_client::DeleteOptions;
use uuid::Uuid;

use crate::connection::{ConnectionFlags, OrFailure};
use crate::failure::{Exit, Failure, Failures};
use crate::print::Table;
use crate::print::age;
use crate::print::rows::View;
use crate::records::kind_and_name;
use crate::terminal::Terminal;

/// Manages join tokens, with which machines join the fleet
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Command {
    Create(CreateFlags),
    /// Lists the tokens, without their secrets
    List(ListFlags),
    /// Deletes tokens; machines that have joined are not affected
    Delete(DeleteFlags),
}

/// Creates a token and prints it, with the command that joins a machine
///
/// The token is printed once: the store keeps only a hash of its secret. It is for the node of --node, or for new nodes
/// that register with the labels of --label.
#[derive(Debug, Clone, clap::Args)]
struct CreateFlags {
    /// How long machines may join with it, 30 days at most
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    ttl: Duration,

    /// The only node that may join with it
    #[arg(long, value_name = "NAME", required_unless_present = "label")]
    node: Option<Name>,

    /// Label that joining nodes must register with; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    label: Vec<String>,

    /// How many machines may join with it
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    uses: i32,

    #[command(flatten)]
    connection: ConnectionFlags,
}

#[derive(Debug, Clone, clap::Args)]
struct ListFlags {
    #[command(flatten)]
    connection: ConnectionFlags,
}

#[derive(Debug, Clone, clap::Args)]
struct DeleteFlags {
    /// Ids of tokens: the part before the dot
    #[arg(value_name = "ID", required = true)]
    ids: Vec<Name>,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    match flags.command {
        Command::Create(flags) => create(flags).await,
        Command::List(flags) => list(flags).await,
        Command::Delete(flags) => delete(flags).await,
    }
}

async fn create(flags: CreateFlags) -> Result<(), Failure> {
    let labels = labels(&flags.label)?;
    let connection = flags.connection.resolve()?;
    let store = connection.store()?;
    let authorities = store.client.authorities().await.or_failure(&store.peer)?;
    let hashes = authority_hashes(&authorities)?;
    let secret = SecretToken::new(Uuid::new_v4(), Uuid::new_v4());
    let now = SystemClock::new().wall();
    let token = JoinToken {
        meta: Metadata::new(None, secret.id().clone()),
        spec: JoinTokenSpec {
            secret_sha256: secret.secret_sha256(),
            expire_time: expiry(now, flags.ttl)?,
            max_uses: flags.uses,
            node_name: flags.node,
            labels,
            created_by: String::new(),
        },
        status: JoinTokenStatus::default(),
    };
    let created = store.client.create_join_token(token).await.or_failure(&store.peer)?;
    let text = created_text(&created.spec, &secret, &connection.stores(), &hashes, now);
    Terminal::stdout().print(&text)
}

fn expiry(now: Timestamp, ttl: Duration) -> Result<Timestamp, Failure> {
    let ttl = SignedDuration::try_from(ttl).ok();
    let expires = ttl.and_then(|ttl| now.checked_add(ttl).ok());
    expires.ok_or_else(|| Failure::usage("--ttl is too long").hint("a token lives for 30 days at most"))
}

fn labels(given: &[String]) -> Result<Labels, Failure> {
    let pair = |text: &String| match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(Failure::usage(format!("--label: `{text}` is not KEY=VALUE"))
            .hint("give the labels that the node will register with, such as rack=r1")),
    };
    given.iter().map(pair).collect()
}

/// The hashes of the authorities' public keys, by which a machine recognises them.
fn authority_hashes(pem: &str) -> Result<Vec<String>, Failure> {
    let read = CertificateFacts::read_pem(pem).ok_or_else(|| {
        Failure::new(Exit::Failed, "the store's authorities cannot be read")
            .hint("check the file of the store's --tls-client-ca")
    })?;
    Ok(read.iter().map(|(authority, _)| format!("sha256:{}", authority.public_key_sha256)).collect())
}

/// The token, then the command that joins a machine with it.
fn created_text(
    spec: &JoinTokenSpec,
    secret: &SecretToken,
    stores: &[String],
    hashes: &[String],
    now: Timestamp,
) -> String {
    let token = secret.reveal();
    let mut command = vec!["muster-agent".to_owned(), format!("--store {}", stores.join(","))];
    command.extend(spec.node_name.as_ref().map(|node| format!("--node-name {node}")));
    if !spec.labels.is_empty() {
        let pairs: Vec<String> = spec.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        command.push(format!("--node-labels {}", pairs.join(",")));
    }
    command.push(format!("--join-token {token}"));
    command.push(format!("--ca-hash {}", hashes.join(",")));
    let machines = match spec.max_uses {
        1 => "one machine".to_owned(),
        count => format!("{count} machines"),
    };
    format!(
        "{token}\n\nFor {machines}, within {}:\n\n  {}\n",
        age::until(spec.expire_time, now),
        command.join(" \\\n    ")
    )
}

async fn list(flags: ListFlags) -> Result<(), Failure> {
    let store = flags.connection.resolve()?.store()?;
    let tokens = store.client.list::<JoinToken>(Default::default()).await.or_failure(&store.peer)?;
    let (terminal, now, view) = (Terminal::stdout(), SystemClock::new().wall(), View::default());
    let mut table = Table::new(view.headers::<JoinToken>());
    for token in &tokens.records {
        table.push(view.row(token, now));
    }
    terminal.print(&table.take(terminal.paint))
}

async fn delete(flags: DeleteFlags) -> Result<(), Failure> {
    let store = flags.connection.resolve()?.store()?;
    let mut failures = Failures::default();
    for id in flags.ids {
        let key = Key { namespace: None, name: id };
        let deleted = store.client.delete::<JoinToken>(&key, DeleteOptions::default()).await;
        let deleted = deleted.or_failure(&store.peer);
        if failures.keep(deleted)?.is_some() {
            Terminal::stdout().print(&format!("{} deleted\n", kind_and_name(Kind::JoinToken, &key)))?;
        }
    }
    failures.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_token_is_printed_with_the_command_that_uses_it() {
        let now: Timestamp = "2026-05-04T12:00:00Z".parse().unwrap();
        let secret = SecretToken::new(Uuid::from_u128(1 << 127), Uuid::from_u128(0xabc));
        let spec = |node: Option<&str>, label: &str, max_uses| JoinTokenSpec {
            secret_sha256: secret.secret_sha256(),
            expire_time: expiry(now, Duration::from_secs(3600)).unwrap(),
            max_uses,
            node_name: node.map(|node| node.parse().unwrap()),
            labels: if label.is_empty() { Labels::new() } else { labels(&[label.to_owned()]).unwrap() },
            created_by: String::new(),
        };
        let text = |spec: &JoinTokenSpec| {
            created_text(spec, &secret, &["https://store:7400".to_owned()], &["sha256:00".to_owned()], now)
        };
        let token = secret.reveal();
        assert_eq!(
            text(&spec(Some("n1"), "", 1)),
            format!(
                "{token}\n\nFor one machine, within 60m:\n\n  muster-agent \\\n    --store https://store:7400 \\\n    \
                 --node-name n1 \\\n    --join-token {token} \\\n    --ca-hash sha256:00\n"
            )
        );
        let for_labels = text(&spec(None, "rack=r1", 3));
        assert!(for_labels.contains("For 3 machines"), "{for_labels}");
        assert!(for_labels.contains("--node-labels rack=r1"), "{for_labels}");
        assert!(!for_labels.contains("--node-name"), "{for_labels}");
    }

    #[test]
    fn a_label_without_a_value_is_an_error_that_shows_it() {
        let failure = labels(&["rack".to_owned()]).unwrap_err();
        assert!(failure.report("token").contains("`rack` is not KEY=VALUE"));
    }
}
