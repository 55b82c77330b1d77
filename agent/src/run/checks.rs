//! What is checked before anything starts: thresholds, swap, NUMA nodes and reservations.

use muster_agent_core::pressure::{self, Amount, FlagError, Signal, Threshold};
use muster_agent_core::status::Observed;
use muster_agent_core::status::capacity::{self, EvictionReserve, Share};
use muster_proto::quantity::{Quantity, Resources};

use super::RunError;
use crate::config::{CapacityConfig, Config};
use crate::machine::{Hardware, Machine};

/// The eviction thresholds that the flags set.
pub(super) fn thresholds(config: &Config) -> Result<Vec<Threshold>, FlagError> {
    let eviction = &config.eviction;
    let joined = |parts: &[String]| parts.join(",");
    let (hard, soft) = (joined(&eviction.hard), joined(&eviction.soft));
    let (soft_grace, min_reclaim) = (joined(&eviction.soft_grace_period), joined(&eviction.minimum_reclaim));
    pressure::thresholds(&pressure::Flags {
        // The flag has the default, so an empty value means no hard thresholds.
        hard: Some(hard.as_str()),
        soft: &soft,
        soft_grace: &soft_grace,
        min_reclaim: &min_reclaim,
    })
}

/// The machine's hardware, if its swap and its NUMA nodes fit the settings.
pub(super) fn hardware(config: &Config, machine: &dyn Machine) -> Result<Hardware, RunError> {
    let hardware = machine.hardware()?;
    config.swap.check(hardware.swap_bytes)?;
    config.topology.policy.check_start(usize::try_from(hardware.numa_nodes).unwrap_or(usize::MAX))?;
    Ok(hardware)
}

/// Refuses reservations that exceed what the machine has.
pub(super) fn reservations(
    config: &Config,
    machine: &dyn Machine,
    hardware: &Hardware,
    reserve: &EvictionReserve,
) -> Result<(), RunError> {
    let storage = machine.filesystem(&config.state_dir)?;
    let observed = Observed {
        hardware: Some(hardware.clone()),
        storage_bytes: Some(storage.capacity_bytes),
        ..Observed::default()
    };
    let has = capacity::capacity(&Resources::default(), &config.capacity, &observed);
    let max_pids = machine.pids().ok().map(|pids| pids.max);
    Ok(capacity::check_reservations(&has, max_pids, &config.capacity, reserve)?)
}

/// What the hard thresholds keep back from pods.
pub(super) fn eviction_reserve(thresholds: &[Threshold]) -> EvictionReserve {
    let share = |signal: Signal| {
        let hard =
            thresholds.iter().find(|threshold| threshold.signal == signal && threshold.grace.is_none())?;
        Some(match hard.value {
            Amount::Quantity(amount) => Share::Amount(amount),
            Amount::Percent(percent) => Share::Fraction(percent / 100.0),
        })
    };
    EvictionReserve { memory: share(Signal::MemoryAvailable), storage: share(Signal::NodefsAvailable) }
}

/// Bytes of memory that are reserved for processes that are not pods.
pub(super) fn reserved_memory(capacity: &CapacityConfig) -> u64 {
    let of = |held: &Resources| held.get(capacity::MEMORY).map_or(0, Quantity::value);
    let held = of(&capacity.system_reserved).saturating_add(of(&capacity.kube_reserved));
    u64::try_from(held).unwrap_or(0)
}
