//! A harness that performs plans against a store and a runtime made of maps, and logs what was done.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use muster_proto::condition::ConditionStatus;
use muster_proto::name::Uid;
use muster_proto::pod::{Pod, PodStatus};
use muster_proto::time::Mono;

use crate::admission::NodeFacts;
use crate::pod_lifecycle::{
    Action, ContainerReport, Exit, NodeState, Outcome, Plan, PodReport, PodStates, ReportedState, decide,
};
use crate::pressure::PressureConditions;
use crate::testing::{NODE, PodBuilder, amounts, labels, security_policy, uid};
use muster_proto::time::Now;

pub struct Harness {
    pub pod_states: PodStates,
    pub node: NodeState,
    /// Whether the store accepts this agent for the node.
    pub is_accepted: bool,
    pub store: BTreeMap<Uid, Pod>,
    /// The static pods of the node.
    pub files: Vec<Pod>,
    pub runtime: BTreeMap<Uid, PodReport>,
    /// Whether calls reach the store.
    pub is_connected: bool,
    /// Whether calls of the store wait for [`answer`](Harness::answer).
    pub is_frozen: bool,
    unanswered: Vec<Action>,
    /// Containers, by name, whose start waits for [`answer`](Harness::answer).
    pub hung: Vec<String>,
    /// Containers, by name, whose start fails.
    pub unstartable: Vec<String>,
    /// Containers, by name, to which TERM cannot be sent.
    pub untermable: Vec<String>,
    /// What was done since the last call of [`steps`](Harness::steps).
    pub log: Vec<String>,
    now: Now,
    version: u64,
    pid: u32,
}

pub fn now_at(ms: u64) -> Now {
    let elapsed = Duration::from_millis(ms);
    let wall = Timestamp::from_second(1_767_225_600).unwrap() + elapsed;
    Now { mono: Mono::since_origin(elapsed), wall }
}

pub fn node() -> NodeState {
    let facts = NodeFacts {
        name: NODE.parse().unwrap(),
        labels: labels("zone=a"),
        taints: Vec::new(),
        allocatable: amounts("cpu=4 memory=8Gi pods=10"),
        pressure: PressureConditions::default(),
        shutting_down: false,
        security: security_policy(),
    };
    NodeState { facts, uid: Some(uid("node")), host_ip: Some("10.0.0.1".parse().unwrap()) }
}

impl Harness {
    /// A node with these pods, which the agent has observed.
    pub fn with(pods: impl IntoIterator<Item = PodBuilder>) -> Harness {
        let mut harness = Harness::bare(pods);
        harness.look();
        harness
    }

    /// The same, before anything was observed.
    pub fn bare(pods: impl IntoIterator<Item = PodBuilder>) -> Harness {
        let store = pods.into_iter().map(PodBuilder::build).map(|pod| (pod.meta.uid.unwrap(), pod)).collect();
        Harness {
            pod_states: PodStates::new(),
            node: node(),
            is_accepted: true,
            store,
            files: Vec::new(),
            runtime: BTreeMap::new(),
            is_connected: true,
            is_frozen: false,
            unanswered: Vec::new(),
            hung: Vec::new(),
            unstartable: Vec::new(),
            untermable: Vec::new(),
            log: Vec::new(),
            now: now_at(0),
            version: 100,
            pid: 1000,
        }
    }

    pub fn now(&self) -> Now {
        self.now
    }

    /// The agent observes the node, the runtime and the store.
    pub fn look(&mut self) {
        self.pod_states.observe_node(Some(self.node.clone()).filter(|_| self.is_accepted), self.now);
        self.pod_states.observe_local_node(NodeState { uid: None, ..self.node.clone() }, self.now);
        self.pod_states.observe_containers(self.runtime.clone(), self.now);
        self.pod_states.observe_static_pods(&self.files, self.now);
        if self.is_connected && !self.is_frozen {
            self.pod_states.observe_pods(self.store.values(), self.now);
        }
    }

    /// The agent restarts without its memory.
    pub fn restart_agent(&mut self) {
        self.pod_states = PodStates::new();
        self.unanswered.clear();
        self.look();
    }

    /// The store answers again, also the calls that waited; starts that waited finish.
    pub fn answer(&mut self) {
        self.is_frozen = false;
        self.hung.clear();
        for action in std::mem::take(&mut self.unanswered) {
            let outcome = self.perform(&action);
            self.pod_states.observe(&action, outcome, self.now);
        }
        self.look();
    }

    pub fn advance(&mut self, seconds: u64) {
        let by = Duration::from_secs(seconds);
        self.now = Now { mono: self.now.mono + by, wall: self.now.wall + by };
    }

    /// Decides and performs until nothing is left to do now; returns the last plan.
    pub fn settle(&mut self) -> Plan {
        let mut done: Vec<Action> = Vec::new();
        for _ in 0..200 {
            let plan = decide(&self.pod_states, self.now);
            if plan.actions.is_empty() {
                if let Some(wake_at) = plan.wake_at {
                    assert!(wake_at > self.now.mono, "a plan with nothing to do wakes later");
                }
                return plan;
            }
            for action in plan.actions {
                assert!(!done.contains(&action), "planned twice at one instant: {action:?}");
                let hangs =
                    matches!(&action, Action::Start { container, .. } if self.hung.contains(container));
                if hangs || self.is_frozen && action.is_call() {
                    let is_same = |other: &Action| {
                        other.uid() == action.uid() && other.is_call() == action.is_call() && !hangs
                    };
                    assert!(!self.unanswered.iter().any(is_same), "two calls at once: {action:?}");
                    self.pod_states.begin(&action, self.now);
                    self.unanswered.push(action.clone());
                    done.push(action);
                    continue;
                }
                let outcome = self.perform(&action);
                self.pod_states.observe(&action, outcome, self.now);
                done.push(action);
            }
            self.look();
        }
        panic!("never settles: {:?}", self.log);
    }

    /// Settles, and returns what was done.
    pub fn steps(&mut self) -> Vec<String> {
        self.settle();
        std::mem::take(&mut self.log)
    }

    /// The events since the last call, as `<reason>: <message>`.
    pub fn events(&mut self) -> Vec<String> {
        let events = self.pod_states.take_events().into_iter();
        events.map(|event| format!("{}: {}", event.reason, event.message)).collect()
    }

    fn perform(&mut self, action: &Action) -> Outcome {
        let name = self.name(action);
        match action {
            Action::ReadNode { .. } => {
                self.log.push(format!("read node for {name}"));
                self.pod_states.observe_node(Some(self.node.clone()), self.now);
                Outcome::Done
            }
            Action::Start { pod, container, attempt } => {
                self.log.push(format!("start {name}/{container}#{attempt}"));
                if self.unstartable.contains(container) {
                    return Outcome::Failed { message: "no such program".to_owned() };
                }
                self.pid += 1;
                let (pid, at) = (self.pid, self.now.wall);
                let report = self.runtime.entry(pod.meta.uid.unwrap()).or_default();
                let observed = ReportedState::Running { pid, since: at };
                let found = ContainerReport { attempt: *attempt, is_this_boot: true, observed };
                let before = report.containers.insert(container.clone(), found);
                assert!(before.is_none_or(|before| before.attempt < *attempt), "{action} exists already");
                Outcome::Started { pid, at }
            }
            Action::RunPreStop { container, within, .. } => {
                self.log.push(format!("hook {name}/{container} within {}s", within.as_secs()));
                Outcome::Done
            }
            Action::Term { container, .. } if self.untermable.contains(container) => {
                self.log.push(format!("term {name}/{container}, in vain"));
                Outcome::Failed { message: "no such process".to_owned() }
            }
            Action::Term { container, .. } => {
                self.log.push(format!("term {name}/{container}"));
                Outcome::Done
            }
            Action::Kill { uid, container } => {
                self.log.push(format!("kill {name}/{container}"));
                let is_start = |action: &Action| matches!(action, Action::Start { container: it, .. } if it == container);
                let hung = self.unanswered.iter().position(|it| it.uid() == Some(*uid) && is_start(it));
                match hung.map(|hung| self.unanswered.remove(hung)) {
                    Some(start) => {
                        let failed = Outcome::Failed { message: "its shim died".to_owned() };
                        self.pod_states.observe(&start, failed, self.now);
                    }
                    None if is_alive(&self.runtime[uid].containers[container]) => {
                        self.ends(*uid, container, 0, 9);
                    }
                    None => {}
                }
                self.pod_states.hook_ended(*uid, container);
                Outcome::Done
            }
            Action::Release { uid, keeps_files } => {
                self.log.push(format!("release {name}{}", if *keeps_files { " but files" } else { "" }));
                if !keeps_files {
                    self.runtime.remove(uid);
                }
                Outcome::Done
            }
            Action::Report { uid, if_version, status, .. } => {
                let record = self.pod_states.record(*uid).and_then(|record| record.meta.uid);
                self.post(&name, record.unwrap_or(*uid), *if_version, status)
            }
            Action::CreateMirror { mirror, .. } => {
                self.log.push(format!("mirror {name}"));
                if !self.is_connected {
                    return Outcome::Failed { message: "unreachable".to_owned() };
                }
                self.version += 1;
                let mut created = (**mirror).clone();
                let record = uid(&format!("mirror {}", self.version));
                (created.meta.uid, created.meta.resource_version) = (Some(record), self.version);
                self.store.insert(record, created.clone());
                Outcome::Stored(Box::new(created))
            }
            Action::DeleteMirror { key, uid } => {
                self.log.push(format!("unmirror {}", key.name));
                self.store.remove(uid);
                Outcome::Gone
            }
            Action::Delete { uid, .. } => {
                self.log.push(format!("delete {name}"));
                if !self.is_connected {
                    return Outcome::Failed { message: "unreachable".to_owned() };
                }
                let alive = |report: &PodReport| report.containers.values().any(is_alive);
                assert!(!self.runtime.get(uid).is_some_and(alive), "deleted while it runs");
                assert!(
                    self.store.remove(uid).is_some_and(|pod| pod.is_finished()),
                    "deleted without its final status"
                );
                Outcome::Gone
            }
        }
    }

    fn post(&mut self, name: &str, uid: Uid, if_version: u64, status: &PodStatus) -> Outcome {
        let ready = status.conditions.iter().find(|condition| condition.kind == "Ready").unwrap();
        let ready = if ready.status == ConditionStatus::True { " ready" } else { "" };
        let reason = if status.reason.is_empty() { String::new() } else { format!(" {}", status.reason) };
        let answer = if self.is_connected { "" } else { ", unreachable" };
        self.log.push(format!("report {name} {}{ready}{reason}{answer}", status.phase));
        if !self.is_connected {
            return Outcome::Failed { message: "unreachable".to_owned() };
        }
        let Some(pod) = self.store.get_mut(&uid) else {
            return Outcome::Gone;
        };
        if pod.meta.resource_version != if_version {
            return Outcome::Conflict;
        }
        self.version += 1;
        pod.status = status.clone();
        pod.meta.resource_version = self.version;
        Outcome::Stored(Box::new(pod.clone()))
    }

    fn name(&self, action: &Action) -> String {
        let uid = action.uid();
        uid.and_then(|uid| self.pod_states.pod(uid))
            .map_or_else(|| "orphan".to_owned(), |pod| pod.meta.name.to_string())
    }

    /// A container exits, on its own or because it was told to.
    pub fn exits(&mut self, name: &str, container: &str, code: i32) {
        self.ends(uid(name), container, code, 0);
        self.look();
    }

    fn ends(&mut self, uid: Uid, container: &str, code: i32, signal: i32) {
        let report = self.runtime.get_mut(&uid).unwrap();
        let found = report.containers.get_mut(container).unwrap();
        let started_at = match found.observed {
            ReportedState::Running { since, .. } => Some(since),
            _ => None,
        };
        // As shells report a signal.
        let code = if signal == 0 { code } else { 128 + signal };
        let reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
        let exit = Exit { code, signal, reason, message: String::new(), started_at, at: Some(self.now.wall) };
        found.observed = ReportedState::Exited(exit);
    }

    /// The machine crashes and boots again; only what is on its disk is left.
    pub fn reboot(&mut self) {
        let at = Some(self.now.wall);
        for found in self.runtime.values_mut().flat_map(|report| report.containers.values_mut()) {
            found.is_this_boot = false;
            if is_alive(found) {
                let reason = "ContainerStatusUnknown".to_owned();
                let message = "The machine was restarted while the container ran.".to_owned();
                let exit = Exit { code: 137, signal: 0, reason, message, started_at: None, at };
                found.observed = ReportedState::Exited(exit);
            }
        }
        self.restart_agent();
    }

    /// Another writer changes a record.
    pub fn write(&mut self, name: &str, change: impl FnOnce(&mut Pod)) {
        self.write_unseen(name, change);
        self.look();
    }

    /// Another writer changes a record, and the watch has not delivered it yet.
    pub fn write_unseen(&mut self, name: &str, change: impl FnOnce(&mut Pod)) {
        self.version += 1;
        let pod = self.store.get_mut(&uid(name)).unwrap();
        change(pod);
        pod.meta.resource_version = self.version;
    }

    /// A client deletes a pod.
    pub fn delete(&mut self, name: &str, grace: i64) {
        self.write(name, |pod| {
            pod.meta.deletion_timestamp = Some(Timestamp::UNIX_EPOCH);
            pod.meta.deletion_grace_period_seconds = Some(grace);
        });
    }

    pub fn stored(&self, name: &str) -> &Pod {
        &self.store[&uid(name)]
    }
}

pub fn is_alive(found: &ContainerReport) -> bool {
    !matches!(found.observed, ReportedState::Exited(_))
}
