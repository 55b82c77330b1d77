//! One watcher's memory: what to ask next, and what the answers mean to whoever follows.
//!
//! A session lists, then watches from the list's version, and resumes after the last version it saw; when history no
//! longer reaches that far it lists again, and what vanished meanwhile comes out as [`WatchEvent::Gone`]. No network and no
//! clock: [`Session::ask`] says what to do, [`Session::observe`] is told what came of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use muster_proto::backoff::Backoff;
use muster_proto::name::Uid;
use muster_proto::record::Record;
use muster_proto::time::Mono;
use muster_proto::watch_event::{WatchEvent, WatchFailure, WatchFailureKind};

use muster_proto::key::Key;

/// How often a store may say that it is behind us before we believe that its history was cut back.
const AHEAD_LIMIT: u32 = 3;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    List,
    Watch { after: u64 },
    Wait { until: Mono },
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum News<R> {
    /// The list arrived. `unreadable` exist but cannot be told.
    Listed {
        records: Vec<R>,
        unreadable: Vec<Key>,
        revision: u64,
    },
    /// The watch runs; its changes follow.
    Opened,
    /// Changes, in order.
    Changes(Vec<Change<R>>),
    /// The store ended the watch in peace.
    Ended,
    Failed(WatchFailure),
}

/// One step of a watch.
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
    /// Nothing to tell up to here.
    Bookmark {
        version: u64,
    },
}

/// The session of one watcher.
#[derive(Clone, Debug)]
pub struct Session {
    backoff: Backoff,
    /// Whether the follower wants to know how far a quiet watch has come.
    progress: bool,
    state: State,
    /// What the follower was told exists. Looked up for every change, and put in order when it is told of.
    known: HashMap<Key, Seen>,
    /// The latest revision any answer spoke of.
    revision: u64,
    /// Whether the follower believes itself up to date.
    synced: bool,
    /// Whether the last list has not yet led to a watch that works.
    list_unproven: bool,
    /// Failures in a row, for the back-off.
    failures: u32,
    /// How often in a row the store said it was behind us.
    ahead: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no version to go on from.
    Listing { retry_at: Mono },
    /// The watch runs, or is to be opened at once.
    Watching { cursor: u64, stream: Option<Stream> },
    /// The watch broke and will go on from the cursor.
    Lost { cursor: u64, retry_at: Mono },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stream {
    after: u64,
    opened_at: Mono,
    bore_fruit: bool,
    /// It began with the present, which it tells in no order of versions up to its first bookmark.
    is_present: bool,
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

    /// Tells the follower how far a quiet watch has come, too.
    #[must_use]
    pub fn with_progress(self, progress: bool) -> Session {
        Session { progress, ..self }
    }

    /// Whether the follower believes itself up to date.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// What to do at `now`. Asked again once that is done; a watch that runs is not asked for again.
    pub fn ask(&self, now: Mono) -> Ask {
        match self.state {
            State::Listing { retry_at } | State::Lost { retry_at, .. } if now < retry_at => {
                Ask::Wait { until: retry_at }
            }
            State::Listing { .. } => Ask::List,
            State::Watching { cursor, .. } | State::Lost { cursor, .. } => Ask::Watch { after: cursor },
        }
    }

    /// Takes in what happened and tells what it means to the follower. `jitter` in `0.0..=1.0` spreads retries.
    pub fn observe<R: Record>(&mut self, news: News<R>, now: Mono, jitter: f64) -> Vec<WatchEvent<R>> {
        match news {
            News::Listed { records, unreadable, revision } => self.listed(records, &unreadable, revision),
            News::Opened => self.opened(now),
            News::Changes(changes) => self.changed(changes),
            News::Ended => self.ended(now, jitter),
            News::Failed(failure) => vec![WatchEvent::Lost(self.failed(failure, now, jitter))],
        }
    }

    fn listed<R: Record>(
        &mut self,
        records: Vec<R>,
        unreadable: &[Key],
        revision: u64,
    ) -> Vec<WatchEvent<R>> {
        // A store that was put back to an older state: what we knew belongs to a history that never happened.
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
                Some(known) if known.uid != seen.uid => gone.push((key, known)),
                Some(known) if known.version >= seen.version => continue,
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
        // What is gone goes first: what came may need the room it leaves.
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
        // A store that nobody ever wrote to has no version to go on from: then a watch begins with the present.
        let stream = Stream { after: cursor, opened_at: now, bore_fruit: false, is_present: cursor == 0 };
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
            if stream.is_present {
                // The cursor waits for the end of it: who is cut off half way begins again.
                match change {
                    Change::Bookmark { version } => {
                        stream.is_present = false;
                        *cursor = version;
                        events.extend(self.progress.then_some(WatchEvent::Synced { revision: version }));
                    }
                    change => events.extend(tell(&mut self.known, change)),
                }
                continue;
            }
            // Told before: a store resumes after our cursor and keeps to its order, but we do not rely on it.
            if version <= stream.after || version < *cursor {
                continue;
            }
            *cursor = version;
            stream.bore_fruit = true;
            match change {
                Change::Bookmark { version } if self.progress => {
                    events.push(WatchEvent::Synced { revision: version });
                }
                change => events.extend(tell(&mut self.known, change)),
            }
        }
        self.revision = self.revision.max(*cursor);
        if stream.bore_fruit {
            self.list_unproven = false;
        }
        events
    }

    fn ended<R>(&mut self, now: Mono, jitter: f64) -> Vec<WatchEvent<R>> {
        if let State::Watching { cursor, stream: Some(stream) } = self.state
            && !stream.is_present
            && self.was_healthy(stream, now)
        {
            // Stores end streams now and then as a matter of course. Going on at once is not worth an alarm, which
            // would give every silent node a new grace.
            self.failures = 0;
            self.list_unproven = false;
            self.state = State::Watching { cursor, stream: None };
            return Vec::new();
        }
        let message = "the store ended the watch as soon as it began".to_owned();
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
                // Who was told a part of the present does not know what of it went meanwhile: only a list says.
                (!stream.is_some_and(|stream| stream.is_present)).then_some(cursor)
            }
            State::Lost { cursor, .. } => Some(cursor),
        };
        self.synced = false;
        self.failures = self.failures.saturating_add(1);
        self.ahead = if failure.kind == WatchFailureKind::FutureVersion { self.ahead + 1 } else { 0 };

        let delay = self.backoff.delay(self.failures, jitter).max(failure.retry_after.unwrap_or_default());
        let retry_at = now + delay;
        self.state = match (cursor, failure.kind) {
            // A list that expired before its watch began will do so again if we hurry.
            (Some(_), WatchFailureKind::Expired) if !self.list_unproven => State::Listing { retry_at: now },
            (_, WatchFailureKind::Expired) | (None, _) => State::Listing { retry_at },
            (Some(_), _) if self.ahead >= AHEAD_LIMIT => State::Listing { retry_at },
            (Some(cursor), _) => State::Lost { cursor, retry_at },
        };
        failure
    }

    /// Whether a stream did its work: one that told something, or outlived every retry delay.
    fn was_healthy(&self, stream: Stream, now: Mono) -> bool {
        stream.bore_fruit || now - stream.opened_at >= self.backoff.cap
    }
}

/// What a change means to a follower who was told of `known`: nothing, if it is no news.
fn tell<R: Record>(known: &mut HashMap<Key, Seen>, change: Change<R>) -> Option<WatchEvent<R>> {
    match change {
        Change::Put { record } => {
            let seen = Seen::of(&record);
            match known.entry(Key::of(&record)) {
                Entry::Occupied(told) if told.get().version >= seen.version => return None,
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
