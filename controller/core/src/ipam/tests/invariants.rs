//! Any order of events: no block is promised that somebody has, and the counts are what the records add up to.

use proptest::prelude::*;

use super::*;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// What other writers give nodes: blocks, parts of blocks, several blocks, and what is none of ours.
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
    /// A node comes, or comes again as another.
    Add {
        who: usize,
        chosen: Option<usize>,
    },
    /// Somebody changes the node without touching its networks.
    Change {
        who: usize,
    },
    /// Somebody else gives it networks.
    Choose {
        who: usize,
        chosen: usize,
    },
    BeginDeletion {
        who: usize,
    },
    Remove {
        who: usize,
    },
    /// The record is written as the room wants it.
    Write {
        who: usize,
    },
    /// The same, but the write arrives later, if it still can.
    Send {
        who: usize,
    },
    Arrive {
        write: usize,
    },
    Fail {
        who: usize,
        failure: u8,
    },
    Pass {
        millis: u64,
    },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (who, chosen) = (0..NAMES.len(), 0..CHOSEN.len());
    prop_oneof![
        6 => (who.clone(), proptest::option::weighted(0.25, chosen.clone())).prop_map(|(who, chosen)| Step::Add { who, chosen }),
        2 => who.clone().prop_map(|who| Step::Change { who }),
        1 => (who.clone(), chosen).prop_map(|(who, chosen)| Step::Choose { who, chosen }),
        1 => who.clone().prop_map(|who| Step::BeginDeletion { who }),
        3 => who.clone().prop_map(|who| Step::Remove { who }),
        5 => who.clone().prop_map(|who| Step::Write { who }),
        3 => who.clone().prop_map(|who| Step::Send { who }),
        3 => (0..4usize).prop_map(|write| Step::Arrive { write }),
        4 => (who, 0..4u8).prop_map(|(who, failure)| Step::Fail { who, failure }),
        2 => (1..5_000u64).prop_map(|millis| Step::Pass { millis }),
        1 => Just(Step::Restart),
    ]
}

struct Story {
    fleet: Fleet,
    now_ms: u64,
    comings: u32,
    /// Writes on their way to the store.
    sent: Vec<Node>,
    /// Nodes whose networks somebody else chose.
    chosen: BTreeSet<Uid>,
}

impl Story {
    fn take(&mut self, step: &Step) {
        let name = |who: &usize| NAMES[*who];
        match step {
            Step::Add { who, chosen } => self.add(name(who), *chosen),
            Step::Change { who } => self.edit(name(who), |node| {
                node.meta.labels.insert("changed".into(), "x".into());
            }),
            Step::Choose { who, chosen } => self.choose(name(who), *chosen),
            Step::BeginDeletion { who } => {
                self.edit(name(who), |node| node.meta.deletion_timestamp = Some(crate::fixtures::epoch()));
            }
            Step::Remove { who } => {
                if self.fleet.world.node(name(who)).is_some() {
                    self.fleet.remove(name(who));
                }
            }
            Step::Write { who } => {
                if self.fleet.world.node(name(who)).is_some() {
                    self.fleet.write(name(who));
                }
            }
            Step::Send { who } => {
                if self.fleet.world.node(name(who)).is_some() {
                    self.sent.push(self.fleet.shaped(name(who)));
                }
            }
            Step::Arrive { write } => self.arrive(*write),
            Step::Fail { who, failure } => self.fail(name(who), *failure),
            Step::Pass { millis } => self.now_ms += millis,
            Step::Restart => {
                // A new leader: what the old one has sent is refused from now on.
                self.sent.clear();
                self.fleet.restart();
            }
        }
    }

    fn add(&mut self, name: &str, chosen: Option<usize>) {
        self.comings += 1;
        let identity = format!("{name}-{}", self.comings);
        if chosen.is_some() {
            self.chosen.insert(uid(&identity));
        }
        let cidrs = chosen.map_or(&[][..], |chosen| CHOSEN[chosen]);
        self.fleet.put(node(name).identity(&identity).cidrs(cidrs));
    }

    fn edit(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.fleet.world.node(name) {
            let node = Node::clone(node);
            self.fleet.put(NodeSample(node).with(change));
        }
    }

    fn choose(&mut self, name: &str, chosen: usize) {
        let Some(node) = self.fleet.world.node(name).cloned() else { return };
        // The store lets nobody change what a record names.
        if node.spec.pod_cidrs.is_empty() {
            self.chosen.insert(node.meta.uid.unwrap());
            self.fleet.put(NodeSample(Node::clone(&node)).cidrs(CHOSEN[chosen]));
        }
    }

    /// The store takes a write only at the version it was made for.
    fn arrive(&mut self, write: usize) {
        if write >= self.sent.len() {
            return;
        }
        let node = self.sent.remove(write);
        let current = self.fleet.world.node(node.meta.name.as_str()).map(|held| held.meta.resource_version);
        if current == Some(node.meta.resource_version) {
            self.fleet.put(NodeSample(node));
        }
    }

    fn fail(&mut self, name: &str, failure: u8) {
        let Some(node) = self.fleet.world.node(name) else { return };
        let (subject, version) = (Subject::of_node(node), node.meta.resource_version);
        let may_arrive =
            |node: &Node| node.meta.name.as_str() == name && node.meta.resource_version == version;
        let failure = match failure {
            // Whoever says so knows that nothing is on its way.
            0 | 1 if self.sent.iter().any(may_arrive) => Failure::Unknown("no answer".into()),
            0 => Failure::Later("busy".into()),
            1 => Failure::Refused("no".into()),
            2 => Failure::Unknown("no answer".into()),
            _ => Failure::Conflict,
        };
        self.fleet.cidrs.assignment_failed(&subject, &failure, at_ms(self.now_ms));
    }

    fn has(&self) -> Vec<Has> {
        let one = |node: &Arc<Node>| {
            let entry = self.fleet.cidrs.nodes.get(&node.meta.uid.unwrap());
            let promised = match entry.map(|entry| &entry.state) {
                Some(State::Reserved { cidrs, .. }) => cidrs.clone(),
                _ => Vec::new(),
            };
            let retracted = entry.map(|entry| entry.retracted.clone()).unwrap_or_default();
            Has { node: Arc::clone(node), promised, retracted }
        };
        self.fleet.world.nodes().map(one).collect()
    }

    fn check(&self, services: Option<&str>) {
        let has = self.has();
        for one in &has {
            for two in has.iter().filter(|two| two.node.meta.name != one.node.meta.name) {
                let (a, b) = (&one.node.meta.name, &two.node.meta.name);
                // A node about to go is not written to any more, but keeps what may have been written.
                let may_be_written = one.node.meta.deletion_timestamp.is_none();
                for cidr in one.promised.iter().filter(|_| may_be_written) {
                    let is_shared = two.all().any(|(_, other)| other.overlaps(cidr));
                    assert!(!is_shared, "{a} was promised {cidr}, part of which {b} has");
                }
                let is_chosen = |has: &Has| self.chosen.contains(&has.node.meta.uid.unwrap());
                let ours = one.node.spec.pod_cidrs.iter().zip(&two.node.spec.pod_cidrs);
                let is_shared = ours.into_iter().any(|(one, two)| one.overlaps(two));
                assert!(!is_shared || is_chosen(one) || is_chosen(two), "{a} and {b} have the same block");
            }
            for cidr in &one.promised {
                let is_shared = services.is_some_and(|range| range.parse::<Cidr>().unwrap().overlaps(cidr));
                assert!(!is_shared, "{cidr} was promised, part of which is for services");
            }
        }
        for (i, report) in self.fleet.cidrs.pools().iter().enumerate() {
            let blocks = self.fleet.settings.pools[i];
            let has_block = |has: &Has, block: u64| {
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

/// What a node has: by its record, by promise, and by a promise that may have been written before it was retracted.
struct Has {
    node: Arc<Node>,
    promised: Vec<Cidr>,
    retracted: Vec<Vec<Cidr>>,
}

impl Has {
    /// Every network with the number of its pool.
    fn all(&self) -> impl Iterator<Item = (usize, &Cidr)> {
        let lists = [&self.node.spec.pod_cidrs, &self.promised].into_iter().chain(&self.retracted);
        lists.flat_map(|list| list.iter().enumerate())
    }

    fn waits(&self) -> bool {
        let has_nothing = self.node.spec.pod_cidrs.is_empty() && self.promised.is_empty();
        has_nothing && self.node.meta.deletion_timestamp.is_none()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn no_block_is_given_twice_and_no_count_drifts(
        is_dual in any::<bool>(),
        services in proptest::option::of(Just("10.0.3.0/26")),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let clusters: &[&str] = if is_dual { &["10.0.0.0/22", "fd00::/62"] } else { &["10.0.0.0/22"] };
        let fleet = Fleet::started(settings(clusters, None, services.as_slice()), vec![]);
        let mut story = Story { fleet, now_ms: 0, comings: 0, sent: vec![], chosen: BTreeSet::new() };
        for step in steps {
            story.take(&step);
            story.fleet.decide(at_ms(story.now_ms));
            story.check(services);
            // Whoever waits waits for a reason.
            let cidrs = &story.fleet.cidrs;
            let has_room = cidrs.failure().is_none() && !cidrs.pools.iter().any(Pool::is_full);
            prop_assert!(!has_room || cidrs.queue.is_empty());
        }
        for name in NAMES {
            if story.fleet.world.node(name).is_some() {
                story.fleet.remove(name);
            }
        }
        prop_assert!(story.fleet.counts().iter().all(|counts| *counts == [0, 0, 0]));
        let cidrs = &story.fleet.cidrs;
        prop_assert!(cidrs.nodes.is_empty() && cidrs.resting.is_empty() && cidrs.untold.is_empty());
        prop_assert_eq!(cidrs.failure(), None);
    }
}
