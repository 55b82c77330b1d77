//! NoExecute taints on nodes that are not ready, at the rate that the state of their zone allows.
//!
//! A node whose Ready condition is False or Unknown joins its zone's queue at the next pass. In each pass the first
//! node of each queue is tainted, if the zone's bucket has a token. Zones are assessed before tokens are taken, so no
//! node is tainted in the pass in which its zone turns out to be disrupted.
//!
//! The taint starts the toleration times of the node's pods; [`crate::taint_eviction`] evicts them.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::taint::{self, Taint, TaintEffect};
use muster_proto::time::Mono;
use muster_proto::wellknown::taint as keys;

use crate::node_lifecycle::noschedule_taints::ready_taint;
use crate::node_lifecycle::taint_queue::TaintQueue;
use crate::node_lifecycle::zone_state::{ZoneKey, rate};
use crate::node_lifecycle::zones::{Assessment, Transition, Zones};
use crate::policy::Policy;
use crate::trace_event::{TokenWait, TraceEvent};
use crate::world::{Change, FastMap};
use muster_proto::time::Now;

#[derive(Clone, Debug, Default)]
pub struct NoExecuteTaints {
    /// One for each zone.
    queues: BTreeMap<ZoneKey, TaintQueue>,
    /// Nodes whose record says that they are not ready.
    not_ready: FastMap<Name, NotReady>,
    /// Nodes that became not ready, or lost their taint, since the last pass.
    candidates: BTreeSet<Name>,
    /// Nodes whose record has a NoExecute health taint.
    tainted: BTreeSet<Name>,
    /// Nodes that took a token and whose record does not have the taint yet.
    granted: BTreeSet<Name>,
    /// Nodes whose health taints are removed before they can be earned again: those that had one when first seen, and
    /// in full disruption all.
    stripping: BTreeSet<Name>,
    /// When a token comes for which a node waits.
    next_token: Option<Mono>,
    /// Whether tokens were held back since the last one was taken.
    was_held: bool,
    changed: Vec<Name>,
}

#[derive(Clone, Debug)]
struct NotReady {
    zone: ZoneKey,
    /// When this controller first saw it.
    since: Mono,
}

/// Whether this is one of the NoExecute taints that say that a node is not healthy.
pub fn is_health_taint(taint: &Taint) -> bool {
    taint.effect == TaintEffect::NoExecute
        && [keys::NOT_READY, keys::UNREACHABLE].contains(&taint.key.as_str())
}

fn has(node: &Node, key: &str) -> bool {
    node.spec.taints.iter().any(|taint| taint.is(key, TaintEffect::NoExecute))
}

fn ready_of(node: &Node) -> Option<ConditionStatus> {
    node.condition(types::READY).map(|ready| ready.status)
}

impl NoExecuteTaints {
    pub fn new() -> NoExecuteTaints {
        NoExecuteTaints::default()
    }

    /// Observes a node that was added, updated or removed, after `zones` did.
    pub fn observe(&mut self, change: &Change<Node>, zones: &Zones, policy: &Policy, now: Now) {
        let name = &change.either().meta.name;
        let previous = self.not_ready.remove(name);
        let was_waiting = previous.as_ref().is_some_and(|NotReady { zone, since }| {
            self.queues.get_mut(zone).is_some_and(|queue| queue.remove(*since, name))
        });
        self.candidates.remove(name);
        let Some(node) = &change.new else { return self.remove(change.either(), zones) };

        let zone = ZoneKey::of(&node.meta.labels);
        let queue = self
            .queues
            .entry(zone.clone())
            .or_insert_with(|| TaintQueue::new(policy.eviction_rate, now.mono));
        let wanted = ready_taint(ready_of(node));
        if wanted.is_some_and(|key| has(node, key)) && self.granted.remove(name) {
            queue.tainted += 1;
        }
        let is_tainted = node.spec.taints.iter().any(is_health_taint);
        // In full disruption also a taint whose write was under way when that began.
        let strips = change.old.is_none()
            || self.stripping.contains(name)
            || (zones.is_full_disruption() && !self.tainted.contains(name));
        set(&mut self.stripping, name, is_tainted && strips);
        set(&mut self.tainted, name, is_tainted);
        if wanted.is_none() {
            self.granted.remove(name);
            return;
        }
        let since = previous.as_ref().map_or(now.mono, |held| held.since);
        // A node with the other health taint needs no token: the taints are swapped. One whose taint is stripped
        // becomes a candidate afterwards.
        if !is_tainted && !self.granted.contains(name) {
            // A node that moved to another zone waits there from the next pass on.
            if was_waiting && previous.is_some_and(|held| held.zone == zone) {
                queue.insert(since, name.clone());
            } else {
                self.candidates.insert(name.clone());
            }
        }
        self.not_ready.insert(name.clone(), NotReady { zone, since });
    }

    fn remove(&mut self, node: &Node, zones: &Zones) {
        for names in [&mut self.tainted, &mut self.granted, &mut self.stripping] {
            names.remove(&node.meta.name);
        }
        let zone = ZoneKey::of(&node.meta.labels);
        if zones.get(&zone).is_none() {
            self.queues.remove(&zone);
        }
    }

    /// Sets the rates by the zones' new states, queues the candidates, and takes a token for the first node of each
    /// queue. No token is taken while `held`.
    pub fn pass(
        &mut self,
        zones: &Zones,
        assessment: &Assessment,
        policy: &Policy,
        now: Mono,
        held: bool,
        trace_events: &mut Vec<TraceEvent>,
    ) {
        self.set_rates(zones, assessment, policy, now);
        if assessment.transition == Transition::Entered {
            self.strip_all();
        }
        self.queue_candidates(trace_events);
        self.was_held |= held;
        if !held {
            self.take_tokens(now, trace_events);
            self.was_held = false;
        }
        self.next_token = self.queues.values().filter_map(TaintQueue::next_token).min();
    }

    fn set_rates(&mut self, zones: &Zones, assessment: &Assessment, policy: &Policy, now: Mono) {
        self.queues.retain(|key, _| zones.get(key).is_some());
        for (key, queue) in &mut self.queues {
            let zone = zones.get(key).expect("only queues of zones are left");
            if zones.is_full_disruption() {
                queue.bucket.set_rate(0.0, now);
            } else if assessment.transition == Transition::Left || assessment.changed.contains(key) {
                queue.bucket.set_rate(rate(zone.state, zone.nodes, policy), now);
            }
        }
    }

    /// Removes every health taint, including those whose write is under way.
    fn strip_all(&mut self) {
        for name in std::mem::take(&mut self.granted) {
            self.candidates.insert(name.clone());
            self.changed.push(name);
        }
        self.stripping.extend(self.tainted.iter().cloned());
        self.changed.extend(self.tainted.iter().cloned());
    }

    fn queue_candidates(&mut self, trace_events: &mut Vec<TraceEvent>) {
        for name in std::mem::take(&mut self.candidates) {
            let Some(NotReady { zone, since }) = self.not_ready.get(&name) else { continue };
            let queue = self.queues.get_mut(zone).expect("the zone of a node has a queue");
            queue.insert(*since, name.clone());
            trace_events.push(TraceEvent::TaintQueued { node: name, zone: zone.clone() });
        }
    }

    fn take_tokens(&mut self, now: Mono, trace_events: &mut Vec<TraceEvent>) {
        for (zone, queue) in &mut self.queues {
            if let Some(name) = queue.take(now) {
                let is_new = |event: &TraceEvent| matches!(event, TraceEvent::TaintQueued { node, .. } if *node == name);
                let waited_for = match trace_events.iter().any(is_new) {
                    true => None,
                    false if self.was_held => Some(TokenWait::EvictionHold),
                    false => Some(TokenWait::Rate),
                };
                trace_events.push(TraceEvent::TokenTaken {
                    node: name.clone(),
                    zone: zone.clone(),
                    waited_for,
                });
                self.granted.insert(name.clone());
                self.changed.push(name);
            }
        }
    }

    /// When a token comes for which a node waits; `None` if no node waits, or if there will be no token.
    pub fn next_token(&self) -> Option<Mono> {
        self.next_token
    }

    /// Nodes whose taints may have to change, besides those whose record changed.
    pub fn take_changed(&mut self) -> Vec<Name> {
        std::mem::take(&mut self.changed)
    }

    /// Writes the health taints that a node is to have. Swapping one for the other is a single write, so that pods are
    /// at no time on a node without a health taint.
    pub fn apply_to(&self, node: &mut Node, now: Now) {
        let name = &node.meta.name;
        let ready = ready_of(node);
        let Some(key) = ready_taint(ready) else {
            if ready.is_some() || self.is_stripping(name) {
                strip(node);
            }
            return;
        };
        // Also if the right one is there beside it: only the toleration of the taint that holds now counts.
        let is_swap = node.spec.taints.iter().any(|taint| is_health_taint(taint) && taint.key != key);
        if self.is_stripping(name) {
            strip(node);
        } else if is_swap || self.is_granted(name) {
            for other in [keys::NOT_READY, keys::UNREACHABLE] {
                if other != key {
                    taint::remove(&mut node.spec.taints, other, TaintEffect::NoExecute);
                }
            }
            if !has(node, key) {
                node.spec.taints.push(Taint::new(key, "", TaintEffect::NoExecute).added_at(now.wall));
            }
        }
    }

    pub fn queue(&self, zone: &ZoneKey) -> Option<&TaintQueue> {
        self.queues.get(zone)
    }

    /// Whether the node took a token and its record does not have the taint yet.
    pub fn is_granted(&self, name: &Name) -> bool {
        self.granted.contains(name)
    }

    /// Whether the node's health taints are being removed.
    pub fn is_stripping(&self, name: &Name) -> bool {
        self.stripping.contains(name)
    }

    /// A node's position in its zone's queue, from 1; `None` if it does not wait.
    pub fn position(&self, name: &Name) -> Option<usize> {
        let NotReady { zone, since } = self.not_ready.get(name)?;
        self.queues.get(zone)?.position(*since, name)
    }

    /// How many candidates of a zone will be before this node when they join the queue.
    pub fn candidates_before(&self, zone: &ZoneKey, name: &Name) -> usize {
        let since_in_zone =
            |name: &Name| self.not_ready.get(name).filter(|held| held.zone == *zone).map(|held| held.since);
        let Some(since) = since_in_zone(name) else { return 0 };
        let is_before =
            |other: &&Name| since_in_zone(other).is_some_and(|of_other| (of_other, *other) < (since, name));
        self.candidates.iter().filter(is_before).count()
    }
}

/// The trace event of a write that adds a health taint to a node.
pub fn trace_event(before: &Node, after: &Node) -> Option<TraceEvent> {
    let added = after.spec.taints.iter().find(|taint| {
        is_health_taint(taint) && !before.spec.taints.iter().any(|held| held.is(&taint.key, taint.effect))
    })?;
    Some(TraceEvent::NoExecuteTainted { node: after.meta.name.clone(), taint: added.to_string() })
}

fn strip(node: &mut Node) {
    node.spec.taints.retain(|taint| !is_health_taint(taint));
}

fn set(names: &mut BTreeSet<Name>, name: &Name, contained: bool) {
    if contained {
        names.insert(name.clone());
    } else {
        names.remove(name);
    }
}
