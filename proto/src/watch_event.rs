//! Events of a watch on one kind of record: changes, the point where it is synced, and the loss of the store.

use std::time::Duration;

use crate::key::Key;
use crate::name::Uid;

/// One event of a watched kind. Everything between [`Lost`] (or the start) and [`Synced`] is part of a relist, which
/// takes effect as a whole at [`Synced`].
///
/// [`Lost`]: WatchEvent::Lost
/// [`Synced`]: WatchEvent::Synced
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent<R> {
    /// The watch has delivered everything up to this revision: the whole list, or all changes since it was interrupted.
    /// With `WatchOptions::progress` it is also sent when nothing has changed for a while.
    Synced { revision: u64 },
    /// A record is new or changed. Its metadata has the traceparent of the write.
    Applied { record: R },
    /// A record is gone, or no longer matches the selectors.
    Gone {
        key: Key,
        /// The uid of the record that is gone, where it is known.
        uid: Option<Uid>,
        /// The revision of the deletion, or of the list that no longer had the record.
        revision: u64,
        /// The last state of the record; unknown if a list no longer had it.
        last: Option<R>,
        traceparent: Option<String>,
    },
    /// Nothing is received from the store until the next `Synced`. Repeated for each attempt that fails.
    Lost(WatchFailure),
}

/// Why a list or watch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchFailure {
    pub kind: WatchFailureKind,
    /// How long the store asked the client to wait.
    pub retry_after: Option<Duration>,
    /// For people.
    pub message: String,
}

/// What a failed list or watch means for the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchFailureKind {
    /// History no longer holds our revision: list again.
    Expired,
    /// The store has not reached our revision.
    FutureVersion,
    /// The store refuses or does not understand the request. Retried like any other failure: permissions change.
    Refused,
    /// Anything else: no connection, no answer, a store that cannot serve.
    Unreachable,
}
