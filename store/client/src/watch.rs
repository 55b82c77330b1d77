//! Watches one kind of records over the network: a [`Session`] with connections, timers and a queue.
//!
//! All state is in the [`Watch`] itself, so a `next()` that is dropped before it completes, as in `select!`, loses
//! nothing. The queue holds the events of one response; no more is read until they are taken.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream, StreamExt};
use muster_proto::backoff::Backoff;
use muster_proto::name::Namespace;
use muster_proto::time::Mono;
use muster_proto::watch::WatchFrame;
use tokio::time::Sleep;
use tonic::{Status, Streaming};

use crate::client::{StoreClient, read};
use crate::error::ClientError;
use crate::options::{List, ListOptions, Unreadable};
use crate::resource::{Resource, WatchEventParts};
use crate::session::{Ask, Change, Outcome, Session};
use muster_proto::key::Key;
use muster_proto::watch_event::WatchEvent;

/// Which records to watch. Resumes and relists use the same options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchOptions {
    /// Only records of this namespace; nodes have none.
    pub namespace: Option<Namespace>,
    /// Such as `zone=a`; empty means all.
    pub label_selector: String,
    /// Such as `spec.nodeName=a`; empty means all.
    pub field_selector: String,
    /// The page size of lists; 0 means the client's default.
    pub page_size: u32,
    /// The retry delays after a loss.
    pub backoff: Backoff,
    /// Whether to report the progress of an idle watch, as `Synced` events.
    pub progress: bool,
    /// How long the store may keep one stream open before the next is opened; 0 leaves it to the store.
    pub timeout_seconds: u32,
}

impl WatchOptions {
    pub(crate) fn namespace_text(&self) -> String {
        self.list().namespace_text()
    }

    fn list(&self) -> ListOptions {
        ListOptions {
            namespace: self.namespace.clone(),
            label_selector: self.label_selector.clone(),
            field_selector: self.field_selector.clone(),
            page_size: self.page_size,
            ..ListOptions::default()
        }
    }
}

impl Default for WatchOptions {
    fn default() -> WatchOptions {
        WatchOptions {
            namespace: None,
            label_selector: String::new(),
            field_selector: String::new(),
            page_size: 0,
            // A restart of the store takes a second or two; the cap spreads the reconnects of a fleet.
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(10)),
            progress: false,
            timeout_seconds: 0,
        }
    }
}

/// A stream of events about one kind of records. It never ends: a loss is an event, followed by retries as long as the
/// stream is polled.
#[must_use = "a watch does nothing unless polled"]
pub struct Watch<R: Resource> {
    client: StoreClient,
    options: WatchOptions,
    session: Session,
    /// The client's count of store changes when the session last listed.
    listed_after_changes: u64,
    step: Step<R>,
    /// Events that were not taken yet.
    ready: VecDeque<WatchEvent<R>>,
    random: RandomState,
}

enum Step<R: Resource> {
    /// Ask the session, as of this moment or now if that is later.
    Ask(Mono),
    Waiting(Pin<Box<Sleep>>, Mono),
    Listing(BoxFuture<'static, Result<List<R>, ClientError>>),
    Opening(BoxFuture<'static, Result<Frames<R>, ClientError>>),
    Reading(Box<Frames<R>>),
}

type Frames<R> = Streaming<WatchFrame<<R as Resource>::WatchEvent>>;

impl<R: Resource> Watch<R> {
    pub(crate) fn new(client: StoreClient, options: WatchOptions) -> Watch<R> {
        Watch {
            session: Session::new(options.backoff).with_progress(options.progress),
            listed_after_changes: client.store_changes(),
            client,
            options,
            step: Step::Ask(Mono::ZERO),
            ready: VecDeque::new(),
            random: RandomState::new(),
        }
    }

    fn now(&self) -> Mono {
        self.client.clock().mono()
    }

    fn begin(&mut self, not_before: Mono) -> Step<R> {
        let now = self.now().max(not_before);
        let client = self.client.clone();
        match self.session.ask(now) {
            Ask::Wait { until } => Step::Waiting(Box::pin(tokio::time::sleep(until - now)), until),
            Ask::List => {
                self.listed_after_changes = client.store_changes();
                let options = self.options.list();
                Step::Listing(async move { client.list(options).await }.boxed())
            }
            Ask::Watch { after } => {
                let options = self.options.clone();
                Step::Opening(async move { R::call_watch(&client, &options, after).await }.boxed())
            }
        }
    }

    fn listed(&mut self, result: Result<List<R>, ClientError>) {
        self.step = Step::Ask(Mono::ZERO);
        match result.and_then(|list| self.check_same_store().map(|()| list)) {
            Ok(list) => {
                let (records, revision) = (list.records, list.resource_version);
                let unreadable = list.unreadable.into_iter().filter_map(|it| report::<R>(it).0).collect();
                self.observe(Outcome::Listed { records, unreadable, revision });
            }
            Err(error) => self.failed(error),
        }
    }

    fn opened(&mut self, result: Result<Frames<R>, ClientError>) {
        match result.and_then(|frames| self.check_same_store().map(|()| frames)) {
            Ok(frames) => {
                self.step = Step::Reading(Box::new(frames));
                self.observe(Outcome::Opened);
            }
            Err(error) => {
                self.step = Step::Ask(Mono::ZERO);
                self.failed(error);
            }
        }
    }

    /// Refuses to continue on another store than the one that was listed: its revisions are not those of the session,
    /// even where it has the same numbers.
    fn check_same_store(&self) -> Result<(), ClientError> {
        if self.client.store_changes() == self.listed_after_changes {
            return Ok(());
        }
        Err(ClientError::Expired("the store is another one than before".to_owned()))
    }

    fn received(&mut self, frame: Option<Result<WatchFrame<R::WatchEvent>, Status>>) {
        match frame {
            Some(Ok(frame)) => {
                let changes = frame.events.into_iter().filter_map(|event| change::<R>(R::into_parts(event)));
                self.observe(Outcome::Changes(changes.collect()));
            }
            Some(Err(status)) => {
                self.step = Step::Ask(Mono::ZERO);
                self.failed(status.into());
            }
            None => {
                self.step = Step::Ask(Mono::ZERO);
                self.observe(Outcome::Ended);
            }
        }
    }

    fn failed(&mut self, error: ClientError) {
        self.observe(Outcome::Failed(error.into_failure()));
    }

    fn observe(&mut self, outcome: Outcome<R>) {
        // Random enough to spread retries: each watch has its own RandomState, and the time differs per call.
        let now = self.now();
        let jitter = self.random.hash_one(now) as f64 / u64::MAX as f64;
        let was_synced = self.session.is_synced();
        for event in self.session.observe(outcome, now, jitter) {
            match &event {
                WatchEvent::Synced { revision } if !was_synced => {
                    tracing::info!(kind = %R::KIND, revision, "the watch is synced");
                }
                WatchEvent::Lost(failure) => {
                    tracing::warn!(kind = %R::KIND, reason = failure.message, "the watch is lost; it will be retried");
                }
                WatchEvent::Synced { .. } | WatchEvent::Applied { .. } | WatchEvent::Gone { .. } => {}
            }
            self.ready.push_back(event);
        }
    }
}

impl<R: Resource> Stream for Watch<R> {
    type Item = WatchEvent<R>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchEvent<R>>> {
        let this = self.get_mut();
        loop {
            if let Some(event) = this.ready.pop_front() {
                return Poll::Ready(Some(event));
            }
            match &mut this.step {
                &mut Step::Ask(not_before) => this.step = this.begin(not_before),
                Step::Waiting(sleep, until) => {
                    ready!(sleep.as_mut().poll(cx));
                    // The timer has fired: continue whatever the clock says, since a test's clock may not move.
                    this.step = Step::Ask(*until);
                }
                Step::Listing(list) => {
                    let result = ready!(list.poll_unpin(cx));
                    this.listed(result);
                }
                Step::Opening(open) => {
                    let result = ready!(open.poll_unpin(cx));
                    this.opened(result);
                }
                Step::Reading(frames) => {
                    let frame = ready!(frames.poll_next_unpin(cx));
                    this.received(frame);
                }
            }
        }
    }
}

// No field is pinned: futures that need it are boxed.
impl<R: Resource> Unpin for Watch<R> {}

impl<R: Resource> fmt::Debug for Watch<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("kind", &R::KIND)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A change for the session; `None` for a kind of change that this release does not know.
fn change<R: Resource>(parts: WatchEventParts<R::Pb>) -> Option<Change<R>> {
    let record = parts.record?;
    let version = R::metadata(&record)?.resource_version;
    let traceparent = Some(parts.traceparent).filter(|text| !text.is_empty());
    match parts.kind.as_str() {
        "ADDED" | "MODIFIED" => Some(match read::<R>(record) {
            Ok(record) => Change::Put { record },
            // One unreadable record must not stop the others: skip it.
            Err(unreadable) => Change::Bookmark { version: report::<R>(unreadable).1 },
        }),
        "DELETED" => match read::<R>(record) {
            Ok(last) => Some(Change::Delete { key: Key::of(&last), version, last: Some(last), traceparent }),
            Err(unreadable) => {
                let (key, version) = report::<R>(unreadable);
                key.map(|key| Change::Delete { key, version, last: None, traceparent })
            }
        },
        "BOOKMARK" => Some(Change::Bookmark { version }),
        other => {
            tracing::warn!(kind = %R::KIND, change = other, "the store sent an unknown kind of change");
            None
        }
    }
}

/// Logs an unreadable record; returns its key and version.
fn report<R: Resource>(it: Unreadable) -> (Option<Key>, u64) {
    let name = it.key.as_ref().map(ToString::to_string).unwrap_or_default();
    tracing::warn!(
        kind = %R::KIND, name, revision = it.resource_version, reason = %it.reason,
        "the store sent a record that cannot be read; it is skipped"
    );
    (it.key, it.resource_version)
}

#[cfg(test)]
mod tests;
