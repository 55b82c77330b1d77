//! Whatever happens in whatever order: nothing is asked for twice, and nothing is called complete too early.

use std::collections::BTreeSet;

use muster_proto::pod::PodPhase;
use proptest::prelude::*;

use super::*;
use crate::drain::filters::plan;
use crate::drain::intent::uncordon;

#[derive(Clone, Debug)]
enum Step {
    /// A pod comes to the node, or changes.
    Put {
        pod: u8,
        kind: u8,
    },
    Remove {
        pod: u8,
    },
    /// The store answers one of the questions under way.
    Answer {
        which: u8,
        how: u8,
    },
    Wait {
        millis: u16,
    },
    Write,
    /// Somebody else writes the node's record.
    Touch,
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
        1 => Just(Step::Touch),
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

/// A site, and the questions that the store has not answered yet.
struct Trial {
    site: Site,
    asked: Vec<PlannedAction>,
}

impl Trial {
    fn take(&mut self, step: &Step) {
        match step {
            Step::Put { pod, kind } => {
                let name = format!("p{pod}");
                let held = self.site.world.pod(&key(&name)).map(|pod| pod.meta.is_deleting());
                // A deletion is never taken back.
                if held != Some(true) {
                    let identity = format!("{name}-{}", self.site.version);
                    let uid = self.site.world.pod(&key(&name)).and_then(|pod| pod.meta.uid);
                    let sample = sample(&name, *kind).identity(&identity).on(NODE);
                    let sample = sample.with(|pod| pod.meta.uid = uid.or(pod.meta.uid));
                    self.site.put_pod(sample.build());
                }
            }
            Step::Remove { pod } => self.site.remove_pod(&key(&format!("p{pod}"))),
            Step::Answer { which, how } => self.answer(*which, *how),
            Step::Wait { millis } => self.site.millis += u64::from(*millis),
            Step::Write => drop(self.site.write_touched()),
            Step::Touch => {
                let version = self.site.version.to_string();
                self.site.change_node(|node| drop(node.meta.labels.insert("touched".to_owned(), version)));
            }
            Step::Drain { options: bits, timeout } => {
                self.site.drain(options(*bits), Some(u64::from(*timeout)).filter(|timeout| *timeout > 0));
            }
            Step::Uncordon => {
                if let Some(free) = uncordon(&self.site.node()) {
                    self.site.put_node(free);
                }
            }
            Step::Restart => {
                self.asked.clear();
                self.site.restart();
            }
        }
    }

    fn answer(&mut self, which: u8, how: u8) {
        if self.asked.is_empty() {
            return;
        }
        let proposal = self.asked.remove(usize::from(which) % self.asked.len());
        let Subject::Pod(key, _) = &proposal.subject else { panic!("{proposal:?}") };
        let failure = match how {
            0 => Some(budget("no")),
            1 => Some(Failure::Conflict),
            2 => Some(Failure::Later("busy".to_owned())),
            3 => Some(Failure::Unknown("lost".to_owned())),
            4 => Some(Failure::Refused("never".to_owned())),
            _ => None,
        };
        self.site.refusals = failure.map(|failure| (key.clone(), failure)).into_iter().collect();
        let outcome = self.site.perform(&proposal);
        self.site.drains.settle(&outcome, &self.site.world, self.site.now());
    }

    /// What must hold after every step.
    fn check(&mut self, before: &Node) {
        let now = self.site.now();
        let node = self.site.node();
        let ended = |node: &Node| node.spec.drain.clone().filter(|drain| !drain.is_under_way());
        if let Some(drain) = ended(&node)
            && ended(before).is_none()
            && drain.state == DrainState::Complete
        {
            let pods: Vec<_> = self.site.world.pods_on(NODE).cloned().collect();
            let plan = plan(pods.iter().map(|pod| &**pod), &drain.options, now.wall);
            assert_eq!(plan.going().count(), 0, "complete, and {:?} are there", self.site.here());
            assert_eq!(plan.refusal(), None, "complete, and some must not go");
        }
        let may_ask = node.spec.unschedulable && node.spec.drain.as_ref().is_some_and(Drain::is_under_way);
        let actions = self.site.decide().actions;
        assert!(may_ask || actions.is_empty(), "nobody wants that: {actions:?}");
        if let Some(drain) = node.spec.drain.filter(|_| !actions.is_empty()) {
            let pods: Vec<_> = self.site.world.pods_on(NODE).cloned().collect();
            let plan = plan(pods.iter().map(|pod| &**pod), &drain.options, now.wall);
            assert_eq!(plan.refusal(), None, "the drain is refused: {actions:?}");
            let going: BTreeSet<_> = plan.going().map(|pod| Subject::Pod(pod.key.clone(), pod.uid)).collect();
            assert!(actions.iter().all(|proposal| going.contains(&proposal.subject)), "{actions:?}");
        }
        for proposal in actions {
            let is_under_way = self.asked.iter().any(|asked| asked.subject == proposal.subject);
            assert!(!is_under_way, "asked for twice: {proposal:?}");
            self.asked.push(proposal);
        }
    }
}

proptest! {
    #[test]
    fn nothing_is_asked_for_twice_and_nothing_is_complete_too_early(steps in prop::collection::vec(step(), 1..60)) {
        let mut trial = Trial { site: Site::with([managed("p0"), managed("p1")]), asked: Vec::new() };
        trial.site.stops_after = None;
        for step in &steps {
            let before = trial.site.node();
            trial.take(step);
            trial.check(&before);
        }
        // Left alone with a willing store and agent, a drain comes to its end.
        trial.site.stops_after = Some(1000);
        trial.site.refusals.clear();
        while !trial.asked.is_empty() {
            trial.answer(0, 9);
        }
        let ending: Vec<_> = trial.site.world.pods_on(NODE).filter(|pod| pod.meta.is_deleting()).map(|pod| Key::of(&**pod)).collect();
        ending.iter().for_each(|key| trial.site.remove_pod(key));
        let soon = trial.site.millis / 1000 + 60;
        trial.site.run_to(soon);
        let drain = trial.site.node().spec.drain;
        prop_assert!(drain.as_ref().is_none_or(|drain| !drain.is_under_way()), "{drain:?}");
    }
}
