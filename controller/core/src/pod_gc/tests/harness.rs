//! A store that does as it is asked.

use muster_proto::node::Node;

use super::*;
use crate::fixtures::{at_ms, key};
use crate::plan::PlannedAction;

pub(super) struct Bench {
    pub(super) world: World,
    pub(super) collection: PodGc,
    version: u64,
    pub(super) millis: u64,
    wake_at: Option<Mono>,
}

impl Bench {
    pub(super) fn new() -> Bench {
        Bench::with(Settings::default())
    }

    pub(super) fn with(settings: Settings) -> Bench {
        let (world, collection) = (World::new(), PodGc::new(settings));
        Bench { world, collection, version: 0, millis: 0, wake_at: None }
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
            self.collection.observe(delta, &self.world, self.now());
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
        self.collection.decide(&self.world, self.now(), &mut plan);
        self.wake_at = plan.wake_at;
        plan
    }

    pub(super) fn settle(&mut self, proposal: &PlannedAction, result: Result<Answer, Failure>) {
        let outcome = Outcome { controller: proposal.controller, subject: proposal.subject.clone(), result };
        self.collection.settle(&outcome, &self.world, self.now());
    }

    /// Performs a proposal and says what it was.
    fn perform(&mut self, proposal: &PlannedAction) -> String {
        match (&proposal.action, &proposal.subject) {
            (Action::ReadNode, Subject::Node(name, _)) => {
                let node = self.world.node(name.as_str()).map(|node| Box::new(Node::clone(node)));
                self.settle(proposal, node.map(Answer::Node).ok_or(Failure::Gone));
                format!("{name}?")
            }
            (Action::EndPod { mark, grace_period_seconds: Some(0) }, Subject::Pod(key, uid)) => {
                let mut pod = Pod::clone(self.world.pod(key).unwrap());
                assert_eq!(pod.meta.uid, Some(*uid));
                pod.meta.resource_version = self.next_version();
                let is_held = !pod.meta.finalizers.is_empty();
                self.settle(proposal, Ok(Answer::Pod(Box::new(pod.clone()))));
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
            other => panic!("collection does not do this: {other:?}"),
        }
    }

    /// Lets time pass, following every wish to be woken; says what was done, and at which second.
    pub(super) fn run_until(&mut self, seconds: u64) -> Vec<String> {
        let (mut done, end) = (Vec::new(), seconds * 1000);
        loop {
            let plan = self.decide();
            for proposal in &plan.actions {
                done.push(format!("{} {}", self.millis / 1000, self.perform(proposal)));
            }
            if !plan.actions.is_empty() {
                continue; // An answer may have brought something to do at once.
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
