//! `muster cordon` and `muster uncordon`: stop and resume scheduling of pods to nodes.
//!
//! The request goes to the controller and not to the store, because the controller records who asked and why.

use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::record::Kind;
use tonic::Status;

use crate::connection::{Connection, ConnectionFlags, Controller, NamespaceFlags, OrFailure};
use crate::failure::{Failure, Failures};
use crate::targets::{SelectionFlags, strip_kind, target_keys};
use crate::terminal::Terminal;

/// The flags of both commands.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    nodes: NodeFlags,

    #[command(flatten)]
    reason: ReasonFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// Which nodes a command is about.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NodeFlags {
    /// Names of nodes
    #[arg(value_name = "NODE")]
    names: Vec<String>,

    #[command(flatten)]
    selection: SelectionFlags,
}

impl NodeFlags {
    /// The names of the nodes. The store is called only for `--selector` and `--all`.
    pub(crate) async fn names(&self, connection: &Connection) -> Result<Vec<String>, Failure> {
        let names = strip_kind(Kind::Node, None, &self.names)?;
        let namespaces = connection.namespaces(&NamespaceFlags::default());
        let keys = target_keys::<Node>(&connection.store()?, &names, &self.selection, &namespaces).await?;
        Ok(keys.into_iter().map(|key| key.name.as_str().to_owned()).collect())
    }
}

/// The reason that is recorded with a request.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ReasonFlags {
    /// Reason to record with the request [default: the command and the calling user]
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl ReasonFlags {
    /// The reason given, or the command and the user: a reason is optional, but a record of the caller is not.
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
    for_each_node(&flags, "cordon", async |controller: &Controller, name, reason| {
        let request = controller.with_timeout(pb::CordonNodeRequest { name, reason });
        controller.client.clone().cordon_node(request).await.map(drop)
    })
    .await
}

pub(crate) async fn uncordon(flags: Flags) -> Result<(), Failure> {
    for_each_node(&flags, "uncordon", async |controller: &Controller, name, reason| {
        let request = controller.with_timeout(pb::UncordonNodeRequest { name, reason });
        controller.client.clone().uncordon_node(request).await.map(drop)
    })
    .await
}

/// Calls the controller for every node, with the node's name and the reason. A failed call does not stop the rest.
async fn for_each_node(
    flags: &Flags,
    command: &str,
    call: impl AsyncFn(&Controller, String, String) -> Result<(), Status>,
) -> Result<(), Failure> {
    let connection = flags.connection.resolve()?;
    let controller = connection.controller()?;
    let reason = flags.reason.text(command);
    let mut failures = Failures::default();
    for name in flags.nodes.names(&connection).await? {
        let answer = call(&controller, name.clone(), reason.clone()).await;
        if failures.keep(answer.or_failure(&controller.peer))?.is_some() {
            Terminal::stdout().print(&format!("node/{name} {command}ed\n"))?;
        }
    }
    failures.finish()
}
