//! Why a pod has no node yet, or when it is evicted from its node.

use muster_proto::condition::types;
use muster_proto::key::Key;
use muster_proto::pb;
use muster_proto::pod::{Pod, requests};

use super::convert::{count, timestamp};
use super::fleet::pod_gc;
use super::{Explanation, ExplanationAction, ExplanationState, NOTHING_DECIDED, eviction};
use crate::controllers::Controllers;
use crate::decision::DecisionSubject;
use crate::explain::scheduling::SchedulingStatus;
use crate::plan::uid;
use crate::reconciler::{Phase, Reconciler};
use crate::scheduler::FitError;
use crate::scheduler::victims::PREEMPTED_REASON;
use muster_proto::time::Now;

/// Explains a pod; `None` if there is no pod of that name.
pub fn explain(reconciler: &Reconciler, key: &Key, now: Now) -> Option<pb::ExplainPodResponse> {
    let pod = reconciler.world().pod(key)?;
    let mut response = pb::ExplainPodResponse {
        namespace: key.namespace.as_ref().map(ToString::to_string).unwrap_or_default(),
        name: key.name.to_string(),
        uid: uid(&pod.meta).to_string(),
        node_name: pod.spec.node_name.as_ref().map(ToString::to_string).unwrap_or_default(),
        as_of: timestamp(now, now.mono),
        ..pb::ExplainPodResponse::default()
    };
    let Some(controllers) = reconciler.controllers().filter(|_| reconciler.phase() == Phase::Active) else {
        response.summary = NOTHING_DECIDED.to_owned();
        return Some(response);
    };
    let status = controllers.scheduler.explain_pod(pod);
    let displaced = displaced(controllers, pod);
    response.summary = match &displaced {
        Some(displaced) => format!("{}: {}", key.name, displaced.reason),
        None => format!("{}: {}", key.name, reason(&status)),
    };
    if let SchedulingStatus::Unschedulable { verdict, .. } = &status {
        response.obstacles = obstacles(verdict);
    }
    let decision = controllers.decisions.latest(&DecisionSubject::Pod(key.clone()));
    response.eviction = eviction::explain(reconciler, controllers, pod, now)
        .map(|eviction| pb::PodExplanation { decision_id: decision, ..eviction.into_pb(pod, now) });
    let explanations = [
        Some(schedule(reconciler, controllers, pod, &status, now)),
        displaced,
        drain(reconciler, controllers, pod, now),
        orphaned(reconciler, controllers, pod, now),
    ];
    let explanations = explanations.into_iter().flatten();
    response.explanations = explanations.map(|it| it.following(decision).into_pb(now)).collect();
    Some(response)
}

fn obstacles(verdict: &FitError) -> Vec<pb::PodObstacle> {
    let each = verdict.reasons().into_iter();
    each.map(|(obstacle, nodes)| pb::PodObstacle { reason: obstacle.to_string(), nodes: count(nodes) })
        .collect()
}

/// Whether the pod has a node, and when the scheduler tries next.
fn schedule(
    reconciler: &Reconciler,
    controllers: &Controllers,
    pod: &Pod,
    status: &SchedulingStatus,
    now: Now,
) -> Explanation {
    let state = match status {
        SchedulingStatus::Bound { .. } => ExplanationState::Done,
        SchedulingStatus::Finished => ExplanationState::None,
        SchedulingStatus::Gated { .. } => ExplanationState::Paused,
        SchedulingStatus::Queued => ExplanationState::Queued,
        SchedulingStatus::Binding { .. } => ExplanationState::Due,
        SchedulingStatus::Unschedulable { .. }
        | SchedulingStatus::BindUnconfirmed { .. }
        | SchedulingStatus::Nominated { .. }
        | SchedulingStatus::BindRefused { .. } => ExplanationState::Waiting,
    };
    let earliest = match status {
        SchedulingStatus::Queued | SchedulingStatus::Binding { .. } => Some(now.mono),
        other => other.again_at(),
    };
    let explanation = Explanation::new(ExplanationAction::Schedule, state, reason(status)).earliest(earliest);
    if matches!(status, SchedulingStatus::Bound { .. } | SchedulingStatus::Finished) {
        return explanation;
    }
    let requests = requests::of(&pod.spec);
    let requests: Vec<String> =
        requests.iter().map(|(resource, amount)| format!("{resource}={amount}")).collect();
    let explanation = explanation
        .input("requests", if requests.is_empty() { "nothing".to_owned() } else { requests.join(" ") })
        .input("priority", pod.spec.priority())
        .input("nodes", reconciler.world().node_count())
        .input("pendingPods", controllers.scheduler.pending());
    let explanation = match status {
        SchedulingStatus::Unschedulable { tried_at, .. } => {
            explanation.input("triedAt", now.wall_of(*tried_at))
        }
        _ => explanation,
    };
    let wanted: Vec<String> =
        pod.spec.node_selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if wanted.is_empty() { explanation } else { explanation.input("nodeSelector", wanted.join(",")) }
}

fn reason(status: &SchedulingStatus) -> String {
    match status {
        SchedulingStatus::Unschedulable { verdict, .. } => {
            format!("{verdict} The pod is tried again when a node has changed so that it may fit.")
        }
        other => other.to_string(),
    }
}

/// Whether the pod is displaced from its node for a pod of higher priority.
fn displaced(controllers: &Controllers, pod: &Pod) -> Option<Explanation> {
    let explanation = |state, why: &str| {
        Explanation::new(ExplanationAction::Preempt, state, format!("The pod is {why}."))
            .input("priority", pod.spec.priority())
    };
    if let Some(victim) = controllers.scheduler.victims().get(&Key::of(pod), uid(&pod.meta)) {
        return Some(explanation(ExplanationState::Due, &victim.message()));
    }
    let target = pod.condition(types::DISRUPTION_TARGET).filter(|held| held.reason == PREEMPTED_REASON)?;
    pod.meta.is_deleting().then(|| explanation(ExplanationState::Done, &target.message))
}

/// How far a drain of the pod's node has come with the pod.
fn drain(reconciler: &Reconciler, controllers: &Controllers, pod: &Pod, now: Now) -> Option<Explanation> {
    use crate::drain::progress::{PodState, ProgressState};

    let node = pod.spec.node_name.as_ref()?;
    let progress = controllers.drains.progress(reconciler.world(), node.as_str(), now)?;
    if progress.state != ProgressState::Draining {
        return None;
    }
    let pod = progress.pods.into_iter().find(|it| it.uid == uid(&pod.meta))?;
    let state = match pod.state {
        PodState::Waiting => ExplanationState::Queued,
        PodState::Blocked => ExplanationState::Waiting,
        PodState::Stopping => ExplanationState::Due,
        PodState::Gone => ExplanationState::Done,
        PodState::Stays => ExplanationState::None,
    };
    Some(
        Explanation::new(ExplanationAction::Drain, state, pod.reason)
            .input("action", pod.action)
            .earliest(pod.retry_at),
    )
}

/// Whether pod GC removes the pod because its node does not exist.
fn orphaned(reconciler: &Reconciler, controllers: &Controllers, pod: &Pod, now: Now) -> Option<Explanation> {
    let node = pod.spec.node_name.as_ref()?;
    if reconciler.world().node(node.as_str()).is_some() {
        return None;
    }
    pod_gc(controllers, node, now)
}
