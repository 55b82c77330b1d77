//! The heartbeat stream of each lease: only the newest one is acknowledged.
//!
//! An agent that reconnects may do so before the store finds out that its old stream is dead, so a newer hello replaces
//! the older stream. A machine and its clone have one identity: they would both renew the lease, and their two machines
//! would look like one healthy node. With one stream at a time they replace each other, which is counted here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Context;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use muster_proto::time::Mono;
use muster_store_core::heartbeat::contested_streams::{Takeover, Takeovers};
use muster_store_core::lease_table::Claim;

use crate::error::StoreError;

/// The open streams by the number of their lease.
#[derive(Default)]
pub struct HeartbeatStreams {
    open: Mutex<HashMap<u32, OpenStream>>,
}

struct OpenStream {
    epoch: u32,
    end: Arc<StreamEnd>,
    takeovers: Takeovers,
}

/// Why a stream must end, once it must.
#[derive(Default)]
pub struct StreamEnd {
    reason: OnceLock<StoreError>,
    waker: AtomicWaker,
}

impl StreamEnd {
    fn set(&self, reason: StoreError) {
        // The first reason stays: the stream has ended for it.
        let _ = self.reason.set(reason);
        self.waker.wake();
    }

    /// Refuses what a stream still does after another one replaced it.
    pub fn check(&self) -> Result<(), StoreError> {
        self.reason.get().map_or(Ok(()), |reason| Err(reason.clone()))
    }

    /// As [`check`](Self::check); wakes the task when the stream must end later.
    pub fn poll(&self, cx: &Context<'_>) -> Result<(), StoreError> {
        // Registered before looking, or a reason in between would wake nobody.
        self.waker.register(cx.waker());
        self.check()
    }
}

/// A stream that holds its lease's place. Dropping it frees the place.
pub struct StreamPlace {
    streams: Arc<HeartbeatStreams>,
    lease_id: u32,
    end: Arc<StreamEnd>,
}

impl HeartbeatStreams {
    /// Opens a stream whose hello was accepted, and ends the lease's older stream. The takeover is `None` if no stream
    /// of the same incarnation was open.
    pub fn open(
        self: &Arc<Self>,
        claim: Claim,
        now: Mono,
        lease_duration: Duration,
    ) -> (StreamPlace, Option<Takeover>) {
        let end = Arc::new(StreamEnd::default());
        let mut open = self.lock();
        let before = open.remove(&claim.lease_id);
        let (takeovers, takeover) = match before {
            Some(OpenStream { epoch, end: older, mut takeovers }) if epoch == claim.epoch => {
                older.set(StoreError::StreamReplaced);
                let takeover = takeovers.observe(now, lease_duration);
                (takeovers, Some(takeover))
            }
            // A stream of another holder, whose claim is not valid any more.
            Some(other) => {
                other.end.set(StoreError::ClaimLost);
                (Takeovers::default(), None)
            }
            None => (Takeovers::default(), None),
        };
        open.insert(claim.lease_id, OpenStream { epoch: claim.epoch, end: Arc::clone(&end), takeovers });
        drop(open);
        (StreamPlace { streams: Arc::clone(self), lease_id: claim.lease_id, end }, takeover)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, OpenStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamPlace {
    pub fn end(&self) -> &Arc<StreamEnd> {
        &self.end
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut open = self.streams.lock();
        if open.get(&self.lease_id).is_some_and(|current| Arc::ptr_eq(&current.end, &self.end)) {
            open.remove(&self.lease_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATION: Duration = Duration::from_secs(40);

    fn claim(lease_id: u32, epoch: u32) -> Claim {
        Claim { lease_id, epoch }
    }

    #[test]
    fn a_newer_stream_of_the_lease_ends_the_older_one_and_no_other() {
        let streams = Arc::new(HeartbeatStreams::default());
        let open = |claim| streams.open(claim, Mono::ZERO, DURATION);
        let (first, none) = open(claim(1, 7));
        let (other, _) = open(claim(2, 8));
        assert_eq!((first.end().check(), none), (Ok(()), None));

        let (second, takeover) = open(claim(1, 7));
        assert_eq!(takeover, Some(Takeover::Reconnect));
        assert_eq!(first.end().check(), Err(StoreError::StreamReplaced));
        assert_eq!(second.end().check(), Ok(()));
        drop(first);

        // Another incarnation acquired the lease.
        let (third, takeover) = open(claim(1, 9));
        assert_eq!((second.end().check(), takeover), (Err(StoreError::ClaimLost), None));
        assert_eq!((third.end().check(), other.end().check()), (Ok(()), Ok(())));

        drop((second, third));
        let (_again, takeover) = open(claim(1, 9));
        assert_eq!(takeover, None, "the last stream was closed before");
        drop(other);
        assert_eq!(streams.lock().len(), 1, "closed streams are forgotten");
    }

    #[test]
    fn streams_that_replace_each_other_again_and_again_are_contested() {
        let streams = Arc::new(HeartbeatStreams::default());
        let mut newest = None;
        let mut takeovers = Vec::new();
        for second in 0..6 {
            let now = Mono::since_origin(Duration::from_secs(second));
            let (place, takeover) = streams.open(claim(1, 7), now, DURATION);
            // The stream that was replaced is dropped after it got that error.
            drop(newest.replace(place));
            takeovers.extend(takeover);
        }
        let (reconnect, contested) = (Takeover::Reconnect, |warn| Takeover::Contested { warn });
        assert_eq!(takeovers, [reconnect, reconnect, reconnect, contested(true), contested(false)]);
    }
}
