//! The runtime's runtime_probe: when it last answered, and what it complained of.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_agent_core::status::ready::runtime_errors;
use muster_proto::time::Mono;
use muster_rpc::clock::SharedClock;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::runtime::Runtime;

/// How long a status waits for the runtime. One that is late is asked no second time before it answers.
const WAIT: Duration = Duration::from_secs(1);

/// Asks the runtime how it is.
pub struct RuntimeProbe {
    runtime: Arc<dyn Runtime>,
    clock: SharedClock,
    last: Arc<Mutex<Last>>,
}

#[derive(Default)]
struct Last {
    heard: Option<Mono>,
    complaint: Option<String>,
    is_asked: bool,
}

impl RuntimeProbe {
    pub fn new(runtime: Arc<dyn Runtime>, clock: SharedClock) -> RuntimeProbe {
        RuntimeProbe { runtime, clock, last: Arc::default() }
    }

    /// What is wrong with the runtime, in the words of the Ready condition.
    pub async fn errors(&self) -> Vec<String> {
        let was_asked = std::mem::replace(&mut self.last().is_asked, true);
        if !was_asked {
            let (runtime, clock, last) =
                (Arc::clone(&self.runtime), Arc::clone(&self.clock), Arc::clone(&self.last));
            let asking = spawn_blocking(move || {
                let complaint = runtime.probe().err().map(|error| error.to_string());
                let heard = Some(clock.mono());
                *last.lock().unwrap_or_else(PoisonError::into_inner) =
                    Last { heard, complaint, is_asked: false };
            });
            // Too late is told by when it was last heard.
            let _ = timeout(WAIT, asking).await;
        }
        let last = self.last();
        runtime_errors(last.heard, last.complaint.as_slice(), self.clock.mono())
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
