//! Hello: whether the store accepts this agent for the node.
//!
//! Two machines with one node name must not become one node. An agent that the store refuses neither posts the node's
//! status nor starts pods. It says Hello again as long as it runs: the other agent may be on a machine that is gone.

use std::time::Duration;

use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_store_client::ClientError;

use super::NodeLoop;
use crate::heartbeat_stream::HeartbeatStream;
use crate::readiness::Acknowledged;

/// The store's last answer to this agent's Hello.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HelloState {
    /// There was no answer yet.
    #[default]
    Unanswered,
    Accepted,
    /// Another agent holds the node's lease.
    Refused,
}

impl NodeLoop {
    /// Whether this agent acts for the node. An agent that was accepted and then lost the store still does.
    pub(super) fn is_accepted(&self) -> bool {
        self.hello_state == HelloState::Accepted
    }

    pub(super) fn is_refused(&self) -> bool {
        self.hello_state == HelloState::Refused
    }

    /// Opens a heartbeat stream for the node with that uid, and keeps whether the store accepts this agent.
    pub(super) async fn say_hello(
        &mut self,
        uid: Uid,
        deadline: Duration,
    ) -> Result<HeartbeatStream, ClientError> {
        let hello = pb::HeartbeatHello {
            node_name: self.settings.name.to_string(),
            node_uid: uid.to_string(),
            incarnation: self.identity.incarnation.to_string(),
            lease_duration: self.config.lease_duration.try_into().ok(),
        };
        let opened = HeartbeatStream::open(&self.client, hello, deadline).await;
        match &opened {
            Ok(_) => self.observe_accepted(),
            // An agent without the right to send heartbeats may still have the right to post status; no other agent
            // with the same node name is known.
            Err(ClientError::Denied(_)) if !self.is_refused() => self.observe_accepted(),
            Err(ClientError::Conflict(reason)) if self.is_current_record(uid, deadline).await => {
                self.observe_refused(reason);
            }
            Err(_) => {}
        }
        opened
    }

    fn observe_accepted(&mut self) {
        if self.is_refused() {
            let node = &self.settings.name;
            tracing::info!(%node, "the other agent is gone; this agent acts for the node now");
        }
        self.hello_state = HelloState::Accepted;
    }

    fn observe_refused(&mut self, reason: &str) {
        // Logged once, not with every Hello.
        if !self.is_refused() {
            let node = &self.settings.name;
            tracing::error!(
                %node,
                reason,
                "refused: this agent neither reports the node nor starts pods until the store accepts it"
            );
        }
        self.hello_state = HelloState::Refused;
        self.shared.set_acknowledged(Acknowledged::Refused(reason.to_owned()));
    }

    /// Whether the node's record still has that uid: a conflict about an earlier record says nothing about this agent.
    async fn is_current_record(&self, uid: Uid, deadline: Duration) -> bool {
        let read = self.client.with_deadline(deadline).get::<Node>(&self.key()).await;
        read.is_ok_and(|node| node.meta.uid == Some(uid))
    }
}
