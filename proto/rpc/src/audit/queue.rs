//! The lines that wait to be written, in a bounded queue.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;

use super::call::{Call, Outcome};

/// Lines of this time are written together. Callers wake the writer once for all of them, which would otherwise cost
/// more than all the rest.
const GATHER: Duration = Duration::from_millis(5);

/// A call that has ended.
pub(super) struct Entry {
    pub(super) time: Timestamp,
    pub(super) call: Arc<Call>,
    pub(super) outcome: Outcome,
}

/// What the writer has to do.
pub(super) struct Taken {
    pub(super) entries: Vec<Entry>,
    /// How many entries were lost after these.
    pub(super) lost: u64,
    pub(super) reopen: bool,
    pub(super) is_closed: bool,
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    lost: u64,
    reopen: bool,
    is_closed: bool,
    /// Set when the writer has ended: whether everything was written.
    ended: Option<bool>,
}

pub(super) struct Queue {
    capacity: usize,
    state: Mutex<State>,
    changed: Condvar,
    pub(super) lines: Counter,
    pub(super) lost: Counter,
}

impl Queue {
    pub(super) fn new(capacity: usize) -> Queue {
        Queue {
            capacity,
            state: Mutex::default(),
            changed: Condvar::new(),
            lines: Counter::default(),
            lost: Counter::default(),
        }
    }

    /// Adds a line, or counts it as lost. Never waits for the disk.
    pub(super) fn push(&self, entry: Entry) {
        self.lines.inc();
        let mut state = self.state();
        // After a loss everything is lost until the writer has noted it, so that the note is at its place.
        if state.lost > 0 || state.entries.len() >= self.capacity || state.is_closed {
            state.lost += 1;
            self.lost.inc();
            return;
        }
        state.entries.push(entry);
        if state.entries.len() == 1 {
            self.changed.notify_all();
        }
    }

    pub(super) fn reopen(&self) {
        self.state().reopen = true;
        self.changed.notify_all();
    }

    /// Waits until there is something to do.
    pub(super) fn take(&self) -> Taken {
        let idle = |state: &mut State| {
            state.entries.is_empty() && state.lost == 0 && !state.reopen && !state.is_closed
        };
        let state = self.changed.wait_while(self.state(), idle).unwrap_or_else(PoisonError::into_inner);
        let gathering = |state: &mut State| !state.reopen && !state.is_closed;
        let gathered = self.changed.wait_timeout_while(state, GATHER, gathering);
        let (mut state, _) = gathered.unwrap_or_else(PoisonError::into_inner);
        Taken {
            entries: std::mem::take(&mut state.entries),
            lost: std::mem::take(&mut state.lost),
            reopen: std::mem::take(&mut state.reopen),
            is_closed: state.is_closed,
        }
    }

    /// Waits for some time; true if the log was closed meanwhile.
    pub(super) fn is_closed_within(&self, time: Duration) -> bool {
        let open = |state: &mut State| !state.is_closed;
        let waited = self.changed.wait_timeout_while(self.state(), time, open);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }

    /// The writer has ended.
    pub(super) fn ended(&self, is_written: bool) {
        self.state().ended = Some(is_written);
        self.changed.notify_all();
    }

    /// Ends the log; true if everything was written in time.
    pub(super) fn close(&self, time: Duration) -> bool {
        self.state().is_closed = true;
        self.changed.notify_all();
        let running = |state: &mut State| state.ended.is_none();
        let waited = self.changed.wait_timeout_while(self.state(), time, running);
        waited.unwrap_or_else(PoisonError::into_inner).0.ended == Some(true)
    }

    /// How many lines wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.state().entries.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
