//! Pressure: whether the machine runs short of memory, disk, inodes or process ids.
//!
//! Thresholds come from flags (`thresholds`). Each observation is folded in with its time; from that follow the node's
//! pressure conditions, and the thresholds for which a pod has to be evicted (`eviction_ranking`). A condition lasts
//! longer than the threshold on purpose: it holds for the transition period, so that pods are not scheduled back onto a
//! node that has only just recovered.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use muster_proto::quantity::Quantity;
use muster_proto::time::Mono;

pub mod eviction_ranking;
#[cfg(test)]
mod tests;
mod thresholds;

pub use thresholds::{DEFAULT_HARD, FlagError, Flags, thresholds};

/// An eviction signal. The most urgent come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    MemoryAvailable,
    AllocatableMemoryAvailable,
    NodefsAvailable,
    NodefsInodesFree,
    ImagefsAvailable,
    ImagefsInodesFree,
    ContainerfsAvailable,
    ContainerfsInodesFree,
    PidAvailable,
}

/// The resource that a signal measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StarvedResource {
    Memory,
    Disk,
    Inodes,
    Pids,
}

/// Which pressure conditions of the node are True.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressureConditions {
    pub memory: bool,
    pub disk: bool,
    pub pid: bool,
}

/// An amount, or a percentage of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Quantity(Quantity),
    /// From 0 to 100.
    Percent(f64),
}

/// A level below which the node is under pressure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    /// The threshold is met below this amount.
    pub value: Amount,
    /// Of a soft threshold: how long it must be met before a pod is evicted. `None` is a hard threshold.
    pub grace: Option<Duration>,
    /// How far above the value the level must rise before the threshold is no longer met.
    pub min_reclaim: Option<Amount>,
}

/// How much of a resource is left, in bytes or units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub available: u64,
    pub capacity: u64,
}

/// The levels of all signals that could be read.
pub type Observation = BTreeMap<Signal, Level>;

/// The pressure after the observations so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PressureState {
    /// The node's pressure conditions.
    pub conditions: PressureConditions,
    /// Hard thresholds that are met, in the order of their signals.
    pub hard: Vec<Threshold>,
    /// Soft thresholds that have been met for their whole grace period.
    pub soft: Vec<Threshold>,
    /// When this state next changes without another observation.
    pub wake_at: Option<Mono>,
}

/// Folds observations into the pressure state.
#[derive(Clone, Debug)]
pub struct PressureTracker {
    thresholds: Vec<Threshold>,
    transition: Duration,
    /// Since when each threshold has been met without interruption.
    met_since: Vec<Option<Mono>>,
    /// When a threshold of each resource was last met.
    last_met: BTreeMap<StarvedResource, Mono>,
}

impl PressureTracker {
    /// No pressure yet. Conditions hold for `transition` after a threshold was last met.
    pub fn new(mut thresholds: Vec<Threshold>, transition: Duration) -> Self {
        thresholds.sort_by_key(|threshold| (threshold.signal, threshold.grace));
        let met_since = vec![None; thresholds.len()];
        Self { thresholds, transition, met_since, last_met: BTreeMap::new() }
    }

    /// Folds in the current levels. A level that could not be read counts as enough: no pod is evicted on a guess.
    pub fn observe(&mut self, observation: &Observation, now: Mono) {
        for (threshold, since) in self.thresholds.iter().zip(&mut self.met_since) {
            let level = observation.get(&threshold.signal);
            if level.is_some_and(|level| threshold.is_met(*level, since.is_some())) {
                since.get_or_insert(now);
                self.last_met.insert(threshold.signal.resource(), now);
            } else {
                *since = None;
            }
        }
    }

    /// The pressure state at that time.
    pub fn state(&self, now: Mono) -> PressureState {
        let mut state = PressureState::default();
        let mut wake_by = |at: Mono| {
            state.wake_at = Some(state.wake_at.map_or(at, |earlier| earlier.min(at)));
        };
        for (resource, seen) in &self.last_met {
            let until = *seen + self.transition;
            if now < until || self.is_met_now(*resource) {
                state.conditions.add(*resource);
                wake_by(until);
            }
        }
        for (threshold, since) in self.thresholds.iter().zip(&self.met_since) {
            match (since, threshold.grace) {
                (None, _) => {}
                (Some(_), None) => state.hard.push(*threshold),
                (Some(since), Some(grace)) if now >= *since + grace => state.soft.push(*threshold),
                (Some(since), Some(grace)) => wake_by(*since + grace),
            }
        }
        state.wake_at = state.wake_at.filter(|at| *at > now);
        state
    }

    fn is_met_now(&self, resource: StarvedResource) -> bool {
        let met = self.thresholds.iter().zip(&self.met_since).filter(|(_, since)| since.is_some());
        met.into_iter().any(|(threshold, _)| threshold.signal.resource() == resource)
    }
}

impl PressureState {
    /// The most urgent threshold that is met, and whether it is hard.
    pub fn first_met(&self) -> Option<(&Threshold, bool)> {
        let hard = self.hard.iter().map(|threshold| (threshold, true));
        let soft = self.soft.iter().map(|threshold| (threshold, false));
        hard.chain(soft).min_by_key(|(met, is_hard)| (met.signal, !is_hard))
    }

    /// The resource of the most urgent threshold.
    pub fn most_urgent(&self) -> Option<StarvedResource> {
        self.first_met().map(|(threshold, _)| threshold.signal.resource())
    }
}

impl Threshold {
    /// Whether the level is too low; a threshold that was met stays met until its minimum is reclaimed.
    fn is_met(&self, level: Level, was_met: bool) -> bool {
        let more = self.min_reclaim.filter(|_| was_met).map_or(0, |more| more.of(level.capacity));
        level.available < self.value.of(level.capacity).saturating_add(more)
    }
}

impl Amount {
    /// The amount for that capacity.
    pub fn of(&self, capacity: u64) -> u64 {
        match self {
            Self::Quantity(quantity) => u64::try_from(quantity.value()).unwrap_or(0),
            Self::Percent(percent) => (capacity as f64 * percent / 100.0) as u64,
        }
    }
}

impl Signal {
    pub const ALL: [Signal; 9] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodefsAvailable,
        Self::NodefsInodesFree,
        Self::ImagefsAvailable,
        Self::ImagefsInodesFree,
        Self::ContainerfsAvailable,
        Self::ContainerfsInodesFree,
        Self::PidAvailable,
    ];

    pub fn resource(self) -> StarvedResource {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => StarvedResource::Memory,
            Self::NodefsAvailable | Self::ImagefsAvailable | Self::ContainerfsAvailable => {
                StarvedResource::Disk
            }
            Self::NodefsInodesFree | Self::ImagefsInodesFree | Self::ContainerfsInodesFree => {
                StarvedResource::Inodes
            }
            Self::PidAvailable => StarvedResource::Pids,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodefsAvailable => "nodefs.available",
            Self::NodefsInodesFree => "nodefs.inodesFree",
            Self::ImagefsAvailable => "imagefs.available",
            Self::ImagefsInodesFree => "imagefs.inodesFree",
            Self::ContainerfsAvailable => "containerfs.available",
            Self::ContainerfsInodesFree => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }
}

impl PressureConditions {
    fn add(&mut self, resource: StarvedResource) {
        match resource {
            StarvedResource::Memory => self.memory = true,
            StarvedResource::Disk | StarvedResource::Inodes => self.disk = true,
            StarvedResource::Pids => self.pid = true,
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for StarvedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Memory => "memory",
            Self::Disk => "disk space",
            Self::Inodes => "inodes",
            Self::Pids => "process ids",
        })
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quantity(quantity) => quantity.fmt(f),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}<{}", self.signal, self.value)
    }
}
