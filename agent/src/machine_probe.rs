//! One look at the machine, for one status.
//!
//! A look blocks on the kernel, and on the resolver where the node's address depends on it. Neither is waited for
//! long: whoever reports the machine also renews its lease, and a resolver that is away says nothing about the machine.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_agent_core::status::{Observed, Settings, addresses};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::machine::{Machine, System};

/// How long a status waits for the machine, or for the resolver. One that is late is asked no second time before it
/// answers.
const WAIT: Duration = Duration::from_secs(1);

/// What one look gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineReading {
    /// The machine's part of what is observed; the rest is empty.
    pub observed: Observed,
    /// What could not be read, for the log.
    pub problems: Vec<String>,
}

/// Looks at the machine again and again, and knows the last answer of what is late.
pub struct MachineProbe {
    machine: Arc<dyn Machine>,
    settings: Settings,
    system: System,
    storage: PathBuf,
    kernel: Question<MachineReading>,
    resolver: Question<Vec<IpAddr>>,
}

impl MachineProbe {
    /// `storage` is a path on the filesystem that pods write to; `system` was read at the start and does not change.
    pub fn new(
        machine: Arc<dyn Machine>,
        settings: Settings,
        system: System,
        storage: PathBuf,
    ) -> MachineProbe {
        let (kernel, resolver) = (Question::default(), Question::default());
        MachineProbe { machine, settings, system, storage, kernel, resolver }
    }

    pub async fn look(&self) -> MachineReading {
        let (machine, system, storage) =
            (Arc::clone(&self.machine), self.system.clone(), self.storage.clone());
        let looking = self.kernel.ask(move || survey(&*machine, &system, &storage));
        let (looked, named) = tokio::join!(looking, self.look_up());
        let mut survey = looked.answer.unwrap_or_default();
        if looked.is_late {
            survey.problems.push("the machine does not answer; what it last said still counts".to_owned());
        }
        if named.is_late {
            survey.problems.push("no resolver answers; the addresses it last gave still count".to_owned());
        }
        survey.observed.lookup = named.answer.unwrap_or_default();
        survey
    }

    async fn look_up(&self) -> Answer<Vec<IpAddr>> {
        if !addresses::needs_lookup(&self.settings) {
            return Answer { answer: None, is_late: false };
        }
        let (machine, name) = (Arc::clone(&self.machine), self.settings.name.clone());
        // A name that no resolver knows is common and no problem: the default route serves.
        self.resolver.ask(move || machine.lookup(name.as_str()).unwrap_or_default()).await
    }
}

/// Something that is asked off the async threads, and may be late.
struct Question<T> {
    state: Arc<Mutex<Asked<T>>>,
}

struct Asked<T> {
    last: Option<T>,
    is_open: bool,
}

struct Answer<T> {
    /// The newest there is.
    answer: Option<T>,
    is_late: bool,
}

impl<T> Default for Question<T> {
    fn default() -> Self {
        Question { state: Arc::new(Mutex::new(Asked { last: None, is_open: false })) }
    }
}

impl<T: Clone + Send + 'static> Question<T> {
    async fn ask(&self, look: impl FnOnce() -> T + Send + 'static) -> Answer<T> {
        let was_open = std::mem::replace(&mut lock(&self.state).is_open, true);
        if !was_open {
            let state = Arc::clone(&self.state);
            let asking = spawn_blocking(move || {
                let last = Some(look());
                *lock(&state) = Asked { last, is_open: false };
            });
            // Too late is told by the question being open still.
            let _ = timeout(WAIT, asking).await;
        }
        let asked = lock(&self.state);
        Answer { answer: asked.last.clone(), is_late: asked.is_open }
    }
}

fn lock<T>(state: &Mutex<Asked<T>>) -> std::sync::MutexGuard<'_, Asked<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at the machine, but for its name's addresses.
fn survey(machine: &dyn Machine, system: &System, storage: &Path) -> MachineReading {
    let mut problems = Vec::new();
    let mut noted = |what: &str, error: &dyn std::error::Error| problems.push(format!("{what}: {error}"));
    let hardware = machine.hardware().map_err(|error| noted("the machine's hardware", &error)).ok();
    let storage = machine.filesystem(storage).map_err(|error| noted("the filesystem of pods", &error)).ok();
    let network = machine.network().map_err(|error| noted("the machine's interfaces", &error)).ok();
    let observed = Observed {
        system: system.clone(),
        hardware,
        storage_bytes: storage.map(|storage| storage.capacity_bytes),
        network,
        ..Observed::default()
    };
    MachineReading { observed, problems }
}

#[cfg(test)]
mod tests;
