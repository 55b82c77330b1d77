//! A store that answers at once, or as it is told to.

use muster_proto::key::Key;
use muster_proto::name::Uid;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;

use super::super::*;
use crate::explain::scheduling::SchedulingStatus;
use crate::fixtures::{NodeSample, PodSample, at_ms, key};
use crate::plan::{Action, Answer, Failure, Outcome, Plan, PlannedAction, Subject};

#[derive(Clone)]
pub(super) struct Bench {
    pub(super) world: World,
    pub(super) placement: Scheduler,
    version: u64,
    pub(super) millis: u64,
    pub(super) wake_at: Option<Mono>,
    /// What was told, without the names of those it was told of.
    pub(super) events: Vec<String>,
}

impl Bench {
    pub(super) fn new() -> Bench {
        Bench::with(Settings::default())
    }

    pub(super) fn with(settings: Settings) -> Bench {
        let (world, placement) = (World::new(), Scheduler::new(settings));
        Bench { world, placement, version: 0, millis: 0, wake_at: None, events: Vec::new() }
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
            self.placement.observe(delta, &self.world, self.now());
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
        self.placement.decide(&self.world, self.now(), &mut plan);
        self.wake_at = plan.wake_at;
        self.events.extend(plan.events.iter().map(|event| format!("{}: {}", event.reason, event.message)));
        plan
    }

    pub(super) fn settle(&mut self, proposal: &PlannedAction, result: Result<Answer, Failure>) {
        let outcome = Outcome { controller: proposal.controller, subject: proposal.subject.clone(), result };
        self.placement.settle(&outcome, &self.world, self.now());
        if let Ok(Answer::Pod(pod)) = outcome.result {
            let deltas = self.world.apply_pod(*pod);
            self.observe(&deltas);
        }
    }

    /// What a store would make of the proposal.
    pub(super) fn outcome(&mut self, proposal: &PlannedAction) -> Result<Answer, Failure> {
        let (key, uid) = subject(proposal);
        let Some(held) = self.world.pod(&key).filter(|pod| pod.meta.uid == Some(uid)) else {
            return Err(Failure::Gone);
        };
        let mut pod = Pod::clone(held);
        match &proposal.action {
            Action::BindPod { .. } if pod.spec.node_name.is_some() || pod.meta.is_deleting() => {
                return Err(Failure::Conflict);
            }
            Action::BindPod { node } => pod.spec.node_name = Some(node.clone()),
            Action::UpdatePodStatus(new) if new.meta.resource_version != pod.meta.resource_version => {
                return Err(Failure::Conflict);
            }
            Action::UpdatePodStatus(new) => pod.status = new.status.clone(),
            other => panic!("placement does not do this: {other:?}"),
        }
        pod.meta.resource_version = self.next_version();
        Ok(Answer::Pod(Box::new(pod)))
    }

    /// Decides and performs until nothing more is to be done at this moment; says what was done.
    pub(super) fn run(&mut self) -> Vec<String> {
        let mut done = Vec::new();
        for _ in 0..1_000 {
            let plan = self.decide();
            if plan.actions.is_empty() && plan.wake_at.is_none_or(|at| at > self.now().mono) {
                return done;
            }
            for proposal in plan.actions {
                done.push(words(&proposal));
                let outcome = self.outcome(&proposal);
                self.settle(&proposal, outcome);
            }
        }
        panic!("this does not come to rest: {done:?}");
    }

    /// Lets time pass, following every wish to be woken; says what was done, and when by whole seconds.
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

    /// Why a pod waits.
    pub(super) fn standing(&self, name: &str) -> SchedulingStatus {
        self.placement.explain_pod(&self.record(name))
    }

    pub(super) fn node_of(&self, name: &str) -> String {
        self.record(name).spec.node_name.map(|node| node.to_string()).unwrap_or_default()
    }
}

pub(super) fn subject(proposal: &PlannedAction) -> (Key, Uid) {
    match &proposal.subject {
        Subject::Pod(key, uid) => (key.clone(), *uid),
        other => panic!("placement writes pods only, not {other}"),
    }
}

/// A proposal in few words: `p -> n`, or `p ? why it waits`.
pub(super) fn words(proposal: &PlannedAction) -> String {
    let name = subject(proposal).0.name;
    match &proposal.action {
        Action::BindPod { node } => format!("{name} -> {node}"),
        Action::UpdatePodStatus(pod) => {
            let held = pod.condition("PodScheduled").unwrap();
            assert_eq!(
                (held.status.to_string(), held.reason.as_str()),
                ("False".to_owned(), "Unschedulable")
            );
            format!("{name} ? {}", held.message)
        }
        other => panic!("placement does not do this: {other:?}"),
    }
}
