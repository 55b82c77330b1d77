//! A gRPC client of encoded messages.
//!
//! The load generator shares the processors with the server it measures. So it encodes a message once, changes a number
//! in each copy, and does not decode answers that it does not need.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{Stream, stream};
use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

/// Where a message has its number: valid as a part of a name, and as long as [`NumberedMessage`]'s digits.
pub const NUMBER: &str = "number-goes-here";

/// An encoded message with a number that is different in each copy. A status without a change would not be written, and
/// a name can be used once.
#[derive(Clone, Debug)]
pub struct NumberedMessage {
    encoded: Vec<u8>,
    /// Where the number stands, once for each [`NUMBER`].
    offsets: Vec<usize>,
}

impl NumberedMessage {
    /// A message whose fields contain [`NUMBER`] at least once.
    pub fn of(message: &impl Message) -> NumberedMessage {
        let encoded = message.encode_to_vec();
        let found = encoded.windows(NUMBER.len()).enumerate();
        let offsets: Vec<usize> =
            found.filter(|(_, text)| *text == NUMBER.as_bytes()).map(|(at, _)| at).collect();
        assert!(!offsets.is_empty(), "the message has a place for the number");
        NumberedMessage { encoded, offsets }
    }

    /// A copy with that number.
    pub fn numbered(&self, number: u64) -> Vec<u8> {
        let mut copy = self.encoded.clone();
        let digits = digits(number);
        for offset in &self.offsets {
            copy[*offset..*offset + NUMBER.len()].copy_from_slice(digits.as_bytes());
        }
        copy
    }

    /// A copy with a number that no other copy in this process has got from here.
    pub fn next(&self) -> Vec<u8> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        self.numbered(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What replaces [`NUMBER`].
pub fn digits(number: u64) -> String {
    format!("{number:0width$}", width = NUMBER.len())
}

/// One method of a service, over a shared connection.
#[derive(Clone, Debug)]
pub struct RawClient {
    grpc: Grpc<Channel>,
    method: PathAndQuery,
}

impl RawClient {
    /// The method is `/package.Service/Method`.
    pub fn new(channel: Channel, method: &'static str) -> RawClient {
        // For answers that contain the largest records.
        let grpc = Grpc::new(channel).max_decoding_message_size(64 << 20);
        RawClient { grpc, method: PathAndQuery::from_static(method) }
    }

    pub async fn call(&mut self, message: Vec<u8>) -> Result<Bytes, Status> {
        self.ready().await?;
        let answer = self.grpc.unary(Request::new(message.into()), self.method.clone(), RawCodec).await?;
        Ok(answer.into_inner())
    }

    pub async fn stream(
        &mut self,
        messages: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<Streaming<Bytes>, Status> {
        self.ready().await?;
        let answers = self.grpc.streaming(Request::new(messages), self.method.clone(), RawCodec).await?;
        Ok(answers.into_inner())
    }

    /// Begins a call and never sends its request; returns how the server ends it.
    pub async fn half_open(&mut self, timeout: &'static str) -> Result<Bytes, Status> {
        self.ready().await?;
        let mut request = Request::new(stream::pending());
        request.metadata_mut().insert("grpc-timeout", AsciiMetadataValue::from_static(timeout));
        let answer = self.grpc.client_streaming(request, self.method.clone(), RawCodec).await?;
        Ok(answer.into_inner())
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))
    }
}

/// Opens connections to a server.
pub async fn connect(url: &str, connections: usize) -> Vec<Channel> {
    let mut channels = Vec::new();
    for _ in 0..connections {
        let endpoint = Endpoint::from_shared(url.to_owned()).expect("a sound URL").tcp_nodelay(true);
        channels.push(endpoint.connect().await.expect("the server listens"));
    }
    channels
}

/// Passes messages on as they are.
#[derive(Clone, Copy, Debug)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = RawCodec;
    type Decoder = RawCodec;

    fn encoder(&mut self) -> RawCodec {
        RawCodec
    }

    fn decoder(&mut self) -> RawCodec {
        RawCodec
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
