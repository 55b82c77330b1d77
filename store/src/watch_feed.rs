//! One watcher: the present if it asks for it, then history from where it is,
//! then the head.
//!
//! A feed holds a cursor and at most one read ahead of it. Frames are made when the connection asks
//! for one, so a slow watcher lags in the log and is cut only when it falls
//! behind the history that is kept.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_proto::record::Kind;
use muster_rpc::exemplar::trace_of;
use muster_rpc::shutdown::Shutdown;
use tokio::time::{Sleep, sleep};

use crate::change_log::{Read, Subscription};
use crate::error::StoreError;
use crate::renewal_log::RenewalCatchUp;
use crate::store::Store;
use muster_store_core::change::{Change, SharedChange, encode_bookmark, encode_event};
use muster_store_core::history::{Revision, StoredChange};
use muster_store_core::list_page::{ListRequest, ListVersion};
use muster_store_core::selectors::Selectors;

/// A frame holds at most this many events, and no event more once it has this
/// many bytes.
const FRAME_EVENTS: usize = 128;
const FRAME_BYTES: usize = 1 << 20;

/// How often a quiet stream says how far it is, if asked to.
const BOOKMARK_EVERY: Duration = Duration::from_secs(50);

/// What a watcher asks for.
#[derive(Debug, Clone)]
pub struct WatchRequest {
    pub kind: Kind,
    pub selectors: Selectors,
    pub start: WatchStart,
    pub bookmarks: bool,
    /// When the stream is to end.
    pub lifetime: Duration,
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchStart {
    /// With the present records; `end_bookmark` asks for a bookmark after them.
    Initial { end_bookmark: bool },
    /// After a revision.
    After(Revision),
}

/// A watcher's place in history.
pub struct WatchFeed {
    store: Arc<Store>,
    request: WatchRequest,
    cursor: Revision,
    subscription: Subscription,
    /// The present records that are still to be told of, and whether a bookmark
    /// ends them.
    initial: Option<(ListRequest, bool)>,
    /// Changes that were read and not looked at yet.
    pending: VecDeque<SharedChange>,
    /// Where the cursor stands once `pending` is empty.
    pending_up_to: Revision,
    /// Renewals of leases that happened further back than they are kept.
    renewal_catch_up: RenewalCatchUp,
    bookmark_timer: std::pin::Pin<Box<Sleep>>,
    lifetime_timer: std::pin::Pin<Box<Sleep>>,
    shutdown: Shutdown,
    /// A bookmark is to be said once everything up to the head was read.
    bookmark_due: bool,
    /// The stream ends here: the head when its time was over.
    final_revision: Option<Revision>,
    ended: bool,
}

impl WatchFeed {
    /// Opens a watch, or says why it cannot begin there.
    pub fn open(store: Arc<Store>, request: WatchRequest, shutdown: Shutdown) -> Result<Self, StoreError> {
        // The subscription comes first: what happens from here on will be noticed.
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
                // Page by page: a watcher that does not read must not hold a copy of all.
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

    /// The next frames to join, or `None` at the end of the stream.
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
            // Other kinds' writes wake nobody here, so a bookmark reads on first: it is for
            // those who watch a kind that seldom changes, and would otherwise let them fall
            // out of history.
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

    /// Ends the stream, after a last word on how far it came.
    fn finish(&mut self) -> Option<Result<Vec<Bytes>, StoreError>> {
        self.ended = true;
        self.request.bookmarks.then(|| Ok(vec![encode_bookmark(self.cursor, false)]))
    }

    fn reset_bookmark_timer(&mut self) {
        self.bookmark_timer.set(sleep(BOOKMARK_EVERY));
    }

    /// The next page of the present records.
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

    /// Notes how long ago the first change of a frame could have been told.
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
        let news = !changes.is_empty() || up_to > self.cursor;
        self.pending.extend(changes);
        self.pending_up_to = up_to;
        Ok(news)
    }

    async fn read_ledger(&self, until: Revision) -> Result<(Vec<SharedChange>, Revision), StoreError> {
        self.store.check_not_compacted(self.cursor)?;
        let (store, kind, cursor) = (Arc::clone(&self.store), self.request.kind, self.cursor);
        let read = move || -> Result<_, StoreError> {
            let (found, up_to) = store.ledger().changes_of(kind, cursor, until, FRAME_EVENTS)?;
            let changes: Result<Vec<_>, StoreError> =
                found.into_iter().map(|(revision, change)| stored_change(&store, revision, change)).collect();
            // A commit may have cut history while it was read. The ledger says so in the
            // same transaction, memory only after it.
            let oldest = store.ledger().compacted()?;
            if cursor < oldest {
                return Err(StoreError::Expired { requested: cursor, oldest });
            }
            Ok((changes?, up_to))
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|e| StoreError::Storage(e.to_string()))?
    }

    /// Puts the renewals of leases between their changes.
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

/// A change as watchers share it, from the ledger.
fn stored_change(
    store: &Store,
    revision: Revision,
    change: StoredChange,
) -> Result<SharedChange, StoreError> {
    let previous = match change.previous {
        0 => None,
        version => store.ledger().change(version)?.map(|previous| previous.record),
    };
    Ok(Arc::new(Change::from_stored(revision, change, previous)))
}

impl Drop for WatchFeed {
    fn drop(&mut self) {
        self.store.metrics().watchers.dec();
    }
}
