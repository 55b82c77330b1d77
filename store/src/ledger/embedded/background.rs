//! The background work of the ledger: checkpoints, deletion of old segments, and reading everything again to find damage
//! early (scrub).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use muster_store_core::memory::Memory;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use super::EmbeddedLedger;

/// A checkpoint is due when the journal holds this much that the newest one does not contain, or a part of the size of
/// that one: then reading and hashing its files is paid for by what was written.
const CHECKPOINT_BYTES: u64 = 64 << 20;
const CHECKPOINT_PART: u64 = 2;

/// The pause after a checkpoint that failed.
const RETRY: Duration = Duration::from_secs(5);

/// Everything is read again this often, at most at the given rate.
const SCRUB_PERIOD: Duration = Duration::from_secs(3600);
const SCRUB_BYTES_PER_TICK: usize = 1 << 20;
const SCRUB_TICK: Duration = Duration::from_millis(100);

/// What the background work reports.
#[derive(Debug, Clone, Default)]
pub struct BackgroundMetrics {
    pub checkpoints: Counter,
    pub failed_checkpoints: Counter,
    /// Bytes in the journal that the newest checkpoint does not contain.
    pub behind_bytes: Gauge,
    pub scrubbed_bytes: Counter,
    pub scrubs: Counter,
    pub damage_found: Counter,
}

/// Wakes the background threads.
#[derive(Default)]
pub(super) struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone, Copy)]
struct State {
    /// There may be segments to delete.
    is_woken: bool,
    checkpoint: bool,
    stopped: bool,
}

impl Signal {
    pub(super) fn wake(&self, checkpoint: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_woken = true;
        state.checkpoint |= checkpoint;
        self.changed.notify_all();
    }

    pub(super) fn request_checkpoint(&self) {
        self.wake(true);
    }

    fn stop(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).stopped = true;
        self.changed.notify_all();
    }

    /// Waits until there is something to do; `None` when stopped.
    fn next(&self) -> Option<State> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |state: &mut State| !state.is_woken && !state.stopped;
        let mut state = self.changed.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
        let taken = *state;
        (state.is_woken, state.checkpoint) = (false, false);
        (!taken.stopped).then_some(taken)
    }

    /// Sleeps; `false` when stopped.
    fn sleep(&self, duration: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(state, duration, |state| !state.stopped);
        !waited.unwrap_or_else(PoisonError::into_inner).0.stopped
    }
}

/// The running background work. It ends when this is dropped.
pub struct Background {
    ledger: Weak<EmbeddedLedger>,
    threads: Vec<JoinHandle<()>>,
}

impl EmbeddedLedger {
    /// How much the journal may hold before a checkpoint is due.
    pub(super) fn checkpoint_due(&self) -> u64 {
        CHECKPOINT_BYTES.max(self.checkpoint_bytes.load(Ordering::Relaxed) / CHECKPOINT_PART)
    }

    /// Starts the background work on the records that were loaded.
    pub fn start_background(
        self: &Arc<Self>,
        memory: Arc<RwLock<Memory>>,
        metrics: BackgroundMetrics,
    ) -> std::io::Result<Background> {
        // Set once: a ledger has one store.
        let _ = self.memory.set(memory);
        let mut background = Background { ledger: Arc::downgrade(self), threads: Vec::new() };
        let (ledger, of_scrub) = (Arc::clone(self), metrics.clone());
        let keep = std::thread::Builder::new().name("checkpoint".into());
        background.threads.push(keep.spawn(move || ledger.keep_checkpoints(&metrics))?);
        let ledger = Arc::clone(self);
        let scrub = std::thread::Builder::new().name("scrub".into());
        background.threads.push(scrub.spawn(move || ledger.keep_scrubbing(&of_scrub))?);
        // What is damaged is replaced from memory.
        let has_damaged = self.checkpoints().has_damaged();
        if has_damaged || self.behind.load(Ordering::Relaxed) >= self.checkpoint_due() {
            self.signal.request_checkpoint();
        }
        Ok(background)
    }

    fn keep_checkpoints(&self, metrics: &BackgroundMetrics) {
        while let Some(state) = self.signal.next() {
            if state.checkpoint {
                match self.checkpoint_now() {
                    Ok(()) => {
                        metrics.checkpoints.inc();
                    }
                    Err(error) => {
                        metrics.failed_checkpoints.inc();
                        tracing::error!(%error, "a checkpoint could not be written; it is tried again");
                        if !self.signal.sleep(RETRY) {
                            return;
                        }
                        self.signal.request_checkpoint();
                    }
                }
            }
            metrics.behind_bytes.set(self.behind.load(Ordering::Relaxed) as i64);
            if let Err(error) = self.trim() {
                tracing::error!(%error, "old segments of the journal could not be deleted");
            }
        }
    }

    /// Writes a checkpoint of everything committed so far.
    pub(super) fn checkpoint_now(&self) -> Result<(), super::LedgerError> {
        let Some(memory) = self.memory.get() else { return Ok(()) };
        let before = self.behind.load(Ordering::Relaxed);
        let mut checkpoints = self.checkpoints();
        checkpoints.write(&self.journal, memory)?;
        self.checkpoint_bytes.store(checkpoints.file_bytes(), Ordering::Relaxed);
        drop(checkpoints);
        // What was committed while it was written may or may not be in it.
        self.behind.fetch_sub(before, Ordering::Relaxed);
        Ok(())
    }

    /// Deletes segments that nothing needs.
    pub(super) fn trim(&self) -> std::io::Result<usize> {
        let oldest = self.checkpoints().oldest_number();
        self.journal.trim(oldest, self.journal.head().compacted)
    }

    fn keep_scrubbing(&self, metrics: &BackgroundMetrics) {
        while self.signal.sleep(SCRUB_PERIOD) {
            match self.scrub(metrics) {
                Some(true) => {
                    metrics.scrubs.inc();
                }
                Some(false) => {
                    metrics.damage_found.inc();
                    // Memory holds everything: two new checkpoints, and nothing that is damaged is needed any more.
                    self.signal.request_checkpoint();
                }
                None => return,
            }
        }
    }

    /// Reads all files again; whether they are undamaged. `None` when stopped.
    pub(super) fn scrub(&self, metrics: &BackgroundMetrics) -> Option<bool> {
        let (mut read, mut is_running, mut is_intact) = (0, true, true);
        let mut pace = |bytes: usize| {
            metrics.scrubbed_bytes.inc_by(bytes as u64);
            read += bytes;
            if read >= SCRUB_BYTES_PER_TICK {
                read = 0;
                is_running &= self.signal.sleep(SCRUB_TICK);
            }
            is_running
        };
        for segment in self.journal.closed_segments() {
            for frame in segment.frames_from(0) {
                if let Err(error) = segment.read_frame(frame) {
                    tracing::error!(%error, "the journal is damaged");
                    is_intact = false;
                }
                if !pace(frame.len as usize) {
                    return None;
                }
            }
        }
        let complete = self.checkpoints().complete();
        for (path, manifest) in complete {
            let verified = manifest.verify(&*self.disk, &path, |bytes| {
                pace(bytes);
            });
            if let Err(error) = verified {
                // It may have been replaced meanwhile.
                if self.checkpoints().mark_damaged(&manifest) {
                    tracing::error!(%error, "a checkpoint is damaged");
                    is_intact = false;
                }
            }
        }
        is_running.then_some(is_intact)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(ledger) = self.ledger.upgrade() {
            ledger.signal.stop();
        }
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}
