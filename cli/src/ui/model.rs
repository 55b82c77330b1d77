//! The nodes as the page draws them: a fold of the store's changes and renewals into tiles, and of tiles into what
//! changed since the pages last heard. Pure.
//!
//! A node has a number for as long as it exists, so that a change is two small numbers. A renewal only notes its time:
//! the ordered set of deadlines has one entry per node, which moves on when it comes up. So the cost follows changes
//! and renewals, not the size of the fleet.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::time::Mono;
use muster_proto::watch_event::WatchEvent;

use super::tile::{Place, RecordState, Renewal, TileState, TraceId};

/// A node's number.
pub(super) type TileId = u32;

/// The nodes of the store, and what the pages know of them.
#[derive(Debug, Default)]
pub(super) struct FleetModel {
    tiles: Vec<Tile>,
    by_name: HashMap<Arc<str>, TileId>,
    /// Numbers that are in no use.
    free: Vec<TileId>,
    /// The nodes that the pages know, in the order in which they are drawn.
    drawn: BTreeMap<Place, TileId>,
    /// When a node's renewals are late, unless it has renewed since. At most one entry per node.
    deadlines: BTreeSet<(Mono, TileId)>,
    /// Nodes that may be drawn differently now.
    changed: BTreeSet<TileId>,
    /// Nodes that have renewed their lease since the last changes were taken.
    renewed: BTreeSet<TileId>,
    nodes_synced: bool,
    leases: LeaseWatch,
}

/// The watch of leases.
#[derive(Debug, Default)]
struct LeaseWatch {
    is_synced: bool,
    /// For how long the last renewal is valid. A fleet has one setting of it.
    valid: Duration,
    /// Nodes with an [`Tile::undated`] renewal.
    undated: Vec<TileId>,
}

#[derive(Debug, Default)]
struct Tile {
    name: Arc<str>,
    record: Option<RecordState>,
    renewal: Option<SeenRenewal>,
    /// A renewal that came before the watch was synced, so that its age is not known yet.
    undated: Option<Renewal>,
    /// The entry in the deadlines.
    deadline: Option<Mono>,
    is_late: bool,
    /// The trace of the write that gave the record its present state.
    trace: Option<TraceId>,
    /// As the pages know it.
    drawn: Option<(Arc<str>, TileState)>,
}

/// A renewal by our own clock.
#[derive(Clone, Copy, Debug)]
struct SeenRenewal {
    at: Mono,
    valid: Duration,
}

impl SeenRenewal {
    /// An agent renews its lease four times while it is valid, so half of the time means missed renewals: `muster top`
    /// and `muster fleet` count in the same way.
    fn late_at(self) -> Mono {
        self.at + self.valid / 2
    }
}

/// A node as the pages are to draw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DrawnNode {
    pub(super) id: TileId,
    pub(super) zone: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) state: TileState,
    /// How long the last renewal is ago, if there was one.
    pub(super) silence: Option<Duration>,
}

/// What the pages do not know yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// In order of their zones and names.
    pub(super) added: Vec<DrawnNode>,
    pub(super) states: Vec<(TileId, TileState)>,
    pub(super) removed: Vec<TileId>,
    /// Nodes that have renewed.
    pub(super) renewed: Vec<TileId>,
    /// Nodes that have become late, with their silence.
    pub(super) silent: Vec<(TileId, Duration)>,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        *self == Changes::default()
    }
}

impl FleetModel {
    /// Takes in an event of the watch of nodes.
    pub(super) fn observe_node(&mut self, event: WatchEvent<Node>) {
        match event {
            WatchEvent::Applied { record } => {
                let id = self.id(record.meta.name.as_str());
                let (tile, next) = (&mut self.tiles[id as usize], RecordState::of(&record));
                if tile.record.as_ref().is_none_or(|before| before.state != next.state) {
                    tile.trace = next.trace;
                }
                tile.record = Some(next);
                self.changed.insert(id);
            }
            WatchEvent::Gone { key, .. } => {
                if let Some(&id) = self.by_name.get(key.name.as_str()) {
                    self.tiles[id as usize].record = None;
                    self.changed.insert(id);
                }
            }
            WatchEvent::Synced { .. } => self.nodes_synced = true,
            WatchEvent::Lost(_) => {}
        }
    }

    /// Takes in an event of the watch of node leases, which was received at `now`.
    pub(super) fn observe_lease(&mut self, event: WatchEvent<Lease>, now: Mono) {
        match event {
            WatchEvent::Applied { record } => {
                let Some(renewal) = Renewal::of(&record) else { return };
                let id = self.id(record.meta.name.as_str());
                if self.leases.is_synced {
                    self.renew(id, now, renewal);
                } else {
                    self.tiles[id as usize].undated = Some(renewal);
                    self.leases.undated.push(id);
                }
            }
            WatchEvent::Gone { key, .. } => {
                if let Some(&id) = self.by_name.get(key.name.as_str()) {
                    let tile = &mut self.tiles[id as usize];
                    (tile.renewal, tile.undated, tile.is_late) = (None, None, false);
                    self.changed.insert(id);
                }
            }
            WatchEvent::Synced { .. } if !self.leases.is_synced => self.leases_synced(now),
            WatchEvent::Synced { .. } => {}
            // Silence of our own reading is not a missed renewal: nobody is judged until the watch is back.
            WatchEvent::Lost(_) => self.leases.is_synced = false,
        }
    }

    /// The renewals of a list are of unknown age, because the store's clock is not ours. The newest of them is taken as
    /// just now; in a fleet there is always one that is.
    fn leases_synced(&mut self, now: Mono) {
        self.leases.is_synced = true;
        let ids = std::mem::take(&mut self.leases.undated);
        let undated = ids.into_iter().filter_map(|id| Some((id, self.tiles[id as usize].undated.take()?)));
        let undated: Vec<(TileId, Renewal)> = undated.collect();
        let newest = undated.iter().map(|(_, renewal)| renewal.at).max();
        for (id, renewal) in undated {
            let age = newest.map_or(Duration::ZERO, |newest| age(renewal.at, newest));
            self.renew(id, now - age, renewal);
        }
    }

    fn renew(&mut self, id: TileId, at: Mono, renewal: Renewal) {
        let tile = &mut self.tiles[id as usize];
        let seen = SeenRenewal { at, valid: Duration::from_secs(renewal.valid_seconds.into()) };
        tile.renewal = Some(seen);
        self.leases.valid = seen.valid;
        self.renewed.insert(id);
        if std::mem::take(&mut tile.is_late) {
            self.changed.insert(id);
        }
        // An entry that comes too early moves on when it comes up.
        if tile.deadline.is_none() {
            tile.deadline = Some(seen.late_at());
            self.deadlines.insert((seen.late_at(), id));
        }
    }

    /// Finds the nodes whose renewals are late by now.
    pub(super) fn advance(&mut self, now: Mono) {
        while self.leases.is_synced
            && let Some(&(at, id)) = self.deadlines.first()
            && at <= now
        {
            self.deadlines.pop_first();
            let tile = &mut self.tiles[id as usize];
            tile.deadline = None;
            match tile.renewal.map(SeenRenewal::late_at) {
                Some(later) if later > now => {
                    tile.deadline = Some(later);
                    self.deadlines.insert((later, id));
                }
                Some(_) => {
                    tile.is_late = true;
                    self.changed.insert(id);
                }
                None => {}
            }
        }
    }

    /// What has changed since the last call: from now on the pages know it.
    pub(super) fn take_changes(&mut self, now: Mono) -> Changes {
        let mut changes = Changes::default();
        for id in std::mem::take(&mut self.changed) {
            self.draw(id, now, &mut changes);
        }
        changes.added.sort_by_cached_key(place);
        let renewed = std::mem::take(&mut self.renewed);
        changes.renewed = renewed.into_iter().filter(|id| self.tiles[*id as usize].drawn.is_some()).collect();
        changes
    }

    fn draw(&mut self, id: TileId, now: Mono, changes: &mut Changes) {
        let tile = &mut self.tiles[id as usize];
        let next = tile.record.as_ref().map(|record| (Arc::<str>::from(record.zone.as_str()), tile.state()));
        let before = std::mem::replace(&mut tile.drawn, next.clone());
        let name = Arc::clone(&tile.name);
        let silence = tile.renewal.map(|renewal| now - renewal.at);
        match (before, next) {
            (Some((zone, before)), Some((next_zone, state))) if zone == next_zone => {
                if before != state {
                    changes.states.push((id, state));
                    changes.silent.extend(silence.filter(|_| state == TileState::Late).map(|it| (id, it)));
                }
            }
            (before, next) => {
                if let Some((zone, _)) = before {
                    self.drawn.remove(&Place { zone, name: Arc::clone(&name) });
                    changes.removed.push(id);
                }
                if let Some((zone, state)) = next {
                    self.drawn.insert(Place { zone: Arc::clone(&zone), name: Arc::clone(&name) }, id);
                    changes.added.push(DrawnNode { id, zone, name, state, silence });
                }
            }
        }
        self.free_if_unused(id);
    }

    /// The nodes that the pages know, in the order in which they are drawn.
    pub(super) fn drawn(&self, now: Mono) -> impl Iterator<Item = DrawnNode> {
        self.drawn.iter().map(move |(place, &id)| {
            let tile = &self.tiles[id as usize];
            let state = tile.drawn.as_ref().map_or(TileState::New, |(_, state)| *state);
            let silence = tile.renewal.map(|renewal| now - renewal.at);
            DrawnNode { id, zone: Arc::clone(&place.zone), name: Arc::clone(&place.name), state, silence }
        })
    }

    /// For how long a renewal is valid; zero if there was none.
    pub(super) fn lease(&self) -> Duration {
        self.leases.valid
    }

    /// Whether the nodes of the store have been read.
    pub(super) fn is_synced(&self) -> bool {
        self.nodes_synced
    }

    /// The trace of the write that gave a node its present state, if it was recorded in one.
    pub(super) fn trace(&self, name: &str) -> Option<TraceId> {
        self.tiles[*self.by_name.get(name)? as usize].trace
    }

    /// The number of the node with that name, a new one if it has none.
    fn id(&mut self, name: &str) -> TileId {
        if let Some(&id) = self.by_name.get(name) {
            return id;
        }
        let name: Arc<str> = name.into();
        let tile = Tile { name: Arc::clone(&name), ..Tile::default() };
        let id = self.free.pop().unwrap_or_else(|| {
            self.tiles.push(Tile::default());
            TileId::try_from(self.tiles.len() - 1).expect("fewer nodes than numbers")
        });
        self.tiles[id as usize] = tile;
        self.by_name.insert(name, id);
        id
    }

    /// Frees the number of a node that has neither a record nor a lease. Only after the pages know that it is gone.
    fn free_if_unused(&mut self, id: TileId) {
        let tile = &self.tiles[id as usize];
        if tile.record.is_some() || tile.renewal.is_some() || tile.undated.is_some() {
            return;
        }
        if let Some(at) = tile.deadline {
            self.deadlines.remove(&(at, id));
        }
        self.renewed.remove(&id);
        self.by_name.remove(&tile.name);
        self.tiles[id as usize] = Tile::default();
        self.free.push(id);
    }
}

impl Tile {
    fn state(&self) -> TileState {
        let late = if self.is_late { TileState::Late } else { TileState::Ready };
        self.record.as_ref().map_or(TileState::New, |record| record.state.max(late))
    }
}

fn place(node: &DrawnNode) -> Place {
    Place { zone: Arc::clone(&node.zone), name: Arc::clone(&node.name) }
}

/// How much earlier a moment is than another.
fn age(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
