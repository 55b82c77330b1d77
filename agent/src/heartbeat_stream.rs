//! One heartbeat stream: at most one message of it is under way.

use std::time::Duration;

use futures_util::StreamExt;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_store_client::{ClientError, StoreClient};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// An open stream on which the store has let us in.
pub struct HeartbeatStream {
    says: mpsc::Sender<pb::HeartbeatRequest>,
    answers: Streaming<pb::HeartbeatResponse>,
    sequence: u64,
}

impl HeartbeatStream {
    /// Opens a stream and introduces this agent; all of it within `patience`.
    pub async fn open(
        client: &StoreClient,
        hello: pb::HeartbeatHello,
        patience: Duration,
    ) -> Result<HeartbeatStream, ClientError> {
        let opening = async {
            let (says, outbound) = mpsc::channel(1);
            let hello = pb::HeartbeatRequest { sequence: 0, message: Some(Message::Hello(hello)) };
            says.try_send(hello).map_err(|_| ClientError::DeadlineExceeded)?;
            let answers = client.heartbeat(ReceiverStream::new(outbound)).await?;
            let mut heartbeat = HeartbeatStream { says, answers, sequence: 0 };
            heartbeat.answer().await?;
            Ok(heartbeat)
        };
        timeout(patience, opening).await.unwrap_or(Err(ClientError::DeadlineExceeded))
    }

    /// Says something and returns when it is durable, or fails within `patience`.
    ///
    /// A connection that swallows everything without an error is found out here.
    pub async fn say(
        &mut self,
        message: Message,
        patience: Duration,
    ) -> Result<pb::HeartbeatResponse, ClientError> {
        self.sequence += 1;
        let request = pb::HeartbeatRequest { sequence: self.sequence, message: Some(message) };
        let saying = async {
            let gone = |_| ClientError::Unavailable("the stream has ended".to_owned());
            self.says.send(request).await.map_err(gone)?;
            self.answer().await
        };
        timeout(patience, saying).await.unwrap_or(Err(ClientError::DeadlineExceeded))
    }

    async fn answer(&mut self) -> Result<pb::HeartbeatResponse, ClientError> {
        loop {
            match self.answers.next().await {
                Some(Ok(answer)) if answer.sequence >= self.sequence => return Ok(answer),
                Some(Ok(_)) => {}
                Some(Err(status)) => return Err(status.into()),
                None => return Err(ClientError::Unavailable("the store ended the stream".to_owned())),
            }
        }
    }
}
