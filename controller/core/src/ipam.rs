//! Blocks of addresses for nodes: who has which, who gets the next one, who has to wait.
//!
//! What a node's record names is respected, whoever wrote it. A node whose record names nothing waits for its turn, is
//! then given a block of each pool by its uid, and has them until its record is gone: [`Ipam::apply_to`] writes them into
//! its next record. Nothing is given out before all nodes are known, nor while one of those that were there at the
//! start has a network we cannot place: we would not know what is taken.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use muster_proto::backoff::Backoff;
use muster_proto::cidr::Cidr;
use muster_proto::event::{Event, EventType};
use muster_proto::name::{Name, Uid};
use muster_proto::node::Node;
use muster_proto::time::Mono;

use crate::deadlines::Deadlines;
use crate::plan::{Failure, Plan, Subject, node_event, uid};
use crate::world::{Delta, World};
use muster_proto::time::Now;

mod block_tree;
mod cidr_pool;
mod settings;

pub use cidr_pool::{Outside, Pool};
pub use settings::{FlagError, Flags, Settings};

/// Writes that may fail before the blocks are given back.
const TRIES: u32 = 3;
/// How long a node whose blocks were given back waits before it is given others.
const REST: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1000));

/// The address blocks of all nodes.
#[derive(Clone, Debug)]
pub struct Ipam {
    /// In the order that nodes name them.
    pub(crate) pools: Vec<Pool>,
    pub(crate) nodes: HashMap<Uid, Entry>,
    /// Nodes that wait, first come first.
    pub(crate) queue: BTreeMap<Turn, Uid>,
    /// Those in the queue that have not been told that they wait.
    untold: BTreeSet<Turn>,
    /// Nodes whose blocks were given back: they queue again after a back-off. The write itself is in flight and retried
    /// with the node's record, not here.
    pub(crate) resting: Deadlines<Uid>,
    last_turn: Turn,
    pub(crate) is_started: bool,
    /// Nodes that were there at the start and have a network we cannot place, and why.
    misfits: BTreeMap<Name, String>,
    touched: BTreeSet<Name>,
    events: Vec<Event>,
}

/// The order in which nodes came to wait.
pub(crate) type Turn = u64;

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: Name,
    /// When it came to wait; kept when it has to wait again.
    pub(crate) turn: Turn,
    /// Whether it is being deleted: what it has it keeps until it is gone, but it gets nothing new.
    is_leaving: bool,
    /// What it was promised before somebody else took it. A write of that may still be under way, so it is given to
    /// nobody until the record's next version shows that it no longer can be.
    retracted: Vec<Vec<Cidr>>,
    state: State,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// The record names these.
    Recorded {
        cidrs: Vec<Cidr>,
        misfit: Option<String>,
    },
    /// These are its own, but the record does not say so yet.
    Reserved {
        cidrs: Vec<Cidr>,
        failures: u32,
        may_be_written: bool,
    },
    Waiting,
    Resting,
}

impl Ipam {
    pub fn new(settings: &Settings) -> Ipam {
        Ipam {
            pools: settings.pools.iter().map(|blocks| Pool::new(*blocks, &settings.services)).collect(),
            nodes: HashMap::new(),
            queue: BTreeMap::new(),
            untold: BTreeSet::new(),
            resting: Deadlines::new(REST),
            last_turn: 0,
            is_started: false,
            misfits: BTreeMap::new(),
            touched: BTreeSet::new(),
            events: Vec::new(),
        }
    }

    /// All nodes are known: from now on blocks are given out, unless one of these nodes makes that unsafe.
    pub fn start(&mut self, world: &World) {
        for node in world.nodes() {
            self.see(node);
            let entry = self.nodes.get(&uid(&node.meta));
            if let Some(State::Recorded { misfit: Some(reason), .. }) = entry.map(|entry| &entry.state) {
                self.misfits.insert(node.meta.name.clone(), reason.clone());
            }
        }
        self.is_started = true;
    }

    /// Why no blocks are given out, though all nodes are known. It lasts as long as the node it names.
    pub fn failure(&self) -> Option<String> {
        let (name, reason) = self.misfits.first_key_value()?;
        let others = match self.misfits.len() - 1 {
            0 => String::new(),
            count => format!(" (and {count} more such nodes)"),
        };
        Some(format!(
            "node {name} {reason}{others}: no blocks are given out until it is deleted or the flags fit"
        ))
    }

    /// What changed.
    pub fn observe(&mut self, delta: &Delta, _: &World, _: Now) {
        let Delta::Node(change) = delta else { return };
        match &change.new {
            Some(node) => self.see(node),
            None => self.forget(uid(&change.either().meta)),
        }
    }

    /// Gives blocks to those who wait, as far as there are any.
    pub fn decide(&mut self, _: &World, now: Now, plan: &mut Plan) {
        self.rouse(now.mono);
        if self.is_started && self.misfits.is_empty() {
            while let Some((&turn, &uid)) = self.queue.first_key_value()
                && let Some(cidrs) = self.take(uid)
            {
                self.queue.remove(&turn);
                self.untold.remove(&turn);
                self.promise(uid, cidrs);
            }
            self.tell_those_who_wait();
        }
        plan.events.append(&mut self.events);
        if let Some(at) = self.resting.next() {
            plan.wake_by(at);
        }
    }

    /// Nodes whose next record should differ from what was last said of it.
    pub fn take_changed(&mut self) -> Vec<Name> {
        std::mem::take(&mut self.touched).into_iter().collect()
    }

    /// Writes a node's blocks into its record if that names none.
    pub fn apply_to(&self, node: &mut Node, _: Now) {
        if !node.spec.pod_cidrs.is_empty() || node.meta.deletion_timestamp.is_some() {
            return;
        }
        if let Some(State::Reserved { cidrs, .. }) = node.meta.uid.and_then(|uid| self.state(uid)) {
            node.spec.pod_cidrs.clone_from(cidrs);
        }
    }

    /// The record of a node could not be written. Whoever writes tries again; when that has failed too often the blocks
    /// are given back, unless one of the writes may have happened after all: then the record's next version will tell.
    pub fn assignment_failed(&mut self, subject: &Subject, failure: &Failure, now: Now) {
        let Subject::Node(name, uid) = subject else { return };
        let Some(Entry { state, .. }) = self.nodes.get_mut(uid) else { return };
        let State::Reserved { failures, may_be_written, .. } = state else { return };
        let reason = match failure {
            // The next version, or the end, of the record is on its way.
            Failure::Conflict | Failure::Gone => return,
            Failure::Unknown(reason) => {
                *may_be_written = true;
                reason
            }
            Failure::Refused(reason) | Failure::Later(reason) => reason,
            Failure::Budget { message, .. } => message,
        };
        *failures += 1;
        if *failures < TRIES || *may_be_written {
            return;
        }
        let message = format!("Node {name} status is now: CIDRAssignmentFailed: {reason}");
        self.events.push(node_event(name, *uid, EventType::Warning, "CIDRAssignmentFailed", message));
        self.give_back(*uid, now.mono);
    }

    pub(crate) fn state(&self, uid: Uid) -> Option<&State> {
        self.nodes.get(&uid).map(|entry| &entry.state)
    }

    /// A node as it is now.
    fn see(&mut self, node: &Node) {
        let uid = uid(&node.meta);
        let (recorded, is_leaving) = (&node.spec.pod_cidrs, node.meta.deletion_timestamp.is_some());
        // Writes go to one version: what was under way to an older one is refused.
        if let Some(entry) = self.nodes.get_mut(&uid) {
            let retracted = std::mem::take(&mut entry.retracted);
            retracted.iter().for_each(|cidrs| self.release(cidrs, uid));
        }
        match self.nodes.get_mut(&uid).map(|entry| &mut entry.state) {
            Some(State::Recorded { cidrs, .. }) if cidrs == recorded => {}
            _ if !recorded.is_empty() => self.record(uid, node),
            // A record that named something and no longer does is like a new one.
            None | Some(State::Recorded { .. }) => {
                self.forget(uid);
                if !is_leaving {
                    self.wait(uid, node.meta.name.clone());
                }
            }
            Some(State::Reserved { may_be_written, .. }) => *may_be_written = false,
            Some(State::Waiting | State::Resting) if is_leaving => self.forget(uid),
            Some(State::Waiting | State::Resting) => {}
        }
        if let Some(entry) = self.nodes.get_mut(&uid) {
            entry.is_leaving = is_leaving;
        }
    }

    /// Notes what a node's record names, and lets go of everything else it had.
    fn record(&mut self, uid: Uid, node: &Node) {
        let (name, cidrs) = (&node.meta.name, &node.spec.pod_cidrs);
        self.forget(uid);
        let misfit = self.occupy(cidrs, uid).err();
        if let Some(reason) = &misfit {
            let message = format!("Node {name} {reason}");
            self.events.push(node_event(name, uid, EventType::Warning, "CIDROutsidePool", message));
        }
        self.nodes.insert(uid, Entry::new(name.clone(), 0, State::Recorded { cidrs: cidrs.clone(), misfit }));
        for (i, cidr) in cidrs.iter().enumerate() {
            self.settle_claims(i, cidr, uid, name);
        }
    }

    /// PodReadiness each network in the pool of its place, as far as it fits.
    fn occupy(&mut self, cidrs: &[Cidr], uid: Uid) -> Result<(), String> {
        let mut fits = Ok(());
        for (i, cidr) in cidrs.iter().enumerate() {
            let fitted = match self.pools.get_mut(i) {
                Some(pool) => pool.occupy(cidr, uid).map_err(|outside| format!("holds {outside}")),
                None => Err(format!("holds {cidr} too, but --cluster-cidr names no network for it")),
            };
            fits = fits.and(fitted);
        }
        fits
    }

    /// A record names this network. Those who were only promised a part of it get another; a record that names it too
    /// is a conflict that people have to end.
    fn settle_claims(&mut self, i: usize, cidr: &Cidr, uid: Uid, name: &Name) {
        let Some(pool) = self.pools.get(i) else { return };
        let others = pool.holders_of(cidr);
        let mut recorded = Vec::new();
        for other in others.into_iter().filter(|other| *other != uid) {
            match self.state(other) {
                Some(State::Recorded { .. }) => recorded.push(other),
                Some(State::Reserved { cidrs, .. }) if cidrs[i].overlaps(cidr) => self.retract(other),
                _ => {}
            }
        }
        if let Some(other) = recorded.first().and_then(|other| self.nodes.get(other)) {
            let message = match recorded.len() {
                1 => format!("Node {name} holds {cidr}, and so does node {}", other.name),
                count => {
                    format!("Node {name} holds {cidr}, and so do node {} and {} more", other.name, count - 1)
                }
            };
            self.events.push(node_event(name, uid, EventType::Warning, "CIDRConflict", message));
        }
    }

    /// Promises a node something else, unless it is about to go and needs nothing.
    fn retract(&mut self, uid: Uid) {
        let Some(entry) = self.nodes.get_mut(&uid).filter(|entry| !entry.is_leaving) else { return };
        entry.retracted.push(entry.state.cidrs().to_vec());
        self.touched.insert(entry.name.clone());
        self.enqueue(uid);
    }

    /// A node that is gone, or that we have nothing to do with any more.
    fn forget(&mut self, uid: Uid) {
        let Some(entry) = self.nodes.remove(&uid) else { return };
        self.leave_queue(&entry);
        self.resting.forget(&uid);
        self.misfits.remove(&entry.name);
        entry.retracted.iter().for_each(|cidrs| self.release(cidrs, uid));
        self.release(entry.state.cidrs(), uid);
    }

    fn release(&mut self, cidrs: &[Cidr], uid: Uid) {
        for (pool, cidr) in self.pools.iter_mut().zip(cidrs) {
            pool.release(cidr, uid);
        }
    }

    /// A block of each pool, or none of any.
    fn take(&mut self, uid: Uid) -> Option<Vec<Cidr>> {
        if self.pools.iter().any(Pool::is_full) {
            return None;
        }
        Some(
            self.pools
                .iter_mut()
                .map(|pool| pool.take(uid).expect("a pool that is not full has a block"))
                .collect(),
        )
    }

    fn promise(&mut self, uid: Uid, cidrs: Vec<Cidr>) {
        let Some(entry) = self.nodes.get_mut(&uid) else { return };
        entry.state = State::Reserved { cidrs, failures: 0, may_be_written: false };
        self.touched.insert(entry.name.clone());
    }

    fn wait(&mut self, uid: Uid, name: Name) {
        self.last_turn += 1;
        self.nodes.insert(uid, Entry::new(name, self.last_turn, State::Waiting));
        self.enqueue(uid);
    }

    fn enqueue(&mut self, uid: Uid) {
        let Some(entry) = self.nodes.get_mut(&uid) else { return };
        entry.state = State::Waiting;
        self.queue.insert(entry.turn, uid);
        self.untold.insert(entry.turn);
    }

    fn leave_queue(&mut self, entry: &Entry) {
        if entry.state == State::Waiting {
            self.queue.remove(&entry.turn);
            self.untold.remove(&entry.turn);
        }
    }

    /// Takes back what was promised. The node queues again after a rest, unless it is about to go.
    fn give_back(&mut self, uid: Uid, now: Mono) {
        let Some(entry) = self.nodes.get_mut(&uid) else { return };
        if entry.is_leaving {
            return self.forget(uid);
        }
        let before = std::mem::replace(&mut entry.state, State::Resting);
        self.touched.insert(entry.name.clone());
        self.resting.fail(&uid, now);
        self.release(before.cidrs(), uid);
    }

    /// Those who have rested queue again.
    fn rouse(&mut self, now: Mono) {
        while let Some(uid) = self.resting.pop(now) {
            self.enqueue(uid);
        }
    }

    /// Each wait is told of once.
    fn tell_those_who_wait(&mut self) {
        let Some(full) = self.pools.iter().find(|pool| pool.is_full()) else { return };
        for turn in std::mem::take(&mut self.untold) {
            let uid = self.queue[&turn];
            let name = &self.nodes[&uid].name;
            let message = format!("Node {name} status is now: CIDRNotAvailable: {}", full.shortage());
            self.events.push(node_event(name, uid, EventType::Warning, "CIDRNotAvailable", message));
        }
    }
}

impl Entry {
    fn new(name: Name, turn: Turn, state: State) -> Entry {
        Entry { name, turn, is_leaving: false, retracted: Vec::new(), state }
    }
}

impl State {
    /// What the node has.
    fn cidrs(&self) -> &[Cidr] {
        match self {
            State::Recorded { cidrs, .. } | State::Reserved { cidrs, .. } => cidrs,
            State::Waiting | State::Resting => &[],
        }
    }
}

#[cfg(test)]
mod tests;
