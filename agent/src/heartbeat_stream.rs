//! One heartbeat stream to the store, with at most one message in flight.

use std::time::Duration;

use futures_util::StreamExt;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_store_client::{ClientError, StoreClient};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// An open stream whose Hello the store accepted.
pub struct HeartbeatStream {
    requests: mpsc::Sender<pb::HeartbeatRequest>,
    answers: Streaming<pb::HeartbeatResponse>,
    sequence: u64,
}

impl HeartbeatStream {
    /// Opens a stream and sends the Hello, within `deadline`.
    pub async fn open(
        client: &StoreClient,
        hello: pb::HeartbeatHello,
        deadline: Duration,
    ) -> Result<HeartbeatStream, ClientError> {
        let opening = async {
            let (requests, outbound) = mpsc::channel(1);
            let hello = pb::HeartbeatRequest { sequence: 0, message: Some(Message::Hello(hello)) };
            requests.try_send(hello).map_err(|_| ClientError::DeadlineExceeded)?;
            let answers = client.heartbeat(ReceiverStream::new(outbound)).await?;
            let mut stream = HeartbeatStream { requests, answers, sequence: 0 };
            stream.answer().await?;
            Ok(stream)
        };
        timeout(deadline, opening).await.unwrap_or(Err(ClientError::DeadlineExceeded))
    }

    /// Sends a message and returns when the store has made it durable, or fails after `deadline`.
    ///
    /// The deadline also finds a connection that drops everything without an error.
    pub async fn send(
        &mut self,
        message: Message,
        deadline: Duration,
    ) -> Result<pb::HeartbeatResponse, ClientError> {
        self.sequence += 1;
        let request = pb::HeartbeatRequest { sequence: self.sequence, message: Some(message) };
        let exchange = async {
            // If the store has ended the stream, its last answer says why.
            let _ = self.requests.send(request).await;
            self.answer().await
        };
        timeout(deadline, exchange).await.unwrap_or(Err(ClientError::DeadlineExceeded))
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
