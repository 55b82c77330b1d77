//! Silence: when each node was last heard, and who has been silent for too long.
//!
//! Silence runs on our own clock from the moment we saw a sign of life, so a node whose clock is wrong is judged like
//! any other. Deadlines sit in order; a renewal only notes the time, and a deadline that comes up is moved if its node
//! was heard meanwhile. So a fleet costs what it says, and not what it is.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use muster_proto::condition::types;
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_rpc::clock::Mono;

use crate::policy::Policy;
use crate::time::Now;
use crate::world::Change;

pub mod unknown;

#[derive(Clone, Debug, Default)]
pub struct Health {
    nodes: HashMap<Name, Memory>,
    /// One entry for each node that is not silent, at or before its deadline.
    deadlines: BTreeSet<(Mono, Name)>,
    /// Those whose grace has passed, until they are heard again.
    silent: BTreeSet<Name>,
    /// Everybody counts as heard at this moment, if not later.
    fresh_since: Mono,
    /// How often everybody got a new grace.
    epoch: u64,
    /// Nodes that gave a sign of life since then, or since we began to look.
    heard: usize,
}

#[derive(Clone, Debug)]
struct Memory {
    heard_at: Mono,
    heard_by: Sign,
    /// The heartbeat time of Ready as last seen; `None` without the condition.
    heartbeat: Option<Option<Timestamp>>,
    /// The renewal as last seen.
    renewal: Option<Timestamp>,
    /// Its place in `deadlines`; `None` when it is silent.
    due: Option<Mono>,
    /// The epoch in which it last gave a sign of life; `None` if it never did.
    spoke_in: Option<u64>,
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

impl Memory {
    fn silence(&self, fresh_since: Mono, policy: &Policy) -> Silence {
        let (heard_at, heard_by) = if self.heard_at >= fresh_since {
            (self.heard_at, Some(self.heard_by))
        } else {
            (fresh_since, None)
        };
        let grace = if self.heartbeat.is_some() { policy.grace } else { policy.startup_grace };
        Silence { heard_at, heard_by, grace, deadline: heard_at + grace }
    }

    /// Puts its deadline in its place, unless an earlier one stands there: that one is moved when it comes up.
    fn await_deadline(
        &mut self,
        name: &Name,
        fresh_since: Mono,
        policy: &Policy,
        deadlines: &mut BTreeSet<(Mono, Name)>,
    ) {
        let deadline = self.silence(fresh_since, policy).deadline;
        match self.due {
            Some(due) if due <= deadline => return,
            Some(due) => drop(deadlines.remove(&(due, name.clone()))),
            None => {}
        }
        self.due = Some(deadline);
        deadlines.insert((deadline, name.clone()));
    }
}

impl Health {
    pub fn new() -> Health {
        Health::default()
    }

    /// A node came, changed or went; `renewal` is what its lease says. Says whether a node that was silent is heard.
    pub fn observe(
        &mut self,
        change: &Change<Node>,
        renewal: Option<Timestamp>,
        policy: &Policy,
        now: Now,
    ) -> Heard {
        let name = &change.either().meta.name;
        let Some(node) = &change.new else {
            self.forget(name);
            return Heard::No;
        };
        let ready = node.condition(types::READY);
        let heartbeat = ready.map(|ready| ready.last_heartbeat_time);
        let Some(memory) = self.nodes.get_mut(name) else {
            self.meet(node, heartbeat, renewal, policy, now);
            return Heard::No;
        };
        let before = std::mem::replace(&mut memory.heartbeat, heartbeat);
        // What a controller wrote about a node that never reported is no word of the node's own.
        let is_ours = ready.is_some_and(|ready| ready.reason == unknown::NEVER_UPDATED);
        if before == heartbeat || (heartbeat.is_some() && before.is_none() && is_ours) {
            return Heard::No;
        }
        self.hear(name, Sign::Status, policy, now.mono)
    }

    /// The first look at a node: whatever it said before, it gets a whole grace. One that never said anything has had
    /// its time since its creation.
    fn meet(
        &mut self,
        node: &Node,
        heartbeat: Option<Option<Timestamp>>,
        renewal: Option<Timestamp>,
        policy: &Policy,
        now: Now,
    ) {
        let name = node.meta.name.clone();
        let (heard_at, heard_by) = if heartbeat.is_some() || renewal.is_some() {
            (now.mono, Sign::FirstSeen)
        } else {
            (node.meta.creation_timestamp.map_or(now.mono, |at| now.mono_of(at)), Sign::Created)
        };
        let mut memory = Memory { heard_at, heard_by, heartbeat, renewal, due: None, spoke_in: None };
        memory.await_deadline(&name, self.fresh_since, policy, &mut self.deadlines);
        self.nodes.insert(name, memory);
    }

    fn forget(&mut self, name: &Name) {
        let Some(memory) = self.nodes.remove(name) else { return };
        if let Some(due) = memory.due {
            self.deadlines.remove(&(due, name.clone()));
        }
        self.heard -= usize::from(memory.spoke_in == Some(self.epoch));
        self.silent.remove(name);
    }

    /// A lease was renewed, at this time by the clock of whoever renewed it: what counts is that it is another time.
    pub fn observe_renewal(&mut self, name: &Name, renewed: Timestamp, policy: &Policy, now: Mono) -> Heard {
        let Some(memory) = self.nodes.get_mut(name).filter(|memory| memory.renewal != Some(renewed)) else {
            return Heard::No;
        };
        memory.renewal = Some(renewed);
        self.hear(name, Sign::Lease, policy, now)
    }

    pub fn forget_lease(&mut self, name: &Name) {
        if let Some(memory) = self.nodes.get_mut(name) {
            memory.renewal = None;
        }
    }

    fn hear(&mut self, name: &Name, sign: Sign, policy: &Policy, now: Mono) -> Heard {
        let memory = self.nodes.get_mut(name).expect("only nodes that are known are heard");
        if memory.spoke_in.replace(self.epoch) != Some(self.epoch) {
            self.heard += 1;
        }
        memory.heard_at = now;
        memory.heard_by = sign;
        let was_silent = memory.due.is_none();
        memory.await_deadline(name, self.fresh_since, policy, &mut self.deadlines);
        if was_silent {
            self.silent.remove(name);
            return Heard::Again;
        }
        Heard::No
    }

    /// The nodes whose grace has passed since they were last asked for. Each is told once, until it is heard again.
    pub fn take_silent(&mut self, policy: &Policy, now: Mono) -> Vec<Name> {
        let mut silent = Vec::new();
        while let Some((due, _)) = self.deadlines.first()
            && *due < now
        {
            let (_, name) = self.deadlines.pop_first().expect("there is a first");
            let memory = self.nodes.get_mut(&name).expect("a deadline is of a known node");
            memory.due = None;
            if memory.silence(self.fresh_since, policy).deadline < now {
                self.silent.insert(name.clone());
                silent.push(name);
            } else {
                memory.await_deadline(&name, self.fresh_since, policy, &mut self.deadlines);
            }
        }
        silent
    }

    /// When to look next: right after the next deadline.
    pub fn next_deadline(&self) -> Option<Mono> {
        self.deadlines.first().map(|(due, _)| *due + Duration::from_nanos(1))
    }

    /// Everybody gets a new grace, those included who are silent and whom `unmarked` names: nobody has been told of
    /// their silence yet. Returns them; the other silent ones stay so until they speak.
    pub fn refresh(&mut self, policy: &Policy, now: Mono, unmarked: impl Fn(&Name) -> bool) -> Vec<Name> {
        self.fresh_since = now;
        self.epoch += 1;
        self.heard = 0;
        let forgiven: Vec<Name> = self.silent.iter().filter(|name| unmarked(name)).cloned().collect();
        for name in &forgiven {
            self.silent.remove(name);
            let memory = self.nodes.get_mut(name).expect("who is silent is known");
            memory.await_deadline(name, now, policy, &mut self.deadlines);
        }
        forgiven
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
    pub fn silence(&self, name: &Name, policy: &Policy) -> Option<Silence> {
        self.nodes.get(name).map(|memory| memory.silence(self.fresh_since, policy))
    }
}
