//! `muster cordon` and `muster uncordon`: stop and resume scheduling of pods to nodes.
//!
//! The request goes to the controller and not to the store, because the controller records who asked and why.

use std::time::Duration;

use muster_proto::drain::DRAIN_OWNER;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_rpc::config::parse_duration;
use tonic::Status;

use crate::completion;
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

/// Stops scheduling new pods to nodes
///
/// A node has a cordon for each owner and takes new pods when none is left. A second cordon of the same owner only
/// changes its end.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CordonFlags {
    #[command(flatten)]
    common: Flags,

    /// How long the cordon lasts, such as 2h; without it, until it is taken off
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    duration: Option<Duration>,
}

/// Takes your cordons off nodes and cancels your drains of them
///
/// The cordons of others remain, and the answer names them. `NODE --all` and --all-owners take those off too; without
/// names --all selects all nodes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct UncordonFlags {
    #[command(flatten)]
    common: Flags,

    /// Also take off the cordons of others, and cancel their drains
    #[arg(long)]
    all_owners: bool,
}

/// Which nodes a command is about.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NodeFlags {
    /// Names of nodes
    #[arg(value_name = "NODE", add = completion::node_names())]
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

pub(crate) async fn cordon(flags: CordonFlags) -> Result<(), Failure> {
    // A duration that the schema cannot represent is longer than any machine lasts.
    let duration = flags.duration.and_then(|duration| duration.try_into().ok());
    for_each_node(&flags.common, "cordon", async |controller: &Controller, name: String, reason| {
        let request = controller.with_timeout(pb::CordonNodeRequest { name: name.clone(), reason, duration });
        controller.client.clone().cordon_node(request).await?;
        Ok(format!("node/{name} cordoned\n"))
    })
    .await
}

pub(crate) async fn uncordon(mut flags: UncordonFlags) -> Result<(), Failure> {
    let nodes = &mut flags.common.nodes;
    // With names it cannot mean all nodes.
    let all = flags.all_owners || !nodes.names.is_empty() && std::mem::take(&mut nodes.selection.all);
    for_each_node(&flags.common, "uncordon", async |controller: &Controller, name: String, reason| {
        let request = controller.with_timeout(pb::UncordonNodeRequest { name: name.clone(), reason, all });
        let answer = controller.client.clone().uncordon_node(request).await?.into_inner();
        Ok(uncordoned(&name, answer.node.and_then(|node| node.spec).unwrap_or_default()))
    })
    .await
}

/// The answer to an uncordon: whose cordons remain, if any do.
fn uncordoned(name: &str, spec: pb::NodeSpec) -> String {
    if !spec.unschedulable {
        return format!("node/{name} uncordoned\n");
    }
    let who = |cordon: pb::NodeCordon| match cordon.owner.as_str() {
        DRAIN_OWNER => format!("the drain of {} ({})", cordon.requested_by, cordon.reason),
        owner => format!("{owner} ({})", cordon.reason),
    };
    let remain: Vec<String> = spec.cordons.into_iter().map(who).collect();
    let remain = if remain.is_empty() { "spec.unschedulable".to_owned() } else { remain.join(", ") };
    format!(
        "node/{name} is still cordoned by {remain}; `muster uncordon {name} --all` takes off every cordon\n"
    )
}

/// Calls the controller for every node, with the node's name and the reason, and prints the answer. A failed call does
/// not stop the rest.
async fn for_each_node(
    flags: &Flags,
    command: &str,
    call: impl AsyncFn(&Controller, String, String) -> Result<String, Status>,
) -> Result<(), Failure> {
    let connection = flags.connection.resolve()?;
    let controller = connection.controller().await?;
    let reason = flags.reason.text(command);
    let mut failures = Failures::default();
    for name in flags.nodes.names(&connection).await? {
        let answer = call(&controller, name, reason.clone()).await;
        if let Some(text) = failures.keep(answer.or_failure(&controller.peer))? {
            Terminal::stdout().print(&text)?;
        }
    }
    failures.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uncordon_names_the_owners_whose_cordons_remain() {
        let of = |owner: &str, requested_by: &str, reason: &str| pb::NodeCordon {
            owner: owner.to_owned(),
            requested_by: requested_by.to_owned(),
            reason: reason.to_owned(),
            ..Default::default()
        };
        let remain = |cordons: Vec<pb::NodeCordon>| pb::NodeSpec {
            unschedulable: true,
            cordons,
            ..Default::default()
        };
        for (spec, expected) in [
            (pb::NodeSpec::default(), "node/a uncordoned\n"),
            (remain(vec![]), "node/a is still cordoned by spec.unschedulable; "),
            (
                remain(vec![of("eva", "eva", "new disk"), of("drain", "bob", "reboot")]),
                "node/a is still cordoned by eva (new disk), the drain of bob (reboot); ",
            ),
        ] {
            let text = uncordoned("a", spec);
            assert!(text.starts_with(expected), "{text}");
            assert_eq!(text.contains("`muster uncordon a --all`"), text.contains("still"), "{text}");
        }
    }
}
