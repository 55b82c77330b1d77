//! Leaving: from the word "stop" to the end of the process.
//!
//! An agent that is only replaced leaves what it runs alone and ends at once. One whose machine goes down
//! first says that the node is not ready and ends its pods in order; its loops go on until that is done.

use std::sync::Arc;
use std::time::Duration;

use muster_proto::name::Uid;
use muster_rpc::clock::Mono;
use muster_rpc::shutdown::Shutdown;

use crate::config::ShutdownConfig;
use crate::lifecycle::{Ledger, Now};
use crate::shutdown_order::{Schedule, Shutdown as Order, Turn};

/// How long after the last group's time the ends of its pods are waited for: who is killed at the last
/// moment is not gone at that moment, and its status still has to be said.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long the process stays when even that does not end, or the pods are not known yet.
const SLACK: Duration = Duration::from_secs(10);

/// How far the agent is on its way out. Clones share it.
#[derive(Clone, Debug)]
pub struct Leave {
    /// Somebody wants the process to end.
    asked: Shutdown,
    /// The store knows that the node is shutting down.
    announced: Shutdown,
    /// Nothing is left to do: loops end.
    over: Shutdown,
    /// `None`: nothing is done between asked and over.
    schedule: Option<Arc<Schedule>>,
}

impl Leave {
    pub fn new(asked: Shutdown, config: &ShutdownConfig) -> Leave {
        let schedule = Schedule::new(config.grace_period, config.critical_pods, &config.by_pod_priority);
        let schedule = Some(schedule).filter(|schedule| config.on_sigterm && schedule.is_on());
        let over = if schedule.is_some() { Shutdown::new() } else { asked.clone() };
        Leave { asked, announced: Shutdown::new(), over, schedule: schedule.map(Arc::new) }
    }

    /// Ends a shutdown that does not end by itself.
    pub async fn bound(self) {
        let Some(schedule) = &self.schedule else { return };
        tokio::select! {
            () = self.over.requested() => {}
            () = self.asked.grace_over(schedule.total().saturating_add(SLACK)) => {
                tracing::warn!("the shutdown took too long; what still runs is left alone");
                self.over.trigger();
            }
        }
    }

    /// When the loops end.
    pub fn over(&self) -> Shutdown {
        self.over.clone()
    }

    /// Whether the machine, not only the agent, is going down.
    pub fn is_shutting_down(&self) -> bool {
        self.schedule.is_some() && self.asked.is_requested()
    }

    /// Completes when the machine goes down; never if only the agent does.
    pub fn shutting_down(&self) -> impl Future<Output = ()> + Send + use<> {
        let (asked, is_graceful) = (self.asked.requested(), self.schedule.is_some());
        async move {
            asked.await;
            if !is_graceful {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The store took the status that says so.
    pub fn announce(&self) {
        self.announced.trigger();
    }

    /// The departure of the pods that the node has, once it is time.
    pub fn departure(&self, ledger: &Ledger) -> Option<Departure> {
        // Half a picture would leave out pods.
        let schedule =
            self.schedule.as_ref().filter(|_| self.asked.is_requested() && ledger.is_complete())?;
        Some(Departure::new(schedule, ledger))
    }

    /// All pods had their turn. Without pods that is at once, so the node's own word is waited for a little.
    pub async fn finish(&self) {
        if tokio::time::timeout(LAST_WORDS, self.announced.requested()).await.is_err() {
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
    order: Order,
    pods: Vec<Uid>,
    give_up_at: Option<Mono>,
}

impl Departure {
    fn new(schedule: &Schedule, ledger: &Ledger) -> Departure {
        let pods = ledger.active().filter_map(|pod| pod.meta.uid).collect();
        Departure { order: Order::new(schedule, ledger.active().map(AsRef::as_ref)), pods, give_up_at: None }
    }

    /// Ends the pods whose turn it is.
    pub fn step(&mut self, ledger: &mut Ledger, now: Now) -> Next {
        self.order.observe(|uid| ledger.is_present(uid), now.mono);
        match self.order.decide() {
            Turn::Stop(endings) => {
                tracing::info!(pods = endings.len(), "the machine shuts down; a group of pods ends");
                for (uid, ending) in endings {
                    ledger.end(uid, ending, now);
                }
                self.order.begun(now.mono);
                Next::Act
            }
            Turn::Wait { until } => Next::Wait { until },
            Turn::Over => {
                let until = *self.give_up_at.get_or_insert(now.mono + LAST_WORDS);
                let is_done = |uid: &Uid| {
                    let is_told = ledger.pod(*uid).is_none_or(|pod| pod.is_finished());
                    !ledger.is_present(*uid) && is_told
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
