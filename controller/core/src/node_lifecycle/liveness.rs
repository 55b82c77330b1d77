//! Liveness: when each node last gave a sign of life, and which nodes have been silent for longer than their grace.
//!
//! Silence is measured on our own clock from the moment we saw a sign of life, so a node whose clock is wrong is
//! treated like any other. Time in which this controller was cut off does not count, for no node. Everything before
//! does: an interruption is no sign of life, and a renewal that was missed is delivered afterwards. Each node has one scheduled check, at its deadline or before. A renewal only stores the
//! time; a check that comes too early is rescheduled to the deadline. So the cost follows the number of renewals, not
//! the fleet's size.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_proto::condition::types;
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::time::Mono;

use crate::node_lifecycle::unknown_status;
use crate::policy::Policy;
use crate::world::{Change, NodeIndex};
use muster_proto::time::Now;

mod deadline_order;

use deadline_order::{DeadlineOrder, Entry};

/// First checks are spread over this many moments of a grace. Otherwise a controller that starts would check its whole
/// fleet in one decision, a grace later.
const SPREAD: u32 = 64;

#[derive(Clone, Debug, Default)]
pub struct Liveness {
    order: DeadlineOrder,
    /// The node that last had each index.
    names: Vec<Option<Name>>,
    /// Nodes whose grace has passed, until their next sign of life, with the silence that exceeded the grace.
    silent: BTreeMap<Name, Silence>,
    /// Every node counts as seen at this time, if it was not seen later.
    graces_renewed: Moment,
    /// How long this controller was cut off in total, without the interruption that lasts. It counts against no node.
    cut_off: Duration,
    /// Since when it is cut off, if it is.
    cut_off_since: Option<Mono>,
    /// How often the count of `seen` began again.
    epoch: u32,
    /// Nodes seen since the count last began.
    seen: usize,
    /// The node that fell silent last.
    last_silent: Option<Name>,
    /// Long gaps between two signs of life, since they were last taken.
    gaps: Vec<(NodeIndex, Gap)>,
}

/// Gaps that are kept until they are taken. More in one decision are dropped: they are for other settings to be tried on,
/// and nothing depends on them.
const MAX_GAPS: usize = 1024;

/// A long gap between two signs of life of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Without the time in which the controller was cut off.
    pub length: Duration,
    pub ended_by: SignOfLife,
}

/// A time, and how long the controller had been cut off in total by then.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    at: Mono,
    cut_off: Duration,
}

/// What a node was last seen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignOfLife {
    Lease,
    Status,
    /// It existed when this controller first looked.
    FirstSeen,
    /// It never reported: its silence runs from its creation.
    Created,
}

/// How long a node has been silent and may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    pub seen_at: Mono,
    /// `None` when all graces were renewed after the node was last seen.
    pub seen_by: Option<SignOfLife>,
    pub grace: Duration,
    /// How long the controller has been cut off since. This does not count as silence.
    pub cut_off: Duration,
    pub deadline: Mono,
}

impl Liveness {
    pub fn new() -> Liveness {
        // The count of `seen` is the first; 0 is that of a node that was never seen.
        Liveness { epoch: 1, ..Liveness::default() }
    }

    /// Observes a node that was added, updated or removed; `renewed` says whether its lease was ever renewed. Returns
    /// whether this ends a silence.
    pub fn observe(
        &mut self,
        change: &Change<Node>,
        index: NodeIndex,
        renewed: bool,
        policy: &Policy,
        now: Now,
    ) -> bool {
        let Some(node) = &change.new else {
            self.remove(index, &change.either().meta.name);
            return false;
        };
        let ready = node.condition(types::READY);
        let Some(entry) = self.order.get_mut(index) else {
            self.add(node, index, ready.is_some() || renewed, policy, now);
            return false;
        };
        entry.reported = ready.is_some();
        let heartbeat = |node: &Node| node.condition(types::READY).map(|ready| ready.last_heartbeat_time);
        let (before, after) = (change.old.as_deref().and_then(heartbeat), heartbeat(node));
        // A status that a controller wrote for a node that never reported is no sign of life.
        let is_ours = ready.is_some_and(|ready| ready.reason == unknown_status::NEVER_UPDATED);
        if before == after || (after.is_some() && before.is_none() && is_ours) {
            return false;
        }
        self.record_sign(index, SignOfLife::Status, policy, now.mono)
    }

    /// Adds a node. If it ever reported it gets a whole grace from now; if not, its grace runs from its creation.
    fn add(&mut self, node: &Node, index: NodeIndex, has_reported: bool, policy: &Policy, now: Now) {
        let (seen_at, seen_by) = if has_reported {
            (now.mono, SignOfLife::FirstSeen)
        } else {
            (node.meta.creation_timestamp.map_or(now.mono, |at| now.mono_of(at)), SignOfLife::Created)
        };
        let entry =
            Entry::new(seen_at, self.cut_off(now.mono), seen_by, node.condition(types::READY).is_some());
        let Silence { seen_at, grace, .. } = self.silence_of(&entry, policy);
        let share = index.as_usize() as u32 % SPREAD + 1;
        self.order.insert(index, entry);
        self.order.check_by(index, seen_at + grace * share / SPREAD);
        if self.names.len() <= index.as_usize() {
            self.names.resize(index.as_usize() + 1, None);
        }
        self.names[index.as_usize()] = Some(node.meta.name.clone());
    }

    fn remove(&mut self, index: NodeIndex, name: &Name) {
        let Some(entry) = self.order.remove(index) else { return };
        self.seen -= usize::from(entry.seen_in == self.epoch);
        self.silent.remove(name);
    }

    /// Observes leases whose `renewTime` changed. Returns the nodes whose silence this ends.
    pub fn observe_renewals(
        &mut self,
        indices: impl IntoIterator<Item = NodeIndex>,
        policy: &Policy,
        now: Mono,
    ) -> Vec<Name> {
        // There are leases without a node. Reading each entry twice costs nothing: this first pass fetches all entries
        // from memory at once.
        let known: Vec<NodeIndex> =
            indices.into_iter().filter(|index| self.order.get(*index).is_some()).collect();
        let mut revived = Vec::new();
        for index in known {
            if self.record_sign(index, SignOfLife::Lease, policy, now) {
                revived.extend(self.names[index.as_usize()].clone());
            }
        }
        revived
    }

    /// Returns whether this ends a silence.
    fn record_sign(&mut self, index: NodeIndex, sign: SignOfLife, policy: &Policy, now: Mono) -> bool {
        let cut_off = self.cut_off(now);
        let entry = self.order.get_mut(index).expect("the caller found the entry");
        if std::mem::replace(&mut entry.seen_in, self.epoch) != self.epoch {
            self.seen += 1;
        }
        let was_silent = entry.is_silent();
        let gap = (now - entry.seen_at()).saturating_sub(cut_off.saturating_sub(entry.cut_off_before()));
        // A node that reports for the first time was not silent before: it was not there.
        if gap > policy.grace / 4 && entry.seen_by != SignOfLife::Created && self.gaps.len() < MAX_GAPS {
            self.gaps.push((index, Gap { length: gap, ended_by: sign }));
        }
        entry.record_sign(now, cut_off, sign);
        let deadline = now + grace_of(entry, policy);
        self.order.check_by(index, deadline);
        if was_silent && let Some(name) = &self.names[index.as_usize()] {
            self.silent.remove(name);
            return true;
        }
        false
    }

    /// Takes the nodes whose grace has passed since the last call. Each is returned once per silence.
    pub fn take_silent(&mut self, policy: &Policy, now: Mono) -> Vec<(Name, Silence)> {
        let mut silent = Vec::new();
        while let Some(index) = self.order.take_due(now) {
            let entry = self.order.get(index).expect("a node that is due has an entry");
            let silence = self.silence_of(entry, policy);
            if silence.deadline >= now {
                self.order.check_by(index, silence.deadline);
            } else if let Some(name) = &self.names[index.as_usize()] {
                self.silent.insert(name.clone(), silence);
                self.last_silent = Some(name.clone());
                silent.push((name.clone(), silence));
            }
        }
        silent
    }

    /// Takes the gaps that were longer than a quarter of the grace.
    pub fn take_gaps(&mut self) -> Vec<(Name, Gap)> {
        let gaps = std::mem::take(&mut self.gaps);
        let name = |index: NodeIndex| self.names[index.as_usize()].clone();
        gaps.into_iter().filter_map(|(index, gap)| Some((name(index)?, gap))).collect()
    }

    /// The node that fell silent last, if it still is.
    pub fn last_silent(&self) -> Option<&Name> {
        self.last_silent.as_ref().filter(|name| self.silent.contains_key(*name))
    }

    /// When to call [`Self::take_silent`] next: right after the next check is due.
    pub fn next_check(&self) -> Option<Mono> {
        self.order.next_check().map(|at| at + Duration::from_nanos(1))
    }

    /// Gives every node a new grace, except silent nodes for which `unmarked` returns `None`: their record says already
    /// that they are silent. Returns the nodes that are not silent any more.
    pub fn renew_graces(
        &mut self,
        policy: &Policy,
        now: Mono,
        unmarked: impl Fn(&Name) -> Option<NodeIndex>,
    ) -> Vec<Name> {
        self.graces_renewed = Moment { at: now, cut_off: self.cut_off(now) };
        self.restart_count();
        let renewed: Vec<(Name, NodeIndex)> =
            self.silent.keys().filter_map(|name| Some((name.clone(), unmarked(name)?))).collect();
        for (name, index) in &renewed {
            self.silent.remove(name);
            let entry = self.order.get(*index).expect("a silent node has an entry");
            let deadline = self.silence_of(entry, policy).deadline;
            self.order.check_by(*index, deadline);
        }
        renewed.into_iter().map(|(name, _)| name).collect()
    }

    /// The controller has been cut off since then, if it was not before.
    pub fn interrupt(&mut self, since: Mono) {
        self.cut_off_since.get_or_insert(since);
    }

    /// The controller is not cut off any more. Costs the same for a fleet of any size: a check that comes too early
    /// finds that there is time left. Returns since when it was.
    pub fn resume(&mut self, now: Mono) -> Option<Mono> {
        self.cut_off = self.cut_off(now);
        self.cut_off_since.take()
    }

    /// How long the controller was cut off in total until now. A sign of life that arrives before it has resumed is
    /// not credited with the time before it.
    fn cut_off(&self, now: Mono) -> Duration {
        self.cut_off + self.cut_off_since.map_or(Duration::ZERO, |since| now - since)
    }

    /// Counts the nodes that are seen from now on.
    pub fn restart_count(&mut self) {
        self.epoch += 1;
        self.seen = 0;
    }

    /// How many nodes gave a sign of life since the count last began.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// Whether a node's grace has passed.
    pub fn is_silent(&self, name: &Name) -> bool {
        self.silent.contains_key(name)
    }

    /// How long a node has been silent and may be. For a silent node this is the silence that exceeded its grace: the
    /// grace differs once the controller has written a Ready condition for a node that never reported.
    pub fn silence(&self, index: NodeIndex, policy: &Policy) -> Option<Silence> {
        let entry = self.order.get(index)?;
        let name = self.names.get(index.as_usize())?.as_ref();
        let exceeded = name.and_then(|name| self.silent.get(name)).copied();
        Some(exceeded.unwrap_or_else(|| self.silence_of(entry, policy)))
    }

    fn silence_of(&self, entry: &Entry, policy: &Policy) -> Silence {
        let (seen, seen_by) = if entry.seen_at() >= self.graces_renewed.at {
            (Moment { at: entry.seen_at(), cut_off: entry.cut_off_before() }, Some(entry.seen_by))
        } else {
            (self.graces_renewed, None)
        };
        let (grace, cut_off) = (grace_of(entry, policy), self.cut_off.saturating_sub(seen.cut_off));
        Silence { seen_at: seen.at, seen_by, grace, cut_off, deadline: seen.at + grace + cut_off }
    }
}

/// How long a node may be silent.
fn grace_of(entry: &Entry, policy: &Policy) -> Duration {
    if entry.reported { policy.grace } else { policy.startup_grace }
}

#[cfg(test)]
mod tests;
