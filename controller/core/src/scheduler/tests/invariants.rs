//! Whatever happens and in whatever order it is heard: no node is given more than it has.
//!
//! A store with the truth, a stream of its changes that lags behind, and proposals that are performed or not, answered
//! or not, in any order.

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
/// The stream is never further behind than this, or nobody decides.
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
    /// So many changes are heard.
    Hear(usize),
    Decide,
    Answer(Index, Fate),
    Wait(u64),
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Done, and we hear of it.
    Done,
    /// Done, and we do not.
    DoneUnheard,
    Lost,
    Later,
    Conflict,
}

fn any_step() -> impl Strategy<Value = Step> {
    let fate = prop_oneof![
        4 => Just(Fate::Done),
        2 => Just(Fate::DoneUnheard),
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
        4 => (1..4usize).prop_map(Step::Hear),
        6 => Just(Step::Decide),
        6 => (any::<Index>(), fate).prop_map(|(which, fate)| Step::Answer(which, fate)),
        4 => (1..4_000u64).prop_map(Step::Wait),
    ]
}

/// A change as the stream tells it.
enum Told {
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
    stream: VecDeque<(u64, u64, Told)>,
    world: World,
    /// Two of the kind, told the same: they must always want the same.
    controllers: [Scheduler; 2],
    under_way: Vec<PlannedAction>,
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
            world: World::new(),
            controllers: [(); 2].map(|()| Scheduler::new(Settings { tries: 3, ..Settings::default() })),
            under_way: Vec::new(),
        }
    }

    fn now(&self) -> Now {
        at_ms(self.millis)
    }

    fn tell(&mut self, told: Told) {
        self.stream.push_back((self.millis, self.version, told));
    }

    fn put_node(&mut self, sample: NodeSample) {
        self.version += 1;
        let node = sample.at(self.version).build();
        self.nodes.insert(node.meta.name.clone(), node.clone());
        self.tell(Told::Node(Box::new(node)));
    }

    fn put_pod(&mut self, mut pod: Pod) -> Pod {
        self.version += 1;
        pod.meta.resource_version = self.version;
        self.pods.insert(Key::of(&pod), pod.clone());
        self.tell(Told::Pod(Box::new(pod.clone())));
        pod
    }

    fn some_pod(&self, which: Index) -> Option<Pod> {
        (!self.pods.is_empty()).then(|| self.pods.values().nth(which.index(self.pods.len())).unwrap().clone())
    }

    fn remove_pod(&mut self, pod: &Pod) {
        self.version += 1;
        self.pods.remove(&Key::of(pod));
        self.tell(Told::PodGone(Key::of(pod)));
    }

    fn hear(&mut self) {
        let Some((_, revision, told)) = self.stream.pop_front() else { return };
        let deltas = match told {
            Told::Node(node) => self.world.apply_node(*node),
            Told::NodeGone(name) => self.world.remove_node(&name, None, revision),
            Told::Pod(pod) => self.world.apply_pod(*pod),
            Told::PodGone(key) => self.world.remove_pod(&key, None, revision),
        };
        let now = self.now();
        for delta in &deltas {
            self.controllers.iter_mut().for_each(|scheduler| scheduler.observe(delta, &self.world, now));
        }
    }

    fn decide(&mut self) {
        while self.stream.front().is_some_and(|(told, ..)| *told + LAG_MS < self.millis) {
            self.hear();
        }
        let now = self.now();
        let [one, other] = self.controllers.each_mut().map(|scheduler| {
            let mut plan = Plan::default();
            scheduler.decide(&self.world, now, &mut plan);
            plan
        });
        assert_eq!(one, other, "the same was told to both");
        for proposal in one.actions {
            let asked = self.under_way.iter().find(|held| held.subject == proposal.subject);
            assert!(asked.is_none(), "{asked:?} is under way, and there is {proposal:?}");
            self.under_way.push(proposal);
        }
    }

    fn answer(&mut self, proposal: PlannedAction, fate: Fate) {
        let result = match fate {
            Fate::Done => self.perform(&proposal),
            Fate::DoneUnheard => {
                let _ = self.perform(&proposal);
                Err(Failure::Unknown("no answer".to_owned()))
            }
            Fate::Lost => Err(Failure::Unknown("no answer".to_owned())),
            Fate::Later => Err(Failure::Later("busy".to_owned())),
            Fate::Conflict => Err(Failure::Conflict),
        };
        let (controller, subject, now) = (proposal.controller, proposal.subject, self.now());
        let outcome = Outcome { controller, subject, result };
        self.controllers.iter_mut().for_each(|scheduler| scheduler.settle(&outcome, &self.world, now));
        // What a write returned is news, unless it has been overtaken: then the stream will tell.
        if let Ok(Answer::Pod(pod)) = outcome.result
            && self.world.pod(&Key::of(&*pod)).is_some()
        {
            let deltas = self.world.apply_pod(*pod);
            for delta in &deltas {
                self.controllers.iter_mut().for_each(|scheduler| scheduler.observe(delta, &self.world, now));
            }
        }
    }

    fn perform(&mut self, proposal: &PlannedAction) -> Result<Answer, Failure> {
        let (key, uid) = subject(proposal);
        let held = self.pods.get(&key).filter(|pod| pod.meta.uid == Some(uid)).ok_or(Failure::Gone)?;
        let mut pod = held.clone();
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
        let pod = self.put_pod(pod);
        self.check_node(&pod);
        Ok(Answer::Pod(Box::new(pod)))
    }

    /// No more is bound to the pod's node than it has.
    fn check_node(&self, pod: &Pod) {
        let Some(node) = pod.spec.node_name.as_ref().and_then(|name| self.nodes.get(name)) else { return };
        let counted = |other: &&Pod| other.is_on(node.meta.name.as_str()) && !other.is_finished();
        let bound: Vec<&Pod> = self.pods.values().filter(counted).collect();
        let milli = |pod: &&Pod| Claim::of(&pod.spec).load.cpu;
        let cpu: i128 = bound.iter().map(milli).sum();
        let has = |name| muster_proto::pod::requests::amount(&node.status.allocatable, name);
        assert!(bound.len() as i64 <= has("pods").value(), "{} pods on {node:?}", bound.len());
        assert!(milli(&pod) == 0 || cpu <= has("cpu").milli().into(), "{cpu} of cpu on {node:?}");
        let ports = bound.iter().flat_map(|pod| Claim::of(&pod.spec).ports).count();
        assert!(ports <= 1, "a port is given twice on {node:?}");
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Node { node, cpu, pods, cordoned } => {
                // What a node has only grows: a node that shrinks under its pods is nobody's fault here.
                let (has_cpu, has_pods) = &mut self.sizes[node];
                (*has_cpu, *has_pods) = (cpu.max(*has_cpu), pods.max(*has_pods));
                let sample =
                    crate::fixtures::node(NODES[node]).allocatable(&format!("cpu={has_cpu} pods={has_pods}"));
                self.put_node(if cordoned { sample.cordoned() } else { sample });
            }
            Step::RemoveNode(node) => {
                if self.nodes.remove(NODES[node]).is_some() {
                    self.version += 1;
                    self.tell(Told::NodeGone(NODES[node].parse().unwrap()));
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
            Step::Hear(count) => (0..count).for_each(|_| self.hear()),
            Step::Decide => self.decide(),
            Step::Answer(which, fate) => {
                if !self.under_way.is_empty() {
                    let proposal = self.under_way.remove(which.index(self.under_way.len()));
                    self.answer(proposal, fate);
                }
            }
            Step::Wait(millis) => self.millis += millis,
        }
    }

    /// Everything is heard and done from now on, until all doubts and rests are over.
    fn calm_down(&mut self) {
        for _ in 0..30 {
            self.millis += 5_000;
            while !self.stream.is_empty() {
                self.hear();
            }
            self.decide();
            while let Some(proposal) = self.under_way.pop() {
                self.answer(proposal, Fate::Done);
            }
        }
        while !self.stream.is_empty() {
            self.hear();
        }
    }

    /// Whoever is not to be tried for minutes fits nowhere, as far as is known.
    fn check_sleepers(&self) {
        let controller = &self.controllers[0];
        for pod in self.world.pods().filter(|pod| seeks_node(pod)) {
            if let SchedulingStatus::Unschedulable { tried_at, again_at, .. } = controller.explain_pod(pod)
                && again_at - tried_at > Duration::from_secs(10)
            {
                let demand = Demand::of(&pod.spec);
                let fitting = self.world.nodes().find(|node| controller.fleet.fits(&demand, &node.meta.name));
                assert_eq!(fitting, None, "{} sleeps", pod.meta.name);
            }
        }
    }

    /// What is taken is what is bound, and whoever has no node fits nowhere.
    fn check_rest(&self) {
        let controller = &self.controllers[0];
        let mut names: BTreeSet<&str> = NODES.into();
        names.extend(self.pods.values().filter_map(|pod| pod.spec.node_name.as_ref()).map(Name::as_str));
        for name in names {
            let mut expected = node_info::Taken::default();
            self.pods.values().filter(|pod| pod.is_on(name) && !pod.is_finished()).for_each(|pod| {
                expected.add(&Claim::of(&pod.spec));
            });
            assert_eq!(controller.fleet.taken(name), expected, "on {name}");
        }
        let seeking: Vec<&Pod> = self.pods.values().filter(|pod| seeks_node(pod)).collect();
        assert_eq!(controller.pending(), seeking.len());
        for pod in seeking {
            let demand = Demand::of(&pod.spec);
            for name in self.nodes.keys() {
                assert!(!controller.fleet.fits(&demand, name), "{} waits for {name}", pod.meta.name);
            }
            let why = controller.explain_pod(pod).to_string();
            let told = pod.condition("PodScheduled").map(|held| held.message.clone());
            assert_eq!(told, Some(why), "{}", pod.meta.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_node_is_given_more_than_it_has(steps in prop::collection::vec(any_step(), 1..200)) {
        let mut run = Run::new();
        for step in steps {
            run.step(&step);
            run.check_sleepers();
        }
        run.calm_down();
        run.check_rest();
    }
}
