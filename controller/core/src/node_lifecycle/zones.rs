//! Zones: how many nodes each has, how many of those are unhealthy, and the state that follows.
//!
//! Counts are updated as nodes change, so that an assessment costs the number of zones and not that of nodes.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::name::Name;
use muster_proto::node::Node;
use muster_proto::wellknown::label;

use crate::node_lifecycle::zone_state::{ZoneKey, ZoneState, assess};
use crate::world::{Change, FastMap};

#[derive(Clone, Debug, Default)]
pub struct Zones {
    zones: BTreeMap<ZoneKey, Zone>,
    nodes: FastMap<Name, Member>,
    /// Every zone is fully disrupted.
    full_disruption: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Zone {
    /// As last assessed.
    pub state: ZoneState,
    /// Nodes that count for its state.
    pub nodes: usize,
    /// Nodes that count and are silent or not Ready.
    pub unhealthy: usize,
    /// All nodes, including those that do not count.
    members: usize,
    /// Those that do not count.
    pub excluded: BTreeSet<Name>,
}

#[derive(Clone, Debug)]
struct Member {
    zone: ZoneKey,
    counted: bool,
    /// Its grace has passed, whatever its record still says.
    silent: bool,
    /// The Ready condition of its record; `None` if it has none.
    ready: Option<ConditionStatus>,
}

impl Member {
    fn is_unhealthy(&self) -> bool {
        self.silent || self.ready != Some(ConditionStatus::True)
    }
}

/// What an assessment changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assessment {
    pub transition: Transition,
    /// Zones with another state than before.
    pub changed: Vec<ZoneKey>,
}

/// Whether all zones together entered or left full disruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    Unchanged,
    /// All zones are fully disrupted now.
    Entered,
    /// Not all zones are fully disrupted any more.
    Left,
}

impl Zones {
    pub fn new() -> Zones {
        Zones::default()
    }

    /// Observes a node that was added, updated or removed.
    pub fn observe(&mut self, change: &Change<Node>) {
        let name = &change.either().meta.name;
        let previous = self.remove(name);
        let Some(node) = &change.new else {
            let zone = previous.map(|member| member.zone);
            if let Some(zone) = zone.filter(|zone| self.zones.get(zone).is_some_and(|zone| zone.members == 0))
            {
                self.zones.remove(&zone);
            }
            return;
        };
        let member = Member {
            zone: ZoneKey::of(&node.meta.labels),
            counted: !node.meta.labels.contains_key(label::EXCLUDE_DISRUPTION),
            silent: previous.is_some_and(|member| member.silent),
            ready: node.condition(types::READY).map(|ready| ready.status),
        };
        self.add(name.clone(), member);
    }

    /// A node fell silent, or its silence ended, before its record says so.
    pub fn set_silent(&mut self, name: &Name, silent: bool) {
        let Some(member) = self.nodes.get_mut(name) else { return };
        let before = member.is_unhealthy();
        member.silent = silent;
        let after = member.is_unhealthy();
        if member.counted && before != after {
            let zone = self.zones.get_mut(&member.zone).expect("a member's zone exists");
            zone.unhealthy = if after { zone.unhealthy + 1 } else { zone.unhealthy - 1 };
        }
    }

    fn remove(&mut self, name: &Name) -> Option<Member> {
        let member = self.nodes.remove(name)?;
        let zone = self.zones.get_mut(&member.zone).expect("a member's zone exists");
        zone.members -= 1;
        if member.counted {
            zone.nodes -= 1;
            zone.unhealthy -= usize::from(member.is_unhealthy());
        } else {
            zone.excluded.remove(name);
        }
        Some(member)
    }

    fn add(&mut self, name: Name, member: Member) {
        let zone = self.zones.entry(member.zone.clone()).or_default();
        zone.members += 1;
        if member.counted {
            zone.nodes += 1;
            zone.unhealthy += usize::from(member.is_unhealthy());
        } else {
            zone.excluded.insert(name.clone());
        }
        self.nodes.insert(name, member);
    }

    /// Computes the state of every zone from its counts. `threshold` is the share of unhealthy nodes from which on a
    /// zone is partially disrupted.
    pub fn assess(&mut self, threshold: f32) -> Assessment {
        self.zones.retain(|_, zone| zone.members > 0);
        let counting = || self.zones.values().filter(|zone| zone.nodes > 0);
        let any_counts = counting().next().is_some();
        let assessed = |zone: &Zone| assess(zone.nodes, zone.unhealthy, threshold);
        let all_now = counting().all(|zone| assessed(zone) == ZoneState::FullDisruption);
        let all_before = counting().all(|zone| zone.state == ZoneState::FullDisruption);
        // Kubernetes compares only the states before: if the last healthy zone loses its nodes to a deletion, all zones
        // that remain were fully disrupted before, and it goes on tainting their nodes. Here that enters full
        // disruption.
        let transition = match (any_counts && all_now, self.full_disruption) {
            (true, false) => Transition::Entered,
            (true, true) if !all_before => Transition::Entered,
            (false, true) => Transition::Left,
            _ => Transition::Unchanged,
        };
        self.full_disruption = any_counts && all_now;
        let mut changed = Vec::new();
        for (key, zone) in &mut self.zones {
            let state = if zone.nodes > 0 { assessed(zone) } else { ZoneState::Initial };
            if std::mem::replace(&mut zone.state, state) != state {
                changed.push(key.clone());
            }
        }
        Assessment { transition, changed }
    }

    /// Whether every zone is fully disrupted. Then this controller is more likely cut off than the whole fleet down, so
    /// no node is tainted NoExecute and no pod evicted because of the health of its node.
    pub fn is_full_disruption(&self) -> bool {
        self.full_disruption
    }

    pub fn get(&self, key: &ZoneKey) -> Option<&Zone> {
        self.zones.get(key)
    }

    /// All zones, by region and zone.
    pub fn iter(&self) -> impl Iterator<Item = (&ZoneKey, &Zone)> {
        self.zones.iter()
    }

    /// A node's zone, and whether the node counts for the zone's state.
    pub fn zone_of(&self, name: &Name) -> Option<(&ZoneKey, bool)> {
        self.nodes.get(name).map(|member| (&member.zone, member.counted))
    }
}
