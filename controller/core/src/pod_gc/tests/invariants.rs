//! The index that is kept is the index that would be built, and only those go who may.

use std::collections::BTreeMap;

use muster_proto::condition::ConditionStatus;
use proptest::prelude::*;

use super::*;
use crate::fixtures::key;
use crate::plan::PlannedAction;
use crate::world::Change;

#[derive(Clone, Debug)]
enum Step {
    Node { node: usize, ready: ConditionStatus, off: bool },
    DeleteNode(usize),
    Pod { pod: usize, node: Option<usize>, phase: PodPhase, ends: bool, evicted: bool, another: bool },
    DeletePod(usize),
    Decide { seconds: u64 },
    Answer { first: bool, failure: Failure },
}

const NODES: [&str; 2] = ["m", "n"];
const PODS: [&str; 4] = ["a", "b", "c", "d"];

fn any_step() -> impl Strategy<Value = Step> {
    let ready = prop::sample::select(vec![True, False, Unknown]);
    let phases = vec![PodPhase::Pending, PodPhase::Running, PodPhase::Succeeded, PodPhase::Failed];
    let pod = (
        0..PODS.len(),
        prop::option::of(0..NODES.len()),
        prop::sample::select(phases),
        any::<bool>(),
        any::<bool>(),
        proptest::bool::weighted(0.2),
    );
    let failures =
        [Failure::Gone, Failure::Conflict, Failure::Later(String::new()), Failure::Unknown(String::new())];
    let failure = prop::sample::select(failures.to_vec());
    prop_oneof![
        3 => (0..NODES.len(), ready, any::<bool>()).prop_map(|(node, ready, off)| Step::Node { node, ready, off }),
        2 => (0..NODES.len()).prop_map(Step::DeleteNode),
        6 => pod.prop_map(|(pod, node, phase, ends, evicted, another)| {
            Step::Pod { pod, node, phase, ends, evicted, another }
        }),
        2 => (0..PODS.len()).prop_map(Step::DeletePod),
        6 => (0..30u64).prop_map(|seconds| Step::Decide { seconds }),
        4 => (any::<bool>(), failure).prop_map(|(first, failure)| Step::Answer { first, failure }),
    ]
}

struct Run {
    bench: Bench,
    under_way: Vec<PlannedAction>,
    /// Since when each node is not there and pods name it.
    missed_since: BTreeMap<&'static str, Mono>,
    /// How many have borne each pod's name: nobody comes back from the dead.
    bearers: [usize; PODS.len()],
}

impl Run {
    fn step(&mut self, step: &Step) {
        let bench = &mut self.bench;
        match step {
            Step::Node { node: which, ready, off } => {
                let sample = node(NODES[*which]).ready(*ready);
                bench.node(if *off { sample.taint(OFF) } else { sample });
            }
            Step::DeleteNode(node) => bench.delete_node(NODES[*node]),
            Step::Pod { pod: which, node, phase, ends, evicted, another } => {
                let mut sample = pod(PODS[*which]).phase(*phase);
                sample = if let Some(node) = node { sample.on(NODES[*node]) } else { sample };
                sample = if *ends { sample.deleting(30) } else { sample };
                self.bearers[*which] += usize::from(*another);
                sample = sample.identity(&format!("{} {}", PODS[*which], self.bearers[*which]));
                let reason = if *evicted { "Evicted" } else { "" };
                bench.pod(sample.with(|pod| pod.status.reason = reason.to_owned()));
            }
            Step::DeletePod(pod) => {
                bench.delete_pod(&key(PODS[*pod]));
                self.bearers[*pod] += 1;
            }
            Step::Decide { seconds } => {
                bench.millis += seconds * 1000;
                for proposal in bench.decide().actions {
                    self.check(&proposal);
                    self.under_way.push(proposal);
                }
            }
            Step::Answer { first, failure } => {
                let last = self.under_way.len().checked_sub(1);
                if let Some(which) = last.map(|last| if *first { 0 } else { last }) {
                    let proposal = self.under_way.remove(which);
                    bench.settle(&proposal, Err(failure.clone()));
                }
            }
        }
        for name in NODES {
            if !self.is_missed(name) {
                self.missed_since.remove(name);
            } else if !self.missed_since.contains_key(name) {
                self.missed_since.insert(name, self.bench.now().mono);
            }
        }
    }

    fn is_missed(&self, name: &str) -> bool {
        let world = &self.bench.world;
        world.node(name).is_none() && world.pods_on(name).next().is_some()
    }

    /// It was not asked for already, and whoever goes may go.
    fn check(&self, proposal: &PlannedAction) {
        let Run { bench, under_way, .. } = self;
        assert!(under_way.iter().all(|held| held.subject != proposal.subject), "{proposal:?} twice");
        match &proposal.subject {
            Subject::Pod(key, uid) => {
                let pod = bench.world.pod(key).unwrap();
                assert_eq!(pod.meta.uid, Some(*uid));
                assert!(self.may_go(pod), "{} is not to go: {pod:?}", key.name);
            }
            Subject::Lease(key) => panic!("nobody collects {key}"),
            Subject::Node(name, _) => {
                assert!(self.was_missed_for_long(name.as_str()), "{name} is not missed");
            }
        }
    }

    fn was_missed_for_long(&self, name: &str) -> bool {
        let long_ago = self.bench.now().mono - Duration::from_secs(40);
        self.missed_since.get(name).is_some_and(|since| *since <= long_ago)
    }

    fn may_go(&self, pod: &Pod) -> bool {
        let ends = pod.meta.is_deleting();
        let Some(name) = &pod.spec.node_name else { return ends || pod.is_finished() };
        let Some(node) = self.bench.world.node(name.as_str()) else {
            return pod.is_finished() || self.was_missed_for_long(name.as_str());
        };
        let is_off = node.spec.taints.iter().any(|taint| taint.key.ends_with("out-of-service"));
        pod.is_finished() || (ends && !node.is_ready() && is_off)
    }
}

/// What the room would know had it only just been told of everything.
fn index_anew(world: &World) -> Index {
    let mut index = Index::default();
    for node in world.nodes() {
        index.note_node(&Change { old: None, new: Some(node.clone()) });
    }
    for pod in world.pods() {
        index.note_pod(&Change { old: None, new: Some(pod.clone()) });
    }
    index
}

proptest! {
    #[test]
    fn the_index_is_kept_and_only_those_go_who_may(steps in prop::collection::vec(any_step(), 1..80)) {
        let bench = Bench::with(Settings { kept: Some(1), ..Settings::default() });
        let (under_way, missed_since) = (Vec::new(), BTreeMap::new());
        let mut run = Run { bench, under_way, missed_since, bearers: Default::default() };
        for step in &steps {
            run.step(step);
            let PodGc { index, missing, .. } = &run.bench.collection;
            prop_assert_eq!(index, &index_anew(&run.bench.world));
            for name in NODES {
                prop_assert_eq!(missing.contains_key(name), run.is_missed(name), "{}", name);
            }
        }
    }
}
