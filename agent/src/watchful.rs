//! The pressure loop: looks at what the machine has left and tells the board.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_rpc::clock::SharedClock;
use muster_rpc::shutdown::Shutdown;
use tokio::time::sleep;

use crate::board::Board;
use crate::machine::Machine;
use crate::pressure::{Level, Observation, Pressure, Signal, Threshold};

/// How often the machine is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What the loop works with.
pub struct Watchful {
    pub machine: Arc<dyn Machine>,
    pub storage: PathBuf,
    pub thresholds: Vec<Threshold>,
    pub transition: Duration,
    pub board: Arc<Board>,
    pub clock: SharedClock,
    pub shutdown: Shutdown,
}

impl Watchful {
    /// Runs until the shutdown is asked for.
    pub async fn run(self) {
        let mut pressure = Pressure::new(self.thresholds.clone(), self.transition);
        loop {
            let (machine, storage) = (Arc::clone(&self.machine), self.storage.clone());
            if let Ok(observation) = tokio::task::spawn_blocking(move || look(&*machine, &storage)).await {
                let now = self.clock.mono();
                pressure.observe(&observation, now);
                self.board.see_standing(pressure.standing(now));
            }
            tokio::select! {
                () = self.shutdown.requested() => return,
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }
}

/// What is left of each thing that can be read; pods and images share one filesystem
/// with everything else here.
fn look(machine: &dyn Machine, storage: &std::path::Path) -> Observation {
    let mut observation = Observation::new();
    if let (Ok(hardware), Ok(available)) = (machine.hardware(), machine.memory_available()) {
        observation.insert(Signal::MemoryAvailable, Level { available, capacity: hardware.memory_bytes });
    }
    if let Ok(disk) = machine.filesystem(storage) {
        let bytes = Level { available: disk.available_bytes, capacity: disk.capacity_bytes };
        let inodes = Level { available: disk.inodes_free, capacity: disk.inodes };
        observation.insert(Signal::NodefsAvailable, bytes);
        observation.insert(Signal::ImagefsAvailable, bytes);
        observation.insert(Signal::NodefsInodesFree, inodes);
        observation.insert(Signal::ImagefsInodesFree, inodes);
    }
    if let Ok(pids) = machine.pids() {
        let available = pids.max.saturating_sub(pids.used);
        observation.insert(Signal::PidAvailable, Level { available, capacity: pids.max });
    }
    observation
}
