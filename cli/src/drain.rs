//! `muster drain`: evicts the pods of nodes, or shows the plan of a drain.
//!
//! The controller runs the drain. It continues if this command is interrupted, and the same command again follows the
//! drain that is in progress.

use std::time::Duration;

use muster_proto::pb;
use muster_rpc::config::parse_duration;

use crate::connection::{ConnectionFlags, Controller, OrFailure};
use crate::cordon::{NodeFlags, ReasonFlags};
use crate::delete::GracePeriodFlags;
use crate::failure::{Exit, Failure, Failures};
use crate::print::drain::{PlanTotals, Progress, plan, verdict};
use crate::terminal::Terminal;

/// Cordons nodes and evicts their pods
///
/// Pods are evicted as their disruption budgets allow. --plan changes nothing: it lists the pods in order with what
/// would happen to each, which pods block the drain and which would stay. Its exit code is 4 if the drain would be
/// refused.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    nodes: NodeFlags,

    /// Show what the drain would do, and change nothing
    #[arg(long)]
    plan: bool,

    /// Also evict pods without a workload controller, which nothing will recreate
    #[arg(long)]
    force: bool,

    /// Leave pods of daemon sets running; without this flag they make the drain fail
    #[arg(long)]
    ignore_daemonsets: bool,

    /// Also evict pods with emptyDir volumes; the data in the volumes is lost
    #[arg(long)]
    delete_emptydir_data: bool,

    /// Delete pods instead of evicting them; this bypasses disruption budgets
    #[arg(long)]
    disable_eviction: bool,

    #[command(flatten)]
    grace_period: GracePeriodFlags,

    /// Do not wait for pods that have been terminating for more than this many seconds; 0 waits for all pods
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        value_parser = clap::value_parser!(i64).range(0..)
    )]
    skip_wait_for_delete_timeout: i64,

    /// Time limit for the whole drain, after which it fails; 0 means no limit
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_duration)]
    timeout: Duration,

    #[command(flatten)]
    reason: ReasonFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.resolve()?;
    let controller = connection.controller().await?;
    let mut failures = Failures::default();
    let mut totals = PlanTotals::default();
    for node in flags.nodes.names(&connection).await? {
        failures.keep(drain(&controller, &node, &flags, &mut totals).await)?;
    }
    if flags.plan {
        Terminal::stdout().print(&totals.line())?;
    }
    failures.finish()
}

async fn drain(
    controller: &Controller,
    node: &str,
    flags: &Flags,
    totals: &mut PlanTotals,
) -> Result<(), Failure> {
    let terminal = Terminal::stdout();
    let request = request(node, flags);
    let mut client = controller.client.clone();
    // No deadline after the first answer: a drain may take long, and --timeout limits it.
    let mut answers = controller.open_stream(client.drain_node(request)).await?;
    let mut progress = Progress::default();
    let mut last = pb::DrainNodeResponse::default();
    let lost = |failure: Failure| if flags.plan { failure } else { failure.hint(drain_continues(node)) };
    while let Some(response) = answers.message().await.or_failure(&controller.peer).map_err(lost)? {
        if flags.plan {
            terminal.print(&plan(node, &response, terminal.paint, terminal.width))?;
            totals.add(&response);
        } else {
            terminal.print(&progress.lines(node, &response, terminal.paint, terminal.width))?;
        }
        last = response;
    }
    result(node, &last, flags.plan)
}

fn request(node: &str, flags: &Flags) -> pb::DrainNodeRequest {
    let options = pb::DrainOptions {
        force: flags.force,
        ignore_daemonsets: flags.ignore_daemonsets,
        delete_emptydir_data: flags.delete_emptydir_data,
        disable_eviction: flags.disable_eviction,
        grace_period_seconds: flags.grace_period.seconds(),
        skip_wait_for_delete_seconds: flags.skip_wait_for_delete_timeout,
    };
    pb::DrainNodeRequest {
        name: node.to_owned(),
        reason: flags.reason.text("drain"),
        options: Some(options),
        // A duration that the schema cannot represent means no limit.
        timeout: (!flags.timeout.is_zero()).then(|| flags.timeout.try_into().ok()).flatten(),
        plan_only: flags.plan,
    }
}

/// The result of the command, from the last answer of the stream.
fn result(node: &str, last: &pb::DrainNodeResponse, plan: bool) -> Result<(), Failure> {
    let why = format!("node/{node}: {}", verdict(last));
    let is_refused = last.pods.iter().any(|pod| pod.action() == pb::DrainPodAction::Refuse);
    use pb::DrainProgressState as State;
    match last.state() {
        State::Planned | State::Refused if plan && (is_refused || last.state() == State::Refused) => {
            Err(Failure::new(Exit::Refused, format!("node/{node}: the drain would be refused"))
                .hint(OVERRIDES))
        }
        State::Planned | State::Complete => Ok(()),
        // A plan changes nothing, so there is no cordon to take back.
        State::Refused if plan => Err(Failure::new(Exit::Refused, why).hint(OVERRIDES)),
        State::Refused => Err(Failure::new(Exit::Refused, why)
            .hint(format!("{OVERRIDES}; the node stays cordoned until `muster uncordon {node}`"))),
        State::Failed => Err(Failure::new(Exit::Failed, why)
            .hint(format!("`muster drain {node} --plan` lists the remaining pods; the node stays cordoned"))),
        State::Cancelled => {
            Err(Failure::new(Exit::Conflict, why).hint("the node was uncordoned during the drain"))
        }
        State::Draining | State::Unspecified if plan => {
            Err(Failure::new(Exit::Failed, format!("node/{node}: the controller sent no plan"))
                .hint("try again, and see the log of the controller"))
        }
        State::Draining | State::Unspecified => Err(Failure::new(
            Exit::Unreachable,
            format!("node/{node}: the controller ended the stream before the drain was complete"),
        )
        .hint(drain_continues(node))),
    }
}

/// The hint for a drain whose stream was lost.
fn drain_continues(node: &str) -> String {
    format!(
        "the drain continues: run the same command to follow it; `muster fleet -w` and `muster describe node {node}` show it"
    )
}

const OVERRIDES: &str = "the list above names the pods that block the drain and why; --ignore-daemonsets, --force and \
                         --delete-emptydir-data override these rules";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_final_state_of_a_drain_decides_the_exit_code() {
        use pb::DrainPodAction::{Evict, Refuse};
        use pb::DrainProgressState::*;
        for (state, action, plan, expected) in [
            (Planned, Evict, true, None),
            (Planned, Refuse, true, Some(Exit::Refused)),
            (Refused, Refuse, false, Some(Exit::Refused)),
            (Refused, Refuse, true, Some(Exit::Refused)),
            (Complete, Evict, false, None),
            (Failed, Evict, false, Some(Exit::Failed)),
            (Cancelled, Evict, false, Some(Exit::Conflict)),
            (Draining, Evict, false, Some(Exit::Unreachable)),
            (Unspecified, Evict, true, Some(Exit::Failed)),
        ] {
            let pods = vec![pb::DrainPod { action: action.into(), ..Default::default() }];
            let last = pb::DrainNodeResponse { state: state.into(), message: "why".to_owned(), pods };
            let exit = result("a", &last, plan).err().and_then(|failure| failure.exit());
            assert_eq!(exit, expected, "{state:?} {action:?}");
            let report = result("a", &last, plan).err().map(|failure| failure.report("drain"));
            assert!(!plan || !report.unwrap_or_default().contains("cordoned"), "a plan cordons nothing");
        }
    }
}
