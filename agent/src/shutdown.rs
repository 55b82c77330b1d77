//! Leaving: from the word "stop" to the end of the process.
//!
//! An agent that is only replaced leaves what it runs alone and ends at once. One whose machine goes down
//! first says that the node is not ready and ends its pods in order. A machine that goes down because a signal
//! said so takes the agent with it; one that somebody only announced may stay up after all, and the agent
//! lives to see it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use muster_agent_core::pod_lifecycle::PodStates;
use muster_agent_core::shutdown_order::{GroupShutdown, GroupStep, Schedule};
use muster_proto::name::Uid;
use muster_proto::time::Mono;
use muster_rpc::clock::SharedClock;
use muster_rpc::shutdown::Shutdown;
use tokio::sync::watch;

use crate::config::ShutdownConfig;
use muster_proto::time::Now;

/// How long the first group waits for the store to know that the node is not ready: who hears it sends no more work.
const FIRST_WORDS: Duration = Duration::from_secs(1);
/// How long after the last group's time the ends of its pods are waited for: who is killed at the last
/// moment is not gone at that moment, and its status still has to be said.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long the process stays when even that does not end, or the pods are not known yet.
const SLACK: Duration = Duration::from_secs(10);

/// Where the machine is headed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShutdownState {
    /// Since when it goes down; `None` while it stays up.
    pub since: Option<Timestamp>,
    /// The agent ends with it.
    pub ends_agent: bool,
    /// The store knows.
    pub is_posted: bool,
}

/// Why a shutdown is not begun or taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error(
        "shutdowns of this machine are not graceful: start its agent with --shutdown-grace-period or \
         --shutdown-grace-period-by-pod-priority"
    )]
    NotGraceful,
    #[error("a signal told the agent to stop, which cannot be taken back")]
    Signalled,
}

/// How far the agent is on its way out. Clones share it.
#[derive(Clone, Debug)]
pub struct MachineShutdown {
    /// Somebody wants the process to end.
    asked: Shutdown,
    /// Nothing is left to do: loops end.
    over: Shutdown,
    /// `None`: pods are not ended, whatever happens.
    schedule: Option<Arc<Schedule>>,
    /// Whether the end of the process means that of the machine.
    is_by_signal: bool,
    course: watch::Sender<ShutdownState>,
}

impl MachineShutdown {
    pub fn new(asked: Shutdown, config: &ShutdownConfig) -> MachineShutdown {
        let schedule = Schedule::new(config.grace_period, config.critical_pods, &config.by_pod_priority);
        let schedule = Some(schedule).filter(Schedule::is_on).map(Arc::new);
        let is_by_signal = config.on_sigterm && schedule.is_some();
        let over = if is_by_signal { Shutdown::new() } else { asked.clone() };
        MachineShutdown { asked, over, schedule, is_by_signal, course: watch::Sender::default() }
    }

    /// Takes the word to stop for the machine's shutdown where it is one, and ends that should it not end by itself.
    pub async fn run(self, clock: SharedClock) {
        let Some(schedule) = self.schedule.as_ref().filter(|_| self.is_by_signal) else { return };
        self.asked.requested().await;
        self.end(clock.wall());
        tokio::select! {
            () = self.over.requested() => {}
            () = tokio::time::sleep(schedule.total().saturating_add(SLACK)) => {
                tracing::warn!("the shutdown took too long; what still runs is left alone");
                self.over.trigger();
            }
        }
    }

    /// When the loops end.
    pub fn stop_signal(&self) -> Shutdown {
        self.over.clone()
    }

    /// Where the machine is headed, and every change of it.
    pub fn state(&self) -> watch::Receiver<ShutdownState> {
        self.course.subscribe()
    }

    /// Whether the machine, not only the agent, is going down.
    pub fn is_shutting_down(&self) -> bool {
        self.course.borrow().since.is_some()
    }

    /// The machine is about to go down, or already was; since when, and how long its pods have in all, comes back.
    ///
    /// # Errors
    /// When there is no time for pods to end in.
    pub fn begin(&self, now: Timestamp) -> Result<(Timestamp, Duration), Refused> {
        let schedule = self.schedule.as_ref().ok_or(Refused::NotGraceful)?;
        let mut since = now;
        self.course.send_if_modified(|course| {
            let is_news = course.since.is_none();
            since = *course.since.get_or_insert(now);
            is_news
        });
        Ok((since, schedule.total()))
    }

    /// The machine stays up; since when it was to go down, if it was, comes back.
    ///
    /// # Errors
    /// When the agent has to go in any case.
    pub fn cancel(&self) -> Result<Option<Timestamp>, Refused> {
        let mut outcome = Err(Refused::Signalled);
        self.course.send_if_modified(|course| {
            if course.ends_agent {
                return false;
            }
            outcome = Ok(std::mem::take(course).since);
            outcome != Ok(None)
        });
        outcome
    }

    /// The machine goes down and takes the agent with it.
    fn end(&self, now: Timestamp) {
        self.course.send_modify(|course| {
            course.since.get_or_insert(now);
            course.ends_agent = true;
        });
    }

    /// The store took the status that says so.
    pub fn announce(&self) {
        self.course.send_if_modified(|course| {
            course.since.is_some() && !std::mem::replace(&mut course.is_posted, true)
        });
    }

    /// The departure of the pods that the node has, once it is time.
    pub fn departure(&self, pod_states: &PodStates) -> Option<Departure> {
        // Half a picture would machine_shutdown out pods.
        let schedule =
            self.schedule.as_ref().filter(|_| self.is_shutting_down() && pod_states.has_listed_all())?;
        Some(Departure::new(schedule, pod_states))
    }

    /// All pods had their turn. Without pods that is at once, so the node's own word is waited for a little.
    pub async fn finish(&self) {
        let mut course = self.state();
        let announced = course.wait_for(|course| course.is_posted);
        if tokio::time::timeout(LAST_WORDS, announced).await.is_err() {
            tracing::warn!("the store could not be told of the shutdown");
        }
        self.over.trigger();
    }
}

/// What a departure needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Pods were told to end: decide and perform.
    Act,
    /// Look again when something changed, or by then.
    Wait {
        until: Mono,
    },
    Over,
}

/// The pods of a node that goes down, on their way.
#[derive(Clone, Debug)]
pub struct Departure {
    order: GroupShutdown,
    pods: Vec<Uid>,
    /// When the pods' time begins, whether or not the store knows.
    begin_by: Option<Mono>,
    give_up_at: Option<Mono>,
}

impl Departure {
    fn new(schedule: &Schedule, pod_states: &PodStates) -> Departure {
        let pods = pod_states.active().filter_map(|pod| pod.meta.uid).collect();
        let order = GroupShutdown::new(schedule, pod_states.active().map(AsRef::as_ref));
        Departure { order, pods, begin_by: None, give_up_at: None }
    }

    /// Ends the pods whose turn it is, once the store knows or was given the time to.
    pub fn step(&mut self, pod_states: &mut PodStates, is_posted: bool, now: Now) -> Next {
        let until = *self.begin_by.get_or_insert(now.mono + FIRST_WORDS);
        if !is_posted && now.mono < until {
            return Next::Wait { until };
        }
        self.order.observe(|uid| pod_states.is_present(uid), now.mono);
        match self.order.decide() {
            GroupStep::Stop(terminations) => {
                tracing::info!(pods = terminations.len(), "the machine shuts down; a group of pods ends");
                for (uid, termination) in terminations {
                    pod_states.terminate(uid, termination, now);
                }
                self.order.begun(now.mono);
                Next::Act
            }
            GroupStep::Wait { until } => Next::Wait { until },
            GroupStep::Done => {
                let until = *self.give_up_at.get_or_insert(now.mono + LAST_WORDS);
                let is_done = |uid: &Uid| {
                    let is_told = pod_states.pod(*uid).is_none_or(|pod| pod.is_finished());
                    !pod_states.is_present(*uid) && is_told
                };
                if now.mono >= until || self.pods.iter().all(is_done) {
                    Next::Over
                } else {
                    Next::Wait { until }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
