//! The pressure monitor: observes how much memory, disk and process ids are left, and shares the pressure state.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_agent_core::pressure::{Level, Observation, PressureTracker, Signal, Threshold};
use muster_rpc::clock::SharedClock;
use muster_rpc::shutdown::Shutdown;
use tokio::time::sleep;

use crate::machine::Machine;
use crate::runtime::Runtime;
use crate::shared_state::SharedState;

/// How often the machine is observed; the kubelet's interval.
const INTERVAL: Duration = Duration::from_secs(10);

/// What the loop works with.
pub struct PressureMonitor {
    pub machine: Arc<dyn Machine>,
    pub runtime: Arc<dyn Runtime>,
    /// Bytes of memory that are reserved, and not for pods.
    pub reserved_memory: u64,
    pub storage: PathBuf,
    pub thresholds: Vec<Threshold>,
    pub transition: Duration,
    pub shared: Arc<SharedState>,
    pub clock: SharedClock,
    pub shutdown: Shutdown,
}

impl PressureMonitor {
    /// Runs until the agent stops.
    pub async fn run(self) {
        let mut pressure = PressureTracker::new(self.thresholds.clone(), self.transition);
        // The usage of all pods is summed only if a threshold needs it.
        let sums_pods =
            self.thresholds.iter().any(|threshold| threshold.signal == Signal::AllocatableMemoryAvailable);
        loop {
            let (machine, storage) = (Arc::clone(&self.machine), self.storage.clone());
            let (runtime, reserved) = (Arc::clone(&self.runtime), self.reserved_memory);
            let observing = tokio::task::spawn_blocking(move || {
                let mut observation = observe(&*machine, &storage);
                if sums_pods && let Some(memory) = observation.get(&Signal::MemoryAvailable) {
                    let of_pods = memory_of_pods(&*runtime, memory.capacity.saturating_sub(reserved));
                    observation.insert(Signal::AllocatableMemoryAvailable, of_pods);
                }
                observation
            });
            if let Ok(observation) = observing.await {
                let now = self.clock.mono();
                pressure.observe(&observation, now);
                self.shared.set_pressure(pressure.state(now));
            }
            tokio::select! {
                () = self.shutdown.requested() => return,
                () = sleep(INTERVAL) => {}
            }
        }
    }
}

/// How much is left of the memory that is allocatable to pods.
fn memory_of_pods(runtime: &dyn Runtime, capacity: u64) -> Level {
    let used = runtime.usages().values().fold(0, |sum: u64, usage| sum.saturating_add(usage.memory_bytes));
    Level { available: capacity.saturating_sub(used), capacity }
}

/// The level of every signal that can be read. Pods, images and containers share one filesystem here.
fn observe(machine: &dyn Machine, storage: &std::path::Path) -> Observation {
    let mut observation = Observation::new();
    if let (Ok(hardware), Ok(available)) = (machine.hardware(), machine.memory_available()) {
        observation.insert(Signal::MemoryAvailable, Level { available, capacity: hardware.memory_bytes });
    }
    if let Ok(disk) = machine.filesystem(storage) {
        let bytes = Level { available: disk.available_bytes, capacity: disk.capacity_bytes };
        let inodes = Level { available: disk.inodes_free, capacity: disk.inodes };
        for signal in [Signal::NodefsAvailable, Signal::ImagefsAvailable, Signal::ContainerfsAvailable] {
            observation.insert(signal, bytes);
        }
        for signal in [Signal::NodefsInodesFree, Signal::ImagefsInodesFree, Signal::ContainerfsInodesFree] {
            observation.insert(signal, inodes);
        }
    }
    if let Ok(pids) = machine.pids() {
        let available = pids.max.saturating_sub(pids.used);
        observation.insert(Signal::PidAvailable, Level { available, capacity: pids.max });
    }
    observation
}
