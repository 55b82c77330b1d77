//! The node's lease: ensured and renewed on a heartbeat stream, when the schedule says so.

use std::time::Duration;

use muster_agent_core::renewal_schedule::LeaseStep;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_proto::time::Mono;
use muster_store_client::ClientError;

use super::draw;
use super::heartbeat::HeartbeatLoop;
use crate::heartbeat_stream::HeartbeatStream;
use crate::readiness::Acknowledged;

impl HeartbeatLoop<'_> {
    /// Does what the schedule says now; returns when it has to be asked again.
    pub(super) async fn keep_lease(&mut self) -> Mono {
        match self.schedule.step(self.now()) {
            LeaseStep::Wait { until } => return until,
            LeaseStep::Ensure => {
                let opened = self.open().await;
                self.observe_answer(&opened);
                match opened {
                    Ok(opened) => {
                        self.stream = Some(opened);
                        self.schedule.observe_ensured(self.now());
                    }
                    Err(error) => {
                        tracing::debug!(%error, "no heartbeat stream yet");
                        self.schedule.observe_ensure_failed(draw(), self.now());
                    }
                }
            }
            LeaseStep::Renew => {
                let was_open = self.stream.is_some();
                let renewed = self.renew().await;
                self.observe_answer(&renewed);
                match renewed {
                    Ok(answer) => self.observe_renewed(answer),
                    Err(error) => {
                        if was_open {
                            tracing::warn!(%error, "the heartbeat stream was lost");
                        } else {
                            tracing::debug!(%error, "no heartbeat stream yet");
                        }
                        self.schedule.observe_renew_failed(draw());
                    }
                }
            }
        }
        self.now()
    }

    /// One attempt to renew. The first error ends a stream, so the next attempt opens another.
    async fn renew(&mut self) -> Result<pb::HeartbeatResponse, ClientError> {
        let mut stream = match self.stream.take() {
            Some(open) => open,
            None => self.open().await?,
        };
        let age = self.latest.as_ref().map(|latest| self.now() - latest.at).unwrap_or_default();
        let renewal = pb::HeartbeatRenewal {
            status_digest: self.latest.as_ref().map_or(0, |latest| latest.digest),
            status_age_millis: u32::try_from(age.as_millis()).unwrap_or(u32::MAX),
        };
        let answer = stream.send(Message::Renewal(renewal), self.answer_deadline).await?;
        self.stream = Some(stream);
        Ok(answer)
    }

    fn observe_renewed(&mut self, answer: pb::HeartbeatResponse) {
        let requested = answer.next_renewal.and_then(|requested| Duration::try_from(requested).ok());
        self.schedule.observe_renewed(requested, draw());
        self.node_loop.shared.metrics.renewals.inc();
        self.node_loop.shared.set_acknowledged(Acknowledged::At(self.now()));
        let mut status = self.node_loop.shared.status();
        status.renewal = answer.renew_time.map(|at| (at, answer.resource_version));
        status.store = self.node_loop.config.stores.join(",");
    }

    async fn open(&mut self) -> Result<HeartbeatStream, ClientError> {
        let name = &self.node_loop.settings.name;
        let uid = self.node.as_ref().and_then(|node| node.meta.uid);
        let uid = uid.ok_or_else(|| ClientError::NotFound(format!("Node {name} does not exist")))?;
        self.node_loop.say_hello(uid, self.answer_deadline).await
    }

    /// A stream for a status, opened if there is none: while the store was out of reach, another agent may have taken
    /// the node's name. `None` when the agent may post status but does not hold the lease.
    pub(super) async fn status_stream(&mut self) -> Result<Option<HeartbeatStream>, ClientError> {
        if let Some(open) = self.stream.take() {
            return Ok(Some(open));
        }
        match self.open().await {
            Ok(opened) => Ok(Some(opened)),
            Err(ClientError::Denied(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
