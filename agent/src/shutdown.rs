//! The shutdown of the agent, and of the machine.
//!
//! An agent that is only replaced stops at once and leaves its containers running. When the machine shuts down, the
//! agent first posts that the node is not ready and then stops the pods in order. A shutdown by signal ends the agent
//! too; one that was announced through `BeginShutdown` may be cancelled, so the agent keeps running.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use muster_agent_core::pod_lifecycle::PodStates;
use muster_agent_core::shutdown_order::{LAST_STATUS_WITHIN, NodeShutdown, Schedule};
use muster_rpc::clock::SharedClock;
use muster_rpc::shutdown::Shutdown;
use tokio::sync::watch;

use crate::config::ShutdownConfig;

/// How much longer than its schedule a shutdown may take before the process ends anyway.
const SLACK: Duration = Duration::from_secs(10);

/// How far the machine's shutdown is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShutdownState {
    /// When the shutdown began; `None` while the machine stays up.
    pub since: Option<Timestamp>,
    /// Whether the agent ends with it.
    pub ends_agent: bool,
    /// Whether the store has the status that says so.
    pub is_posted: bool,
}

/// Why a shutdown cannot be begun or cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShutdownError {
    #[error(
        "shutdowns of this machine are not graceful: start its agent with --shutdown-grace-period or \
         --shutdown-grace-period-by-pod-priority"
    )]
    NotGraceful,
    #[error("a signal told the agent to stop, which cannot be cancelled")]
    Signalled,
}

/// The state of the shutdown, and what may change it. Clones share it.
#[derive(Clone, Debug)]
pub struct MachineShutdown {
    /// The process was told to end.
    requested: Shutdown,
    /// Nothing is left to do: the loops end.
    stop: Shutdown,
    /// `None`: pods are never stopped by a shutdown.
    schedule: Option<Arc<Schedule>>,
    /// Whether a signal to the process means that the machine shuts down.
    is_by_signal: bool,
    state: watch::Sender<ShutdownState>,
}

impl MachineShutdown {
    pub fn new(requested: Shutdown, config: &ShutdownConfig) -> MachineShutdown {
        let schedule = Schedule::new(config.grace_period, config.critical_pods, &config.by_pod_priority);
        let schedule = Some(schedule).filter(Schedule::is_on).map(Arc::new);
        let is_by_signal = config.on_sigterm && schedule.is_some();
        let stop = if is_by_signal { Shutdown::new() } else { requested.clone() };
        MachineShutdown { requested, stop, schedule, is_by_signal, state: watch::Sender::default() }
    }

    /// Begins the machine's shutdown on a signal, if signals mean that, and ends the agent if the shutdown takes too
    /// long.
    pub async fn run(self, clock: SharedClock) {
        let Some(schedule) = self.schedule.as_ref().filter(|_| self.is_by_signal) else { return };
        self.requested.requested().await;
        self.begin_by_signal(clock.wall());
        tokio::select! {
            () = self.stop.requested() => {}
            () = tokio::time::sleep(schedule.total().saturating_add(SLACK)) => {
                tracing::warn!("the shutdown took too long; containers that still run are left running");
                self.stop.trigger();
            }
        }
    }

    /// Triggered when the agent's loops have to end.
    pub fn stop_signal(&self) -> Shutdown {
        self.stop.clone()
    }

    /// The state of the shutdown, and every change of it.
    pub fn state(&self) -> watch::Receiver<ShutdownState> {
        self.state.subscribe()
    }

    /// Whether the machine, and not only the agent, is shutting down.
    pub fn is_shutting_down(&self) -> bool {
        self.state.borrow().since.is_some()
    }

    /// Begins a shutdown, unless one has begun. Returns when it began, and how long the pods have in all.
    ///
    /// # Errors
    /// When the schedule leaves pods no time to stop.
    pub fn begin(&self, now: Timestamp) -> Result<(Timestamp, Duration), ShutdownError> {
        let schedule = self.schedule.as_ref().ok_or(ShutdownError::NotGraceful)?;
        let mut since = now;
        self.state.send_if_modified(|state| {
            let is_new = state.since.is_none();
            since = *state.since.get_or_insert(now);
            is_new
        });
        Ok((since, schedule.total()))
    }

    /// Cancels a shutdown. Returns when it began, if one had begun.
    ///
    /// # Errors
    /// When the agent has to end in any case.
    pub fn cancel(&self) -> Result<Option<Timestamp>, ShutdownError> {
        let mut outcome = Err(ShutdownError::Signalled);
        self.state.send_if_modified(|state| {
            if state.ends_agent {
                return false;
            }
            outcome = Ok(std::mem::take(state).since);
            outcome != Ok(None)
        });
        outcome
    }

    fn begin_by_signal(&self, now: Timestamp) {
        self.state.send_modify(|state| {
            state.since.get_or_insert(now);
            state.ends_agent = true;
        });
    }

    /// The store has the status that says that the node is shutting down.
    pub fn observe_posted(&self) {
        self.state.send_if_modified(|state| {
            state.since.is_some() && !std::mem::replace(&mut state.is_posted, true)
        });
    }

    /// The shutdown of the node's pods, if the machine is shutting down. `None` until all pods are known: others would be
    /// left out.
    pub fn node_shutdown(&self, pod_states: &PodStates) -> Option<NodeShutdown> {
        let can_begin = self.is_shutting_down() && pod_states.has_listed_all();
        let schedule = self.schedule.as_ref().filter(|_| can_begin)?;
        Some(NodeShutdown::new(schedule, pod_states))
    }

    /// Ends the agent after the last pod. Without pods that may be at once, so the node's status is waited for.
    pub async fn finish(&self) {
        let mut state = self.state();
        let posted = state.wait_for(|state| state.is_posted);
        if tokio::time::timeout(LAST_STATUS_WITHIN, posted).await.is_err() {
            tracing::warn!("the status that says that the node shuts down could not be posted");
        }
        self.stop.trigger();
    }
}

#[cfg(test)]
mod tests;
