//! Turns planned actions and notes into decisions with numbers.
//!
//! A decision is recorded when its outcome is known, so what was not written never appears as done. One that follows
//! from an action in flight waits for it: causes have lower numbers than what follows from them. Numbers are given when
//! a decision is recorded, so they have no gap. Before the newest decisions of the leader before are known, nothing is
//! recorded: [`Recorder::seed`] brings them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use muster_proto::key::Key;
use muster_proto::name::{Name, Uid};
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::time::{Mono, Now};

use super::budget::Budget;
use super::causes;
use super::outcome::{is_as_it_should_be, outcome_of};
use super::repetition::{fingerprint_of, may_be_repeated};
use super::sums::Sums;
use super::takeover::{Found, Seed, action_of, found};
use super::{Cause, Decision, DecisionOutcome, DecisionResult, DecisionState, DecisionSubject, Note, Rule};
use crate::node_lifecycle::zone_state::ZoneKey;
use crate::plan::{Action, ControllerName, Outcome, PlannedAction, Subject};
use crate::world::World;

/// Decisions about single nodes and pods that are recorded at once; a whole fleet that fails is more.
const BURST: u32 = 10_000;
/// How many of them are recorded per second after that.
const PER_SECOND: u32 = 1_000;
/// The same for gaps between signs of life, which cost nothing else and must not use up the budget of what was done.
const GAP_BURST: u32 = 500;
const GAPS_PER_SECOND: u32 = 20;
/// Subjects whose newest decision is known. Beyond it the one that was added first is forgotten: its next decision
/// begins a new chain.
const MAX_CHAINS: usize = 65_536;
/// Decisions that wait for the log of the leader before. More are dropped and counted.
const MAX_UNSEEDED: usize = 20_000;

/// A number that is not known before its decision is recorded; 0 if it never is.
type IdCell = Arc<OnceLock<u64>>;

/// A decision, recorded or not.
#[derive(Clone, Debug)]
struct Link {
    draft: u64,
    id: IdCell,
}

/// A decision that is not recorded yet.
#[derive(Clone, Debug)]
struct Draft {
    link: Link,
    follows: Option<Link>,
    decision: Decision,
    made_at: Mono,
    /// Nothing follows from it: the subject is as it should be, or gone.
    closes: bool,
}

/// The newest decision about a subject.
#[derive(Clone, Debug)]
struct ChainEnd {
    link: Link,
    /// The newest one that is recorded, and what makes its reason the same as another.
    recorded: Option<(u64, u64)>,
}

/// What the shell knows of an action that was performed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Empty if the action was in no trace.
    pub trace_id: String,
    /// It was not performed, because it was not needed any more.
    pub is_superseded: bool,
}

#[derive(Debug)]
pub struct Recorder {
    /// `None` before the newest decisions of the leader before are known.
    last_id: Option<u64>,
    drafts: u64,
    chains: HashMap<DecisionSubject, ChainEnd>,
    /// The subjects of `chains`, the oldest first.
    order: VecDeque<DecisionSubject>,
    /// Decisions of the leader before that are not known yet, by subject.
    awaited: HashMap<DecisionSubject, Link>,
    in_flight: HashMap<(ControllerName, Subject), Vec<Draft>>,
    /// Drafts that follow from one that is not recorded yet.
    held: HashMap<u64, Vec<Draft>>,
    unseeded: VecDeque<Draft>,
    budget: Budget,
    gap_budget: Budget,
    sums: Sums,
    /// Drafts that were dropped and are in no record.
    lost: u64,
    recorded: Vec<Decision>,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder {
            last_id: None,
            drafts: 0,
            chains: HashMap::new(),
            order: VecDeque::new(),
            awaited: HashMap::new(),
            in_flight: HashMap::new(),
            held: HashMap::new(),
            unseeded: VecDeque::new(),
            budget: Budget::new(BURST, PER_SECOND),
            gap_budget: Budget::new(GAP_BURST, GAPS_PER_SECOND),
            sums: Sums::default(),
            lost: 0,
            recorded: Vec::new(),
        }
    }
}

impl Recorder {
    /// Continues the log of the leader before, whose newest decisions are known now.
    pub fn seed(&mut self, seed: &Seed, world: &World, now: Now) {
        if self.last_id.is_some() {
            return;
        }
        self.last_id = Some(seed.last_id());
        for (subject, link) in std::mem::take(&mut self.awaited) {
            let _ = link.id.set(seed.entry(&subject).map_or(0, |entry| entry.id));
        }
        let is_ours = |subject: &DecisionSubject| self.chains.contains_key(subject);
        let missing: Vec<Found> =
            found(seed, world).into_iter().filter(|found| !is_ours(&found.subject)).collect();
        for (subject, entry) in seed.open_entries() {
            let recorded = Some((entry.id, entry.fingerprint));
            match self.chains.get_mut(subject) {
                Some(end) => end.recorded = end.recorded.or(recorded),
                None => self.set_chain(subject.clone(), ChainEnd { link: known(entry.id), recorded }),
            }
        }
        for found in missing {
            self.record_found(found, world, now);
        }
        if self.lost > 0 {
            let cause = causes::lost(std::mem::take(&mut self.lost));
            let note = cause.observed(ControllerName::NodeLifecycle, DecisionSubject::Fleet);
            self.note(note, world, now);
        }
        for draft in std::mem::take(&mut self.unseeded) {
            self.submit(draft);
        }
    }

    /// A state that a leader before wrote without recording it.
    fn record_found(&mut self, found: Found, world: &World, now: Now) {
        let Found { controller, subject, uid, state, cause, revision, at } = found;
        let mut draft = self.draft(controller, subject, Some(uid), state, cause, None, None, world, now);
        draft.decision.at = at.unwrap_or(now.wall);
        if state == DecisionState::Acted {
            draft.decision.action = action_of(draft.decision.cause.rule);
            draft.decision.outcome = Some(DecisionOutcome {
                result: DecisionResult::Written,
                revision,
                reason: "found in the store: a leader before wrote it and could not record it".to_owned(),
                at: now.wall,
            });
        }
        self.submit(draft);
    }

    /// Records what a controller waits for or saw.
    pub fn note(&mut self, note: Note, world: &World, now: Now) {
        let Note { controller, subject, uid, state, cause, follows } = note;
        let draft = self.draft(controller, subject, uid, state, cause, follows, None, world, now);
        self.submit(draft);
    }

    /// A pod is gone. Recorded if a decision about it is known.
    pub fn pod_gone(&mut self, pod: &Pod, world: &World, now: Now) {
        let (key, uid) = (Key::of(pod), pod.meta.uid);
        let subject = DecisionSubject::Pod(key);
        if !self.chains.contains_key(&subject) {
            return;
        }
        let (controller, state) = (ControllerName::PodGc, DecisionState::Observed);
        let node = pod.spec.node_name.clone();
        let mut draft =
            self.draft(controller, subject, uid, state, causes::pod_gone(), None, node, world, now);
        draft.closes = true;
        self.submit(draft);
    }

    /// A node is gone. Recorded if a decision about it is known.
    pub fn node_gone(&mut self, node: &Node, world: &World, now: Now) {
        let subject = DecisionSubject::Node(node.meta.name.clone());
        if !self.chains.contains_key(&subject) {
            return;
        }
        let (controller, state) = (ControllerName::NodeLifecycle, DecisionState::Observed);
        let cause = causes::node_deleted();
        let mut draft = self.draft(controller, subject, node.meta.uid, state, cause, None, None, world, now);
        draft.decision.zone = Some(ZoneKey::of(&node.meta.labels));
        draft.closes = true;
        self.submit(draft);
    }

    /// An action was planned: its decisions are recorded with its outcome.
    pub fn planned(&mut self, planned: &PlannedAction, world: &World, now: Now) {
        let mut drafts = Vec::new();
        for cause in &planned.causes {
            let rule = cause.rule;
            let Some((subject, uid)) = DecisionSubject::of_action(&planned.subject, rule) else { continue };
            let node = match &planned.action {
                Action::BindPod { node } => Some(node.clone()),
                _ => None,
            };
            let (controller, state) = (planned.controller, DecisionState::Acted);
            let mut draft =
                self.draft(controller, subject, Some(uid), state, cause.clone(), None, node, world, now);
            draft.decision.action = planned.action.name();
            drafts.push(draft);
        }
        if drafts.is_empty() {
            return;
        }
        let replaced = self.in_flight.insert((planned.controller, planned.subject.clone()), drafts);
        for draft in replaced.into_iter().flatten() {
            self.forget(&draft.link);
        }
    }

    /// The outcome of an action completes its decisions.
    pub fn settle(&mut self, outcome: &Outcome, completion: &Completion, now: Now) {
        let Some(drafts) = self.in_flight.remove(&(outcome.controller, outcome.subject.clone())) else {
            return;
        };
        for mut draft in drafts {
            draft.decision.outcome = Some(outcome_of(outcome, completion, now));
            draft.decision.trace_id.clone_from(&completion.trace_id);
            draft.closes = is_as_it_should_be(outcome) || draft.decision.cause.rule == Rule::DrainResult;
            self.submit(draft);
        }
    }

    /// The decisions that were recorded since the last call, and when there are more.
    pub fn take(&mut self, now: Now) -> (Vec<Decision>, Option<Mono>) {
        for sum in self.sums.take(now.mono) {
            let id = self.next_id();
            self.recorded.push(Decision { id, ..sum });
        }
        (std::mem::take(&mut self.recorded), self.sums.next())
    }

    /// The newest recorded decision about a subject; 0 if none is known.
    pub fn latest(&self, subject: &DecisionSubject) -> u64 {
        let end = self.chains.get(subject);
        end.and_then(|end| end.link.id.get().copied().filter(|id| *id > 0).or(end.recorded.map(|it| it.0)))
            .unwrap_or(0)
    }

    #[allow(clippy::too_many_arguments, reason = "each is a part of the decision, and it is private")]
    fn draft(
        &mut self,
        controller: ControllerName,
        subject: DecisionSubject,
        uid: Option<Uid>,
        state: DecisionState,
        cause: Cause,
        follows: Option<DecisionSubject>,
        node: Option<Name>,
        world: &World,
        now: Now,
    ) -> Draft {
        self.drafts += 1;
        let link = Link { draft: self.drafts, id: IdCell::default() };
        let node = node.or_else(|| node_of(&subject, world));
        let zone = match &subject {
            DecisionSubject::Zone(zone) => Some(zone.clone()),
            _ => node
                .as_ref()
                .and_then(|node| world.node(node.as_str()))
                .map(|node| ZoneKey::of(&node.meta.labels)),
        };
        let follows = match follows {
            Some(subject) => self.link_of(&subject),
            None => self.default_link(&subject, cause.rule, node.as_ref()),
        };
        if cause.rule != Rule::HeartbeatGap {
            let recorded = self.chains.get(&subject).and_then(|end| end.recorded);
            self.set_chain(subject.clone(), ChainEnd { link: link.clone(), recorded });
        }
        let decision = Decision {
            id: 0,
            at: now.wall,
            controller,
            subject,
            uid,
            node,
            zone,
            state,
            action: "",
            cause,
            outcome: None,
            trace_id: String::new(),
            follows: 0,
            aggregate: None,
        };
        Draft { link, follows, decision, made_at: now.mono, closes: false }
    }

    /// What a decision follows from, unless its controller says so: the newest decision about its subject, else about
    /// its node.
    fn default_link(&mut self, subject: &DecisionSubject, rule: Rule, node: Option<&Name>) -> Option<Link> {
        if rule.begins_chain() {
            return None;
        }
        let of_node = node.cloned().map(DecisionSubject::Node).filter(|of_node| of_node != subject);
        let (first, second) = match (rule.follows_node(), of_node) {
            (true, Some(node)) => (node, Some(subject.clone())),
            (_, of_node) => (subject.clone(), of_node),
        };
        let is_known = self.chains.contains_key(&first);
        match second {
            Some(second) if !is_known && self.chains.contains_key(&second) => self.link_of(&second),
            _ => self.link_of(&first),
        }
    }

    fn link_of(&mut self, subject: &DecisionSubject) -> Option<Link> {
        if let Some(end) = self.chains.get(subject) {
            return Some(end.link.clone());
        }
        if self.last_id.is_some() {
            return None;
        }
        // The leader before may have decided about it.
        self.drafts += 1;
        let link = Link { draft: self.drafts, id: IdCell::default() };
        Some(self.awaited.entry(subject.clone()).or_insert(link).clone())
    }

    fn set_chain(&mut self, subject: DecisionSubject, end: ChainEnd) {
        if self.chains.insert(subject.clone(), end).is_some() {
            return;
        }
        self.order.push_back(subject);
        // Chains that were closed are still in the order.
        while self.order.len() > MAX_CHAINS {
            if let Some(oldest) = self.order.pop_front() {
                self.chains.remove(&oldest);
            }
        }
    }

    /// Records a decision, now or after the one that it follows from.
    fn submit(&mut self, draft: Draft) {
        if self.last_id.is_none() {
            if self.unseeded.len() >= MAX_UNSEEDED {
                self.lost += 1;
                let _ = draft.link.id.set(0);
                return;
            }
            return self.unseeded.push_back(draft);
        }
        let mut ready = vec![draft];
        while let Some(draft) = ready.pop() {
            if let Some(parent) = draft.follows.as_ref().filter(|parent| parent.id.get().is_none()) {
                self.held.entry(parent.draft).or_default().push(draft);
                continue;
            }
            let number = draft.link.draft;
            self.record(draft);
            // In their order, the first one last on the stack.
            ready.extend(self.held.remove(&number).into_iter().flatten().rev());
        }
    }

    /// A decision that will have no record. What follows from it begins a chain.
    fn forget(&mut self, link: &Link) {
        let _ = link.id.set(0);
        for held in self.held.remove(&link.draft).into_iter().flatten() {
            self.submit(held);
        }
    }

    fn record(&mut self, draft: Draft) {
        let Draft { link, follows, mut decision, made_at, closes } = draft;
        let subject = decision.subject.clone();
        let fingerprint = fingerprint_of(&decision);
        let before = self.chains.get(&subject).and_then(|end| end.recorded);
        let id = match before.filter(|(_, held)| *held == fingerprint && may_be_repeated(&decision)) {
            Some((id, _)) => id,
            None if !self.is_within_budget(&decision, made_at) => {
                self.sums.add(decision, made_at);
                0
            }
            None => {
                decision.id = self.next_id();
                decision.follows = follows.and_then(|link| link.id.get().copied()).unwrap_or(0);
                let id = decision.id;
                self.recorded.push(decision);
                id
            }
        };
        let _ = link.id.set(id);
        if let Some(end) = self.chains.get_mut(&subject) {
            if id > 0 {
                end.recorded = Some((id, fingerprint));
            }
            if closes && end.link.draft == link.draft {
                self.chains.remove(&subject);
            }
        }
    }

    fn is_within_budget(&mut self, decision: &Decision, now: Mono) -> bool {
        match (&decision.subject, decision.cause.rule) {
            (DecisionSubject::Zone(_) | DecisionSubject::Fleet, _) => true,
            (_, Rule::HeartbeatGap) => self.gap_budget.take(now),
            _ => self.budget.take(now),
        }
    }

    fn next_id(&mut self) -> u64 {
        let last = self.last_id.as_mut().expect("nothing is recorded before the log is known");
        *last += 1;
        *last
    }
}

fn known(id: u64) -> Link {
    Link { draft: 0, id: Arc::new(OnceLock::from(id)) }
}

fn node_of(subject: &DecisionSubject, world: &World) -> Option<Name> {
    match subject {
        DecisionSubject::Node(name) | DecisionSubject::Block(name) | DecisionSubject::Drain(name) => {
            Some(name.clone())
        }
        DecisionSubject::Pod(key) => world.pod(key).and_then(|pod| pod.spec.node_name.clone()),
        DecisionSubject::Zone(_) | DecisionSubject::Fleet => None,
    }
}
