//! The codec of every Muster call: prost with small buffers.
//!
//! tonic allocates 8 KiB per direction of every stream by default. A fleet holds
//! one mostly idle stream per agent, so these buffers, not the messages, would
//! take most of the store's memory. Buffers grow when a message needs more.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};
use tonic_prost::ProstDecoder;

const BUFFER: usize = 512;
/// How many bytes are encoded before they are passed to the connection.
const YIELD_AT: usize = 32 * 1024;

/// Encodes `T` and decodes `U` with prost, with small buffers.
#[derive(Debug, Clone)]
pub struct SmallCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = SmallEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        SmallEncoder(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::new(BUFFER, YIELD_AT))
    }
}

/// Encodes with prost, into a buffer that begins small and is enlarged once for each message.
#[derive(Debug, Clone)]
pub struct SmallEncoder<T>(PhantomData<T>);

impl<T: Message> Encoder for SmallEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(message.encoded_len());
        message.encode_raw(buffer);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD_AT)
    }
}
