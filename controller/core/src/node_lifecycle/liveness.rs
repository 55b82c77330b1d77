//! Silence: when each node was last heard, and who has been silent for too long.
//!
//! Silence runs on our own clock from the moment we saw a sign of life, so a node whose clock is wrong is judged like
//! any other. Looks at the nodes stand in order, at their deadlines or before; a renewal only notes the time, and a look
//! that comes up too early is put where the deadline is by then. So a fleet costs what it says, and not what it is.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_proto::condition::types;
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::time::Mono;

use crate::node_lifecycle::unknown_status;
use crate::policy::Policy;
use crate::world::{Change, Number};
use muster_proto::time::Now;

mod deadline_order;

use deadline_order::{Entry, Roll};

/// First looks are spread over so many moments of a grace: else a controller that starts would look at its whole fleet at
/// once, a grace later.
const SPREAD: u32 = 64;

#[derive(Clone, Debug, Default)]
pub struct Health {
    roll: Roll,
    /// By number, as of who was met last.
    names: Vec<Option<Name>>,
    /// Those whose grace has passed, until they are heard again.
    silent: BTreeSet<Name>,
    /// Everybody counts as heard at this moment, if not later.
    fresh_since: Mono,
    /// How often everybody got a new grace.
    epoch: u32,
    /// Nodes that gave a sign of life since then, or since we began to look.
    heard: usize,
}

/// What a node was last heard by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Lease,
    Status,
    /// It was there when we began to look.
    FirstSeen,
    /// It never said anything: its silence runs from its creation.
    Created,
}

/// A node's silence, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    pub heard_at: Mono,
    /// `None` when everybody was given a new grace after it was last heard.
    pub heard_by: Option<Sign>,
    pub grace: Duration,
    pub deadline: Mono,
}

/// What an observation means for a node that was silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    No,
    Again,
}

impl Health {
    pub fn new() -> Health {
        Health::default()
    }

    /// A node came, changed or went; `renewed` says whether it ever renewed a lease. Says whether a node that was silent
    /// is heard.
    pub fn observe(
        &mut self,
        change: &Change<Node>,
        number: Number,
        renewed: bool,
        policy: &Policy,
        now: Now,
    ) -> Heard {
        let Some(node) = &change.new else {
            self.forget(number, &change.either().meta.name);
            return Heard::No;
        };
        let ready = node.condition(types::READY);
        let Some(entry) = self.roll.get_mut(number) else {
            self.meet(node, number, ready.is_some() || renewed, policy, now);
            return Heard::No;
        };
        entry.reported = ready.is_some();
        let heartbeat = |node: &Node| node.condition(types::READY).map(|ready| ready.last_heartbeat_time);
        let (before, after) = (change.old.as_deref().and_then(heartbeat), heartbeat(node));
        // What a controller wrote about a node that never reported is no word of the node's own.
        let is_ours = ready.is_some_and(|ready| ready.reason == unknown_status::NEVER_UPDATED);
        if before == after || (after.is_some() && before.is_none() && is_ours) {
            return Heard::No;
        }
        self.hear(number, Sign::Status, policy, now.mono)
    }

    /// The first look at a node: whatever it said before, it gets a whole grace. One that never said anything has had
    /// its time since its creation.
    fn meet(&mut self, node: &Node, number: Number, spoke: bool, policy: &Policy, now: Now) {
        let (heard_at, heard_by) = if spoke {
            (now.mono, Sign::FirstSeen)
        } else {
            (node.meta.creation_timestamp.map_or(now.mono, |at| now.mono_of(at)), Sign::Created)
        };
        let entry = Entry::new(heard_at, heard_by, node.condition(types::READY).is_some());
        let Silence { heard_at, grace, .. } = self.silence_of(&entry, policy);
        let share = number.index() as u32 % SPREAD + 1;
        self.roll.enter(number, entry);
        self.roll.look_by(number, heard_at + grace * share / SPREAD);
        if self.names.len() <= number.index() {
            self.names.resize(number.index() + 1, None);
        }
        self.names[number.index()] = Some(node.meta.name.clone());
    }

    fn forget(&mut self, number: Number, name: &Name) {
        let Some(entry) = self.roll.strike(number) else { return };
        self.heard -= usize::from(entry.spoke_in == Some(self.epoch));
        self.silent.remove(name);
    }

    /// Leases were renewed, each at another time than before by the clock of whoever renewed it. Returns the nodes that
    /// were silent until then.
    pub fn observe_renewals(
        &mut self,
        numbers: impl IntoIterator<Item = Number>,
        policy: &Policy,
        now: Mono,
    ) -> Vec<Name> {
        // There are leases without a node. That each is looked at twice costs nothing: the first time round their entries
        // are fetched from memory all at once.
        let known: Vec<Number> =
            numbers.into_iter().filter(|number| self.roll.get(*number).is_some()).collect();
        let mut again = Vec::new();
        for number in known {
            if self.hear(number, Sign::Lease, policy, now) == Heard::Again {
                again.extend(self.names[number.index()].clone());
            }
        }
        again
    }

    fn hear(&mut self, number: Number, sign: Sign, policy: &Policy, now: Mono) -> Heard {
        let entry = self.roll.get_mut(number).expect("only who was entered is heard");
        if entry.spoke_in.replace(self.epoch) != Some(self.epoch) {
            self.heard += 1;
        }
        let was_silent = entry.is_silent();
        entry.hear(now, sign);
        let deadline = now + grace_of(entry, policy);
        self.roll.look_by(number, deadline);
        if was_silent && let Some(name) = &self.names[number.index()] {
            self.silent.remove(name);
            return Heard::Again;
        }
        Heard::No
    }

    /// The nodes whose grace has passed since they were last asked for. Each is told once, until it is heard again.
    pub fn take_silent(&mut self, policy: &Policy, now: Mono) -> Vec<(Name, Silence)> {
        let mut silent = Vec::new();
        while let Some(number) = self.roll.take_due(now) {
            let entry = self.roll.get(number).expect("who is looked at was entered");
            let silence = self.silence_of(entry, policy);
            if silence.deadline >= now {
                self.roll.look_by(number, silence.deadline);
            } else if let Some(name) = &self.names[number.index()] {
                self.silent.insert(name.clone());
                silent.push((name.clone(), silence));
            }
        }
        silent
    }

    /// When to look next: right after the next deadline.
    pub fn next_deadline(&self) -> Option<Mono> {
        self.roll.next_look().map(|at| at + Duration::from_nanos(1))
    }

    /// Everybody gets a new grace, those included who are silent and whom `unmarked` names: nobody has been told of
    /// their silence yet. Returns them; the other silent ones stay so until they speak.
    pub fn refresh(
        &mut self,
        policy: &Policy,
        now: Mono,
        unmarked: impl Fn(&Name) -> Option<Number>,
    ) -> Vec<Name> {
        self.fresh_since = now;
        self.epoch += 1;
        self.heard = 0;
        let forgiven: Vec<(Name, Number)> =
            self.silent.iter().filter_map(|name| Some((name.clone(), unmarked(name)?))).collect();
        for (name, number) in &forgiven {
            self.silent.remove(name);
            let entry = self.roll.get(*number).expect("who is silent was entered");
            let deadline = self.silence_of(entry, policy).deadline;
            self.roll.look_by(*number, deadline);
        }
        forgiven.into_iter().map(|(name, _)| name).collect()
    }

    /// Nodes that gave a sign of life since everybody last got a new grace.
    pub fn heard(&self) -> usize {
        self.heard
    }

    /// Whether a node has been given up as silent.
    pub fn is_silent(&self, name: &Name) -> bool {
        self.silent.contains(name)
    }

    /// How a node's silence stands.
    pub fn silence(&self, number: Number, policy: &Policy) -> Option<Silence> {
        self.roll.get(number).map(|entry| self.silence_of(entry, policy))
    }

    fn silence_of(&self, entry: &Entry, policy: &Policy) -> Silence {
        let (heard_at, heard_by) = if entry.heard_at() >= self.fresh_since {
            (entry.heard_at(), Some(entry.heard_by))
        } else {
            (self.fresh_since, None)
        };
        let grace = grace_of(entry, policy);
        Silence { heard_at, heard_by, grace, deadline: heard_at + grace }
    }
}

/// How long a node may be silent.
fn grace_of(entry: &Entry, policy: &Policy) -> Duration {
    if entry.reported { policy.grace } else { policy.startup_grace }
}

#[cfg(test)]
mod tests;
