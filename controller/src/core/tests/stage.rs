//! A fleet on virtual time: the real core, a store in a few lines, and agents that beat, post or fall silent.

mod store;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use muster_proto::condition::ConditionStatus;
use muster_proto::key::Key;
use muster_proto::lease::{Lease, LeaseSpec};
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;
use muster_proto::watch_event::WatchEvent;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;

use crate::core::{Core, News};
use crate::note::Note;
use crate::plan::{Failure, Outcome, Proposal};
use crate::policy::Policy;
use crate::rooms::Rooms;
use crate::samples::{NodeSample, PodSample, at_ms, key, node, uid};
use crate::story::{self, Stories};
use muster_proto::time::Now;

/// The policy that the scenarios are written for.
pub(super) fn scenario_policy() -> Policy {
    Policy { grace: Duration::from_secs(50), hold: Duration::ZERO, ..Policy::default() }
}

/// Of each zone its name, its nodes, and how many of them are lost.
pub(super) type Census = Vec<(String, usize, usize)>;

pub(super) struct Stage {
    pub(super) core: Core,
    millis: u64,
    version: u64,
    nodes: BTreeMap<String, Node>,
    pods: BTreeMap<Key, Pod>,
    leases: HashMap<String, Timestamp>,
    agents: BTreeMap<String, Agent>,
    /// How many of the next writes of this kind fail.
    pub(super) failures: Vec<(&'static str, usize)>,
    /// How many of the next writes of this kind are stored, and nobody is told.
    answers_lost: Vec<(&'static str, usize)>,
    /// Proposals with this reason are kept instead of being performed.
    hold_back: Option<&'static str>,
    pub(super) held_back: Vec<Proposal>,
    /// What was done, and when: `12.5 taint a`.
    pub(super) history: Vec<(u64, String)>,
    /// What the decisions were made of, and when.
    pub(super) notes: Vec<(u64, Note)>,
    /// Who tells of them, if anybody.
    pub(super) stories: Option<Stories>,
    /// Each assessment of the zones, and when it was.
    pub(super) passes: Vec<(u64, Census)>,
    heard: bool,
    /// No eviction may happen while the controller has reason to doubt itself: nobody else taints nodes on this stage.
    pub(super) sure_of_itself: bool,
}

/// What a machine does every ten seconds.
#[derive(Clone, Copy)]
pub(super) struct Agent {
    pub(super) renews: bool,
    pub(super) posts: bool,
    /// What it says of itself, and sees to it that its record says too.
    pub(super) ready: ConditionStatus,
    /// How far its clock is behind.
    pub(super) behind: Duration,
}

impl Stage {
    pub(super) fn new() -> Stage {
        Stage::with(scenario_policy())
    }

    pub(super) fn with(policy: Policy) -> Stage {
        Stage {
            core: Core::new(policy),
            millis: 0,
            version: 1,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            leases: HashMap::new(),
            agents: BTreeMap::new(),
            failures: Vec::new(),
            answers_lost: Vec::new(),
            hold_back: None,
            held_back: Vec::new(),
            history: Vec::new(),
            notes: Vec::new(),
            stories: None,
            passes: Vec::new(),
            heard: false,
            sure_of_itself: false,
        }
    }

    pub(super) fn now(&self) -> Now {
        at_ms(self.millis)
    }

    /// Seconds since the beginning.
    pub(super) fn seconds(&self) -> f64 {
        self.millis as f64 / 1000.0
    }

    /// The controller hears the store and leads.
    pub(super) fn start(&mut self) -> &mut Stage {
        self.tell_all();
        self.core.observe(News::Leading(true), self.now());
        self.act();
        self
    }

    /// The controller ends and another takes its place.
    pub(super) fn restart(&mut self) -> &mut Stage {
        self.core = Core::new(self.core.policy().clone());
        self.start()
    }

    /// The store is not heard; the fleet goes on.
    pub(super) fn lose_the_store(&mut self) {
        self.heard = false;
        let now = self.now();
        let failure = || muster_proto::watch_event::WatchFailure {
            kind: muster_proto::watch_event::WatchFailureKind::Unreachable,
            retry_after: None,
            message: "away".to_owned(),
        };
        self.core.observe(News::Node(WatchEvent::Lost(failure())), now);
        self.core.observe(News::Pod(WatchEvent::Lost(failure())), now);
        self.core.observe(News::Lease(WatchEvent::Lost(failure())), now);
    }

    /// The store is heard again, with all that was missed.
    pub(super) fn find_the_store(&mut self) {
        self.tell_all();
        self.act();
    }

    /// The controller does not get to run while the fleet goes on; then it decides before it has read what it missed.
    pub(super) fn stand_still_until(&mut self, seconds: f64) {
        let end = (seconds * 1000.0) as u64;
        self.heard = false;
        while let beat = (self.millis / 10_000 + 1) * 10_000
            && beat <= end
        {
            self.millis = beat;
            for name in self.agents.keys().cloned().collect::<Vec<_>>() {
                self.beat(&name);
            }
        }
        self.millis = end;
        self.act();
        self.find_the_store();
    }

    /// The store tells all that it has, and that it is all.
    fn tell_all(&mut self) {
        self.heard = true;
        let (now, revision) = (self.now(), self.version);
        for record in self.nodes.values().cloned() {
            self.core.observe(News::Node(applied(record)), now);
        }
        for record in self.pods.values().cloned() {
            self.core.observe(News::Pod(applied(record)), now);
        }
        for (name, renewed) in &self.leases {
            self.core.observe(News::Lease(applied(lease(name, *renewed))), now);
        }
        self.core.observe(News::Node(WatchEvent::Synced { revision }), now);
        self.core.observe(News::Pod(WatchEvent::Synced { revision }), now);
        self.core.observe(News::Lease(WatchEvent::Synced { revision }), now);
    }

    /// A record is written by somebody else.
    pub(super) fn put_node(&mut self, sample: NodeSample) {
        let mut node = sample.build();
        if let Some(held) = self.nodes.get(node.meta.name.as_str())
            && held.meta.uid == node.meta.uid
        {
            node.meta.creation_timestamp = held.meta.creation_timestamp;
        } else {
            node.meta.creation_timestamp = Some(self.now().wall);
        }
        self.store_node(node);
        self.act();
    }

    /// Changes a node's record as somebody else might.
    pub(super) fn edit_node(&mut self, name: &str, edit: impl FnOnce(&mut Node)) {
        let mut node = self.nodes[name].clone();
        edit(&mut node);
        self.store_node(node);
        self.act();
    }

    pub(super) fn put_pod(&mut self, sample: PodSample) {
        self.store_pod(sample.build());
        self.act();
    }

    pub(super) fn edit_pod(&mut self, name: &str, edit: impl FnOnce(&mut Pod)) {
        let mut pod = self.pods[&key(name)].clone();
        edit(&mut pod);
        self.store_pod(pod);
        self.act();
    }

    pub(super) fn delete_node(&mut self, name: &str) {
        self.drop_node(name);
        self.leases.remove(name);
        self.agents.remove(name);
        self.act();
    }

    /// A node that is Ready and says so every ten seconds.
    pub(super) fn living(&mut self, name: &str, zone: &str) {
        self.put_node(node(name).zone(zone).ready(ConditionStatus::True));
        self.agents.insert(
            name.to_owned(),
            Agent { renews: true, posts: false, ready: ConditionStatus::True, behind: Duration::ZERO },
        );
        self.renew(name);
    }

    /// A node that was found not Ready and says nothing.
    pub(super) fn dead(&mut self, name: &str, zone: &str) {
        self.put_node(node(name).zone(zone).ready(ConditionStatus::Unknown));
    }

    pub(super) fn agent(&mut self, name: &str, change: impl FnOnce(&mut Agent)) {
        change(self.agents.get_mut(name).unwrap());
    }

    /// The machine says nothing any more.
    pub(super) fn kill(&mut self, name: &str) {
        self.agent(name, |agent| {
            agent.renews = false;
            agent.posts = false;
        });
    }

    /// The machine speaks again, at once.
    pub(super) fn revive(&mut self, name: &str) {
        let agent =
            Agent { renews: true, posts: false, ready: ConditionStatus::True, behind: Duration::ZERO };
        self.agents.insert(name.to_owned(), agent);
        self.beat(name);
        self.act();
    }

    pub(super) fn renew(&mut self, name: &str) {
        let behind = self.agents.get(name).map_or(Duration::ZERO, |agent| agent.behind);
        let renewed = self.now().wall.checked_sub(behind).unwrap();
        self.leases.insert(name.to_owned(), renewed);
        if self.heard {
            let now = self.now();
            self.core.observe(News::Lease(applied(lease(name, renewed))), now);
        }
    }

    /// The machine posts what it says of itself, as of now.
    pub(super) fn post(&mut self, name: &str, ready: ConditionStatus) {
        let behind = self.agents.get(name).map_or(Duration::ZERO, |agent| agent.behind);
        let now = self.now().wall.checked_sub(behind).unwrap();
        let Some(held) = self.nodes.get(name) else { return };
        let mut posted = held.clone();
        let before = held.condition("Ready").map(|ready| (ready.status, ready.last_transition_time));
        posted.status.conditions.retain(|condition| condition.kind != "Ready");
        let mut condition = node("x").ready(ready).build().status.conditions.remove(0);
        condition.last_heartbeat_time = Some(now);
        condition.last_transition_time = match before {
            Some((status, time)) if status == ready => time,
            _ => Some(now),
        };
        posted.status.conditions.push(condition);
        self.store_node(posted);
    }

    fn beat(&mut self, name: &str) {
        let agent = self.agents[name];
        if agent.renews {
            self.renew(name);
        }
        let says = self.nodes.get(name).and_then(|node| node.condition("Ready")).map(|ready| ready.status);
        // An agent that lives sees to it that its record says what it says.
        if agent.posts || (agent.renews && says.is_some() && says != Some(agent.ready)) {
            self.post(name, agent.ready);
        }
    }

    /// Proposals with this reason take long.
    pub(super) fn hold_back(&mut self, why: &'static str) {
        self.hold_back = Some(why);
    }

    /// What took long is done.
    pub(super) fn let_go(&mut self) {
        self.hold_back = None;
        for proposal in std::mem::take(&mut self.held_back) {
            self.perform(proposal);
        }
        self.act();
    }

    /// The next writes whose reason is this fail.
    pub(super) fn fail(&mut self, why: &'static str, times: usize) {
        self.failures.push((why, times));
    }

    /// The next writes whose reason is this are stored, and their answers lost.
    pub(super) fn lose_answers(&mut self, why: &'static str, times: usize) {
        self.answers_lost.push((why, times));
    }

    /// Lets time pass, step by step.
    pub(super) fn run_until(&mut self, seconds: f64) -> &mut Stage {
        let end = (seconds * 1000.0) as u64;
        while self.millis < end {
            let beat = (self.millis / 10_000 + 1) * 10_000;
            let wake = self.act().map_or(u64::MAX, |at| at.max(self.millis + 1));
            self.millis = beat.min(wake).min(end);
            if self.millis == beat {
                for name in self.agents.keys().cloned().collect::<Vec<_>>() {
                    self.beat(&name);
                }
            }
            self.act();
        }
        self
    }

    /// Decides and performs until there is nothing more to do; says when to look again.
    pub(super) fn act(&mut self) -> Option<u64> {
        for _ in 0..10_000 {
            let last_pass = self.last_pass();
            let plan = self.core.decide(self.now());
            if self.last_pass() != last_pass {
                self.note_pass();
            }
            let again = self.core.decide(self.now());
            assert_eq!(again.proposals, [], "nothing is proposed twice for one state");
            assert_eq!(again.notes, [], "nor noted");
            assert!(again.wake_at.is_none_or(|at| at > self.now().mono), "nor is there anything to wake for");
            self.notes.extend(plan.notes.iter().map(|note| (self.millis, note.clone())));
            if let Some(stories) = &mut self.stories {
                stories.tell(plan.notes, at_ms(self.millis));
            }
            for event in plan.events {
                let (name, reason) = (event.involved.name, event.reason);
                let text = match event.message.split_once(" Pod ") {
                    Some((verb, _)) if reason == "TaintManagerEviction" => format!("event {verb} {name}"),
                    _ => format!("event {reason} {name}"),
                };
                self.history.push((self.millis, text));
            }
            if plan.proposals.is_empty() {
                let origin = at_ms(0).mono;
                // Rounded up: to wake a moment early would be to find nothing.
                return plan.wake_at.map(|at| (at - origin).as_nanos().div_ceil(1_000_000) as u64);
            }
            for proposal in plan.proposals {
                self.perform(proposal);
            }
        }
        panic!("it never settles: {:?}", self.history.iter().rev().take(5).collect::<Vec<_>>());
    }

    fn last_pass(&self) -> Option<Mono> {
        self.core.rooms().and_then(|rooms| rooms.last_pass)
    }

    fn note_pass(&mut self) {
        let zones = self.rooms().zones.reports().map(|zone| (zone.key.zone, zone.nodes, zone.unhealthy));
        self.passes.push((self.millis, zones.collect()));
    }

    fn perform(&mut self, proposal: Proposal) {
        if self.hold_back.is_some_and(|why| why == proposal.why) {
            return self.held_back.push(proposal);
        }
        let now = self.now();
        let span = self.stories.as_mut().map(|stories| stories.begin(&proposal, self.core.world(), now));
        let Proposal { room, subject, action, why } = proposal;
        let result = if is_next(&mut self.failures, &why) {
            Err(Failure::Later("told to fail".to_owned()))
        } else if is_next(&mut self.answers_lost, &why) {
            self.write(&subject, action).and(Err(Failure::Unknown("the answer is lost".to_owned())))
        } else {
            self.write(&subject, action)
        };
        let outcome = Outcome { room, subject, result };
        span.iter().for_each(|span| story::end(span, &outcome));
        self.core.observe(News::Outcome(outcome), now);
    }

    fn note(&mut self, text: String) {
        self.history.push((self.millis, text));
    }

    /// The seconds at which something was done whose description begins like this, and what follows in it.
    pub(super) fn when(&self, what: &str) -> Vec<(f64, String)> {
        let found = self.history.iter().filter_map(|(at, text)| {
            let rest = text.strip_prefix(what)?;
            Some((*at as f64 / 1000.0, rest.trim().to_owned()))
        });
        found.collect()
    }

    /// The seconds alone.
    pub(super) fn times(&self, what: &str) -> Vec<f64> {
        self.when(what).into_iter().map(|(at, _)| at).collect()
    }

    /// Nodes that got a NoExecute health taint, in order.
    pub(super) fn given_up(&self) -> Vec<(f64, String)> {
        let mut all = self.when("+unreachable:NE");
        all.extend(self.when("+not-ready:NE"));
        all.sort_by(|a, b| a.partial_cmp(b).unwrap());
        all
    }

    pub(super) fn node(&self, name: &str) -> &Node {
        &self.nodes[name]
    }

    pub(super) fn pod(&self, name: &str) -> &Pod {
        &self.pods[&key(name)]
    }

    pub(super) fn is_leaving(&self, name: &str) -> bool {
        self.pod(name).meta.is_deleting()
    }

    pub(super) fn ready(&self, name: &str) -> ConditionStatus {
        self.node(name).condition("Ready").unwrap().status
    }

    /// A node's taints in few words.
    pub(super) fn taints(&self, name: &str) -> String {
        let texts: Vec<String> = self.node(name).spec.taints.iter().map(|t| short(&t.to_string())).collect();
        texts.join(" ")
    }

    pub(super) fn rooms(&self) -> &Rooms {
        self.core.rooms().unwrap()
    }

    /// The only zone of that name.
    pub(super) fn zone(&self, zone: &str) -> crate::zones::ZoneReport {
        self.rooms().zones.reports().find(|report| report.key.zone == zone).unwrap()
    }
}

/// Whether this is one of the next writes that something was announced for.
fn is_next(announced: &mut [(&'static str, usize)], why: &str) -> bool {
    let found = announced.iter_mut().find(|(announced, left)| *announced == why && *left > 0);
    found.map(|(_, left)| *left -= 1).is_some()
}

fn short(taint: &str) -> String {
    taint
        .replace("node.kubernetes.io/", "")
        .replace("PreferNoSchedule", "PNS")
        .replace("NoSchedule", "NS")
        .replace("NoExecute", "NE")
}

fn applied<R>(record: R) -> WatchEvent<R> {
    WatchEvent::Applied { record }
}

fn lease(name: &str, renewed: Timestamp) -> Lease {
    let mut meta = node(name).build().meta;
    meta.uid = Some(uid(&format!("lease of {name}")));
    meta.namespace = Some(NODE_LEASE_NAMESPACE.parse().unwrap());
    let spec = LeaseSpec { renew_time: Some(renewed), ..LeaseSpec::default() };
    Lease { meta, spec }
}
