//! Decides what to do now for every pod, and when to decide again.

use std::sync::Arc;
use std::time::Duration;

use muster_proto::key::Key;
use muster_proto::pod::{Container, Pod};
use muster_proto::time::Mono;

use super::container::{ContainerState, Hook};
use super::plan::{Action, Plan};
use super::pod_state::{Admission, Held, Init, PodState};
use super::pod_states::PodStates;
use super::pod_status as status;
use muster_proto::time::Now;

/// How long a container has between TERM and KILL at least, whatever its grace period is: as in Kubernetes, even a pod
/// without any time left may still close what it has open.
pub const TERM_BEFORE_KILL: Duration = Duration::from_secs(2);
/// How long after a KILL without effect it is sent again.
const KILL_RETRY: Duration = Duration::from_secs(10);
/// How long TERM waits until the store knows that the pod is not ready: a store that does not answer must not use up
/// the pod's grace period.
const NOT_READY_WITHIN: Duration = Duration::from_secs(1);

/// How long a start may be in progress before that is posted: most starts finish sooner, and one post is enough.
const START_POST_DELAY: Duration = Duration::from_secs(1);

/// Decides what every pod on this node needs.
///
/// Until store and runtime have been listed there is nothing to do: a pod that is missing from an incomplete list has
/// not vanished. Without a node no pod is started and nothing is posted, but pods that must stop are stopped. Static
/// pods need neither the store nor a node.
pub fn decide(pod_states: &PodStates, now: Now) -> Plan {
    let mut plan = Plan::default();
    for pod_state in pod_states.entries.values().filter(|pod_state| pod_states.is_settled(pod_state)) {
        match pod_state.admission {
            _ if pod_states.node_of(pod_state).is_none() && !pod_state.is_stopping() => {}
            Admission::NodeWanted if !pod_state.is_stopping() => {
                if !pod_state.is_calling && due(pod_state.node_retry.not_before, now.mono, &mut plan) {
                    plan.push(Action::ReadNode { uid: pod_state.uid });
                }
            }
            _ if pod_state.is_stopping() => stop(pod_state, pod_states, now, &mut plan),
            Admission::Admitted => run(pod_state, pod_states, now, &mut plan),
            _ => report(pod_state, pod_states, now, &mut plan),
        }
    }
    pod_states.decide_mirrors(now.mono, &mut plan);
    // Releases first: a pod that starts is rejected for good if it lacks processors that another pod is about to
    // release.
    plan.actions.sort_by_key(|action| !matches!(action, Action::Release { .. }));
    plan
}

fn run(pod_state: &PodState, pod_states: &PodStates, now: Now, plan: &mut Plan) {
    let Some(pod) = &pod_state.pod else {
        return;
    };
    let before = plan.actions.len();
    let inits = &pod.spec.init_containers;
    let reached = match pod_state.init() {
        Init::At(i) => i,
        Init::Failed => return,
        Init::Done => inits.len(),
    };
    // Sidecars before the current init container keep running; the current one runs.
    for (i, init) in inits.iter().enumerate().take(reached + 1) {
        if init.sidecar || i == reached {
            start(pod_state, pod, init, now.mono, plan);
        }
    }
    if reached == inits.len() {
        for container in &pod.spec.containers {
            if pod_state
                .container_state(&container.name)
                .is_none_or(|container_state| pod_state.main_restarts(container_state))
            {
                start(pod_state, pod, container, now.mono, plan);
            }
        }
    }
    // The outcome of a start is posted next: two posts for one step would say no more.
    if plan.actions.len() == before && !is_beginning(pod_state, now.mono, plan) {
        report(pod_state, pod_states, now, plan);
    }
}

/// Whether a start began only just now.
fn is_beginning(pod_state: &PodState, now: Mono, plan: &mut Plan) -> bool {
    let begun = pod_state.containers.values().filter_map(|container_state| container_state.begun).max();
    begun.is_some_and(|begun| !due(begun + START_POST_DELAY, now, plan))
}

fn start(pod_state: &PodState, pod: &Arc<Pod>, container: &Container, now: Mono, plan: &mut Plan) {
    let container_state = pod_state.container_state(&container.name);
    if container_state.is_some_and(ContainerState::is_alive) {
        return;
    }
    let not_before = container_state.map_or(Mono::ZERO, |container_state| container_state.not_before);
    if now < not_before {
        plan.wake_by(not_before);
        return;
    }
    let attempt = container_state.map_or(0, ContainerState::next_attempt);
    plan.push(Action::Start { pod: pod.clone(), container: container.name.clone(), attempt });
}

/// Stops a pod step by step; each step waits for the outcome of the one before.
fn stop(pod_state: &PodState, pod_states: &PodStates, now: Now, plan: &mut Plan) {
    if pod_state.is_alive() {
        kill_stray_hooks(pod_state, now.mono, plan);
        let deadline = pod_state.deadline().unwrap_or(now.mono);
        if now.mono >= deadline {
            end_containers(pod_state, now.mono, plan);
        } else {
            plan.wake_by(deadline);
            if let Some(until) = unready_deadline(pod_state, deadline).filter(|until| now.mono < *until) {
                plan.wake_by(until);
                return report(pod_state, pod_states, now, plan);
            }
            stop_containers(pod_state, deadline, now.mono, plan);
        }
        return report(pod_state, pod_states, now, plan);
    }
    if pod_state.held > pod_state.may_keep() {
        let keeps_files = pod_state.may_keep() == Held::Files;
        match due(pod_state.release_retry.not_before, now.mono, plan) {
            true => plan.push(Action::Release { uid: pod_state.uid, keeps_files }),
            false => report(pod_state, pod_states, now, plan),
        }
        return;
    }
    if status::wanted(pod_state, pod_states, now).is_some() {
        return report(pod_state, pod_states, now, plan);
    }
    if pod_states.node.is_some() {
        delete(pod_state, now.mono, plan);
    }
}

/// Until when TERM waits for the post that says that a deleted pod is not ready, so that no more work is sent to it.
fn unready_deadline(pod_state: &PodState, deadline: Mono) -> Option<Mono> {
    let is_ready = pod_state.pod.as_ref().is_some_and(|pod| pod.is_ready());
    let since = pod_state.stop_causes.deleted.filter(|_| pod_state.stop_causes.vanished.is_none())?;
    let grace = deadline - since;
    (is_ready && !pod_state.is_unready_posted).then(|| since + NOT_READY_WITHIN.min(grace / 2))
}

/// The grace period is over: every container is killed, but none that has not had TERM for [`TERM_BEFORE_KILL`].
///
/// Those that were not sent TERM yet, because their hook or the containers before them used up the time, get it now,
/// all at once. A start that is in progress cannot be signalled, so it is killed.
fn end_containers(pod_state: &PodState, now: Mono, plan: &mut Plan) {
    for (name, container_state) in
        pod_state.containers.iter().filter(|(_, container_state)| container_state.is_alive())
    {
        let can_term = container_state.begun.is_none();
        if can_term && !container_state.term_sent {
            term_one(pod_state, name, container_state, now, plan);
        }
        let killed_from = match container_state.term_tried {
            _ if !can_term => now,
            Some(tried) => tried + TERM_BEFORE_KILL,
            None => continue,
        };
        if due(killed_from, now, plan) {
            kill_one(pod_state, name, container_state, now, plan);
        }
    }
}

fn term_one(pod_state: &PodState, name: &str, container_state: &ContainerState, now: Mono, plan: &mut Plan) {
    if due(container_state.retry.not_before, now, plan) {
        plan.push(Action::Term { uid: pod_state.uid, container: name.to_owned() });
    }
}

fn kill_one(pod_state: &PodState, name: &str, container_state: &ContainerState, now: Mono, plan: &mut Plan) {
    let again = container_state.kill_sent.map_or(Mono::ZERO, |sent| sent + KILL_RETRY);
    if due(again.max(container_state.retry.not_before), now, plan) {
        plan.push(Action::Kill { uid: pod_state.uid, container: name.to_owned() });
    }
}

/// A hook whose container has exited is killed: there is nothing left to prepare.
fn kill_stray_hooks(pod_state: &PodState, now: Mono, plan: &mut Plan) {
    for (name, container_state) in
        pod_state.containers.iter().filter(|(_, container_state)| container_state.has_stray_hook())
    {
        kill_one(pod_state, name, container_state, now, plan);
    }
}

/// Hooks and TERM: first all main containers at once, then the sidecars from the last to the first.
fn stop_containers(pod_state: &PodState, deadline: Mono, now: Mono, plan: &mut Plan) {
    let inits = pod_state.pod.iter().flat_map(|pod| &pod.spec.init_containers);
    let sidecars: Vec<&str> = inits.filter(|init| init.sidecar).map(|init| init.name.as_str()).collect();
    let is_alive = |name: &str| pod_state.container_state(name).is_some_and(ContainerState::is_alive);
    let work: Vec<&str> = pod_state
        .containers
        .keys()
        .map(String::as_str)
        .filter(|name| is_alive(name) && !sidecars.contains(name))
        .collect();
    let next = if work.is_empty() {
        sidecars.into_iter().rev().find(|name| is_alive(name)).into_iter().collect()
    } else {
        work
    };
    for name in next {
        request_stop(pod_state, name, deadline, now, plan);
    }
}

fn request_stop(pod_state: &PodState, name: &str, deadline: Mono, now: Mono, plan: &mut Plan) {
    // A container whose start is in progress cannot be signalled; it can be killed.
    let Some(container_state) = pod_state
        .container_state(name)
        .filter(|container_state| !container_state.term_sent && container_state.begun.is_none())
    else {
        return;
    };
    let hooked = pod_state.pod.as_ref().filter(|pod| container_state.is_running() && has_hook(pod, name));
    match (hooked, container_state.hook) {
        (Some(pod), Hook::NotStarted) => {
            let (pod, container) = (pod.clone(), name.to_owned());
            plan.push(Action::RunPreStop { pod, container, within: deadline - now });
        }
        (Some(_), Hook::Running) => {}
        _ => term_one(pod_state, name, container_state, now, plan),
    }
}

fn has_hook(pod: &Pod, name: &str) -> bool {
    let container = pod.spec.all_containers().find(|container| container.name == name);
    let hook = container.and_then(|container| container.lifecycle.as_ref()?.pre_stop.as_ref());
    hook.is_some_and(|hook| !hook.command.is_empty())
}

/// Posts a status that the store does not have yet, if the pod has a record.
fn report(pod_state: &PodState, pod_states: &PodStates, now: Now, plan: &mut Plan) {
    if pod_states.node.is_none() {
        return; // Another agent may act for the node.
    }
    if pod_state.is_calling {
        return; // The outcome of that call comes first.
    }
    let (Some(pod), Some(status)) = (&pod_state.pod, status::wanted(pod_state, pod_states, now)) else {
        return;
    };
    let Some((version, _)) = pod_state.recorded() else {
        return;
    };
    // After a conflict a newer version can be tried at once; without one, only after a delay.
    let is_newer = pod_state.conflict_at.is_some_and(|refused| version > refused);
    if is_newer || due(pod_state.report_retry.not_before, now.mono, plan) {
        let (key, status) = (Key::of(pod.as_ref()), Box::new(status));
        plan.push(Action::Report { key, uid: pod_state.uid, if_version: version, status });
    }
}

/// The last step: the record is deleted, now that it has the pod's last status.
fn delete(pod_state: &PodState, now: Mono, plan: &mut Plan) {
    let Some(pod) = &pod_state.pod else {
        return;
    };
    let is_asked = pod_state.stop_causes.deleted.is_some() && pod_state.stop_causes.vanished.is_none();
    let is_ours = pod.is_finished() && !pod_state.is_delete_sent && !pod_state.is_calling;
    if is_asked && is_ours && due(pod_state.delete_retry.not_before, now, plan) {
        plan.push(Action::Delete { key: Key::of(pod.as_ref()), uid: pod_state.uid });
    }
}

/// Whether the time has come; if not, the plan wakes at that time.
pub(super) fn due(at: Mono, now: Mono, plan: &mut Plan) -> bool {
    if now < at {
        plan.wake_by(at);
    }
    now >= at
}
