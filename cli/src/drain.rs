//! `muster drain`: moves a node's pods away, or says what that would mean.
//!
//! The drain is the controller's: it goes on if we go away, and whoever asks for the same again follows it.

use std::time::Duration;

use muster_proto::pb;
use muster_rpc::config::parse_duration;

use crate::connection::{At, ConnectionFlags, Controller};
use crate::cordon::{ReasonFlags, nodes};
use crate::failure::{Exit, Failure, Failures};
use crate::print::drain::{Progress, plan, verdict};
use crate::targets::SelectionFlags;
use crate::terminal::Terminal;

/// Cordons nodes and moves their pods away
///
/// Pods are evicted as their disruption budgets allow. --plan names what would happen to each pod, in order,
/// what stands in the way and what would stay, and does nothing; its exit code is 4 where the drain would be
/// refused.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Names of nodes
    #[arg(value_name = "NODE")]
    names: Vec<String>,

    #[command(flatten)]
    selection: SelectionFlags,

    /// Only say what would be done
    #[arg(long)]
    plan: bool,

    /// Also pods that nothing manages, which nobody will start again elsewhere
    #[arg(long)]
    force: bool,

    /// Leave pods of daemon sets running instead of refusing because of them
    #[arg(long)]
    ignore_daemonsets: bool,

    /// Also pods with emptyDir volumes; what is in them is lost
    #[arg(long)]
    delete_emptydir_data: bool,

    /// Delete pods instead of evicting them: disruption budgets are not asked
    #[arg(long)]
    disable_eviction: bool,

    /// Seconds that pods are given to end; -1 means their own
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = -1,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..)
    )]
    grace_period: i64,

    /// Do not wait for pods that have been ending for longer than this many seconds; 0 waits for all
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        value_parser = clap::value_parser!(i64).range(0..)
    )]
    skip_wait_for_delete_timeout: i64,

    /// How long it may take in all before it is given up; 0 means for ever
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_duration)]
    timeout: Duration,

    #[command(flatten)]
    reason: ReasonFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.settle()?;
    let controller = connection.controller()?;
    let mut failures = Failures::default();
    for node in nodes(&connection, &flags.names, &flags.selection).await? {
        failures.keep(drain(&controller, &node, &flags).await)?;
    }
    failures.finish()
}

async fn drain(controller: &Controller, node: &str, flags: &Flags) -> Result<(), Failure> {
    let terminal = Terminal::stdout();
    let request = request(node, flags);
    let mut client = controller.client.clone();
    // Without a deadline once it has begun: a drain takes what it takes, and has one of its own.
    let mut answers = controller.opened(client.drain_node(request)).await?;
    let mut progress = Progress::default();
    let mut last = pb::DrainNodeResponse::default();
    let lost = |failure: Failure| if flags.plan { failure } else { failure.hint(goes_on(node)) };
    while let Some(told) = answers.message().await.at(&controller.peer).map_err(lost)? {
        if flags.plan {
            terminal.say(&plan(node, &told, terminal.paint))?;
        } else {
            terminal.say(&progress.lines(node, &told, terminal.paint))?;
        }
        last = told;
    }
    judge(node, &last, flags.plan)
}

fn request(node: &str, flags: &Flags) -> pb::DrainNodeRequest {
    let options = pb::DrainOptions {
        force: flags.force,
        ignore_daemonsets: flags.ignore_daemonsets,
        delete_emptydir_data: flags.delete_emptydir_data,
        disable_eviction: flags.disable_eviction,
        grace_period_seconds: (flags.grace_period >= 0).then_some(flags.grace_period),
        skip_wait_for_delete_seconds: flags.skip_wait_for_delete_timeout,
    };
    pb::DrainNodeRequest {
        name: node.to_owned(),
        reason: flags.reason.text("drain"),
        options: Some(options),
        // Longer than the schema can say is for ever.
        timeout: (!flags.timeout.is_zero()).then(|| flags.timeout.try_into().ok()).flatten(),
        plan_only: flags.plan,
    }
}

/// What the last answer means for whoever asked.
fn judge(node: &str, last: &pb::DrainNodeResponse, plan: bool) -> Result<(), Failure> {
    let why = format!("node/{node}: {}", verdict(last));
    let in_the_way = last.pods.iter().any(|pod| pod.action == "Refuse");
    match last.state.as_str() {
        "Planned" if in_the_way => Err(Failure::new(Exit::Refused, why).hint(WAYS_OUT)),
        "Planned" | "Complete" => Ok(()),
        "Refused" => Err(Failure::new(Exit::Refused, why)
            .hint(format!("{WAYS_OUT}; the node stays cordoned, `muster uncordon {node}` ends that"))),
        "Failed" => Err(Failure::new(Exit::Failed, why)
            .hint(format!("`muster drain {node} --plan` says what is left; the node stays cordoned"))),
        "Cancelled" => Err(Failure::new(Exit::Conflict, why).hint("somebody uncordoned the node meanwhile")),
        _ if plan => Err(Failure::new(Exit::Failed, format!("node/{node}: the controller sent no plan"))
            .hint("try again; the log of the controller says more")),
        _ => Err(Failure::new(
            Exit::Unreachable,
            format!("node/{node}: the controller went away before the end"),
        )
        .hint(goes_on(node))),
    }
}

/// What to do when a drain is lost sight of.
fn goes_on(node: &str) -> String {
    format!(
        "the drain goes on: the same command follows it again; `muster fleet -w` and `muster describe node {node}` show it"
    )
}

const WAYS_OUT: &str = "the pods in the way are named above with the rule; --ignore-daemonsets, --force and \
                        --delete-emptydir-data are the ways around them";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_drain_ended_decides_on_the_exit_code() {
        for (state, action, plan, expected) in [
            ("Planned", "Evict", true, None),
            ("Planned", "Refuse", true, Some(Exit::Refused)),
            ("Refused", "Refuse", false, Some(Exit::Refused)),
            ("Complete", "Evict", false, None),
            ("Failed", "Evict", false, Some(Exit::Failed)),
            ("Cancelled", "Evict", false, Some(Exit::Conflict)),
            ("Draining", "Evict", false, Some(Exit::Unreachable)),
            ("", "Evict", true, Some(Exit::Failed)),
        ] {
            let pods = vec![pb::DrainPod { action: action.to_owned(), ..Default::default() }];
            let last = pb::DrainNodeResponse { state: state.to_owned(), message: "why".to_owned(), pods };
            let exit = judge("a", &last, plan).err().and_then(|failure| failure.exit());
            assert_eq!(exit, expected, "{state} {action}");
        }
    }
}
