//! A watch: every change of some keys, in the order of etcd's revisions.

use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Streaming};

use crate::error::EtcdError;
use crate::pb;
use crate::pb::watch_client::WatchClient;
use crate::pb::watch_request::RequestUnion;

/// An answer has up to a thousand revisions, in pieces of 2 MiB unless one change is larger.
const MAX_ANSWER: usize = 64 << 20;

/// What a watch says.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchAnswer {
    /// Changes, in order. All changes of a revision are in one answer.
    Events(Vec<pb::Event>),
    /// The watch is alive, and nothing new has happened.
    Alive,
}

/// One watch on a stream of its own.
#[derive(Debug)]
pub struct Watch {
    requests: mpsc::Sender<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
    /// The pieces so far of an answer.
    pieces: Vec<pb::Event>,
}

impl Watch {
    pub(crate) async fn open(
        channel: Channel,
        (key, range_end): (Bytes, Bytes),
        start_revision: i64,
    ) -> Result<(Watch, pb::ResponseHeader), EtcdError> {
        // The creation, and progress requests that nobody has taken yet.
        let (requests, sent) = mpsc::channel(4);
        let create = pb::WatchCreateRequest { key, range_end, start_revision, fragment: true };
        let create = pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        requests.try_send(create).map_err(|error| EtcdError::NotDone(error.to_string()))?;
        let mut request = Request::new(ReceiverStream::new(sent));
        // A member that is cut off from the others ends the stream.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let mut client = WatchClient::new(channel).max_decoding_message_size(MAX_ANSWER);
        let mut answers = client.watch(request).await?.into_inner();
        let created = answers.message().await?.ok_or_else(ended)?;
        if created.canceled {
            return Err(canceled(&created));
        }
        let header = created.header.unwrap_or_default();
        Ok((Watch { requests, answers, pieces: created.events }, header))
    }

    /// The next answer.
    ///
    /// # Errors
    /// When the watch has ended; [`EtcdError::Compacted`] if its next revision is compacted.
    pub async fn next(&mut self) -> Result<WatchAnswer, EtcdError> {
        loop {
            let answer = self.answers.message().await?.ok_or_else(ended)?;
            if answer.canceled {
                return Err(canceled(&answer));
            }
            self.pieces.extend(answer.events);
            if answer.fragment {
                continue;
            }
            let events = std::mem::take(&mut self.pieces);
            return Ok(if events.is_empty() { WatchAnswer::Alive } else { WatchAnswer::Events(events) });
        }
    }

    /// Asks for a sign of life, which comes if the watch is not behind.
    pub fn ask(&self) {
        let progress = RequestUnion::ProgressRequest(pb::WatchProgressRequest {});
        // If earlier ones still wait, etcd does not read, and one more would not help.
        let _ = self.requests.try_send(pb::WatchRequest { request_union: Some(progress) });
    }
}

fn ended() -> EtcdError {
    EtcdError::Unknown("the watch ended".to_owned())
}

fn canceled(answer: &pb::WatchResponse) -> EtcdError {
    if answer.compact_revision > 0 {
        return EtcdError::Compacted;
    }
    let reason = &answer.cancel_reason;
    if reason.contains("permission") || reason.contains("auth") {
        return EtcdError::NotPermitted(reason.clone());
    }
    EtcdError::NotDone(format!("the watch was ended: {reason}"))
}
