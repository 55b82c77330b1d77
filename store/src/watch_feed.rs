//! One watch: the initial records if requested, then history from a revision on, then new changes.
//!
//! A feed holds a cursor and at most one read ahead of it. Frames are made when the connection asks for one, so a slow
//! watcher lags in the change log and is cut off only when its cursor is compacted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_proto::record::Kind;
use muster_rpc::exemplar::trace_of;
use muster_rpc::shutdown::Shutdown;
use tokio::time::{Sleep, sleep};

use muster_store_core::change::{Change, SharedChange, encode_bookmark, encode_event};
use muster_store_core::history::{Revision, StoredChange};
use muster_store_core::list_page::{ListRequest, ListVersion};
use muster_store_core::selectors::Selectors;

use crate::change_log::{Read, Subscription};
use crate::error::StoreError;
use crate::renewal_log::RenewalCatchUp;
use crate::store::Store;

/// A frame holds at most this many events, and no further event once it has this many bytes.
const FRAME_EVENTS: usize = 128;
const FRAME_BYTES: usize = 1 << 20;

/// How often a stream without events sends a bookmark, if bookmarks are requested.
const BOOKMARK_EVERY: Duration = Duration::from_secs(50);

/// A watch request, validated.
#[derive(Debug, Clone)]
pub struct WatchRequest {
    pub kind: Kind,
    pub selectors: Selectors,
    pub start: WatchStart,
    pub bookmarks: bool,
    /// After this time the stream ends.
    pub lifetime: Duration,
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchStart {
    /// With the current records as ADDED events; with `end_bookmark`, a bookmark follows the last of them.
    Initial { end_bookmark: bool },
    /// After a revision.
    After(Revision),
}

/// The state of one watch.
pub struct WatchFeed {
    store: Arc<Store>,
    request: WatchRequest,
    cursor: Revision,
    subscription: Subscription,
    /// The list of initial records still to send, and whether a bookmark follows them.
    initial: Option<(ListRequest, bool)>,
    /// Changes that were read and not sent yet.
    pending: VecDeque<SharedChange>,
    /// The cursor's position once `pending` is empty.
    pending_up_to: Revision,
    /// The newest renewals of leases, while this watcher is behind the renewal log.
    renewal_catch_up: RenewalCatchUp,
    bookmark_timer: std::pin::Pin<Box<Sleep>>,
    lifetime_timer: std::pin::Pin<Box<Sleep>>,
    shutdown: Shutdown,
    /// A bookmark is sent once all changes up to the head are read.
    bookmark_due: bool,
    /// Set when the lifetime is over or the store stops: the head at that time, after which the stream ends.
    final_revision: Option<Revision>,
    ended: bool,
}

impl WatchFeed {
    /// Opens a watch; fails if its start is compacted.
    pub fn open(store: Arc<Store>, request: WatchRequest, shutdown: Shutdown) -> Result<Self, StoreError> {
        // Subscribe before reading the head, so that no later change is missed.
        let subscription = store.log().subscribe(request.kind, request.selectors.node(request.kind));
        let (cursor, initial) = match request.start {
            WatchStart::After(revision) => {
                store.check_not_compacted(revision)?;
                (revision, None)
            }
            WatchStart::Initial { end_bookmark } => {
                let now = store.read().head();
                let (kind, selectors, version) =
                    (request.kind, request.selectors.clone(), ListVersion::Exact(now));
                // Page by page: a watcher that does not read must not hold a copy of all records.
                let list = ListRequest {
                    kind,
                    selectors,
                    version,
                    limit: FRAME_EVENTS,
                    query_hash: 0,
                    later_renewals: false,
                };
                (now, Some((list, end_bookmark)))
            }
        };
        let (bookmark_timer, lifetime_timer) =
            (Box::pin(sleep(BOOKMARK_EVERY)), Box::pin(sleep(request.lifetime)));
        let (pending, pending_up_to) = (VecDeque::new(), cursor);
        let (bookmark_due, final_revision, ended) = (false, None, false);
        store.metrics().watchers.inc();
        Ok(Self {
            store,
            request,
            cursor,
            subscription,
            initial,
            pending,
            pending_up_to,
            renewal_catch_up: RenewalCatchUp::default(),
            bookmark_timer,
            lifetime_timer,
            shutdown,
            bookmark_due,
            final_revision,
            ended,
        })
    }

    /// The next frames, to be joined into one message, or `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Result<Vec<Bytes>, StoreError>> {
        loop {
            if self.ended {
                return None;
            }
            if self.final_revision.is_none()
                && (self.shutdown.is_requested() || self.lifetime_timer.is_elapsed())
            {
                self.final_revision = Some(self.store.log().head());
            }
            let frames = match self.initial.is_some() {
                true => self.initial_frames().await,
                false => Ok(self.take_frames()),
            };
            let frames = match frames {
                Ok(frames) => frames,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            };
            if !frames.is_empty() {
                self.reset_bookmark_timer();
                return Some(Ok(frames));
            }
            if self.initial.is_some() {
                continue;
            }
            if self.final_revision.is_some_and(|head| self.cursor >= head) {
                return self.finish();
            }
            self.subscription.mark_read();
            match self.read().await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
            if std::mem::take(&mut self.bookmark_due) {
                return Some(Ok(vec![encode_bookmark(self.cursor, false)]));
            }
            // Writes of other kinds do not notify this watch, so its cursor may be far behind the head. Before a
            // bookmark the watch therefore reads on: bookmarks keep the cursors of rarely changing kinds from being compacted.
            tokio::select! {
                () = self.subscription.changed() => {}
                () = &mut self.bookmark_timer => {
                    self.reset_bookmark_timer();
                    self.bookmark_due = self.request.bookmarks;
                }
                () = &mut self.lifetime_timer => {}
                () = self.shutdown.requested() => {}
            }
        }
    }

    /// Ends the stream, with a last bookmark if bookmarks are requested.
    fn finish(&mut self) -> Option<Result<Vec<Bytes>, StoreError>> {
        self.ended = true;
        self.request.bookmarks.then(|| Ok(vec![encode_bookmark(self.cursor, false)]))
    }

    fn reset_bookmark_timer(&mut self) {
        self.bookmark_timer.set(sleep(BOOKMARK_EVERY));
    }

    /// The next page of the initial records.
    async fn initial_frames(&mut self) -> Result<Vec<Bytes>, StoreError> {
        let Some((mut list, end_bookmark)) = self.initial.take() else { return Ok(Vec::new()) };
        let page = self.store.list(list.clone()).await?;
        let mut frames: Vec<_> =
            page.records.iter().map(|record| encode_event("ADDED", record, "")).collect();
        match page.next {
            Some(token) => {
                list.version = ListVersion::Continue(token);
                self.initial = Some((list, end_bookmark));
            }
            None if end_bookmark => frames.push(encode_bookmark(self.cursor, true)),
            None => {}
        }
        Ok(frames)
    }

    fn take_frames(&mut self) -> Vec<Bytes> {
        let (mut frames, mut bytes, mut first) = (Vec::new(), 0, None);
        let full = |frames: &Vec<Bytes>, bytes| frames.len() == FRAME_EVENTS || bytes >= FRAME_BYTES;
        while !full(&frames, bytes) {
            let Some(change) = self.pending.pop_front() else { break };
            self.cursor = change.revision;
            if let Some(frame) = self.request.selectors.event(&change) {
                bytes += frame.len();
                frames.push(frame);
                first.get_or_insert(change);
            }
        }
        if let Some(first) = first {
            self.measure_lag(&first);
        }
        if self.pending.is_empty() {
            self.cursor = self.cursor.max(self.pending_up_to);
        }
        frames
    }

    /// Observes the time since the first change of a frame was published.
    fn measure_lag(&self, first: &Change) {
        let Some(published) = first.published_at() else { return };
        let lag = self.store.clock().mono() - published;
        self.store.metrics().watch_lag.observe(lag.as_secs_f64(), trace_of(&first.traceparent), None);
    }

    /// Reads on from the cursor; `false` when there is nothing new.
    async fn read(&mut self) -> Result<bool, StoreError> {
        let kind = self.request.kind;
        let node = self.request.selectors.node(kind);
        let (changes, up_to) = match self.store.log().read(kind, node, self.cursor, FRAME_EVENTS) {
            Read::Changes { changes, up_to } => (changes, up_to),
            Read::TooOld { until } => {
                self.store.metrics().watch_replays.inc();
                self.read_ledger(until).await?
            }
        };
        let (changes, up_to) = match kind {
            Kind::Lease => self.with_renewals(changes, up_to),
            _ => (changes, up_to),
        };
        let is_new = !changes.is_empty() || up_to > self.cursor;
        self.pending.extend(changes);
        self.pending_up_to = up_to;
        Ok(is_new)
    }

    async fn read_ledger(&self, until: Revision) -> Result<(Vec<SharedChange>, Revision), StoreError> {
        self.store.check_not_compacted(self.cursor)?;
        let (store, kind, cursor) = (Arc::clone(&self.store), self.request.kind, self.cursor);
        let read = move || -> Result<_, StoreError> {
            let (found, up_to) = store.ledger().changes_of(kind, cursor, until, FRAME_EVENTS)?;
            let changes =
                found.into_iter().map(|(revision, change)| stored_change(revision, change)).collect();
            // A commit may have compacted history during the read. The ledger's mark is part of that commit; memory is
            // updated only after it.
            let oldest = store.ledger().compacted();
            if cursor < oldest {
                return Err(StoreError::Expired { requested: cursor, oldest });
            }
            Ok((changes, up_to))
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|e| StoreError::Storage(e.to_string()))?
    }

    /// Merges the renewals of leases with the leases' changes, by revision.
    fn with_renewals(
        &mut self,
        changes: Vec<SharedChange>,
        up_to: Revision,
    ) -> (Vec<SharedChange>, Revision) {
        let memory = self.store.read();
        let (mut merged, up_to) =
            self.store.renewals().read(self.cursor, up_to, &mut self.renewal_catch_up, &memory);
        merged.extend(changes.into_iter().filter(|change| change.revision <= up_to));
        merged.sort_by_key(|change| change.revision);
        (merged, up_to)
    }
}

/// A stored change as a change for watchers.
fn stored_change(revision: Revision, change: StoredChange) -> SharedChange {
    let previous = change.previous_record.clone();
    Arc::new(Change::from_stored(revision, change, previous))
}

impl Drop for WatchFeed {
    fn drop(&mut self) {
        self.store.metrics().watchers.dec();
    }
}
