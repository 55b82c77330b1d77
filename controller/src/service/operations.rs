//! What people ask of nodes, written to the store as intent: from there the controller acts on it like on any change.

use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt};
use muster_proto::drain::{Drain, DrainOptions, DrainState};
use muster_proto::event::EventType;
use muster_proto::key::Key;
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::pb;
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

/// TaintEvictions that are tried at once.
const TRIALS: usize = 16;
/// How often a record that others write at the same time is read again.
const TRIES: usize = 10;

/// What a node's record was, and what it has become if it changed.
struct Changed {
    before: Node,
    after: Option<Node>,
}

pub struct Intents {
    pub client: StoreClient,
    pub shared: Shared,
}

impl Intents {
    pub async fn cordon(&self, name: &Name, who: &str, reason: &str) -> Result<Node, Status> {
        let now = self.shared.now().wall;
        let Changed { before, after } =
            self.change(name, |node| intent::cordon(node, who, reason, now)).await?;
        let Some(node) = after else { return Ok(before) };
        self.record(&node, "NodeCordoned", format!("{who} cordoned the node: {reason}")).await;
        Ok(node)
    }

    pub async fn uncordon(&self, name: &Name, who: &str, reason: &str) -> Result<Node, Status> {
        let Changed { before, after } = self.change(name, intent::uncordon).await?;
        let Some(node) = after else { return Ok(before) };
        let drained = before.spec.drain.is_some_and(|drain| drain.is_under_way());
        let ends = if drained { ", which calls its drain off" } else { "" };
        self.record(&node, "NodeUncordoned", format!("{who} uncordoned the node{ends}: {reason}")).await;
        Ok(node)
    }

    /// Tells of what somebody asked for. The record of the node does not keep it for ever.
    async fn record(&self, node: &Node, reason: &str, message: String) {
        tracing::info!(node = %node.meta.name, "{message}");
        let told = self.client.record_event(event(node, EventType::Normal, reason, message)).await;
        if let Err(error) = told {
            tracing::warn!(node = %node.meta.name, %error, "who asked for it, and why, stands in this log only");
        }
    }

    /// What a drain would do, without asking for one. The store says which budgets would be in the way now.
    pub async fn preview(
        &self,
        name: &Name,
        options: &DrainOptions,
    ) -> Result<pb::DrainNodeResponse, Status> {
        let now = self.shared.now();
        let plan = preview(self.shared.reconciler().world(), name.as_str(), options, now);
        let mut plan = plan.ok_or_else(|| not_found(name))?;
        let evicted = plan.pods.iter_mut().filter(|pod| pod.action == PodAction::Evict);
        stream::iter(evicted).for_each_concurrent(TRIALS, |pod| self.try_eviction(pod)).await;
        Ok(plan.into_pb(now))
    }

    /// Asks for an eviction that does not happen.
    async fn try_eviction(&self, pod: &mut PodProgress) {
        let preconditions = Preconditions { uid: Some(pod.uid), resource_version: None };
        let delete = DeleteOptions { preconditions, grace_period_seconds: None };
        if let Err(ClientError::BudgetExhausted { message, .. }) =
            self.client.evict(&pod.key, EvictOptions { delete, dry_run: true }).await
        {
            pod.state = PodState::Blocked;
            pod.reason = message;
        }
    }

    /// Asks for a drain; the same that is under way already goes on as it is.
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
        let Changed { before, after } =
            self.change(name, |node| intent::request_drain(node, drain.clone())).await?;
        Ok(after.unwrap_or(before))
    }

    /// Only who drives a drain can tell how far it has come.
    pub fn check_leads(&self, leader: &str) -> Result<(), Status> {
        match self.shared.reconciler().phase() {
            Phase::Active => Ok(()),
            Phase::Standby => {
                let details = ErrorDetails::with_error_info(
                    "NOT_LEADING",
                    muster_proto::ERROR_DOMAIN,
                    [("leader".to_owned(), leader.to_owned())],
                );
                let message = format!("this controller is a standby: ask {leader}, which leads");
                Err(Status::with_error_details(Code::FailedPrecondition, message, details))
            }
            Phase::Syncing => {
                Err(Status::unavailable("this controller does not hear the store now; try again later"))
            }
        }
    }

    /// Tells how far a drain has come whenever that changed, to its end.
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
                            next_look(&mut decided).await;
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

    /// Reads, changes and writes a node until nobody has written it in between; `None` leaves it as it is.
    async fn change(&self, name: &Name, change: impl Fn(&Node) -> Option<Node>) -> Result<Changed, Status> {
        let key = Key::node(name.clone());
        for _ in 0..TRIES {
            let node: Node = self.client.get(&key).await.map_err(|error| status(name, error))?;
            let Some(wanted) = change(&node) else {
                // Told at once, so that who asks next is answered from what is there now.
                self.shared.reconciler().observe_written_node(node.clone(), self.shared.now());
                return Ok(Changed { before: node, after: None });
            };
            match self.client.update(wanted).await {
                Err(ClientError::Conflict(_)) => {}
                Err(error) => return Err(status(name, error)),
                Ok(written) => {
                    // Told at once, so that who asks next is answered from what was just written.
                    self.shared.reconciler().observe_written_node(written.clone(), self.shared.now());
                    return Ok(Changed { before: node, after: Some(written) });
                }
            }
        }
        Err(Status::aborted(format!("Node {name} is written by others all the time; try again")))
    }
}

/// Returns when there may be something new to see. A busy controller decides thousands of times a second, and each look
/// takes in all pods of a node.
async fn next_look(decided: &mut watch::Receiver<u64>) {
    tokio::time::sleep(SHORTEST_INTERVAL).await;
    // It ends with the loop that decides, which ends us too.
    let _ = decided.changed().await;
}

fn progress(shared: &Shared, name: &Name) -> Result<DrainProgress, Status> {
    let reconciler = shared.reconciler();
    let Some(controllers) = reconciler.controllers() else {
        return Err(Status::unavailable(
            "this controller does not lead any more; the drain goes on under another",
        ));
    };
    Ok(controllers.drains.progress(reconciler.world(), name.as_str(), shared.now()).unwrap_or_else(|| {
        let message = match reconciler.world().node(name.as_str()) {
            Some(_) => "the drain was called off",
            None => "the node is gone",
        };
        DrainProgress { state: ProgressState::Cancelled, message: message.to_owned(), pods: Vec::new() }
    }))
}

/// What the store answered, for who asked us.
fn status(name: &Name, error: ClientError) -> Status {
    match error {
        ClientError::NotFound(_) => not_found(name),
        ClientError::Denied(message) => Status::permission_denied(message),
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
    async fn who_follows_a_busy_controller_looks_ten_times_a_second() {
        let decided = watch::Sender::new(0);
        let mut follower = decided.subscribe();
        let busy = async {
            for _ in 0..1_000 {
                decided.send_modify(|count| *count += 1);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let mut looks = 0;
        let follows = async {
            loop {
                next_look(&mut follower).await;
                looks += 1;
            }
        };
        tokio::select! {
            () = busy => {}
            () = follows => {}
        }
        assert!((8..=10).contains(&looks), "{looks}");
    }
}
