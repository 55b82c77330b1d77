//! In any order of events no node gets more pods than fit, and no pod waits that fits a node.
//!
//! A store with the current records, a watch that lags behind it, and actions that are performed or not, with outcomes
//! that arrive or not, in any order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_proto::pod::PodPhase;
use proptest::prelude::*;
use proptest::sample::Index;

use super::harness::subject;
use super::*;
use crate::explain::scheduling::SchedulingStatus;
use crate::fixtures::{PodSample, at_ms};
use crate::plan::{Action, Answer, Outcome, PlannedAction};

const NODES: [&str; 2] = ["a", "b"];
/// The watch is never further behind than this when the scheduler decides.
const LAG_MS: u64 = 10_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    Node {
        node: usize,
        cpu: u64,
        pods: u64,
        cordoned: bool,
    },
    RemoveNode(usize),
    Pod {
        cpu: u64,
        priority: i32,
        port: bool,
    },
    Finish(Index),
    Delete(Index),
    RemovePod(Index),
    /// That many changes are observed.
    Observe(usize),
    Decide,
    Answer(Index, Fate),
    Wait(u64),
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Performed, and the outcome arrives.
    Done,
    /// Performed, and the outcome is lost.
    DoneUnknown,
    Lost,
    Later,
    Conflict,
}

fn any_step() -> impl Strategy<Value = Step> {
    let fate = prop_oneof![
        4 => Just(Fate::Done),
        2 => Just(Fate::DoneUnknown),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Later),
        1 => Just(Fate::Conflict),
    ];
    prop_oneof![
        2 => (0..NODES.len(), 1..4u64, 1..4u64, proptest::bool::weighted(0.1))
            .prop_map(|(node, cpu, pods, cordoned)| Step::Node { node, cpu, pods, cordoned }),
        1 => (0..NODES.len()).prop_map(Step::RemoveNode),
        4 => (0..4u64, 0..2i32, proptest::bool::weighted(0.1))
            .prop_map(|(cpu, priority, port)| Step::Pod { cpu, priority, port }),
        2 => any::<Index>().prop_map(Step::Finish),
        1 => any::<Index>().prop_map(Step::Delete),
        2 => any::<Index>().prop_map(Step::RemovePod),
        4 => (1..4usize).prop_map(Step::Observe),
        6 => Just(Step::Decide),
        6 => (any::<Index>(), fate).prop_map(|(which, fate)| Step::Answer(which, fate)),
        4 => (1..4_000u64).prop_map(Step::Wait),
    ]
}

/// A change as the watch delivers it.
enum WatchEvent {
    Node(Box<Node>),
    NodeGone(Name),
    Pod(Box<Pod>),
    PodGone(Key),
}

struct Run {
    nodes: BTreeMap<Name, Node>,
    pods: BTreeMap<Key, Pod>,
    version: u64,
    made: usize,
    /// Cpu and pods of each node.
    sizes: [(u64, u64); NODES.len()],
    millis: u64,
    stream: VecDeque<(u64, u64, WatchEvent)>,
    world: World,
    /// Two schedulers that observe the same: their plans must always be equal.
    controllers: [Scheduler; 2],
    in_flight: Vec<PlannedAction>,
}

impl Run {
    fn new() -> Run {
        Run {
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            version: 0,
            made: 0,
            sizes: Default::default(),
            millis: 0,
            stream: VecDeque::new(),
            world: {
                let mut world = World::new();
                world.budgets.set_synced(true);
                world
            },
            controllers: [(); 2].map(|()| Scheduler::new(Settings { max_pods: 3, ..Settings::default() })),
            in_flight: Vec::new(),
        }
    }

    fn now(&self) -> Now {
        at_ms(self.millis)
    }

    fn publish(&mut self, change: WatchEvent) {
        self.stream.push_back((self.millis, self.version, change));
    }

    fn put_node(&mut self, sample: NodeSample) {
        self.version += 1;
        let node = sample.at(self.version).build();
        self.nodes.insert(node.meta.name.clone(), node.clone());
        self.publish(WatchEvent::Node(Box::new(node)));
    }

    fn put_pod(&mut self, mut pod: Pod) -> Pod {
        self.version += 1;
        pod.meta.resource_version = self.version;
        self.pods.insert(Key::of(&pod), pod.clone());
        self.publish(WatchEvent::Pod(Box::new(pod.clone())));
        pod
    }

    fn some_pod(&self, which: Index) -> Option<Pod> {
        (!self.pods.is_empty()).then(|| self.pods.values().nth(which.index(self.pods.len())).unwrap().clone())
    }

    fn remove_pod(&mut self, pod: &Pod) {
        self.version += 1;
        self.pods.remove(&Key::of(pod));
        self.publish(WatchEvent::PodGone(Key::of(pod)));
    }

    fn observe(&mut self) {
        let Some((_, revision, change)) = self.stream.pop_front() else { return };
        let deltas = match change {
            WatchEvent::Node(node) => self.world.apply_node(*node),
            WatchEvent::NodeGone(name) => self.world.remove_node(&name, None, revision),
            WatchEvent::Pod(pod) => self.world.apply_pod(*pod),
            WatchEvent::PodGone(key) => self.world.remove_pod(&key, None, revision),
        };
        let now = self.now();
        for delta in &deltas {
            self.controllers.iter_mut().for_each(|scheduler| scheduler.observe(delta, &self.world, now));
        }
    }

    fn decide(&mut self) {
        while self.stream.front().is_some_and(|(at, ..)| *at + LAG_MS < self.millis) {
            self.observe();
        }
        let now = self.now();
        let [one, other] = self.controllers.each_mut().map(|scheduler| {
            let mut plan = Plan::default();
            scheduler.decide(&self.world, now, &mut plan);
            plan
        });
        assert_eq!(one, other, "both observed the same");
        for planned in one.actions {
            // A pod may be displaced as soon as its record shows that it is bound, also before the outcome of that.
            let is_end = |planned: &PlannedAction| matches!(planned.action, Action::EndPod { .. });
            let asked = self
                .in_flight
                .iter()
                .find(|held| held.subject == planned.subject && is_end(held) == is_end(&planned));
            assert!(asked.is_none(), "{asked:?} is in flight, and there is {planned:?}");
            self.in_flight.push(planned);
        }
    }

    fn answer(&mut self, planned: PlannedAction, fate: Fate) {
        let result = match fate {
            Fate::Done => self.perform(&planned),
            Fate::DoneUnknown => {
                let _ = self.perform(&planned);
                Err(Failure::Unknown("no answer".to_owned()))
            }
            Fate::Lost => Err(Failure::Unknown("no answer".to_owned())),
            Fate::Later => Err(Failure::Later("busy".to_owned())),
            Fate::Conflict => Err(Failure::Conflict),
        };
        let (controller, subject, now) = (planned.controller, planned.subject, self.now());
        let outcome = Outcome { controller, subject, result };
        self.controllers.iter_mut().for_each(|scheduler| scheduler.settle(&outcome, &self.world, now));
        // The record that a write returned is observed, unless the pod is gone: the watch shows that.
        if let Ok(Answer::Pod(pod)) = outcome.result
            && self.world.pod(&Key::of(&*pod)).is_some()
        {
            let deltas = self.world.apply_pod(*pod);
            for delta in &deltas {
                self.controllers.iter_mut().for_each(|scheduler| scheduler.observe(delta, &self.world, now));
            }
        }
    }

    fn perform(&mut self, planned: &PlannedAction) -> Result<Answer, Failure> {
        let (key, uid) = subject(planned);
        let held = self.pods.get(&key).filter(|pod| pod.meta.uid == Some(uid)).ok_or(Failure::Gone)?;
        let mut pod = held.clone();
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
            Action::EndPod { .. } if pod.meta.is_deleting() => return Ok(Answer::Pod(Box::new(pod))),
            Action::EndPod { .. } => pod.meta.deletion_timestamp = Some(self.now().wall),
            other => panic!("scheduler does not do this: {other:?}"),
        }
        let pod = self.put_pod(pod);
        self.check_node(&pod);
        Ok(Answer::Pod(Box::new(pod)))
    }

    /// The pods bound to the pod's node do not exceed the node.
    fn check_node(&self, pod: &Pod) {
        let Some(node) = pod.spec.node_name.as_ref().and_then(|name| self.nodes.get(name)) else { return };
        let counted = |other: &&Pod| other.is_on(node.meta.name.as_str()) && !other.is_finished();
        let bound: Vec<&Pod> = self.pods.values().filter(counted).collect();
        let milli = |pod: &&Pod| PodRequest::of(&pod.spec).requested.cpu;
        let cpu: i128 = bound.iter().map(milli).sum();
        let has = |name| muster_proto::pod::requests::amount(&node.status.allocatable, name);
        assert!(bound.len() as i64 <= has("pods").value(), "{} pods on {node:?}", bound.len());
        assert!(milli(&pod) == 0 || cpu <= has("cpu").milli().into(), "{cpu} of cpu on {node:?}");
        let ports = bound.iter().flat_map(|pod| PodRequest::of(&pod.spec).ports).count();
        assert!(ports <= 1, "a port is allocated twice on {node:?}");
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Node { node, cpu, pods, cordoned } => {
                // Capacity only grows: the scheduler is not to blame for a node that shrinks below its pods.
                let (has_cpu, has_pods) = &mut self.sizes[node];
                (*has_cpu, *has_pods) = (cpu.max(*has_cpu), pods.max(*has_pods));
                let sample =
                    crate::fixtures::node(NODES[node]).allocatable(&format!("cpu={has_cpu} pods={has_pods}"));
                self.put_node(if cordoned { sample.cordoned() } else { sample });
            }
            Step::RemoveNode(node) => {
                if self.nodes.remove(NODES[node]).is_some() {
                    self.version += 1;
                    self.publish(WatchEvent::NodeGone(NODES[node].parse().unwrap()));
                }
            }
            Step::Pod { cpu, priority, port } => {
                self.made += 1;
                let sample =
                    pod(&format!("p{}", self.made)).requests(&format!("cpu={cpu}")).priority(priority);
                let PodSample(pod) = if port { sample.port(80) } else { sample };
                self.put_pod(pod);
            }
            Step::Finish(which) => {
                if let Some(mut pod) = self.some_pod(which) {
                    pod.status.phase = PodPhase::Succeeded;
                    self.put_pod(pod);
                }
            }
            Step::Delete(which) => {
                if let Some(mut pod) = self.some_pod(which) {
                    pod.meta.deletion_timestamp = Some(self.now().wall);
                    self.put_pod(pod);
                }
            }
            Step::RemovePod(which) => {
                if let Some(pod) = self.some_pod(which) {
                    self.remove_pod(&pod);
                }
            }
            Step::Observe(count) => (0..count).for_each(|_| self.observe()),
            Step::Decide => self.decide(),
            Step::Answer(which, fate) => {
                if !self.in_flight.is_empty() {
                    let planned = self.in_flight.remove(which.index(self.in_flight.len()));
                    self.answer(planned, fate);
                }
            }
            Step::Wait(millis) => self.millis += millis,
        }
    }

    /// Observes and performs everything until all timeouts and back-offs are over.
    fn settle_down(&mut self) {
        for _ in 0..40 {
            self.millis += 5_000;
            // What is being deleted ends.
            let ended: Vec<Pod> = self.pods.values().filter(|pod| pod.meta.is_deleting()).cloned().collect();
            ended.iter().for_each(|pod| self.remove_pod(pod));
            while !self.stream.is_empty() {
                self.observe();
            }
            self.decide();
            while let Some(planned) = self.in_flight.pop() {
                self.answer(planned, Fate::Done);
            }
        }
        while !self.stream.is_empty() {
            self.observe();
        }
    }

    /// A pod that is not to be tried for minutes fits no node that was observed.
    fn check_waiting(&self) {
        let controller = &self.controllers[0];
        for pod in self.world.pods().filter(|pod| needs_node(pod)) {
            if let SchedulingStatus::Unschedulable { tried_at, again_at, .. } = controller.explain_pod(pod)
                && again_at - tried_at > Duration::from_secs(10)
            {
                let requirements = PodRequirements::of(&pod.spec);
                let fitting =
                    self.world.nodes().find(|node| controller.cache.fits(&requirements, &node.meta.name));
                assert_eq!(fitting, None, "{} waits", pod.meta.name);
            }
        }
    }

    /// What is allocated is what is bound, and a pod without a node fits no node.
    fn check_settled(&self) {
        let controller = &self.controllers[0];
        let mut names: BTreeSet<&str> = NODES.into();
        names.extend(self.pods.values().filter_map(|pod| pod.spec.node_name.as_ref()).map(Name::as_str));
        for name in names {
            let mut expected = node_info::Allocated::default();
            self.pods.values().filter(|pod| pod.is_on(name) && !pod.is_finished()).for_each(|pod| {
                expected.add(&PodRequest::of(&pod.spec));
            });
            assert_eq!(controller.cache.allocated(name), expected, "on {name}");
        }
        let pending: Vec<&Pod> = self.pods.values().filter(|pod| needs_node(pod)).collect();
        assert_eq!(controller.pending(), pending.len());
        for pod in pending {
            let requirements = PodRequirements::of(&pod.spec);
            for name in self.nodes.keys() {
                assert!(!controller.cache.fits(&requirements, name), "{} waits for {name}", pod.meta.name);
            }
            let why = controller.explain_pod(pod).to_string();
            let reported = pod.condition("PodScheduled").map(|held| held.message.clone());
            assert_eq!(reported, Some(why), "{}", pod.meta.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_node_gets_more_pods_than_fit(steps in prop::collection::vec(any_step(), 1..200)) {
        let mut run = Run::new();
        for step in steps {
            run.step(&step);
            run.check_waiting();
        }
        run.settle_down();
        run.check_settled();
    }
}
