//! The bytes of requests that have not arrived completely.
//!
//! tonic sets memory for a message aside as soon as its length has arrived. So a message counts with its whole length
//! from then until it is complete, and not at all if it arrives in one piece, as heartbeats do. Complete messages are
//! the handler's: the store bounds what waits to be written.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use crate::admission::connection::{Connection, Permit};
use crate::admission::{Class, Resource};

/// tonic refuses a longer message when it has read its length; such a message takes no memory. Services have this limit
/// or a lower one.
const LONGEST: usize = 4 << 20;

/// The flag for compression and four bytes of length.
const PREFIX: usize = 5;

/// The body of a request whose unfinished message is counted.
pub(super) struct RequestBody {
    body: Body,
    connection: Arc<Connection>,
    class: Class,
    messages: MessageLengths,
    /// For the unfinished message, if there is one.
    bytes: Option<Permit>,
}

impl RequestBody {
    pub(super) fn new(body: Body, connection: Arc<Connection>, class: Class) -> RequestBody {
        RequestBody { body, connection, class, messages: MessageLengths::default(), bytes: None }
    }

    /// Counts the message that is unfinished after this data.
    fn count(&mut self, data: &[u8]) -> Result<(), Status> {
        let unfinished = self.messages.unfinished_after(data);
        if unfinished == self.bytes.as_ref().map_or(0, Permit::amount) {
            return Ok(());
        }
        self.bytes = None;
        if unfinished > 0 && unfinished <= LONGEST {
            let taken = self.connection.take(self.class, Resource::Bytes, unfinished);
            self.bytes = Some(taken.map_err(|exceeded| super::refusal(&exceeded))?);
        }
        Ok(())
    }
}

impl http_body::Body for RequestBody {
    type Data = <Body as http_body::Body>::Data;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && let Err(refused) = self.count(data)
        {
            return Poll::Ready(Some(Err(refused)));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Where the messages of a body begin and end.
#[derive(Debug, Default)]
struct MessageLengths {
    prefix: [u8; PREFIX],
    /// How much of the next message's prefix has arrived.
    prefix_read: usize,
    /// The length of the current message, and how much of it is missing.
    length: usize,
    missing: usize,
}

impl MessageLengths {
    /// The length of the message that is unfinished after this data; 0 if there is none, or only a part of its prefix.
    fn unfinished_after(&mut self, mut data: &[u8]) -> usize {
        loop {
            let arrived = self.missing.min(data.len());
            self.missing -= arrived;
            data = &data[arrived..];
            if self.missing > 0 {
                return self.length;
            }
            let arrived = (PREFIX - self.prefix_read).min(data.len());
            self.prefix[self.prefix_read..self.prefix_read + arrived].copy_from_slice(&data[..arrived]);
            self.prefix_read += arrived;
            data = &data[arrived..];
            if self.prefix_read < PREFIX {
                return 0;
            }
            let [_, length @ ..] = self.prefix;
            self.prefix_read = 0;
            self.length = u32::from_be_bytes(length) as usize;
            self.missing = self.length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of zeros with its prefix.
    fn message(length: u32) -> Vec<u8> {
        let mut message = vec![0];
        message.extend(length.to_be_bytes());
        message.resize(PREFIX + length as usize, 0);
        message
    }

    #[test]
    fn a_message_counts_from_its_length_to_its_last_byte() {
        let two = [message(3), message(700)].concat();
        for (cuts, expected) in [
            (&[0, 4, 5, 8, 713][..], &[0, 0, 3, 0, 0][..]),
            (&[8, 713], &[0, 0]),
            (&[713], &[0]),
            (&[7, 9, 13, 712, 713], &[3, 0, 700, 700, 0]),
        ] {
            let mut lengths = MessageLengths::default();
            let mut begin = 0;
            let found: Vec<usize> = cuts
                .iter()
                .map(|end| lengths.unfinished_after(&two[std::mem::replace(&mut begin, *end)..*end]))
                .collect();
            assert_eq!(found, expected, "cut at {cuts:?}");
        }
    }

    #[test]
    fn empty_messages_are_complete_with_their_prefix() {
        let mut lengths = MessageLengths::default();
        assert_eq!(lengths.unfinished_after(&[message(0), message(0), message(9)[..5].to_vec()].concat()), 9);
        assert_eq!(lengths.unfinished_after(&[0; 9]), 0);
    }
}
