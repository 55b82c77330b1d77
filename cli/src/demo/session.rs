//! What the demonstration sees and says while it waits: events as they happen, and the work kept at its number.

use std::time::Duration;

use futures_util::StreamExt;
use muster_proto::event::Event as Happening;
use muster_proto::key::Key;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;
use muster_proto::watch_event::WatchEvent;
use muster_rpc::clock::{Clock, SystemClock};
use muster_store_client::{DeleteOptions, ListOptions, Watch, WatchOptions};

use super::messages;
use super::simulation_client::Switch;
use super::workload::{LABEL, Workload};
use crate::connection::{At, Controller, Store};
use crate::failure::{Exit, Failure};
use crate::terminal::Terminal;

/// Between two looks.
const TICK: Duration = Duration::from_millis(200);

/// Who can say why something did not come true.
pub(super) const WHERE_TO_LOOK: &str =
    "on a running fleet, `muster fleet`, `muster get events` and `muster explain node` say more";

/// What there is to see at one moment.
#[derive(Debug)]
pub(super) struct Sight {
    pub(super) fleet: pb::Fleet,
    /// Of the demonstration.
    pub(super) pods: Vec<Pod>,
    /// The node that the scene is about.
    pub(super) node: Option<pb::ExplainNodeResponse>,
}

/// Everything that the demonstration works with.
pub(super) struct Scene {
    pub(super) store: Store,
    pub(super) controller: Controller,
    pub(super) switch: Switch,
    pub(super) workload: Workload,
    /// The node that the scene is about.
    pub(super) subject: Option<String>,
    events: Watch<Happening>,
    /// Whether what was there before has been passed over.
    is_following: bool,
    clock: SystemClock,
    began: Mono,
}

impl Scene {
    pub(super) fn new(store: Store, controller: Controller, switch: Switch, workload: Workload) -> Scene {
        let clock = SystemClock::new();
        let events = store.client.watch(WatchOptions::default());
        let began = clock.mono();
        Scene {
            store,
            controller,
            switch,
            workload,
            subject: None,
            events,
            is_following: false,
            clock,
            began,
        }
    }

    pub(super) fn now(&self) -> Mono {
        self.clock.mono()
    }

    /// A line, with the time since the beginning.
    pub(super) fn say(&self, line: &str) -> Result<(), Failure> {
        let time = self.now() - self.began;
        Terminal::stdout().say(&format!("{:>6.1} s  {line}\n", time.as_secs_f64()))
    }

    pub(super) fn say_all(&self, lines: &[String]) -> Result<(), Failure> {
        lines.iter().try_for_each(|line| self.say(line))
    }

    /// Begins a part of the story.
    pub(super) fn title(&self, text: &str) -> Result<(), Failure> {
        Terminal::stdout().say(&format!("\n== {text}\n"))
    }

    /// Waits until something is so; says what was seen, and how long it took.
    pub(super) async fn until(
        &mut self,
        what: &str,
        patience: Duration,
        is_so: impl Fn(&Sight) -> bool,
    ) -> Result<(Sight, Duration), Failure> {
        let start = self.now();
        loop {
            let sight = self.look().await?;
            let waited = self.now() - start;
            if is_so(&sight) {
                self.listen(TICK).await?;
                return Ok((sight, waited));
            }
            if waited > patience {
                let message = format!("this did not happen within {}: {what}", messages::seconds(patience));
                return Err(Failure::new(Exit::Failed, message).hint(WHERE_TO_LOOK));
            }
            self.listen(TICK).await?;
        }
    }

    /// Looks around, and puts back what is missing of the work.
    pub(super) async fn look(&mut self) -> Result<Sight, Failure> {
        let pods = self.pods().await?;
        for pod in self.workload.missing(&pods) {
            self.store.client.create(pod).await.at(&self.store.peer)?;
        }
        let request = self.controller.timed(pb::GetFleetRequest {});
        let answer = self.controller.client.clone().get_fleet(request).await.at(&self.controller.peer)?;
        let node = match self.subject.clone() {
            Some(name) => Some(self.explain(&name).await?),
            None => None,
        };
        Ok(Sight { fleet: answer.into_inner().fleet.unwrap_or_default(), pods, node })
    }

    async fn pods(&self) -> Result<Vec<Pod>, Failure> {
        let options = ListOptions {
            namespace: Some(self.workload.namespace.clone()),
            label_selector: LABEL.to_owned(),
            ..ListOptions::default()
        };
        Ok(self.store.client.list(options).await.at(&self.store.peer)?.records)
    }

    pub(super) async fn explain(&self, name: &str) -> Result<pb::ExplainNodeResponse, Failure> {
        let request = self.controller.timed(pb::ExplainNodeRequest { name: name.to_owned() });
        let answer = self.controller.client.clone().explain_node(request).await;
        Ok(answer.at(&self.controller.peer)?.into_inner())
    }

    /// Tells events of the story for a while.
    pub(super) async fn listen(&mut self, time: Duration) -> Result<(), Failure> {
        let over = tokio::time::sleep(time);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return Ok(()),
                Some(news) = self.events.next() => match news {
                    WatchEvent::Synced { .. } => self.is_following = true,
                    WatchEvent::Applied { record } if self.is_following => {
                        if let Some(line) = messages::event(&record) {
                            self.say(&line)?;
                        }
                    }
                    WatchEvent::Applied { .. } | WatchEvent::Gone { .. } | WatchEvent::Lost(_) => {}
                },
            }
        }
    }

    /// Takes the work away again.
    pub(super) async fn clear(&mut self) -> Result<(), Failure> {
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
