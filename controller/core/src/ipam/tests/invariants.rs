//! In any order of events no block of another node is reserved, and the counts equal the sum of the records.

use proptest::prelude::*;

use super::*;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Networks from other writers: blocks, parts of blocks, several blocks, and networks outside the pools.
const CHOSEN: [&[&str]; 7] = [
    &["10.0.0.0/24"],
    &["10.0.1.128/25"],
    &["10.0.2.0/23"],
    &["10.0.0.0/8"],
    &["10.0.3.0/24", "fd00:0:0:1::/64"],
    &["172.16.0.0/24"],
    &["10.0.0.0/24", "fe80::/64"],
];

#[derive(Clone, Debug)]
enum Step {
    /// A node is created, or created again with another uid.
    Add {
        index: usize,
        chosen: Option<usize>,
    },
    /// Another writer changes the node but not its networks.
    Change {
        index: usize,
    },
    /// Another writer gives it networks.
    Choose {
        index: usize,
        chosen: usize,
    },
    BeginDeletion {
        index: usize,
    },
    Remove {
        index: usize,
    },
    /// The record is written as the controller wants it.
    Write {
        index: usize,
    },
    /// The same, but the write arrives later and may be refused then.
    Send {
        index: usize,
    },
    Arrive {
        write: usize,
    },
    Fail {
        index: usize,
        failure: u8,
    },
    Pass {
        millis: u64,
    },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (index, chosen) = (0..NAMES.len(), 0..CHOSEN.len());
    prop_oneof![
        6 => (index.clone(), proptest::option::weighted(0.25, chosen.clone())).prop_map(|(index, chosen)| Step::Add { index, chosen }),
        2 => index.clone().prop_map(|index| Step::Change { index }),
        1 => (index.clone(), chosen).prop_map(|(index, chosen)| Step::Choose { index, chosen }),
        1 => index.clone().prop_map(|index| Step::BeginDeletion { index }),
        3 => index.clone().prop_map(|index| Step::Remove { index }),
        5 => index.clone().prop_map(|index| Step::Write { index }),
        3 => index.clone().prop_map(|index| Step::Send { index }),
        3 => (0..4usize).prop_map(|write| Step::Arrive { write }),
        4 => (index, 0..4u8).prop_map(|(index, failure)| Step::Fail { index, failure }),
        2 => (1..5_000u64).prop_map(|millis| Step::Pass { millis }),
        1 => Just(Step::Restart),
    ]
}

struct Run {
    harness: Harness,
    now_ms: u64,
    creations: u32,
    /// Writes on their way to the store.
    sent: Vec<Node>,
    /// Nodes whose networks another writer chose.
    chosen: BTreeSet<Uid>,
}

impl Run {
    fn take(&mut self, step: &Step) {
        let name = |index: &usize| NAMES[*index];
        match step {
            Step::Add { index, chosen } => self.add(name(index), *chosen),
            Step::Change { index } => self.edit(name(index), |node| {
                node.meta.labels.insert("changed".into(), "x".into());
            }),
            Step::Choose { index, chosen } => self.choose(name(index), *chosen),
            Step::BeginDeletion { index } => {
                self.edit(name(index), |node| node.meta.deletion_timestamp = Some(crate::fixtures::epoch()));
            }
            Step::Remove { index } => {
                if self.harness.world.node(name(index)).is_some() {
                    self.harness.remove(name(index));
                }
            }
            Step::Write { index } => {
                if self.harness.world.node(name(index)).is_some() {
                    self.harness.write(name(index));
                }
            }
            Step::Send { index } => {
                if self.harness.world.node(name(index)).is_some() {
                    self.sent.push(self.harness.desired(name(index)));
                }
            }
            Step::Arrive { write } => self.arrive(*write),
            Step::Fail { index, failure } => self.fail(name(index), *failure),
            Step::Pass { millis } => self.now_ms += millis,
            Step::Restart => {
                // A new leader: the store refuses the writes of the old one from now on.
                self.sent.clear();
                self.harness.restart();
            }
        }
    }

    fn add(&mut self, name: &str, chosen: Option<usize>) {
        self.creations += 1;
        let identity = format!("{name}-{}", self.creations);
        if chosen.is_some() {
            self.chosen.insert(uid(&identity));
        }
        let cidrs = chosen.map_or(&[][..], |chosen| CHOSEN[chosen]);
        self.harness.put(node(name).identity(&identity).cidrs(cidrs));
    }

    fn edit(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.harness.world.node(name) {
            let node = Node::clone(node);
            self.harness.put(NodeSample(node).with(change));
        }
    }

    fn choose(&mut self, name: &str, chosen: usize) {
        let Some(node) = self.harness.world.node(name).cloned() else { return };
        // The store refuses to change the networks of a record.
        if node.spec.pod_cidrs.is_empty() {
            self.chosen.insert(node.meta.uid.unwrap());
            self.harness.put(NodeSample(Node::clone(&node)).cidrs(CHOSEN[chosen]));
        }
    }

    /// The store accepts a write only at the version it was made for.
    fn arrive(&mut self, write: usize) {
        if write >= self.sent.len() {
            return;
        }
        let node = self.sent.remove(write);
        let current = self.harness.world.node(node.meta.name.as_str()).map(|held| held.meta.resource_version);
        if current == Some(node.meta.resource_version) {
            self.harness.put(NodeSample(node));
        }
    }

    fn fail(&mut self, name: &str, failure: u8) {
        let Some(node) = self.harness.world.node(name) else { return };
        let (subject, version) = (Subject::of_node(node), node.meta.resource_version);
        let may_arrive =
            |node: &Node| node.meta.name.as_str() == name && node.meta.resource_version == version;
        let failure = match failure {
            // These failures say that no write is in flight.
            0 | 1 if self.sent.iter().any(may_arrive) => Failure::Unknown("no answer".into()),
            0 => Failure::Later("busy".into()),
            1 => Failure::Refused("no".into()),
            2 => Failure::Unknown("no answer".into()),
            _ => Failure::Conflict,
        };
        self.harness.cidrs.assignment_failed(&subject, &failure, at_ms(self.now_ms));
    }

    fn has(&self) -> Vec<Holdings> {
        let one = |node: &Arc<Node>| {
            let allocation = self.harness.cidrs.nodes.get(&node.meta.uid.unwrap());
            let reserved = match allocation.map(|allocation| &allocation.state) {
                Some(AllocationState::Reserved { cidrs, .. }) => cidrs.clone(),
                _ => Vec::new(),
            };
            let retracted = allocation.map(|allocation| allocation.retracted.clone()).unwrap_or_default();
            Holdings { node: Arc::clone(node), reserved, retracted }
        };
        self.harness.world.nodes().map(one).collect()
    }

    fn check(&self, services: Option<&str>) {
        let has = self.has();
        for one in &has {
            for two in has.iter().filter(|two| two.node.meta.name != one.node.meta.name) {
                let (a, b) = (&one.node.meta.name, &two.node.meta.name);
                // A node that is being deleted is not written any more, but keeps what may have been written.
                let may_be_written = one.node.meta.deletion_timestamp.is_none();
                for cidr in one.reserved.iter().filter(|_| may_be_written) {
                    let is_shared = two.all().any(|(_, other)| other.overlaps(cidr));
                    assert!(!is_shared, "{cidr} is reserved for {a}, and {b} has a part of it");
                }
                let is_chosen = |has: &Holdings| self.chosen.contains(&has.node.meta.uid.unwrap());
                let ours = one.node.spec.pod_cidrs.iter().zip(&two.node.spec.pod_cidrs);
                let is_shared = ours.into_iter().any(|(one, two)| one.overlaps(two));
                assert!(!is_shared || is_chosen(one) || is_chosen(two), "{a} and {b} have the same block");
            }
            for cidr in &one.reserved {
                let is_shared = services.is_some_and(|range| range.parse::<Cidr>().unwrap().overlaps(cidr));
                assert!(!is_shared, "{cidr} is reserved for a node, and a part of it is for services");
            }
        }
        for (i, report) in self.harness.cidrs.pools().iter().enumerate() {
            let blocks = self.harness.settings.pools[i];
            let has_block = |has: &Holdings, block: u64| {
                let runs =
                    has.all().filter(|(place, _)| *place == i).filter_map(|(_, c)| blocks.touched_by(c));
                runs.into_iter().any(|run| run.contains(&block))
            };
            let holders = |block| has.iter().filter(|has| has_block(has, block)).count();
            let used = (0..blocks.count()).filter(|block| holders(*block) > 0).count() as u64;
            let conflicts = (0..blocks.count()).filter(|block| holders(*block) > 1).count() as u64;
            let waiting = has.iter().filter(|has| has.waits()).count() as u64;
            assert_eq!(
                (report.used, report.conflicts, report.waiting),
                (used, conflicts, waiting),
                "pool {i}"
            );
        }
    }
}

/// What a node has: recorded, reserved, and retracted while a write of it may still succeed.
struct Holdings {
    node: Arc<Node>,
    reserved: Vec<Cidr>,
    retracted: Vec<Vec<Cidr>>,
}

impl Holdings {
    /// Every network with the number of its pool.
    fn all(&self) -> impl Iterator<Item = (usize, &Cidr)> {
        let lists = [&self.node.spec.pod_cidrs, &self.reserved].into_iter().chain(&self.retracted);
        lists.flat_map(|list| list.iter().enumerate())
    }

    fn waits(&self) -> bool {
        let has_nothing = self.node.spec.pod_cidrs.is_empty() && self.reserved.is_empty();
        has_nothing && self.node.meta.deletion_timestamp.is_none()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn no_block_is_allocated_twice_and_all_counts_stay_correct(
        is_dual in any::<bool>(),
        services in proptest::option::of(Just("10.0.3.0/26")),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let clusters: &[&str] = if is_dual { &["10.0.0.0/22", "fd00::/62"] } else { &["10.0.0.0/22"] };
        let harness = Harness::started(settings(clusters, None, services.as_slice()), vec![]);
        let mut run = Run { harness, now_ms: 0, creations: 0, sent: vec![], chosen: BTreeSet::new() };
        for step in steps {
            run.take(&step);
            run.harness.decide(at_ms(run.now_ms));
            run.check(services);
            // A node waits only if a pool is full or allocation has stopped.
            let cidrs = &run.harness.cidrs;
            let has_room = cidrs.failure().is_none() && !cidrs.pools.iter().any(CidrPool::is_full);
            prop_assert!(!has_room || cidrs.queue.is_empty());
        }
        for name in NAMES {
            if run.harness.world.node(name).is_some() {
                run.harness.remove(name);
            }
        }
        prop_assert!(run.harness.counts().iter().all(|counts| *counts == [0, 0, 0]));
        let cidrs = &run.harness.cidrs;
        prop_assert!(cidrs.nodes.is_empty() && cidrs.backing_off.is_empty() && cidrs.unreported.is_empty());
        prop_assert_eq!(cidrs.failure(), None);
    }
}
