//! Whether the runtime works: when it last answered, and the error it answered with.

use std::sync::Arc;

use muster_agent_core::status::ready::runtime_errors;
use muster_proto::time::Mono;
use muster_rpc::clock::SharedClock;

use crate::blocking_probe::BlockingProbe;
use crate::runtime::Runtime;

/// Probes the runtime for the Ready condition.
pub struct RuntimeProbe {
    runtime: Arc<dyn Runtime>,
    clock: SharedClock,
    probe: BlockingProbe<Probed>,
}

#[derive(Clone)]
struct Probed {
    at: Mono,
    error: Option<String>,
}

impl RuntimeProbe {
    pub fn new(runtime: Arc<dyn Runtime>, clock: SharedClock) -> RuntimeProbe {
        RuntimeProbe { runtime, clock, probe: BlockingProbe::default() }
    }

    /// What is wrong with the runtime, as the Ready condition words it.
    pub async fn errors(&self) -> Vec<String> {
        let (runtime, clock) = (Arc::clone(&self.runtime), Arc::clone(&self.clock));
        let question = move || {
            let error = runtime.probe().err().map(|error| error.to_string());
            Probed { at: clock.mono(), error }
        };
        // A late answer shows in the age of the last one.
        let (at, error) = self.probe.ask(question).await.last.map(|last| (last.at, last.error)).unzip();
        runtime_errors(at, error.flatten().as_slice(), self.clock.mono())
    }
}
