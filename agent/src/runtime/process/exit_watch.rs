//! Waits for containers to exit, and rotates their logs meanwhile.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use super::super::logs::ContainerLog;
use super::super::processes::ProcessKey;
use super::super::record::{self, Run};
use super::super::{ContainerId, Exit, ExitReason, cgroup, nonblocking};
use super::{Inner, Stage};

/// How often to check a process where the kernel cannot signal its exit.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the lengths of logs are checked: a reader can ask for the lines of the last seconds.
const LOGS_EVERY: Duration = Duration::from_secs(1);
/// The exit code of a container whose exit was not observed, as Kubernetes has it.
const VANISHED: i32 = 137;

impl Inner {
    /// Waits, in the background, for a container to exit and records that. `shim` is given if the shim is a child of
    /// this process.
    pub(super) fn watch(self: &Arc<Self>, id: ContainerId, run: Run, shim: Option<Child>) {
        // A task does not keep the runtime alive: the runtime may be dropped while containers keep running.
        let inner = Arc::downgrade(self);
        self.tasks.spawn(async move {
            wait_for(run.shim).await;
            if let Some(mut shim) = shim {
                // It has exited: this returns at once and frees its pid.
                let _ = shim.wait();
            }
            let Some(runtime) = inner.upgrade() else { return };
            if runtime.note_exit(&id) {
                return;
            }
            drop(runtime);
            if run.main.is_alive() {
                tracing::warn!(container = %id, "its shim is gone: the container's exit code will not be known");
            }
            wait_for(run.main).await;
            if let Some(runtime) = inner.upgrade() {
                runtime.note_vanished(&id, &run, "The container exited after its shim had been killed.");
            }
        });
    }

    /// Reads a container's exit from its record; returns whether there is one.
    fn note_exit(&self, id: &ContainerId) -> bool {
        match record::read_exit(&self.files(id)) {
            Ok(Some(exit)) => {
                self.ended(id, exit);
                true
            }
            Ok(None) => false,
            Err(error) => {
                tracing::warn!(container = %id, %error, "its exit cannot be read");
                false
            }
        }
    }

    /// Records the exit of a container that was not observed.
    pub(super) fn note_vanished(&self, id: &ContainerId, run: &Run, message: &str) {
        if let Ok(Some(paths)) = self.entry(id).map(|entry| entry.cgroup) {
            // There was no shim to kill what the container left behind.
            let _ = cgroup::kill(&paths.container);
        }
        let exit = Exit {
            code: VANISHED,
            signal: None,
            reason: ExitReason::Unknown,
            message: message.to_owned(),
            started_at: run.started_at,
            finished_at: self.clock.wall(),
        };
        if let Err(error) = record::write(&self.files(id).exit(), &exit) {
            // The next agent reaches the same conclusion by itself.
            tracing::warn!(container = %id, %error, "its exit cannot be recorded");
        }
        self.ended(id, exit);
    }

    fn ended(&self, id: &ContainerId, exit: Exit) {
        tracing::info!(container = %id, code = exit.code, reason = exit.reason.as_str(), "container exited");
        if let Ok(log) = self.entry(id).map(|entry| entry.log) {
            self.check_log(id, &log);
        }
        self.set_stage(id, Stage::Exited(exit));
        self.announce();
    }

    pub(super) fn announce(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Rotates logs that are too long, for as long as the runtime lives.
    pub(super) fn keep_logs_short(self: &Arc<Self>) {
        let inner = Arc::downgrade(self);
        self.tasks.spawn(async move {
            loop {
                sleep(LOGS_EVERY).await;
                let Some(runtime) = inner.upgrade() else { return };
                // Copying a log may take a while. If it fails, the next round tries again.
                let _ = tokio::task::spawn_blocking(move || runtime.check_logs()).await;
            }
        });
    }

    fn check_logs(&self) {
        for (id, log) in self.logs_of_running() {
            self.check_log(&id, &log);
        }
    }

    fn check_log(&self, id: &ContainerId, log: &ContainerLog) {
        if let Err(error) = log.check(self.log_limits, self.clock.wall()) {
            tracing::warn!(container = %id, %error, "its log cannot be rotated");
        }
    }
}

/// Returns when the process has exited.
async fn wait_for(process: ProcessKey) {
    match end_of(process) {
        Ok(None) => {}
        Ok(Some(end)) => {
            // The same error would come again at once, so the process is polled.
            if end.readable().await.is_err() {
                poll_for(process).await;
            }
        }
        Err(error) => {
            tracing::debug!(pid = process.pid, %error, "the kernel does not signal its exit; it is polled");
            poll_for(process).await;
        }
    }
}

async fn poll_for(process: ProcessKey) {
    while process.is_alive() {
        sleep(LOOK_EVERY).await;
    }
}

/// A descriptor that becomes readable when the process exits; `None` if it has exited.
fn end_of(process: ProcessKey) -> io::Result<Option<AsyncFd<OwnedFd>>> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(None) };
    let end = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Ok(end) => end,
        Err(Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // The descriptor refers to the process that had the pid when it was opened. If our process still has the pid, that
    // was ours.
    if !process.is_alive() {
        return Ok(None);
    }
    nonblocking::watched(end, Interest::READABLE).map(Some)
}
