//! What the machine has, and how much of it pods may use.

use muster_proto::quantity::{Quantity, Resources};

use super::{Devices, Observed};
use crate::config::CapacityConfig;

/// The names of resources.
pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const PODS: &str = "pods";
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub const PID: &str = "pid";
/// `hugepages-<size>`, such as `hugepages-2Mi`.
pub const HUGE_PAGES_PREFIX: &str = "hugepages-";

/// An amount of a resource, absolute or as a fraction of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    Amount(Quantity),
    /// 0.1 is a tenth.
    Fraction(f64),
}

/// What hard thresholds keep back: a pod that used it would only be evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EvictionReserve {
    /// From the threshold of `memory.available`.
    pub memory: Option<Share>,
    /// From the threshold of `nodefs.available`.
    pub storage: Option<Share>,
}

/// More is reserved than the machine has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{reserved} of {resource} is reserved by --system-reserved, --kube-reserved and --eviction-hard together, \
     but the machine has {capacity}"
)]
pub struct Overreserved {
    pub resource: String,
    pub reserved: Quantity,
    pub capacity: Quantity,
}

impl Share {
    fn of(&self, capacity: &Quantity) -> Quantity {
        match *self {
            Share::Amount(amount) => amount,
            // A float is exact up to 8 PiB of bytes, and fractions of a byte do not matter.
            Share::Fraction(fraction) => Quantity::bytes((capacity.value() as f64 * fraction) as i64),
        }
    }
}

/// What the machine has. `previous` has the resources that others listed.
pub fn capacity(previous: &Resources, config: &CapacityConfig, observed: &Observed) -> Resources {
    let mut capacity = previous.clone();
    capacity.retain(|name, _| !name.starts_with(HUGE_PAGES_PREFIX));
    let max_pods = i64::from(config.max_pods);
    let (cpu, memory, pods) = match &observed.hardware {
        Some(hardware) => {
            let per_core = i64::from(hardware.cores) * i64::from(config.pods_per_core);
            let pods = if config.pods_per_core == 0 { max_pods } else { per_core.min(max_pods) };
            (Quantity::from_milli(i64::from(hardware.cores) * 1000), bytes(hardware.memory_bytes), pods)
        }
        None => (Quantity::ZERO, Quantity::ZERO, max_pods),
    };
    capacity.insert(CPU.to_owned(), cpu);
    capacity.insert(MEMORY.to_owned(), memory);
    capacity.insert(PODS.to_owned(), Quantity::whole(pods));
    if let Some(storage) = observed.storage_bytes {
        capacity.insert(EPHEMERAL_STORAGE.to_owned(), bytes(storage));
    }
    for pages in observed.hardware.iter().flat_map(|hardware| &hardware.huge_pages) {
        capacity.insert(format!("{HUGE_PAGES_PREFIX}{}", bytes(pages.page_bytes)), bytes(pages.bytes()));
    }
    for name in &observed.devices.removed {
        capacity.insert(name.clone(), Quantity::ZERO);
    }
    capacity.extend(observed.devices.capacity.iter().map(|(name, amount)| (name.clone(), *amount)));
    capacity
}

/// How much of the capacity pods may use: never more than the capacity, and never less than 0.
pub fn allocatable(
    capacity: &Resources,
    config: &CapacityConfig,
    reserve: &EvictionReserve,
    devices: &Devices,
) -> Resources {
    let reserved = reserved(capacity, config, reserve);
    let mut allocatable: Resources = capacity
        .iter()
        .map(|(name, amount)| (name.clone(), reserved.get(name).map_or(*amount, |held| less(amount, held))))
        .collect();
    // Huge pages are memory that a pod cannot get as plain memory.
    if let Some(mut memory) = allocatable.get(MEMORY).copied() {
        for (_, pages) in capacity.iter().filter(|(name, _)| name.starts_with(HUGE_PAGES_PREFIX)) {
            memory = less(&memory, pages);
        }
        allocatable.insert(MEMORY.to_owned(), memory);
    }
    for (name, amount) in &devices.allocatable {
        if capacity.contains_key(name) {
            allocatable.insert(name.clone(), *amount);
        }
    }
    allocatable
}

/// Refuses reservations above the capacity. `max_pids` is the capacity of process ids, which a node does not report;
/// `None` if it cannot be read.
pub fn check_reservations(
    capacity: &Resources,
    max_pids: Option<u64>,
    config: &CapacityConfig,
    reserve: &EvictionReserve,
) -> Result<(), Overreserved> {
    let pids = max_pids.map(|max| Quantity::whole(i64::try_from(max).unwrap_or(i64::MAX)));
    for (resource, held) in reserved(capacity, config, reserve) {
        let has = if resource == PID { pids.as_ref() } else { capacity.get(&resource) };
        if let Some(has) = has.filter(|has| held > **has) {
            return Err(Overreserved { resource, reserved: held, capacity: *has });
        }
    }
    Ok(())
}

/// Everything that is kept back, by resource.
fn reserved(capacity: &Resources, config: &CapacityConfig, reserve: &EvictionReserve) -> Resources {
    let mut reserved = config.system_reserved.clone();
    let mut hold = |name: &str, amount: Quantity| {
        let held = reserved.entry(name.to_owned()).or_default();
        // A sum that overflows keeps back the larger of the two.
        *held = held.add(&amount).unwrap_or((*held).max(amount));
    };
    for (name, amount) in &config.kube_reserved {
        hold(name, *amount);
    }
    for (name, share) in [(MEMORY, reserve.memory), (EPHEMERAL_STORAGE, reserve.storage)] {
        if let Some((share, has)) = share.zip(capacity.get(name)) {
            hold(name, share.of(has));
        }
    }
    reserved
}

fn less(amount: &Quantity, held: &Quantity) -> Quantity {
    amount.sub(held).ok().filter(|left| !left.is_negative()).unwrap_or(Quantity::ZERO)
}

fn bytes(count: u64) -> Quantity {
    Quantity::bytes(i64::try_from(count).unwrap_or(i64::MAX))
}
