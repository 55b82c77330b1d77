//! The demo's connection to the fleet: observes it, prints events while it waits, and keeps the number of pods.

use std::time::Duration;

use futures_util::StreamExt;
use muster_proto::event::Event;
use muster_proto::key::Key;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;
use muster_proto::watch_event::WatchEvent;
use muster_rpc::clock::{Clock, SystemClock};
use muster_store_client::{DeleteOptions, ListOptions, Watch, WatchOptions};

use super::messages;
use super::simulation_client::SimulationClient;
use super::workload::{LABEL, Workload};
use crate::connection::{Controller, OrFailure, Store};
use crate::failure::{Exit, Failure};
use crate::terminal::Terminal;

/// The interval between two observations.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The hint for a step whose effect did not happen.
pub(super) const WHERE_TO_LOOK: &str =
    "on a running fleet, `muster fleet`, `muster get events` and `muster explain node` show more";

/// The state of the fleet at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) fleet: pb::Fleet,
    /// The demo's pods.
    pub(super) pods: Vec<Pod>,
    /// The explanation of [`Session::explained_node`].
    pub(super) node: Option<pb::ExplainNodeResponse>,
}

/// The clients, the workload and the event watch of the demo.
pub(super) struct Session {
    pub(super) store: Store,
    pub(super) controller: Controller,
    pub(super) simulation: SimulationClient,
    pub(super) workload: Workload,
    /// The node whose explanation each snapshot includes.
    pub(super) explained_node: Option<String>,
    events: Watch<Event>,
    /// Whether the events from before the demo have been skipped.
    is_synced: bool,
    clock: SystemClock,
    started: Mono,
}

impl Session {
    pub(super) fn new(
        store: Store,
        controller: Controller,
        simulation: SimulationClient,
        workload: Workload,
    ) -> Session {
        let clock = SystemClock::new();
        let events = store.client.watch(WatchOptions::default());
        let started = clock.mono();
        Session {
            store,
            controller,
            simulation,
            workload,
            explained_node: None,
            events,
            is_synced: false,
            clock,
            started,
        }
    }

    pub(super) fn now(&self) -> Mono {
        self.clock.mono()
    }

    /// Prints a line with the time since the start.
    pub(super) fn print(&self, line: &str) -> Result<(), Failure> {
        let time = self.now() - self.started;
        Terminal::stdout().print(&format!("{:>6.1} s  {line}\n", time.as_secs_f64()))
    }

    pub(super) fn print_all(&self, lines: &[String]) -> Result<(), Failure> {
        lines.iter().try_for_each(|line| self.print(line))
    }

    /// Prints the title of a step.
    pub(super) fn print_title(&self, text: &str) -> Result<(), Failure> {
        Terminal::stdout().print(&format!("\n== {text}\n"))
    }

    /// Waits until a condition holds; returns the snapshot in which it holds, and the time it took.
    pub(super) async fn wait_until(
        &mut self,
        what: &str,
        timeout: Duration,
        condition: impl Fn(&Snapshot) -> bool,
    ) -> Result<(Snapshot, Duration), Failure> {
        let start = self.now();
        loop {
            let snapshot = self.observe().await?;
            let waited = self.now() - start;
            if condition(&snapshot) {
                self.print_events_for(POLL_INTERVAL).await?;
                return Ok((snapshot, waited));
            }
            if waited > timeout {
                let message = format!("this did not happen within {}: {what}", messages::seconds(timeout));
                return Err(Failure::new(Exit::Failed, message).hint(WHERE_TO_LOOK));
            }
            self.print_events_for(POLL_INTERVAL).await?;
        }
    }

    /// Takes a snapshot, and creates the pods that are missing from the workload.
    pub(super) async fn observe(&mut self) -> Result<Snapshot, Failure> {
        let pods = self.pods().await?;
        for pod in self.workload.missing(&pods) {
            self.store.client.create(pod).await.or_failure(&self.store.peer)?;
        }
        let request = self.controller.with_timeout(pb::GetFleetRequest {});
        let answer =
            self.controller.client.clone().get_fleet(request).await.or_failure(&self.controller.peer)?;
        let node = match self.explained_node.clone() {
            Some(name) => Some(self.explain(&name).await?),
            None => None,
        };
        Ok(Snapshot { fleet: answer.into_inner().fleet.unwrap_or_default(), pods, node })
    }

    async fn pods(&self) -> Result<Vec<Pod>, Failure> {
        let options = ListOptions {
            namespace: Some(self.workload.namespace.clone()),
            label_selector: LABEL.to_owned(),
            ..ListOptions::default()
        };
        Ok(self.store.client.list(options).await.or_failure(&self.store.peer)?.records)
    }

    pub(super) async fn explain(&self, name: &str) -> Result<pb::ExplainNodeResponse, Failure> {
        let request = self.controller.with_timeout(pb::ExplainNodeRequest { name: name.to_owned() });
        let answer = self.controller.client.clone().explain_node(request).await;
        Ok(answer.or_failure(&self.controller.peer)?.into_inner())
    }

    /// Prints the events that belong to the demo for that time.
    pub(super) async fn print_events_for(&mut self, time: Duration) -> Result<(), Failure> {
        let end = tokio::time::sleep(time);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return Ok(()),
                Some(event) = self.events.next() => match event {
                    WatchEvent::Synced { .. } => self.is_synced = true,
                    WatchEvent::Applied { record } if self.is_synced => {
                        if let Some(line) = messages::event(&record) {
                            self.print(&line)?;
                        }
                    }
                    WatchEvent::Applied { .. } | WatchEvent::Gone { .. } | WatchEvent::Lost(_) => {}
                },
            }
        }
    }

    /// Deletes the demo's pods and stops replacing them.
    pub(super) async fn delete_pods(&mut self) -> Result<(), Failure> {
        self.workload.replicas = 0;
        for pod in self.pods().await? {
            let deleted = self.store.client.delete::<Pod>(&Key::of(&pod), DeleteOptions::default()).await;
            match deleted {
                Ok(_) | Err(muster_store_client::ClientError::NotFound(_)) => {}
                Err(error) => return Err(self.store.peer.failure(error)),
            }
        }
        Ok(())
    }
}
