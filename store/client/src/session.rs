//! The state machine of a watch: what to request next, and which events a response means.
//!
//! A session lists, then watches from the list's version, and resumes after the last version it received. When the
//! history no longer includes that version it lists again, and reports records that vanished meanwhile as
//! [`WatchEvent::Gone`]. It has no network and no clock: [`Session::ask`] returns what to do, [`Session::observe`]
//! takes the outcome.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use muster_proto::backoff::Backoff;
use muster_proto::name::Uid;
use muster_proto::record::Record;
use muster_proto::time::Mono;
use muster_proto::watch_event::{WatchEvent, WatchFailure, WatchFailureKind};

use muster_proto::key::Key;

/// How often in a row a store may report that it has not reached our version, before we conclude that it was restored
/// to an older state.
const AHEAD_LIMIT: u32 = 3;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    List,
    Watch { after: u64 },
    Wait { until: Mono },
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome<R> {
    /// The list. Records in `unreadable` exist but could not be validated.
    Listed {
        records: Vec<R>,
        unreadable: Vec<Key>,
        revision: u64,
    },
    /// The watch is open; its changes follow.
    Opened,
    /// Changes, in order.
    Changes(Vec<Change<R>>),
    /// The store ended the watch without an error.
    Ended,
    Failed(WatchFailure),
}

/// One change of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<R> {
    Put {
        record: R,
    },
    Delete {
        key: Key,
        version: u64,
        last: Option<R>,
        traceparent: Option<String>,
    },
    /// There is no other change up to this version.
    Bookmark {
        version: u64,
    },
}

/// The session of one watcher.
#[derive(Clone, Debug)]
pub struct Session {
    backoff: Backoff,
    /// Whether bookmarks are reported as [`WatchEvent::Synced`].
    progress: bool,
    state: State,
    /// The records that were reported and exist. A hash map, since it is looked up for every change; sorted only for a
    /// report.
    known: HashMap<Key, Seen>,
    /// The latest revision of any response.
    revision: u64,
    /// Whether the last event was not [`WatchEvent::Lost`]: the watch is synced.
    synced: bool,
    /// Whether no watch has worked since the last list.
    list_unproven: bool,
    /// Failures in a row, for the back-off.
    failures: u32,
    /// How often in a row the store reported that it has not reached our version.
    ahead: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no version to resume from.
    Listing { retry_at: Mono },
    /// The watch is open, or is to be opened at once.
    Watching { cursor: u64, stream: Option<Stream> },
    /// The watch broke and will resume from the cursor.
    Lost { cursor: u64, retry_at: Mono },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stream {
    after: u64,
    opened_at: Mono,
    has_delivered: bool,
    /// It began with the existing records, which come in no order of versions, up to the first bookmark.
    is_initial: bool,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    version: u64,
    uid: Option<Uid>,
}

impl Session {
    pub fn new(backoff: Backoff) -> Session {
        Session {
            backoff,
            progress: false,
            state: State::Listing { retry_at: Mono::ZERO },
            known: HashMap::new(),
            revision: 0,
            synced: false,
            list_unproven: false,
            failures: 0,
            ahead: 0,
        }
    }

    /// Also reports bookmarks, as [`WatchEvent::Synced`].
    #[must_use]
    pub fn with_progress(self, progress: bool) -> Session {
        Session { progress, ..self }
    }

    /// Whether the last event was not [`WatchEvent::Lost`]: the watch is synced.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// What to do at `now`. Call it again when that is done; while a watch is open, do not.
    pub fn ask(&self, now: Mono) -> Ask {
        match self.state {
            State::Listing { retry_at } | State::Lost { retry_at, .. } if now < retry_at => {
                Ask::Wait { until: retry_at }
            }
            State::Listing { .. } => Ask::List,
            State::Watching { cursor, .. } | State::Lost { cursor, .. } => Ask::Watch { after: cursor },
        }
    }

    /// Takes the outcome of a request and returns the events that follow from it. `jitter` in `0.0..=1.0` spreads
    /// retries.
    pub fn observe<R: Record>(&mut self, outcome: Outcome<R>, now: Mono, jitter: f64) -> Vec<WatchEvent<R>> {
        match outcome {
            Outcome::Listed { records, unreadable, revision } => self.listed(records, &unreadable, revision),
            Outcome::Opened => self.opened(now),
            Outcome::Changes(changes) => self.changed(changes),
            Outcome::Ended => self.ended(now, jitter),
            Outcome::Failed(failure) => vec![WatchEvent::Lost(self.failed(failure, now, jitter))],
        }
    }

    fn listed<R: Record>(
        &mut self,
        records: Vec<R>,
        unreadable: &[Key],
        revision: u64,
    ) -> Vec<WatchEvent<R>> {
        // The store was restored to an older state: the known versions belong to a history that is gone.
        let rewound = revision < self.revision;
        let mut before = std::mem::take(&mut self.known);
        let mut gone: Vec<(Key, Seen)> = Vec::new();
        let mut applied = Vec::new();
        for key in unreadable.iter().filter(|_| !rewound) {
            self.known.extend(before.remove_entry(key));
        }
        for record in records {
            let key = Key::of(&record);
            let seen = Seen::of(&record);
            let known = if rewound { None } else { before.remove(&key) };
            self.known.insert(key.clone(), seen);
            match known {
                // A lower version at a later revision: the store was restored to a state before the known version.
                Some(known) if known.uid != seen.uid || known.version > seen.version => {
                    gone.push((key, known));
                }
                Some(known) if known.version == seen.version => continue,
                _ => {}
            }
            applied.push(WatchEvent::Applied { record });
        }
        gone.extend(before);
        gone.sort_by(|(a, _), (b, _)| a.cmp(b));

        self.revision = revision;
        self.state = State::Watching { cursor: revision, stream: None };
        self.list_unproven = true;
        self.ahead = 0;
        self.synced = true;
        // Removals first: a new record may need a resource that a removed one had.
        let gone = gone.into_iter().map(|(key, seen)| WatchEvent::Gone {
            key,
            uid: seen.uid,
            revision: revision.max(seen.version),
            last: None,
            traceparent: None,
        });
        gone.chain(applied).chain([WatchEvent::Synced { revision }]).collect()
    }

    fn opened<R>(&mut self, now: Mono) -> Vec<WatchEvent<R>> {
        let (State::Watching { cursor, .. } | State::Lost { cursor, .. }) = self.state else {
            return Vec::new();
        };
        // An empty store has no version to resume from: then a watch begins with the existing records.
        let stream = Stream { after: cursor, opened_at: now, has_delivered: false, is_initial: cursor == 0 };
        self.state = State::Watching { cursor, stream: Some(stream) };
        self.ahead = 0;
        if std::mem::replace(&mut self.synced, true) {
            return Vec::new();
        }
        vec![WatchEvent::Synced { revision: cursor }]
    }

    fn changed<R: Record>(&mut self, changes: Vec<Change<R>>) -> Vec<WatchEvent<R>> {
        let State::Watching { cursor, stream: Some(stream) } = &mut self.state else {
            return Vec::new();
        };
        let mut events = Vec::with_capacity(changes.len());
        for change in changes {
            let version = change.version();
            if stream.is_initial {
                // The cursor stays until the bookmark: a watch that breaks before it starts again.
                match change {
                    Change::Bookmark { version } => {
                        stream.is_initial = false;
                        *cursor = version;
                        events.extend(self.progress.then_some(WatchEvent::Synced { revision: version }));
                    }
                    change => events.extend(event_of(&mut self.known, change)),
                }
                continue;
            }
            // Already reported: a store resumes after our cursor and keeps the order, but we do not rely on it.
            if version <= stream.after || version < *cursor {
                continue;
            }
            *cursor = version;
            stream.has_delivered = true;
            match change {
                Change::Bookmark { version } if self.progress => {
                    events.push(WatchEvent::Synced { revision: version });
                }
                change => events.extend(event_of(&mut self.known, change)),
            }
        }
        self.revision = self.revision.max(*cursor);
        if stream.has_delivered {
            self.list_unproven = false;
        }
        events
    }

    fn ended<R>(&mut self, now: Mono, jitter: f64) -> Vec<WatchEvent<R>> {
        if let State::Watching { cursor, stream: Some(stream) } = self.state
            && !stream.is_initial
            && self.was_healthy(stream, now)
        {
            // Stores end streams regularly. Resuming at once is no loss of the watch, which would give every node
            // without heartbeats a new grace period.
            self.failures = 0;
            self.list_unproven = false;
            self.state = State::Watching { cursor, stream: None };
            return Vec::new();
        }
        let message = "the store ended the watch as soon as it was open".to_owned();
        let failure = WatchFailure { kind: WatchFailureKind::Unreachable, retry_after: None, message };
        vec![WatchEvent::Lost(self.failed(failure, now, jitter))]
    }

    fn failed(&mut self, failure: WatchFailure, now: Mono, jitter: f64) -> WatchFailure {
        let cursor = match self.state {
            State::Listing { .. } => None,
            State::Watching { cursor, stream } => {
                if stream.is_some_and(|stream| self.was_healthy(stream, now)) {
                    self.failures = 0;
                    self.list_unproven = false;
                }
                // After a part of the existing records, removals in between are unknown: only a list shows them.
                (!stream.is_some_and(|stream| stream.is_initial)).then_some(cursor)
            }
            State::Lost { cursor, .. } => Some(cursor),
        };
        self.synced = false;
        self.failures = self.failures.saturating_add(1);
        self.ahead = if failure.kind == WatchFailureKind::FutureVersion { self.ahead + 1 } else { 0 };

        let delay = self.backoff.delay(self.failures, jitter).max(failure.retry_after.unwrap_or_default());
        let retry_at = now + delay;
        self.state = match (cursor, failure.kind) {
            // A list that expired before its watch was open will expire again without a pause.
            (Some(_), WatchFailureKind::Expired) if !self.list_unproven => State::Listing { retry_at: now },
            (_, WatchFailureKind::Expired) | (None, _) => State::Listing { retry_at },
            (Some(_), _) if self.ahead >= AHEAD_LIMIT => State::Listing { retry_at },
            (Some(cursor), _) => State::Lost { cursor, retry_at },
        };
        failure
    }

    /// Whether a stream worked: it delivered a change, or was open longer than every retry delay.
    fn was_healthy(&self, stream: Stream, now: Mono) -> bool {
        stream.has_delivered || now - stream.opened_at >= self.backoff.cap
    }
}

/// The event of a change; `None` if the change was already reported, by `known`.
fn event_of<R: Record>(known: &mut HashMap<Key, Seen>, change: Change<R>) -> Option<WatchEvent<R>> {
    match change {
        Change::Put { record } => {
            let seen = Seen::of(&record);
            match known.entry(Key::of(&record)) {
                Entry::Occupied(reported) if reported.get().version >= seen.version => return None,
                entry => drop(entry.insert_entry(seen)),
            }
            Some(WatchEvent::Applied { record })
        }
        Change::Delete { key, version, last, traceparent } => {
            let seen = known.remove(&key)?;
            Some(WatchEvent::Gone { key, uid: seen.uid, revision: version, last, traceparent })
        }
        Change::Bookmark { .. } => None,
    }
}

impl<R: Record> Change<R> {
    fn version(&self) -> u64 {
        match self {
            Change::Put { record, .. } => record.meta().resource_version,
            Change::Delete { version, .. } | Change::Bookmark { version } => *version,
        }
    }
}

impl Seen {
    fn of<R: Record>(record: &R) -> Seen {
        let meta = record.meta();
        Seen { version: meta.resource_version, uid: meta.uid }
    }
}

#[cfg(test)]
mod tests;
