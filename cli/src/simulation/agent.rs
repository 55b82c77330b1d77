//! One simulated machine's agent: the real heartbeat stream, without a machine behind it.

use std::time::Duration;

use muster_agent::heartbeat_stream::HeartbeatStream;
use muster_agent_core::renewal_schedule::RenewalSchedule;
use muster_agent_core::status_report::digest;
use muster_proto::backoff::Backoff;
use muster_proto::name::Uid;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_rpc::clock::SharedClock;
use muster_store_client::{ClientError, StoreClient};
use tokio::sync::watch;
use tokio::time::sleep;

use super::fleet_spec::Blueprint;
use super::machines::Orders;

/// Kept across restarts of the simulation: its machines come back as who they were.
const INCARNATION: &str = "simulated";
/// Between attempts to open a stream.
const REOPEN: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(7));

/// What one machine's agent works with.
pub(super) struct Machine {
    pub(super) client: StoreClient,
    pub(super) blueprint: Blueprint,
    pub(super) index: usize,
    pub(super) uid: Uid,
    pub(super) lease_duration: Duration,
    pub(super) orders: watch::Receiver<Orders>,
    /// How many machines have been let in by the store.
    pub(super) heard: watch::Sender<usize>,
    pub(super) clock: SharedClock,
}

/// Why a stream ended.
enum Ended {
    /// The machine was switched off.
    Off,
    /// The simulation is over.
    Over,
    Failed(ClientError),
}

impl Machine {
    /// Lives until the simulation ends, on and off.
    pub(super) async fn run(mut self) {
        let mut was_heard = false;
        let mut failures = 0;
        let mut must_report = false;
        loop {
            if self.orders.wait_for(|orders| orders.is_up).await.is_err() {
                return;
            }
            let ended = match self.open().await {
                Ok(stream) => {
                    if !was_heard {
                        self.heard.send_modify(|heard| *heard += 1);
                        was_heard = true;
                    }
                    failures = 0;
                    self.beat(stream, must_report).await
                }
                Err(error) => Ended::Failed(error),
            };
            // Whoever was away cannot know what was said of them.
            must_report = true;
            match ended {
                Ended::Over => return,
                Ended::Off => {}
                Ended::Failed(error) => {
                    tracing::debug!(node = %Blueprint::name(self.index), %error, "a simulated stream broke");
                    failures += 1;
                    sleep(REOPEN.delay(failures, self.share())).await;
                }
            }
        }
    }

    /// The machine's place among all, in 0..1: they must not beat in step.
    fn share(&self) -> f64 {
        self.index as f64 / self.blueprint.nodes.max(1) as f64
    }

    async fn open(&self) -> Result<HeartbeatStream, ClientError> {
        let hello = pb::HeartbeatHello {
            node_name: Blueprint::name(self.index).to_string(),
            node_uid: self.uid.to_string(),
            incarnation: INCARNATION.to_owned(),
            lease_duration: self.lease_duration.try_into().ok(),
        };
        HeartbeatStream::open(&self.client, hello, self.patience()).await
    }

    /// As of the real agent: less than half a lease, so that a dead connection is replaced in time. With thousands of
    /// machines on one processor an answer may take a while.
    fn patience(&self) -> Duration {
        self.lease_duration / 2
    }

    async fn beat(&mut self, mut stream: HeartbeatStream, must_report: bool) -> Ended {
        let digest = digest(&self.blueprint.status(self.index, self.clock.wall()));
        let mut reports = self.orders.borrow_and_update().reports;
        let mut must_report = must_report;
        let mut wait = self.interval().mul_f64(self.share());
        loop {
            if must_report {
                let status = self.blueprint.status(self.index, self.clock.wall());
                let status = pb::HeartbeatStatus { status: Some(status.into()), resource_version: 0 };
                let message = Message::Status(status);
                if let Err(error) = stream.send(message, self.patience()).await {
                    return Ended::Failed(error);
                }
                must_report = false;
            }
            tokio::select! {
                told = self.orders.changed() => {
                    if told.is_err() {
                        return Ended::Over;
                    }
                    let orders = *self.orders.borrow_and_update();
                    if !orders.is_up {
                        return Ended::Off;
                    }
                    must_report = orders.reports != reports;
                    reports = orders.reports;
                }
                () = sleep(wait) => match self.renew(&mut stream, digest).await {
                    Ok(next) => wait = next,
                    Err(error) => return Ended::Failed(error),
                }
            }
        }
    }

    /// One sign of life; says when the store would like the next.
    async fn renew(&self, stream: &mut HeartbeatStream, status_digest: u64) -> Result<Duration, ClientError> {
        let renewal = pb::HeartbeatRenewal { status_digest, status_age_millis: 0 };
        let answer = stream.send(Message::Renewal(renewal), self.patience()).await?;
        let next = answer.next_renewal.and_then(|next| next.try_into().ok());
        Ok(next.unwrap_or_else(|| self.interval()))
    }

    /// Between renewals, as of the real agent.
    fn interval(&self) -> Duration {
        RenewalSchedule::new(self.lease_duration, self.clock.mono()).interval()
    }
}
