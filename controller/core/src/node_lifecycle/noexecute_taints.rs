//! All zones: who counts, who waits to be given up, and who may be now.
//!
//! Counts are kept as nodes change. A pass assesses the zones, then lets those wait who fell ill since the last one, then
//! gives up whoever a zone has a token for. There is one in each period, and one when a token comes that somebody waits
//! for. Nobody is given up in the pass in which their zone turns out to be lost, because zones are assessed first.
//!
//! To be given up is to get a NoExecute taint; eviction proper is the business of `eviction`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::taint::{self, Taint, TaintEffect};
use muster_proto::time::Mono;
use muster_proto::wellknown::{label, taint as keys};

use crate::node_lifecycle::noschedule_taints::ready_taint;
use crate::node_lifecycle::zone_state::{ZoneKey, ZoneState, assess, rate};
use crate::policy::Policy;
use crate::token_bucket::Limiter;
use crate::trace_event::TraceEvent;
use crate::world::{Change, QuickMap};
use muster_proto::time::Now;

#[derive(Clone, Debug, Default)]
pub struct Zones {
    zones: BTreeMap<ZoneKey, Zone>,
    nodes: QuickMap<Name, Member>,
    /// Fell ill, or lost their taint, since the last pass.
    candidates: BTreeSet<Name>,
    /// Nodes whose record has a health taint that drives pods off.
    tainted: BTreeSet<Name>,
    /// Nodes that were given up and whose record does not say so yet.
    granted: BTreeSet<Name>,
    /// Every zone is lost: it is probably us, so nothing moves.
    disrupted: bool,
    /// When a token comes that somebody waits for.
    next_token: Option<Mono>,
    touched: Vec<Name>,
}

#[derive(Clone, Debug)]
struct Zone {
    state: ZoneState,
    /// Nodes that are in it, counted or not.
    members: usize,
    counted: usize,
    unhealthy: usize,
    limiter: Limiter,
    /// By when they fell ill, then by name.
    queue: BTreeSet<(Mono, Name)>,
    evictions: u64,
}

#[derive(Clone, Debug)]
struct Member {
    zone: ZoneKey,
    counted: bool,
    /// Silent for too long, whatever its record still says.
    silent: bool,
    /// What its record says; `None` if it never said.
    ready: Option<ConditionStatus>,
    /// Since when its record has said that it is not Ready.
    ill_since: Option<Mono>,
    /// Its health taints are to go first, as those of a node seen for the first time and of all in full disruption.
    strip: bool,
}

/// What a pass found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    None,
    /// All zones are lost.
    Entered,
    /// Not all zones are lost any more: everybody deserves a new grace.
    Left,
}

/// A zone as it is told to people.
#[derive(Clone, Debug, PartialEq)]
pub struct ZoneReport {
    pub key: ZoneKey,
    pub state: ZoneState,
    pub nodes: usize,
    pub unhealthy: usize,
    pub rate: f64,
    pub queue_length: usize,
    pub evictions: u64,
    /// When the bucket gives its next token; `None` if never.
    pub next_token: Option<Mono>,
    /// Between two tokens.
    pub interval: Duration,
}

impl Member {
    fn is_bad(&self) -> bool {
        self.silent || self.ready != Some(ConditionStatus::True)
    }
}

/// The health taints that drive pods off.
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

impl Zones {
    pub fn new() -> Zones {
        Zones::default()
    }

    /// A node came, changed or went.
    pub fn observe(&mut self, change: &Change<Node>, policy: &Policy, now: Now) {
        let name = &change.either().meta.name;
        let Some(node) = &change.new else { return self.forget(name) };
        let (previous, waited) = self.leave(name).unzip();
        // Whoever moves to another zone waits there from the next pass on.
        let mut stays_in_line = waited == Some(true);
        let ready = ready_of(node);
        let is_tainted = node.spec.taints.iter().any(is_health_taint);
        let ill = ready_taint(ready).is_some();
        let member = Member {
            zone: ZoneKey::of(&node.meta.labels),
            counted: !node.meta.labels.contains_key(label::EXCLUDE_DISRUPTION),
            silent: previous.as_ref().is_some_and(|member| member.silent),
            ready,
            ill_since: ill.then(|| previous.as_ref().and_then(|held| held.ill_since).unwrap_or(now.mono)),
            // Also a taint that was on its way when every zone was found to be lost.
            strip: is_tainted
                && (previous.as_ref().is_none_or(|held| held.strip)
                    || (self.disrupted && !self.tainted.contains(name))),
        };
        stays_in_line &= previous.is_some_and(|held| held.zone == member.zone);
        let is_given_up = ready_taint(ready).is_some_and(|key| has(node, key));
        if is_tainted {
            self.tainted.insert(name.clone());
        } else {
            self.tainted.remove(name);
        }
        if is_given_up && self.granted.remove(name) {
            self.zone_of(&member.zone, policy, now.mono).evictions += 1;
        }
        if !ill {
            self.granted.remove(name);
        }
        // The taint of another illness is swapped, not earned anew; one that is to go first is earned after.
        self.candidates.remove(name);
        if let Some(since) = member.ill_since
            && !is_tainted
            && !self.granted.contains(name)
        {
            if stays_in_line {
                self.zone_of(&member.zone, policy, now.mono).queue.insert((since, name.clone()));
            } else {
                self.candidates.insert(name.clone());
            }
        }
        self.enter(name.clone(), member, policy, now.mono);
    }

    /// A node fell silent, or was heard again, before its record says so.
    pub fn set_silent(&mut self, name: &Name, silent: bool) {
        let Some(member) = self.nodes.get_mut(name) else { return };
        let before = member.is_bad();
        member.silent = silent;
        let after = member.is_bad();
        if member.counted && before != after {
            let zone = self.zones.get_mut(&member.zone).expect("a member's zone exists");
            zone.unhealthy = if after { zone.unhealthy + 1 } else { zone.unhealthy - 1 };
        }
    }

    /// Takes a node out of its zone's counts and queue; says what was known of it and whether it waited.
    fn leave(&mut self, name: &Name) -> Option<(Member, bool)> {
        let member = self.nodes.remove(name)?;
        let zone = self.zones.get_mut(&member.zone).expect("a member's zone exists");
        zone.members -= 1;
        if member.counted {
            zone.counted -= 1;
            zone.unhealthy -= usize::from(member.is_bad());
        }
        let waited = member.ill_since.is_some_and(|since| zone.queue.remove(&(since, name.clone())));
        Some((member, waited))
    }

    fn enter(&mut self, name: Name, member: Member, policy: &Policy, now: Mono) {
        let zone = self.zone_of(&member.zone, policy, now);
        zone.members += 1;
        if member.counted {
            zone.counted += 1;
            zone.unhealthy += usize::from(member.is_bad());
        }
        self.nodes.insert(name, member);
    }

    fn forget(&mut self, name: &Name) {
        let Some((member, _)) = self.leave(name) else { return };
        self.candidates.remove(name);
        self.tainted.remove(name);
        self.granted.remove(name);
        if self.zones.get(&member.zone).is_some_and(|zone| zone.members == 0) {
            self.zones.remove(&member.zone);
        }
    }

    fn zone_of(&mut self, key: &ZoneKey, policy: &Policy, now: Mono) -> &mut Zone {
        self.zones.entry(key.clone()).or_insert_with(|| Zone {
            state: ZoneState::Initial,
            members: 0,
            counted: 0,
            unhealthy: 0,
            limiter: Limiter::full(policy.eviction_rate, now),
            queue: BTreeSet::new(),
            evictions: 0,
        })
    }

    /// Assesses the zones, lets the ill wait, and gives up those whose turn it is. Nobody is given up while `held`.
    pub fn pass(
        &mut self,
        policy: &Policy,
        now: Mono,
        held: bool,
        trace_events: &mut Vec<TraceEvent>,
    ) -> Turn {
        let turn = self.assess(policy, now);
        self.line_up(policy, now, trace_events);
        if !held {
            self.serve(now, trace_events);
        }
        let waited_for = self.zones.values().filter(|zone| !zone.queue.is_empty());
        self.next_token = waited_for.filter_map(|zone| zone.limiter.ready_at()).min();
        turn
    }

    /// When somebody can be given up who waits for a token; `None` if nobody waits, or for nothing.
    pub fn next_token(&self) -> Option<Mono> {
        self.next_token
    }

    fn assess(&mut self, policy: &Policy, now: Mono) -> Turn {
        self.zones.retain(|_, zone| zone.members > 0);
        let counting = || self.zones.values().filter(|zone| zone.counted > 0);
        let anybody = counting().next().is_some();
        let assessed = |zone: &Zone| assess(zone.counted, zone.unhealthy, policy.unhealthy_zone_threshold);
        let all_now = counting().all(|zone| assessed(zone) == ZoneState::FullDisruption);
        let all_before = counting().all(|zone| zone.state == ZoneState::FullDisruption);
        // Kubernetes goes by the states before alone: if the last zone that was well loses its nodes to a deletion, all
        // that remain were lost before, and it goes on giving up the rest. We enter: what is left is all lost.
        let turn = match (anybody && all_now, self.disrupted) {
            (true, false) => Turn::Entered,
            (true, true) if !all_before => Turn::Entered,
            (false, true) => Turn::Left,
            _ => Turn::None,
        };
        self.disrupted = anybody && all_now;
        for zone in self.zones.values_mut() {
            let counts = zone.counted > 0;
            let state = if counts { assessed(zone) } else { ZoneState::Initial };
            let changed = std::mem::replace(&mut zone.state, state) != state;
            if self.disrupted {
                zone.limiter.set_rate(0.0, now);
            } else if turn == Turn::Left || changed {
                zone.limiter.set_rate(rate(state, zone.counted, policy), now);
            }
        }
        if turn == Turn::Entered {
            self.take_back();
        }
        turn
    }

    /// Takes every health taint off again, also those still on their way.
    fn take_back(&mut self) {
        for name in std::mem::take(&mut self.granted) {
            self.candidates.insert(name.clone());
            self.touched.push(name);
        }
        for name in &self.tainted {
            if let Some(member) = self.nodes.get_mut(name) {
                member.strip = true;
                self.touched.push(name.clone());
            }
        }
    }

    fn line_up(&mut self, policy: &Policy, now: Mono, trace_events: &mut Vec<TraceEvent>) {
        for name in std::mem::take(&mut self.candidates) {
            let Some(member) = self.nodes.get(&name) else { continue };
            if let Some(since) = member.ill_since {
                let key = member.zone.clone();
                self.zone_of(&key, policy, now).queue.insert((since, name.clone()));
                trace_events.push(TraceEvent::TaintQueued { node: name, zone: key });
            }
        }
    }

    fn serve(&mut self, now: Mono, trace_events: &mut Vec<TraceEvent>) {
        for (key, zone) in &mut self.zones {
            if !zone.queue.is_empty() && zone.limiter.take(now) {
                let (_, name) = zone.queue.pop_first().expect("the queue is not empty");
                self.granted.insert(name.clone());
                trace_events.push(TraceEvent::TokenTaken { node: name.clone(), zone: key.clone() });
                self.touched.push(name);
            }
        }
    }

    /// Nodes whose taints may have to change, besides those whose record did.
    pub fn take_changed(&mut self) -> Vec<Name> {
        std::mem::take(&mut self.touched)
    }

    /// Writes the health taints that a node is to have. A swap is one write: the pods are never without their reason.
    pub fn apply_to(&self, node: &mut Node, now: Now) {
        let name = &node.meta.name;
        let Some(member) = self.nodes.get(name) else { return };
        let ready = ready_of(node);
        let Some(key) = ready_taint(ready) else {
            if ready.is_some() || member.strip {
                strip(node);
            }
            return;
        };
        // Also if the right one is there beside it: a pod is driven off for what is so, by the toleration for that.
        let is_swap = node.spec.taints.iter().any(|taint| is_health_taint(taint) && taint.key != key);
        if member.strip {
            strip(node);
        } else if is_swap || self.granted.contains(name) {
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

    /// Whether every zone is lost.
    pub fn is_disrupted(&self) -> bool {
        self.disrupted
    }

    pub fn reports(&self) -> impl Iterator<Item = ZoneReport> {
        self.zones.iter().map(|(key, zone)| report(key, zone))
    }

    /// The first nodes that wait in a zone.
    pub fn queue(&self, key: &ZoneKey) -> impl Iterator<Item = &Name> {
        self.zones.get(key).into_iter().flat_map(|zone| zone.queue.iter().map(|(_, name)| name))
    }

    /// How many of a zone join the queue at the next pass and stand before that place in it.
    fn candidates_before(&self, zone: &ZoneKey, place: Option<&(Mono, Name)>) -> usize {
        let stands_before = |name: &&Name| {
            let member = self.nodes.get(*name).filter(|member| member.zone == *zone);
            let since = member.and_then(|member| member.ill_since);
            since.zip(place).is_some_and(|(since, place)| (since, *name) < (place.0, &place.1))
        };
        self.candidates.iter().filter(stands_before).count()
    }

    /// Where a node stands.
    pub fn place_of(&self, name: &Name) -> Option<Place> {
        let member = self.nodes.get(name)?;
        let zone = self.zones.get(&member.zone).expect("a member's zone exists");
        let entry = member.ill_since.map(|since| (since, name.clone()));
        let position = entry
            .as_ref()
            .and_then(|entry| zone.queue.contains(entry).then(|| zone.queue.range(..=entry.clone()).count()));
        let ahead = match position {
            Some(position) => position - 1,
            None => zone.queue.len() + self.candidates_before(&member.zone, entry.as_ref()),
        };
        Some(Place {
            zone: report(&member.zone, zone),
            counted: member.counted,
            position,
            ahead,
            lines_up_next: self.candidates.contains(name),
            granted: self.granted.contains(name),
            strip: member.strip,
        })
    }
}

/// Where a node stands in its zone.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    pub zone: ZoneReport,
    pub counted: bool,
    /// From 1; `None` when it does not wait.
    pub position: Option<usize>,
    /// How many are given up before it, if it waits or is to wait.
    pub ahead: usize,
    /// It joins the queue at the next pass.
    pub lines_up_next: bool,
    /// It was given up and its record does not say so yet.
    pub granted: bool,
    /// Its health taints are being taken off.
    pub strip: bool,
}

fn report(key: &ZoneKey, zone: &Zone) -> ZoneReport {
    ZoneReport {
        key: key.clone(),
        state: zone.state,
        nodes: zone.counted,
        unhealthy: zone.unhealthy,
        rate: zone.limiter.rate(),
        queue_length: zone.queue.len(),
        evictions: zone.evictions,
        next_token: zone.limiter.ready_at(),
        interval: zone.limiter.interval(),
    }
}

fn strip(node: &mut Node) {
    node.spec.taints.retain(|taint| !is_health_taint(taint));
}
