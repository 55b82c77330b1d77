//! In any order of events no pod is evicted twice at a time, and no drain is complete too early.

use std::collections::BTreeSet;

use muster_proto::pod::PodPhase;
use proptest::prelude::*;

use super::*;
use crate::drain::filters::plan;
use crate::drain::intent::uncordon;

#[derive(Clone, Debug)]
enum Step {
    /// A pod is bound to the node, or changes.
    Put {
        pod: u8,
        kind: u8,
    },
    Remove {
        pod: u8,
    },
    /// The store answers one of the actions in flight.
    Answer {
        which: u8,
        how: u8,
    },
    Wait {
        millis: u16,
    },
    Write,
    /// Another writer changes the node's record.
    Change,
    Drain {
        options: u8,
        timeout: u8,
    },
    Uncordon,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6u8, 0..7u8).prop_map(|(pod, kind)| Step::Put { pod, kind }),
        3 => (0..6u8).prop_map(|pod| Step::Remove { pod }),
        6 => (any::<u8>(), 0..9u8).prop_map(|(which, how)| Step::Answer { which, how }),
        4 => (0..8000u16).prop_map(|millis| Step::Wait { millis }),
        3 => Just(Step::Write),
        1 => Just(Step::Change),
        2 => (0..32u8, 0..30u8).prop_map(|(options, timeout)| Step::Drain { options, timeout }),
        1 => Just(Step::Uncordon),
        1 => Just(Step::Restart),
    ]
}

fn sample(name: &str, kind: u8) -> PodSample {
    match kind {
        0 => managed(name).running(muster_proto::condition::ConditionStatus::True),
        1 => managed(name).deleting(30),
        2 => managed(name).empty_dir(),
        3 => pod(name),
        4 => pod(name).owned_by("DaemonSet", "ds"),
        5 => pod(name).mirror(),
        _ => managed(name).phase(PodPhase::Succeeded),
    }
}

fn options(bits: u8) -> DrainOptions {
    DrainOptions {
        force: bits & 1 > 0,
        ignore_daemonsets: bits & 2 > 0,
        delete_emptydir_data: bits & 4 > 0,
        disable_eviction: bits & 8 > 0,
        grace_period_seconds: (bits & 16 > 0).then_some(5),
        skip_wait_for_delete_seconds: 0,
    }
}

/// A harness, and the actions that the store has not answered yet.
struct Trial {
    harness: Harness,
    in_flight: Vec<PlannedAction>,
}

impl Trial {
    fn take(&mut self, step: &Step) {
        match step {
            Step::Put { pod, kind } => {
                let name = format!("p{pod}");
                let held = self.harness.world.pod(&key(&name)).map(|pod| pod.meta.is_deleting());
                // A deletion is never undone.
                if held != Some(true) {
                    let identity = format!("{name}-{}", self.harness.version);
                    let uid = self.harness.world.pod(&key(&name)).and_then(|pod| pod.meta.uid);
                    let sample = sample(&name, *kind).identity(&identity).on(NODE);
                    let sample = sample.with(|pod| pod.meta.uid = uid.or(pod.meta.uid));
                    self.harness.put_pod(sample.build());
                }
            }
            Step::Remove { pod } => self.harness.remove_pod(&key(&format!("p{pod}"))),
            Step::Answer { which, how } => self.answer(*which, *how),
            Step::Wait { millis } => self.harness.millis += u64::from(*millis),
            Step::Write => drop(self.harness.write_changed()),
            Step::Change => {
                let version = self.harness.version.to_string();
                self.harness.change_node(|node| drop(node.meta.labels.insert("changed".to_owned(), version)));
            }
            Step::Drain { options: bits, timeout } => {
                self.harness.drain(options(*bits), Some(u64::from(*timeout)).filter(|timeout| *timeout > 0));
            }
            Step::Uncordon => {
                if let Some(free) = uncordon(&self.harness.node(), "", true) {
                    self.harness.put_node(free);
                }
            }
            Step::Restart => {
                self.in_flight.clear();
                self.harness.restart();
            }
        }
    }

    fn answer(&mut self, which: u8, how: u8) {
        if self.in_flight.is_empty() {
            return;
        }
        let planned = self.in_flight.remove(usize::from(which) % self.in_flight.len());
        let Subject::Pod(key, _) = &planned.subject else { panic!("{planned:?}") };
        let failure = match how {
            0 => Some(budget("no")),
            1 => Some(Failure::Conflict),
            2 => Some(Failure::Later("busy".to_owned())),
            3 => Some(Failure::Unknown("lost".to_owned())),
            4 => Some(Failure::Refused("never".to_owned())),
            _ => None,
        };
        self.harness.refusals = failure.map(|failure| (key.clone(), failure)).into_iter().collect();
        let outcome = self.harness.perform(&planned);
        self.harness.drains.settle(&outcome, &self.harness.world, self.harness.now());
    }

    /// What must hold after every step.
    fn check(&mut self, before: &Node) {
        let now = self.harness.now();
        let node = self.harness.node();
        let ended = |node: &Node| node.spec.drain.clone().filter(|drain| !drain.is_under_way());
        if let Some(drain) = ended(&node)
            && ended(before).is_none()
            && drain.state == DrainState::Complete
        {
            let pods: Vec<_> = self.harness.world.pods_on(NODE).cloned().collect();
            let plan = plan(pods.iter().map(|pod| &**pod), &drain.options, now.wall);
            assert_eq!(plan.going().count(), 0, "complete, and {:?} are there", self.harness.here());
            assert_eq!(plan.refusal(), None, "complete, and some must not go");
        }
        let may_ask = node.spec.unschedulable && node.spec.drain.as_ref().is_some_and(Drain::is_under_way);
        let actions = self.harness.decide().actions;
        assert!(may_ask || actions.is_empty(), "no drain requires that: {actions:?}");
        if let Some(drain) = node.spec.drain.filter(|_| !actions.is_empty()) {
            let pods: Vec<_> = self.harness.world.pods_on(NODE).cloned().collect();
            let plan = plan(pods.iter().map(|pod| &**pod), &drain.options, now.wall);
            assert_eq!(plan.refusal(), None, "the drain is refused: {actions:?}");
            let going: BTreeSet<_> = plan.going().map(|pod| Subject::Pod(pod.key.clone(), pod.uid)).collect();
            assert!(actions.iter().all(|planned| going.contains(&planned.subject)), "{actions:?}");
        }
        for planned in actions {
            let is_under_way = self.in_flight.iter().any(|in_flight| in_flight.subject == planned.subject);
            assert!(!is_under_way, "planned twice: {planned:?}");
            self.in_flight.push(planned);
        }
    }
}

proptest! {
    #[test]
    fn no_pod_is_evicted_twice_and_no_drain_is_complete_too_early(steps in prop::collection::vec(step(), 1..60)) {
        let mut trial = Trial { harness: Harness::with([managed("p0"), managed("p1")]), in_flight: Vec::new() };
        trial.harness.stops_after = None;
        for step in &steps {
            let before = trial.harness.node();
            trial.take(step);
            trial.check(&before);
        }
        // With a store that grants everything and an agent that stops pods, every drain gets a result.
        trial.harness.stops_after = Some(1000);
        trial.harness.refusals.clear();
        while !trial.in_flight.is_empty() {
            trial.answer(0, 9);
        }
        let ending: Vec<_> = trial.harness.world.pods_on(NODE).filter(|pod| pod.meta.is_deleting()).map(|pod| Key::of(&**pod)).collect();
        ending.iter().for_each(|key| trial.harness.remove_pod(key));
        let soon = trial.harness.millis / 1000 + 60;
        trial.harness.run_to(soon);
        let drain = trial.harness.node().spec.drain;
        prop_assert!(drain.as_ref().is_none_or(|drain| !drain.is_under_way()), "{drain:?}");
    }
}
