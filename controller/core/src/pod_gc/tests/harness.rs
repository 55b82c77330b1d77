//! Pod GC with a store that performs every action.

use muster_proto::node::Node;

use super::*;
use crate::fixtures::{at_ms, key};
use crate::plan::PlannedAction;

pub(super) struct Harness {
    pub(super) world: World,
    pub(super) pod_gc: PodGc,
    version: u64,
    pub(super) millis: u64,
    wake_at: Option<Mono>,
    /// All events so far.
    pub(super) events: Vec<muster_proto::event::Event>,
}

impl Harness {
    pub(super) fn new() -> Harness {
        Harness::with(Settings::default())
    }

    pub(super) fn with(settings: Settings) -> Harness {
        let (world, pod_gc) = (World::new(), PodGc::new(settings));
        Harness { world, pod_gc, version: 0, millis: 0, wake_at: None, events: Vec::new() }
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
            self.pod_gc.observe(delta, &self.world, self.now());
        }
    }

    pub(super) fn node(&mut self, sample: NodeSample) {
        let version = self.next_version();
        let deltas = self.world.apply_node(sample.at(version).build());
        self.observe(&deltas);
    }

    pub(super) fn delete_node(&mut self, name: &str) {
        let version = self.next_version();
        let deltas = self.world.remove_node(&name.parse().unwrap(), None, version);
        self.observe(&deltas);
    }

    pub(super) fn pod(&mut self, sample: PodSample) {
        let version = self.next_version();
        let deltas = self.world.apply_pod(sample.at(version).build());
        self.observe(&deltas);
    }

    pub(super) fn delete_pod(&mut self, key: &Key) {
        let version = self.next_version();
        let deltas = self.world.remove_pod(key, None, version);
        self.observe(&deltas);
    }

    pub(super) fn change_pod(&mut self, name: &str, change: impl FnOnce(&mut Pod)) {
        let mut pod = Pod::clone(self.world.pod(&key(name)).unwrap());
        change(&mut pod);
        self.pod(PodSample(pod));
    }

    pub(super) fn decide(&mut self) -> Plan {
        let mut plan = Plan::default();
        self.pod_gc.decide(&self.world, self.now(), &mut plan);
        self.wake_at = plan.wake_at;
        self.events.append(&mut plan.events);
        plan
    }

    pub(super) fn settle(&mut self, planned: &PlannedAction, result: Result<Answer, Failure>) {
        let outcome = Outcome { controller: planned.controller, subject: planned.subject.clone(), result };
        self.pod_gc.settle(&outcome, &self.world, self.now());
    }

    /// Performs an action and describes it.
    fn perform(&mut self, planned: &PlannedAction) -> String {
        match (&planned.action, &planned.subject) {
            (Action::ReadNode, Subject::Node(name, _)) => {
                let node = self.world.node(name.as_str()).map(|node| Box::new(Node::clone(node)));
                self.settle(planned, node.map(Answer::Node).ok_or(Failure::Gone));
                format!("{name}?")
            }
            (Action::EndPod { mark, grace_period_seconds: Some(0) }, Subject::Pod(key, uid)) => {
                let mut pod = Pod::clone(self.world.pod(key).unwrap());
                assert_eq!(pod.meta.uid, Some(*uid));
                pod.meta.resource_version = self.next_version();
                let is_held = !pod.meta.finalizers.is_empty();
                self.settle(planned, Ok(Answer::Pod(Box::new(pod.clone()))));
                if is_held {
                    let deltas = self.world.apply_pod(pod);
                    self.observe(&deltas);
                } else {
                    self.delete_pod(key);
                }
                match mark {
                    Some(EndMark { reason, message, fail: true }) => {
                        format!("{} Failed {reason}: {message}", key.name)
                    }
                    Some(other) => panic!("{other:?}"),
                    None => format!("{} gone", key.name),
                }
            }
            other => panic!("pod GC does not plan this: {other:?}"),
        }
    }

    /// Lets time pass and decides at every wake-up. Returns what was done, and at which second.
    pub(super) fn run_until(&mut self, seconds: u64) -> Vec<String> {
        let (mut done, end) = (Vec::new(), seconds * 1000);
        loop {
            let plan = self.decide();
            for planned in &plan.actions {
                done.push(format!("{} {}", self.millis / 1000, self.perform(planned)));
            }
            if !plan.actions.is_empty() {
                continue; // An outcome may have brought something to do at once.
            }
            let next = self.wake_at.map_or(Duration::MAX, |at| at - at_ms(0).mono).as_millis();
            let next = u64::try_from(next).unwrap_or(u64::MAX).max(self.millis);
            if next > end {
                self.millis = end;
                return done;
            }
            self.millis = next;
        }
    }
}
