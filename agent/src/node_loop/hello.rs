//! Hello: whether the store takes this agent for its node's.
//!
//! Two machines of one name must not become one node. An agent that the store does not let in neither reports the node
//! nor runs its pods; it asks again for as long as it lives, since the other may be a machine that is no more.

use std::time::Duration;

use muster_proto::name::Uid;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_store_client::ClientError;

use super::NodeLoop;
use crate::heartbeat_stream::HeartbeatStream;

/// What the store last said to this agent's Hello.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HelloState {
    /// Nothing yet.
    #[default]
    Unanswered,
    Accepted,
    /// Another agent beats for the node.
    Refused,
}

impl NodeLoop {
    /// Whether this agent may speak for the node. One that was let in and then lost the store still may.
    pub(super) fn is_accepted(&self) -> bool {
        self.hello_state == HelloState::Accepted
    }

    pub(super) fn is_refused(&self) -> bool {
        self.hello_state == HelloState::Refused
    }

    /// Opens a heartbeat stream for the node of that uid, and takes in how the store greets us.
    pub(super) async fn say_hello(
        &mut self,
        uid: Uid,
        patience: Duration,
    ) -> Result<HeartbeatStream, ClientError> {
        let hello = pb::HeartbeatHello {
            node_name: self.settings.name.to_string(),
            node_uid: uid.to_string(),
            incarnation: self.identity.incarnation.to_string(),
            lease_duration: self.config.lease_duration.try_into().ok(),
        };
        let opened = HeartbeatStream::open(&self.client, hello, patience).await;
        match &opened {
            Ok(_) => self.observe_accepted(),
            // Whoever may not beat at all has no namesake to fear, and may be let report.
            Err(ClientError::Denied(_)) if !self.is_refused() => self.observe_accepted(),
            Err(ClientError::Conflict(reason)) if self.is_record(uid, patience).await => {
                self.observe_refused(reason);
            }
            Err(_) => {}
        }
        opened
    }

    fn observe_accepted(&mut self) {
        if self.is_refused() {
            let node = &self.settings.name;
            tracing::info!(%node, "the other agent is gone; this one speaks for the node now");
        }
        self.hello_state = HelloState::Accepted;
    }

    fn observe_refused(&mut self, reason: &str) {
        // Said once, not each time that we ask.
        if !self.is_refused() {
            let node = &self.settings.name;
            tracing::error!(
                %node, reason, "refused: this agent neither reports the node nor starts pods until it is let in"
            );
        }
        self.hello_state = HelloState::Refused;
    }

    /// Whether the node's record is still that one: a conflict about another says nothing about us.
    async fn is_record(&self, uid: Uid, patience: Duration) -> bool {
        let read = self.client.with_deadline(patience).get::<Node>(&self.key()).await;
        read.is_ok_and(|node| node.meta.uid == Some(uid))
    }
}
