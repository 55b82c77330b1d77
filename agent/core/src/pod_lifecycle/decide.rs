//! The decision: what to do now about every pod, and when to look again.

use std::sync::Arc;
use std::time::Duration;

use muster_proto::key::Key;
use muster_proto::pod::{Container, Pod};
use muster_proto::time::Mono;

use super::container::{Hook, Track};
use super::plan::{Action, Plan};
use super::pod_state::{Admission, Entry, Holds, Init};
use super::pod_states::Ledger;
use super::pod_status as status;
use muster_proto::time::Now;

/// How long after a KILL that did not work it is tried again.
const KILL_AGAIN: Duration = Duration::from_secs(10);
/// How long TERM waits for the store to know that the pod is not ready: a store that does not answer must not take
/// from a pod the time it has to end by itself.
const ANNOUNCE_WITHIN: Duration = Duration::from_secs(1);

/// How long a start is waited for before it is told that it is under way: most are over before that could be read.
const BEGUN_WITHIN: Duration = Duration::from_secs(1);

/// Decides what every pod on this node needs.
///
/// Until store and runtime have been seen there is nothing to do: what is missing from half a picture has not
/// vanished. Without a node nothing is begun and nothing said, but what must end here ends.
pub fn decide(ledger: &Ledger, now: Now) -> Plan {
    let mut plan = Plan::default();
    if !ledger.has_seen_all() {
        return plan;
    }
    for entry in ledger.entries.values() {
        match entry.admission {
            _ if ledger.node.is_none() && !entry.is_stopping() => {}
            Admission::NodeWanted if !entry.is_stopping() => {
                if !entry.is_calling && due(entry.node_retry.not_before, now.mono, &mut plan) {
                    plan.push(Action::ReadNode { uid: entry.uid });
                }
            }
            _ if entry.is_stopping() => stop(entry, ledger, now, &mut plan),
            Admission::Admitted => run(entry, ledger, now, &mut plan),
            _ => report(entry, ledger, now, &mut plan),
        }
    }
    // A pod that starts is turned away for good if it lacks the processors that another is about to give back.
    plan.actions.sort_by_key(|action| !matches!(action, Action::Release { .. }));
    plan
}

fn run(entry: &Entry, ledger: &Ledger, now: Now, plan: &mut Plan) {
    let Some(pod) = &entry.pod else {
        return;
    };
    let before = plan.actions.len();
    let inits = &pod.spec.init_containers;
    let reached = match entry.init() {
        Init::At(i) => i,
        Init::Failed => return,
        Init::Done => inits.len(),
    };
    // Sidecars on the way here stay up; the one init container whose turn it is runs.
    for (i, init) in inits.iter().enumerate().take(reached + 1) {
        if init.sidecar || i == reached {
            start(entry, pod, init, now.mono, plan);
        }
    }
    if reached == inits.len() {
        for container in &pod.spec.containers {
            if entry.track(&container.name).is_none_or(|track| entry.main_restarts(track)) {
                start(entry, pod, container, now.mono, plan);
            }
        }
    }
    // What comes of a start is the next thing to tell: two posts for one step would say no more.
    if plan.actions.len() == before && !is_beginning(entry, now.mono, plan) {
        report(entry, ledger, now, plan);
    }
}

/// Whether a start was begun only now.
fn is_beginning(entry: &Entry, now: Mono, plan: &mut Plan) -> bool {
    let begun = entry.containers.values().filter_map(|track| track.begun).max();
    begun.is_some_and(|begun| !due(begun + BEGUN_WITHIN, now, plan))
}

fn start(entry: &Entry, pod: &Arc<Pod>, container: &Container, now: Mono, plan: &mut Plan) {
    let track = entry.track(&container.name);
    if track.is_some_and(Track::is_alive) {
        return;
    }
    let not_before = track.map_or(Mono::ZERO, |track| track.not_before);
    if now < not_before {
        plan.wake_by(not_before);
        return;
    }
    let attempt = track.map_or(0, Track::next_attempt);
    plan.push(Action::Start { pod: pod.clone(), container: container.name.clone(), attempt });
}

/// The end of a pod, step by step; each step waits for what came of the one before.
fn stop(entry: &Entry, ledger: &Ledger, now: Now, plan: &mut Plan) {
    if entry.is_alive() {
        end_stray_hooks(entry, now.mono, plan);
        let deadline = entry.deadline().unwrap_or(now.mono);
        if now.mono >= deadline {
            kill(entry, now.mono, plan);
        } else {
            plan.wake_by(deadline);
            if let Some(until) = announcing(entry, deadline).filter(|until| now.mono < *until) {
                plan.wake_by(until);
                return report(entry, ledger, now, plan);
            }
            wind_down(entry, deadline, now.mono, plan);
        }
        return report(entry, ledger, now, plan);
    }
    if entry.holds > entry.may_hold() {
        let keeps_files = entry.may_hold() == Holds::Files;
        match due(entry.release_retry.not_before, now.mono, plan) {
            true => plan.push(Action::Release { uid: entry.uid, keeps_files }),
            false => report(entry, ledger, now, plan),
        }
        return;
    }
    if status::wanted(entry, ledger, now).is_some() {
        return report(entry, ledger, now, plan);
    }
    if ledger.node.is_some() {
        delete(entry, now.mono, plan);
    }
}

/// Whoever is told to go by its record first stops being sent work; that takes a post. Until when it is waited for.
fn announcing(entry: &Entry, deadline: Mono) -> Option<Mono> {
    let is_ready = entry.pod.as_ref().is_some_and(|pod| pod.is_ready());
    let since = entry.stops.deleted.filter(|_| entry.stops.vanished.is_none())?;
    let grace = deadline - since;
    (is_ready && !entry.is_announced).then(|| since + ANNOUNCE_WITHIN.min(grace / 2))
}

fn kill(entry: &Entry, now: Mono, plan: &mut Plan) {
    for (name, track) in entry.containers.iter().filter(|(_, track)| track.is_alive()) {
        kill_one(entry, name, track, now, plan);
    }
}

fn kill_one(entry: &Entry, name: &str, track: &Track, now: Mono, plan: &mut Plan) {
    let again = track.kill_sent.map_or(Mono::ZERO, |sent| sent + KILL_AGAIN);
    if due(again.max(track.retry.not_before), now, plan) {
        plan.push(Action::Kill { uid: entry.uid, container: name.to_owned() });
    }
}

/// A hook ends with its container: there is nothing left to prepare for the end.
fn end_stray_hooks(entry: &Entry, now: Mono, plan: &mut Plan) {
    for (name, track) in entry.containers.iter().filter(|(_, track)| track.has_stray_hook()) {
        kill_one(entry, name, track, now, plan);
    }
}

/// Hooks and TERM: the pod's own work at once, then its sidecars from the last to the first.
fn wind_down(entry: &Entry, deadline: Mono, now: Mono, plan: &mut Plan) {
    let inits = entry.pod.iter().flat_map(|pod| &pod.spec.init_containers);
    let sidecars: Vec<&str> = inits.filter(|init| init.sidecar).map(|init| init.name.as_str()).collect();
    let is_alive = |name: &str| entry.track(name).is_some_and(Track::is_alive);
    let work: Vec<&str> = entry
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
        ask_to_stop(entry, name, deadline, now, plan);
    }
}

fn ask_to_stop(entry: &Entry, name: &str, deadline: Mono, now: Mono, plan: &mut Plan) {
    // What has not begun yet cannot be asked; it can be killed.
    let Some(track) = entry.track(name).filter(|track| !track.term_sent && track.begun.is_none()) else {
        return;
    };
    let hooked = entry.pod.as_ref().filter(|pod| track.is_running() && has_hook(pod, name));
    match (hooked, track.hook) {
        (Some(pod), Hook::Unused) => {
            let (pod, container) = (pod.clone(), name.to_owned());
            plan.push(Action::RunPreStop { pod, container, within: deadline - now });
        }
        (Some(_), Hook::Running) => {}
        _ => {
            if due(track.retry.not_before, now, plan) {
                plan.push(Action::Term { uid: entry.uid, container: name.to_owned() });
            }
        }
    }
}

fn has_hook(pod: &Pod, name: &str) -> bool {
    let container = pod.spec.all_containers().find(|container| container.name == name);
    let hook = container.and_then(|container| container.lifecycle.as_ref()?.pre_stop.as_ref());
    hook.is_some_and(|hook| !hook.command.is_empty())
}

/// Posts what the store does not know yet, if there is a record to post it to.
fn report(entry: &Entry, ledger: &Ledger, now: Now, plan: &mut Plan) {
    if ledger.node.is_none() {
        return; // Another agent may speak for the node.
    }
    if entry.is_calling {
        return; // What comes of that is the next thing to know.
    }
    let (Some(pod), Some(status)) = (&entry.pod, status::wanted(entry, ledger, now)) else {
        return;
    };
    let version = pod.meta.resource_version;
    // After a conflict the next version is worth a try at once; without one, only time is.
    let is_newer = entry.conflict_at.is_some_and(|refused| version > refused);
    if is_newer || due(entry.report_retry.not_before, now.mono, plan) {
        let (key, status) = (Key::of(pod.as_ref()), Box::new(status));
        plan.push(Action::Report { key, uid: entry.uid, if_version: version, status });
    }
}

/// The last step: the record goes, now that it says how the pod ended.
fn delete(entry: &Entry, now: Mono, plan: &mut Plan) {
    let Some(pod) = &entry.pod else {
        return;
    };
    let is_asked = entry.stops.deleted.is_some() && entry.stops.vanished.is_none();
    let is_ours = pod.is_finished() && !pod.is_mirror() && !entry.is_delete_sent && !entry.is_calling;
    if is_asked && is_ours && due(entry.delete_retry.not_before, now, plan) {
        plan.push(Action::Delete { key: Key::of(pod.as_ref()), uid: entry.uid });
    }
}

/// Whether the time has come; if not, the plan wakes when it does.
fn due(at: Mono, now: Mono, plan: &mut Plan) -> bool {
    if now < at {
        plan.wake_by(at);
    }
    now >= at
}
