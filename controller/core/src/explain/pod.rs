//! Why one pod has no node yet, or when it has to leave the one it has.

use muster_proto::key::Key;
use muster_proto::pb;
use muster_proto::pod::{Pod, requests};

use super::convert::{count, timestamp};
use super::fleet::collection;
use super::{Explanation, ExplanationAction, ExplanationState, node};
use crate::controllers::Controllers;
use crate::explain::scheduling::Standing;
use crate::plan::uid;
use crate::reconciler::{Phase, Reconciler};
use crate::scheduler::Verdict;
use muster_proto::time::Now;

/// The account of a pod; `None` if there is none of that name.
pub fn explain(reconciler: &Reconciler, key: &Key, now: Now) -> Option<pb::ExplainPodResponse> {
    let pod = reconciler.world().pod(key)?;
    let mut account = pb::ExplainPodResponse {
        namespace: key.namespace.as_ref().map(ToString::to_string).unwrap_or_default(),
        name: key.name.to_string(),
        uid: uid(&pod.meta).to_string(),
        node_name: pod.spec.node_name.as_ref().map(ToString::to_string).unwrap_or_default(),
        as_of: timestamp(now, now.mono),
        ..pb::ExplainPodResponse::default()
    };
    let Some(controllers) = reconciler.controllers().filter(|_| reconciler.phase() == Phase::Active) else {
        account.summary = "This controller judges nobody now; see the fleet's state for why.".to_owned();
        return Some(account);
    };
    let standing = controllers.scheduler.explain_pod(pod);
    account.summary = format!("{}: {}", key.name, tell(&standing));
    if let Standing::Unschedulable { verdict, .. } = &standing {
        account.obstacles = obstacles(verdict);
    }
    account.stay = node::stay(reconciler, controllers, pod, now);
    let told = [
        Some(schedule(reconciler, controllers, pod, &standing, now)),
        drain(reconciler, controllers, pod, now),
        orphaned(reconciler, controllers, pod, now),
    ];
    account.explanations = told.into_iter().flatten().map(|told| told.into_pb(now)).collect();
    Some(account)
}

fn obstacles(verdict: &Verdict) -> Vec<pb::PodObstacle> {
    let each = verdict.obstacles().into_iter();
    each.map(|(obstacle, nodes)| pb::PodObstacle { reason: obstacle.to_string(), nodes: count(nodes) })
        .collect()
}

/// Whether it gets a node, and when that is tried next.
fn schedule(
    reconciler: &Reconciler,
    controllers: &Controllers,
    pod: &Pod,
    standing: &Standing,
    now: Now,
) -> Explanation {
    let state = match standing {
        Standing::Placed { .. } => ExplanationState::Done,
        Standing::Over => ExplanationState::None,
        Standing::Gated { .. } => ExplanationState::Paused,
        Standing::Queued => ExplanationState::Queued,
        Standing::Binding { .. } => ExplanationState::Due,
        Standing::Unschedulable { .. } | Standing::Doubted { .. } | Standing::TurnedAway { .. } => {
            ExplanationState::Waiting
        }
    };
    let earliest = match standing {
        Standing::Queued | Standing::Binding { .. } => Some(now.mono),
        other => other.again_at(),
    };
    let told = Explanation::new(ExplanationAction::Schedule, state, tell(standing)).earliest(earliest);
    if matches!(standing, Standing::Placed { .. } | Standing::Over) {
        return told;
    }
    let asks = requests::of(&pod.spec);
    let asks: Vec<String> = asks.iter().map(|(resource, amount)| format!("{resource}={amount}")).collect();
    let told = told
        .input("requests", if asks.is_empty() { "nothing".to_owned() } else { asks.join(" ") })
        .input("priority", pod.spec.priority.unwrap_or(0))
        .input("nodes", reconciler.world().node_count())
        .input("pendingPods", controllers.scheduler.pending());
    let told = match standing {
        Standing::Unschedulable { tried_at, .. } => told.input("triedAt", now.wall_of(*tried_at)),
        _ => told,
    };
    let wanted: Vec<String> =
        pod.spec.node_selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if wanted.is_empty() { told } else { told.input("nodeSelector", wanted.join(",")) }
}

fn tell(standing: &Standing) -> String {
    match standing {
        Standing::Unschedulable { .. } => {
            format!("{standing} It is tried again as soon as a node has become one that will do.")
        }
        other => format!("{other}."),
    }
}

/// How far a drain of its node has come with it.
fn drain(reconciler: &Reconciler, controllers: &Controllers, pod: &Pod, now: Now) -> Option<Explanation> {
    use crate::drain::progress::{PodState, ProgressState};

    let node = pod.spec.node_name.as_ref()?;
    let progress = controllers.drains.progress(reconciler.world(), node.as_str(), now)?;
    if progress.state != ProgressState::Draining {
        return None;
    }
    let told = progress.pods.into_iter().find(|told| told.uid == uid(&pod.meta))?;
    let state = match told.state {
        PodState::Waiting => ExplanationState::Queued,
        PodState::Blocked => ExplanationState::Waiting,
        PodState::Stopping => ExplanationState::Due,
        PodState::Gone => ExplanationState::Done,
        PodState::Stays => ExplanationState::None,
    };
    Some(
        Explanation::new(ExplanationAction::Drain, state, told.reason)
            .input("action", told.action)
            .earliest(told.retry_at),
    )
}

/// Whether it is removed because its node is no more.
fn orphaned(reconciler: &Reconciler, controllers: &Controllers, pod: &Pod, now: Now) -> Option<Explanation> {
    let node = pod.spec.node_name.as_ref()?;
    if reconciler.world().node(node.as_str()).is_some() {
        return None;
    }
    collection(controllers, node, now)
}
