//! The scheduler with a store that answers at once, or as the test says.

use muster_proto::condition::ConditionStatus;
use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::pod::{Pod, PodCondition};
use muster_proto::time::Mono;

use super::super::*;
use crate::explain::scheduling::SchedulingStatus;
use crate::fixtures::{NodeSample, PodSample, at_ms, key};
use crate::plan::{Action, Answer, Failure, Outcome, Plan, PlannedAction, Subject};

#[derive(Clone)]
pub(super) struct Harness {
    pub(super) world: World,
    pub(super) scheduler: Scheduler,
    version: u64,
    pub(super) millis: u64,
    pub(super) wake_at: Option<Mono>,
    /// `reason: message` of every event.
    pub(super) events: Vec<String>,
}

impl Harness {
    pub(super) fn new() -> Harness {
        Harness::with(Settings::default())
    }

    pub(super) fn with(settings: Settings) -> Harness {
        let (mut world, scheduler) = (World::new(), Scheduler::new(settings));
        world.budgets.set_synced(true);
        Harness { world, scheduler, version: 0, millis: 0, wake_at: None, events: Vec::new() }
    }

    pub(super) fn now(&self) -> Now {
        at_ms(self.millis)
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn observe(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            self.scheduler.observe(delta, &self.world, self.now());
        }
    }

    pub(super) fn node(&mut self, sample: NodeSample) {
        let version = self.next_version();
        let deltas = self.world.apply_node(sample.at(version).build());
        self.observe(&deltas);
    }

    pub(super) fn pod(&mut self, sample: PodSample) {
        let version = self.next_version();
        let deltas = self.world.apply_pod(sample.at(version).build());
        self.observe(&deltas);
    }

    pub(super) fn remove_node(&mut self, name: &str) {
        let version = self.next_version();
        let deltas = self.world.remove_node(&name.parse().unwrap(), None, version);
        self.observe(&deltas);
    }

    pub(super) fn remove_pod(&mut self, name: &str) {
        let version = self.next_version();
        let deltas = self.world.remove_pod(&key(name), None, version);
        self.observe(&deltas);
    }

    /// Changes the record of a pod.
    pub(super) fn change_pod(&mut self, name: &str, change: impl FnOnce(&mut Pod)) {
        let mut pod = self.record(name);
        change(&mut pod);
        self.pod(PodSample(pod));
    }

    pub(super) fn record(&self, name: &str) -> Pod {
        Pod::clone(self.world.pod(&key(name)).unwrap())
    }

    pub(super) fn decide(&mut self) -> Plan {
        let mut plan = Plan::default();
        self.scheduler.decide(&self.world, self.now(), &mut plan);
        self.wake_at = plan.wake_at;
        self.events.extend(plan.events.iter().map(|event| format!("{}: {}", event.reason, event.message)));
        plan
    }

    pub(super) fn settle(&mut self, planned: &PlannedAction, result: Result<Answer, Failure>) {
        let outcome = Outcome { controller: planned.controller, subject: planned.subject.clone(), result };
        self.scheduler.settle(&outcome, &self.world, self.now());
        if let Ok(Answer::Pod(pod)) = outcome.result {
            let deltas = self.world.apply_pod(*pod);
            self.observe(&deltas);
        }
    }

    /// The outcome that a store would give the action.
    pub(super) fn outcome(&mut self, planned: &PlannedAction) -> Result<Answer, Failure> {
        let (key, uid) = subject(planned);
        let Some(held) = self.world.pod(&key).filter(|pod| pod.meta.uid == Some(uid)) else {
            return Err(Failure::Gone);
        };
        let mut pod = Pod::clone(held);
        match &planned.action {
            Action::BindPod { .. } if pod.spec.node_name.is_some() || pod.meta.is_deleting() => {
                return Err(Failure::Conflict);
            }
            Action::BindPod { node } => {
                pod.spec.node_name = Some(node.clone());
                pod.status.nominated_node_name = None;
            }
            Action::UpdatePodStatus(new) if new.meta.resource_version != pod.meta.resource_version => {
                return Err(Failure::Conflict);
            }
            Action::UpdatePodStatus(new) => pod.status = new.status.clone(),
            Action::EndPod { mark: Some(mark), grace_period_seconds: None } => {
                pod.status.set_condition(displaced(&mark.reason, &mark.message));
                pod.meta.deletion_timestamp = Some(self.now().wall);
            }
            other => panic!("the scheduler does not plan this: {other:?}"),
        }
        pod.meta.resource_version = self.next_version();
        Ok(Answer::Pod(Box::new(pod)))
    }

    /// Decides and performs until there is nothing to do at this time. Returns what was done.
    pub(super) fn run(&mut self) -> Vec<String> {
        let mut done = Vec::new();
        for _ in 0..1_000 {
            let plan = self.decide();
            if plan.actions.is_empty() && plan.wake_at.is_none_or(|at| at > self.now().mono) {
                return done;
            }
            for planned in plan.actions {
                done.push(words(&planned));
                let outcome = self.outcome(&planned);
                self.settle(&planned, outcome);
            }
        }
        panic!("this does not settle: {done:?}");
    }

    /// Lets time pass and decides at every wake-up. Returns what was done, and at which second.
    pub(super) fn run_until(&mut self, seconds: u64) -> Vec<String> {
        let mut done = Vec::new();
        let end = seconds * 1000;
        loop {
            let at = self.millis as f64 / 1000.0;
            done.extend(self.run().into_iter().map(|what| format!("{at}: {what}")));
            let next = self.wake_at.map(|at| at - at_ms(0).mono);
            let next = next.map_or(u64::MAX, |wait| u64::try_from(wait.as_millis()).unwrap());
            if next > end {
                self.millis = end;
                return done;
            }
            self.millis = next.max(self.millis);
        }
    }

    /// The explanation of a pod.
    pub(super) fn scheduling_status(&self, name: &str) -> SchedulingStatus {
        self.scheduler.explain_pod(&self.record(name))
    }

    /// The node that the pod's record says others are displaced on.
    pub(super) fn nominated(&self, name: &str) -> String {
        self.record(name).status.nominated_node_name.map(|node| node.to_string()).unwrap_or_default()
    }

    /// Another scheduler begins with the current records.
    pub(super) fn restart(&mut self) {
        self.scheduler = Scheduler::new(self.scheduler.settings.clone());
        let nodes: Vec<_> = self.world.nodes().cloned().collect();
        let pods: Vec<_> = self.world.pods().cloned().collect();
        let nodes = nodes.into_iter().map(|node| Delta::Node(Change { old: None, new: Some(node) }));
        let pods = pods.into_iter().map(|pod| Delta::Pod(Change { old: None, new: Some(pod) }));
        self.observe(&nodes.chain(pods).collect::<Vec<_>>());
    }

    pub(super) fn node_of(&self, name: &str) -> String {
        self.record(name).spec.node_name.map(|node| node.to_string()).unwrap_or_default()
    }
}

pub(super) fn subject(planned: &PlannedAction) -> (Key, Uid) {
    match &planned.subject {
        Subject::Pod(key, uid) => (key.clone(), *uid),
        other => panic!("the scheduler writes pods only, not {other}"),
    }
}

/// The condition of a pod that is displaced.
pub(super) fn displaced(reason: &str, message: &str) -> PodCondition {
    PodCondition {
        kind: "DisruptionTarget".to_owned(),
        status: ConditionStatus::True,
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_probe_time: None,
        last_transition_time: None,
    }
}

/// An action in a few words: `p -> n`, `p ? why it waits`, or `p: displaced by ...`.
pub(super) fn words(planned: &PlannedAction) -> String {
    let name = subject(planned).0.name;
    match &planned.action {
        Action::BindPod { node } => format!("{name} -> {node}"),
        Action::UpdatePodStatus(pod) => {
            let held = pod.condition("PodScheduled").unwrap();
            assert_eq!(
                (held.status.to_string(), held.reason.as_str()),
                ("False".to_owned(), "Unschedulable")
            );
            format!("{name} ? {}", held.message)
        }
        Action::EndPod { mark: Some(mark), grace_period_seconds: None } => {
            assert_eq!((mark.reason.as_str(), mark.fail), ("PreemptionByScheduler", false));
            format!("{name}: {}", mark.message)
        }
        other => panic!("the scheduler does not plan this: {other:?}"),
    }
}
