//! `muster cordon` and `muster uncordon`: keeps new pods away from nodes, or lets them come again.
//!
//! The controller is asked, not the store: it writes down who asked and why.

use muster_proto::node::Node;
use muster_proto::pb;

use crate::connection::{At, Connection, ConnectionFlags, NamespaceFlags};
use crate::failure::{Failure, Failures};
use crate::targets::{SelectionFlags, keys, strip_kind};
use crate::terminal::Terminal;

/// Which nodes, and why.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Names of nodes
    #[arg(value_name = "NODE")]
    names: Vec<String>,

    #[command(flatten)]
    selection: SelectionFlags,

    #[command(flatten)]
    reason: ReasonFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// Why something is done.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ReasonFlags {
    /// Why, for whoever wonders later; recorded [default: who called muster]
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl ReasonFlags {
    /// What is recorded. Nobody is made to type a reason, but nobody is left without a trace
    /// either.
    pub(crate) fn text(&self, command: &str) -> String {
        self.reason.clone().filter(|reason| !reason.trim().is_empty()).unwrap_or_else(|| {
            let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
            match user.ok().filter(|user| !user.is_empty()) {
                Some(user) => format!("muster {command} by {user}"),
                None => format!("muster {command}"),
            }
        })
    }
}

pub(crate) async fn cordon(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.settle()?;
    let controller = connection.controller()?;
    let reason = flags.reason.text("cordon");
    let mut failures = Failures::default();
    for name in nodes(&connection, &flags.names, &flags.selection).await? {
        let request = pb::CordonNodeRequest { name: name.clone(), reason: reason.clone() };
        let answer = controller.client.clone().cordon_node(controller.timed(request)).await;
        if failures.keep(answer.at(&controller.peer))?.is_some() {
            Terminal::stdout().say(&format!("node/{name} cordoned\n"))?;
        }
    }
    failures.finish()
}

pub(crate) async fn uncordon(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.settle()?;
    let controller = connection.controller()?;
    let reason = flags.reason.text("uncordon");
    let mut failures = Failures::default();
    for name in nodes(&connection, &flags.names, &flags.selection).await? {
        let request = pb::UncordonNodeRequest { name: name.clone(), reason: reason.clone() };
        let answer = controller.client.clone().uncordon_node(controller.timed(request)).await;
        if failures.keep(answer.at(&controller.peer))?.is_some() {
            Terminal::stdout().say(&format!("node/{name} uncordoned\n"))?;
        }
    }
    failures.finish()
}

/// The nodes meant; the store is asked only if they have to be looked for.
pub(crate) async fn nodes(
    connection: &Connection,
    names: &[String],
    selection: &SelectionFlags,
) -> Result<Vec<String>, Failure> {
    let names = strip_kind(muster_proto::record::Kind::Node, None, names)?;
    let namespaces = connection.namespaces(&NamespaceFlags::default());
    let keys = keys::<Node>(&connection.store()?, &names, selection, &namespaces).await?;
    Ok(keys.into_iter().map(|key| key.name.as_str().to_owned()).collect())
}
