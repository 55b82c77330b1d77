//! Cordon, uncordon and drain: they are written to the node's record, and the controller acts on the record.

use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt};
use muster_proto::drain::{Cordon, Drain, DrainOptions, DrainState};
use muster_proto::event::EventType;
use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_rpc::audit;
use muster_rpc::shutdown::Shutdown;
use muster_store_client::{ClientError, DeleteOptions, EvictOptions, Preconditions, StoreClient};
use tokio::sync::watch;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::{SHORTEST_INTERVAL, not_found};
use crate::event_loop::Shared;
use muster_controller_core::drain::filters::PodAction;
use muster_controller_core::drain::intent;
use muster_controller_core::drain::progress::{DrainProgress, PodProgress, PodState, ProgressState, preview};
use muster_controller_core::plan::event;
use muster_controller_core::reconciler::Phase;

/// Evictions of a plan that are tried at once.
const DRY_RUNS: usize = 16;
/// How often an update is tried while other clients write the same record.
const MAX_ATTEMPTS: usize = 10;

/// A node's record before an update, and after it if it changed.
struct Updated {
    before: Node,
    after: Option<Node>,
}

pub struct Operations {
    pub client: StoreClient,
    pub shared: Shared,
}

impl Operations {
    /// Cordons a node for the caller, without end or for a time.
    pub async fn cordon(
        &self,
        name: &Name,
        caller: &str,
        reason: &str,
        duration: Option<Duration>,
    ) -> Result<Node, Status> {
        let now = self.shared.now().wall;
        let end = duration.and_then(|duration| now.checked_add(duration).ok());
        let cordon = intent::cordon_of(caller, reason, now, end);
        let Updated { before, after } =
            self.update(name, |node| intent::cordon(node, cordon.clone())).await?;
        let Some(node) = after else { return Ok(before) };
        let until = end.map(|end| format!(" until {end:.0}")).unwrap_or_default();
        self.record(&node, "NodeCordoned", format!("{caller} cordoned the node{until}: {reason}")).await;
        Ok(node)
    }

    /// Takes off the caller's cordon and drain, or those of everybody.
    pub async fn uncordon(&self, name: &Name, caller: &str, reason: &str, all: bool) -> Result<Node, Status> {
        let Updated { before, after } = self.update(name, |node| intent::uncordon(node, caller, all)).await?;
        let Some(node) = after else { return Ok(before) };
        let drained =
            before.spec.drain.is_some_and(|drain| drain.is_under_way()) && node.spec.drain.is_none();
        let cancels = if drained { ", which cancels its drain" } else { "" };
        let remain: Vec<String> = node.spec.cordons.iter().map(Cordon::who).collect();
        let message = if node.spec.unschedulable {
            format!(
                "{caller} took off its cordon{cancels}: {reason}; still cordoned by {}",
                remain.join(", ")
            )
        } else {
            format!("{caller} uncordoned the node{cancels}: {reason}")
        };
        self.record(&node, "NodeUncordoned", message).await;
        Ok(node)
    }

    /// Logs an operation and records it as an event: the node's record does not keep it for ever.
    async fn record(&self, node: &Node, reason: &str, message: String) {
        tracing::info!(node = %node.meta.name, "{message}");
        let recorded = self.client.record_event(event(node, EventType::Normal, reason, message)).await;
        if let Err(error) = recorded {
            tracing::warn!(node = %node.meta.name, %error, "the event was not recorded: only this log has it");
        }
    }

    /// What a drain would do, without starting one. Dry runs of evictions show which budgets would block them now.
    pub async fn preview(
        &self,
        name: &Name,
        options: &DrainOptions,
    ) -> Result<pb::DrainNodeResponse, Status> {
        let now = self.shared.now();
        let plan = preview(self.shared.reconciler().world(), name.as_str(), options, now);
        let mut plan = plan.ok_or_else(|| not_found(name))?;
        let evicted = plan.pods.iter_mut().filter(|pod| pod.action == PodAction::Evict);
        stream::iter(evicted).for_each_concurrent(DRY_RUNS, |pod| self.dry_run_eviction(pod)).await;
        Ok(plan.into_pb(now))
    }

    /// Marks a pod as blocked if a dry run of its eviction fails because of a budget.
    async fn dry_run_eviction(&self, pod: &mut PodProgress) {
        let preconditions = Preconditions { uid: Some(pod.uid), resource_version: None };
        let delete = DeleteOptions { preconditions, grace_period_seconds: None };
        if let Err(ClientError::BudgetExhausted { message, .. }) =
            self.client.evict(&pod.key, EvictOptions { delete, dry_run: true }).await
        {
            pod.state = PodState::Blocked;
            pod.reason = message;
        }
    }

    /// Writes a drain to the node's record. An equal drain that is under way continues unchanged.
    pub async fn request_drain(
        &self,
        name: &Name,
        requested_by: String,
        reason: String,
        options: DrainOptions,
        timeout: Option<Duration>,
    ) -> Result<Node, Status> {
        let now = self.shared.now().wall;
        let deadline = timeout.filter(|timeout| !timeout.is_zero());
        let drain = Drain {
            requested_by,
            reason,
            requested_at: now,
            deadline: deadline.and_then(|timeout| now.checked_add(timeout).ok()),
            options,
            state: DrainState::Draining,
            message: String::new(),
            finished_at: None,
        };
        let Updated { before, after } =
            self.update(name, |node| intent::request_drain(node, drain.clone())).await?;
        Ok(after.unwrap_or(before))
    }

    /// Only the leader performs drains and knows their progress.
    pub fn check_leads(&self, leader: &str) -> Result<(), Status> {
        match self.shared.reconciler().phase() {
            Phase::Active => Ok(()),
            Phase::Standby => {
                let details = ErrorDetails::with_error_info(
                    "NOT_LEADING",
                    muster_proto::ERROR_DOMAIN,
                    [("leader".to_owned(), leader.to_owned())],
                );
                let message = format!("this controller is on standby: call {leader}, which leads");
                Err(Status::with_error_details(Code::FailedPrecondition, message, details))
            }
            Phase::Syncing => Err(Status::unavailable(
                "the watches of this controller are not synced with the store; try again later",
            )),
        }
    }

    /// Streams the progress of a drain, after each change, until the drain ends.
    pub fn follow_drain(
        &self,
        name: Name,
        shutdown: Shutdown,
    ) -> impl Stream<Item = Result<pb::DrainNodeResponse, Status>> + use<> {
        let shared = self.shared.clone();
        let decided = shared.decided();
        stream::unfold((decided, None, false), move |(mut decided, last, ended)| {
            let (shared, name, stop) = (shared.clone(), name.clone(), shutdown.requested());
            async move {
                if ended {
                    return None;
                }
                let next = async {
                    loop {
                        if last.is_some() {
                            next_decision(&mut decided).await;
                        }
                        let progress = progress(&shared, &name)?;
                        if last.as_ref() != Some(&progress) {
                            return Ok(progress);
                        }
                    }
                };
                let progress: Result<DrainProgress, Status> = tokio::select! {
                    () = stop => Err(Status::unavailable("the controller stops; the drain goes on")),
                    progress = next => progress,
                };
                Some(match progress {
                    Ok(progress) => {
                        let ended = progress.state.is_final();
                        (Ok(progress.clone().into_pb(shared.now())), (decided, Some(progress), ended))
                    }
                    Err(status) => (Err(status), (decided, None, true)),
                })
            }
        })
    }

    /// Reads, changes and writes a node, again after each conflict. A change of `None` writes nothing.
    async fn update(&self, name: &Name, change: impl Fn(&Node) -> Option<Node>) -> Result<Updated, Status> {
        let key = Key::node(name.clone());
        for _ in 0..MAX_ATTEMPTS {
            let node: Node = self.client.get(&key).await.map_err(|error| status(name, error))?;
            let Some(wanted) = change(&node) else {
                // The reconciler learns it at once, so that the next call sees the current record.
                self.shared.reconciler().observe_written_node(node.clone(), self.shared.now());
                return Ok(Updated { before: node, after: None });
            };
            match self.client.update(wanted).await {
                Err(ClientError::Conflict(_)) => {}
                Err(error) => return Err(status(name, error)),
                Ok(written) => {
                    audit::note_revision(written.meta.resource_version);
                    // The reconciler learns it at once, so that the next call sees this write.
                    self.shared.reconciler().observe_written_node(written.clone(), self.shared.now());
                    return Ok(Updated { before: node, after: Some(written) });
                }
            }
        }
        Err(Status::aborted(format!("other clients keep writing node {name}; try again")))
    }
}

/// Returns when the progress may have changed. A busy controller decides thousands of times a second, and computing the
/// progress reads all pods of a node, so this waits between two decisions.
async fn next_decision(decided: &mut watch::Receiver<u64>) {
    tokio::time::sleep(SHORTEST_INTERVAL).await;
    // An error means that the event loop has ended; then the process stops too.
    let _ = decided.changed().await;
}

fn progress(shared: &Shared, name: &Name) -> Result<DrainProgress, Status> {
    let reconciler = shared.reconciler();
    let Some(controllers) = reconciler.controllers() else {
        return Err(Status::unavailable(
            "this controller does not lead any more; the next leader continues the drain",
        ));
    };
    Ok(controllers.drains.progress(reconciler.world(), name.as_str(), shared.now()).unwrap_or_else(|| {
        let message = match reconciler.world().node(name.as_str()) {
            Some(_) => "the drain was cancelled",
            None => "the node is gone",
        };
        DrainProgress { state: ProgressState::Cancelled, message: message.to_owned(), pods: Vec::new() }
    }))
}

/// The store's error as the status of our call.
fn status(name: &Name, error: ClientError) -> Status {
    match error {
        ClientError::NotFound(_) => not_found(name),
        ClientError::Denied(message) => muster_rpc::identity::denied(message),
        ClientError::Invalid(invalid) => Status::invalid_argument(invalid.to_string()),
        error if error.is_retryable() => Status::unavailable(error.to_string()),
        error => Status::internal(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn progress_of_a_busy_controller_is_computed_ten_times_a_second() {
        let decided = watch::Sender::new(0);
        let mut follower = decided.subscribe();
        let busy = async {
            for _ in 0..1_000 {
                decided.send_modify(|count| *count += 1);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let mut reads = 0;
        let follows = async {
            loop {
                next_decision(&mut follower).await;
                reads += 1;
            }
        };
        tokio::select! {
            () = busy => {}
            () = follows => {}
        }
        assert!((8..=10).contains(&reads), "{reads}");
    }
}
