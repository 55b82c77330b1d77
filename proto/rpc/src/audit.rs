//! The audit log: one JSON line for every denied call and for every write, but none for renewals of leases.
//!
//! The layer `layers::audit` follows each call; what is called notes the record and the revision of its call ([`call`]).
//! A thread of its own formats the lines (`line`) and appends them to a file (`file`), from a bounded queue (`queue`):
//! a full or slow disk delays no call. Lines that do not fit into the queue are lost, counted, and noted in
//! the log once it can be written again.

pub mod call;
mod file;
mod line;
mod method;
mod queue;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;

pub(crate) use self::call::Pending;
pub use self::call::{Call, current, message, note_forwarded, note_record, note_revision, note_write};
pub(crate) use self::method::Methods;

use self::file::{LogFile, Unwritten};
use self::line::{Certificates, write_line, write_lost};
use self::queue::{Queue, Taken};
use crate::clock::SharedClock;

/// How many lines may wait for the disk.
const CAPACITY: usize = 32 * 1024;
/// The wait before a log that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long the last lines may take at the end of the process.
const CLOSE: Duration = Duration::from_secs(2);

/// The flag of the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Audit log")]
pub struct AuditFlags {
    /// File of the audit log, to which one JSON line is appended for each denied call and each write but renewals; - for
    /// standard output
    #[arg(long, env = "MUSTER_AUDIT_LOG", value_name = "FILE")]
    pub audit_log: Option<PathBuf>,
}

/// The audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("--audit-log: cannot open {}: {error}", .path.display())]
pub struct AuditError {
    path: PathBuf,
    error: io::Error,
}

/// An open audit log. Clones share it; its thread ends with the last one.
#[derive(Clone)]
pub struct AuditLog {
    queue: Arc<OpenQueue>,
    clock: SharedClock,
}

/// The queue as those see it that fill it.
struct OpenQueue(Arc<Queue>);

impl std::ops::Deref for OpenQueue {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.0
    }
}

impl Drop for OpenQueue {
    fn drop(&mut self) {
        // The thread writes what is left.
        self.0.close(Duration::ZERO);
    }
}

impl AuditLog {
    /// Opens the log of these flags, if there is one, and registers its metrics: `muster_audit_lines` and
    /// `muster_audit_lost`.
    ///
    /// # Errors
    /// When the file cannot be opened, or a thread cannot be started.
    pub fn open(
        flags: &AuditFlags,
        clock: &SharedClock,
        registry: &mut Registry,
    ) -> Result<Option<AuditLog>, AuditError> {
        let Some(path) = &flags.audit_log else { return Ok(None) };
        let log =
            AuditLog::at(path, CAPACITY, clock).map_err(|error| AuditError { path: path.clone(), error })?;
        let audit = registry.sub_registry_with_prefix("muster_audit");
        audit.register("lines", "Lines for the audit log", log.queue.lines.clone());
        audit.register("lost", "Lines that the audit log could not take", log.queue.lost.clone());
        Ok(Some(log))
    }

    fn at(path: &Path, capacity: usize, clock: &SharedClock) -> io::Result<AuditLog> {
        let file = LogFile::open(path, Arc::clone(clock))?;
        let queue = Arc::new(Queue::new(capacity));
        let open = Arc::new(OpenQueue(Arc::clone(&queue)));
        let log = AuditLog { queue: open, clock: Arc::clone(clock) };
        let thread = Writer { queue, file, clock: Arc::clone(clock), certificates: Certificates::default() };
        std::thread::Builder::new().name("audit".into()).spawn(move || thread.run())?;
        Ok(log)
    }

    /// Opens the file again, for one that was renamed. This also happens by itself within a second.
    pub fn reopen(&self) {
        self.queue.reopen();
    }

    /// Writes what waits and ends the log. Returns after a short time even if the disk does not take it.
    pub async fn close(self) {
        let queue = Arc::clone(&self.queue);
        let closed = tokio::task::spawn_blocking(move || queue.close(CLOSE)).await;
        if !matches!(closed, Ok(true)) {
            tracing::error!("the last lines of the audit log could not be written");
        }
    }

    fn push(&self, call: Arc<Call>, outcome: call::Outcome) {
        self.queue.push(queue::Entry { time: self.clock.wall(), call, outcome });
    }
}

impl std::fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditLog").finish_non_exhaustive()
    }
}

/// The thread that writes.
struct Writer {
    queue: Arc<Queue>,
    file: LogFile,
    clock: SharedClock,
    certificates: Certificates,
}

impl Writer {
    fn run(mut self) {
        let mut unwritten = Unwritten::default();
        loop {
            let Taken { entries, lost, reopen, is_closed } = self.queue.take();
            if reopen {
                self.file.expect_rotation();
            }
            for entry in &entries {
                write_line(entry, &mut self.certificates, unwritten.bytes());
            }
            if lost > 0 {
                write_lost(self.clock.wall(), lost, unwritten.bytes());
            }
            let is_written = self.write(&mut unwritten);
            if is_closed || !is_written {
                self.queue.ended(is_written);
                return;
            }
        }
    }

    /// Writes, however long the disk refuses it; false if the log was closed before.
    fn write(&mut self, unwritten: &mut Unwritten) -> bool {
        let mut has_failed = false;
        while let Err(error) = self.file.write(unwritten) {
            if !has_failed {
                tracing::error!(file = %self.file, %error, "the audit log cannot be written; its next lines wait in memory");
            }
            has_failed = true;
            if self.queue.is_closed_within(RETRY) {
                return self.file.write(unwritten).is_ok();
            }
        }
        if has_failed {
            tracing::info!(file = %self.file, "the audit log can be written again");
        }
        true
    }
}

#[cfg(test)]
mod tests;
