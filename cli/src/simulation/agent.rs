//! One simulated agent: it uses the real heartbeat stream but has no machine.

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

use super::fleet_spec::FleetSpec;
use super::machines::MachineState;

/// The same in every run of the simulation, so that the store treats a restarted simulation as the same agents.
const INCARNATION: &str = "simulated";
/// The delay between attempts to open a stream.
const REOPEN: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(7));

/// One agent, with the state of its machine.
pub(super) struct SimulatedAgent {
    pub(super) client: StoreClient,
    pub(super) spec: FleetSpec,
    pub(super) index: usize,
    pub(super) uid: Uid,
    pub(super) lease_duration: Duration,
    pub(super) machine: watch::Receiver<MachineState>,
    /// Counts the agents that have connected to the store at least once.
    pub(super) connected: watch::Sender<usize>,
    pub(super) clock: SharedClock,
}

/// Why a stream ended.
enum StreamEnd {
    /// The machine was switched off.
    PowerOff,
    /// The simulation stops.
    Shutdown,
    Failed(ClientError),
}

impl SimulatedAgent {
    /// Runs until the simulation stops, and pauses while the machine is off.
    pub(super) async fn run(mut self) {
        let mut has_connected = false;
        let mut failures = 0;
        let mut must_report = false;
        loop {
            if self.machine.wait_for(|machine| machine.is_on).await.is_err() {
                return;
            }
            let ended = match self.open().await {
                Ok(stream) => {
                    if !has_connected {
                        self.connected.send_modify(|connected| *connected += 1);
                        has_connected = true;
                    }
                    failures = 0;
                    self.heartbeat(stream, must_report).await
                }
                Err(error) => StreamEnd::Failed(error),
            };
            // The node's record may have changed while the stream was closed.
            must_report = true;
            match ended {
                StreamEnd::Shutdown => return,
                StreamEnd::PowerOff => {}
                StreamEnd::Failed(error) => {
                    tracing::debug!(node = %FleetSpec::name(self.index), %error, "a simulated heartbeat stream failed");
                    failures += 1;
                    sleep(REOPEN.delay(failures, self.phase())).await;
                }
            }
        }
    }

    /// A different value in 0..1 for each agent, so that their heartbeats are spread over the interval.
    fn phase(&self) -> f64 {
        self.index as f64 / self.spec.nodes.max(1) as f64
    }

    async fn open(&self) -> Result<HeartbeatStream, ClientError> {
        let hello = pb::HeartbeatHello {
            node_name: FleetSpec::name(self.index).to_string(),
            node_uid: self.uid.to_string(),
            incarnation: INCARNATION.to_owned(),
            lease_duration: self.lease_duration.try_into().ok(),
        };
        HeartbeatStream::open(&self.client, hello, self.answer_timeout()).await
    }

    /// At most half a lease, as in the real agent, so that a dead connection is replaced before the lease expires. It
    /// is not shorter, because with thousands of agents on one core an answer may be slow.
    fn answer_timeout(&self) -> Duration {
        self.lease_duration / 2
    }

    /// Sends renewals, and status reports when they are requested, until the stream ends.
    async fn heartbeat(&mut self, mut stream: HeartbeatStream, must_report: bool) -> StreamEnd {
        let digest = digest(&self.spec.status(self.index, self.clock.wall()));
        let mut report_requests = self.machine.borrow_and_update().report_requests;
        let mut must_report = must_report;
        let mut wait = self.interval().mul_f64(self.phase());
        loop {
            if must_report {
                let status = self.spec.status(self.index, self.clock.wall());
                let status = pb::HeartbeatStatus { status: Some(status.into()), resource_version: 0 };
                let message = Message::Status(status);
                if let Err(error) = stream.send(message, self.answer_timeout()).await {
                    return StreamEnd::Failed(error);
                }
                must_report = false;
            }
            tokio::select! {
                changed = self.machine.changed() => {
                    if changed.is_err() {
                        return StreamEnd::Shutdown;
                    }
                    let machine = *self.machine.borrow_and_update();
                    if !machine.is_on {
                        return StreamEnd::PowerOff;
                    }
                    must_report = machine.report_requests != report_requests;
                    report_requests = machine.report_requests;
                }
                () = sleep(wait) => match self.renew(&mut stream, digest).await {
                    Ok(next) => wait = next,
                    Err(error) => return StreamEnd::Failed(error),
                }
            }
        }
    }

    /// Renews the lease; returns the delay that the store wants before the next renewal.
    async fn renew(&self, stream: &mut HeartbeatStream, status_digest: u64) -> Result<Duration, ClientError> {
        let renewal = pb::HeartbeatRenewal { status_digest, status_age_millis: 0 };
        let answer = stream.send(Message::Renewal(renewal), self.answer_timeout()).await?;
        let next = answer.next_renewal.and_then(|next| next.try_into().ok());
        Ok(next.unwrap_or_else(|| self.interval()))
    }

    /// The interval between renewals, as in the real agent.
    fn interval(&self) -> Duration {
        RenewalSchedule::new(self.lease_duration, self.clock.mono()).interval()
    }
}
