//! The response message of every Watch call: a frame of events.
//!
//! On the wire it is a message with one repeated field. Such messages
//! concatenate: the bytes of two frames, joined, are the frame of both. So the
//! store encodes an event once, as a frame of its own, and a response is a
//! concatenation of such frames, whatever the number of watchers.

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message,
    encoding::{self, DecodeContext, WireType},
};

const EVENTS: u32 = 1;

/// Events that are sent to a watcher or were received from the store.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WatchFrame<E> {
    /// Frames that are already encoded; sent before `events`.
    encoded: Vec<Bytes>,
    /// The events, as a receiver sees them.
    pub events: Vec<E>,
}

impl<E: Message + Default> WatchFrame<E> {
    /// A frame of these events.
    pub fn of(events: Vec<E>) -> Self {
        Self { encoded: Vec::new(), events }
    }

    /// A frame that is the concatenation of encoded frames.
    pub fn joined(encoded: Vec<Bytes>) -> Self {
        Self { encoded, events: Vec::new() }
    }

    /// Encodes one event as a frame, to be joined with others later.
    pub fn encode_one(event: E) -> Bytes {
        Self::of(vec![event]).encode_to_vec().into()
    }
}

impl<E: Message + Default> Message for WatchFrame<E> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        for bytes in &self.encoded {
            buf.put_slice(bytes);
        }
        encoding::message::encode_repeated(EVENTS, &self.events, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            EVENTS => encoding::message::merge_repeated(wire_type, &mut self.events, buf, ctx),
            _ => encoding::skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        self.encoded.iter().map(Bytes::len).sum::<usize>()
            + encoding::message::encoded_len_repeated(EVENTS, &self.events)
    }

    fn clear(&mut self) {
        self.encoded.clear();
        self.events.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::{Metadata, Node, NodeWatchEvent};

    fn event(name: &str, version: u64) -> NodeWatchEvent {
        let metadata = Metadata { name: name.into(), resource_version: version, ..Default::default() };
        NodeWatchEvent {
            r#type: "ADDED".into(),
            node: Some(Node { metadata: Some(metadata), ..Default::default() }),
            traceparent: String::new(),
        }
    }

    #[test]
    fn joined_frames_are_the_frame_of_all_their_events() {
        let (a, b) = (event("a", 1), event("b", 2));
        let joined = WatchFrame::<NodeWatchEvent>::joined(vec![
            WatchFrame::encode_one(a.clone()),
            WatchFrame::encode_one(b.clone()),
        ]);
        let bytes = joined.encode_to_vec();
        assert_eq!(bytes.len(), joined.encoded_len());
        assert_eq!(bytes, WatchFrame::of(vec![a.clone(), b.clone()]).encode_to_vec());
        let received = WatchFrame::<NodeWatchEvent>::decode(&*bytes).unwrap();
        assert_eq!(received.events, [a, b]);
    }
}
