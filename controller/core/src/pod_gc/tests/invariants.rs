//! In any order of events the index equals one built from scratch, and only pods with a cause are deleted.

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
    harness: Harness,
    in_flight: Vec<PlannedAction>,
    /// Since when each node is missing while pods name it.
    missing_since: BTreeMap<&'static str, Mono>,
    /// How many pods had each name: a deleted uid never comes back.
    generations: [usize; PODS.len()],
}

impl Run {
    fn step(&mut self, step: &Step) {
        let harness = &mut self.harness;
        match step {
            Step::Node { node: which, ready, off } => {
                let sample = node(NODES[*which]).ready(*ready);
                harness.node(if *off { sample.taint(OFF) } else { sample });
            }
            Step::DeleteNode(node) => harness.delete_node(NODES[*node]),
            Step::Pod { pod: which, node, phase, ends, evicted, another } => {
                let mut sample = pod(PODS[*which]).phase(*phase);
                sample = if let Some(node) = node { sample.on(NODES[*node]) } else { sample };
                sample = if *ends { sample.deleting(30) } else { sample };
                self.generations[*which] += usize::from(*another);
                sample = sample.identity(&format!("{} {}", PODS[*which], self.generations[*which]));
                let reason = if *evicted { "Evicted" } else { "" };
                harness.pod(sample.with(|pod| pod.status.reason = reason.to_owned()));
            }
            Step::DeletePod(pod) => {
                harness.delete_pod(&key(PODS[*pod]));
                self.generations[*pod] += 1;
            }
            Step::Decide { seconds } => {
                harness.millis += seconds * 1000;
                for planned in harness.decide().actions {
                    self.check(&planned);
                    self.in_flight.push(planned);
                }
            }
            Step::Answer { first, failure } => {
                let last = self.in_flight.len().checked_sub(1);
                if let Some(which) = last.map(|last| if *first { 0 } else { last }) {
                    let planned = self.in_flight.remove(which);
                    harness.settle(&planned, Err(failure.clone()));
                }
            }
        }
        for name in NODES {
            if !self.is_missing(name) {
                self.missing_since.remove(name);
            } else if !self.missing_since.contains_key(name) {
                self.missing_since.insert(name, self.harness.now().mono);
            }
        }
    }

    fn is_missing(&self, name: &str) -> bool {
        let world = &self.harness.world;
        world.node(name).is_none() && world.pods_on(name).next().is_some()
    }

    /// The deletion is not in flight already, and the pod may be deleted.
    fn check(&self, planned: &PlannedAction) {
        let Run { harness, in_flight, .. } = self;
        assert!(in_flight.iter().all(|held| held.subject != planned.subject), "{planned:?} twice");
        match &planned.subject {
            Subject::Pod(key, uid) => {
                let pod = harness.world.pod(key).unwrap();
                assert_eq!(pod.meta.uid, Some(*uid));
                assert!(self.may_go(pod), "{} must not be deleted: {pod:?}", key.name);
            }
            Subject::Lease(key) => panic!("pod GC does not delete {key}"),
            Subject::Node(name, _) => {
                assert!(self.was_missing_for_long(name.as_str()), "{name} is not missing");
            }
        }
    }

    fn was_missing_for_long(&self, name: &str) -> bool {
        let long_ago = self.harness.now().mono - Duration::from_secs(40);
        self.missing_since.get(name).is_some_and(|since| *since <= long_ago)
    }

    fn may_go(&self, pod: &Pod) -> bool {
        let ends = pod.meta.is_deleting();
        let Some(name) = &pod.spec.node_name else { return ends || pod.is_finished() };
        let Some(node) = self.harness.world.node(name.as_str()) else {
            return pod.is_finished() || self.was_missing_for_long(name.as_str());
        };
        let is_off = node.spec.taints.iter().any(|taint| taint.key.ends_with("out-of-service"));
        pod.is_finished() || (ends && !node.is_ready() && is_off)
    }
}

/// The index built from scratch.
fn rebuilt_index(world: &World) -> Index {
    let mut index = Index::default();
    for node in world.nodes() {
        index.observe_node(&Change { old: None, new: Some(node.clone()) });
    }
    for pod in world.pods() {
        index.observe_pod(&Change { old: None, new: Some(pod.clone()) });
    }
    index
}

proptest! {
    #[test]
    fn the_index_stays_correct_and_only_pods_with_a_cause_are_deleted(steps in prop::collection::vec(any_step(), 1..80)) {
        let harness = Harness::with(Settings { terminated_pod_threshold: Some(1), ..Settings::default() });
        let (in_flight, missing_since) = (Vec::new(), BTreeMap::new());
        let mut run = Run { harness, in_flight, missing_since, generations: Default::default() };
        for step in &steps {
            run.step(step);
            let PodGc { index, missing, .. } = &run.harness.pod_gc;
            prop_assert_eq!(index, &rebuilt_index(&run.harness.world));
            for name in NODES {
                prop_assert_eq!(missing.contains_key(name), run.is_missing(name), "{}", name);
            }
        }
    }
}
