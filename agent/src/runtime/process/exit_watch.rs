//! Waiting for containers to end, and keeping their logs short meanwhile.

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

use super::super::processes::ProcessKey;
use super::super::record::{self, Run};
use super::super::{ContainerId, Exit, ExitReason, cgroup, logs};
use super::{Inner, Stage};

/// How often to look where the kernel cannot tell us.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the sizes of logs are looked at; the kubelet's default.
const LOGS_EVERY: Duration = Duration::from_secs(10);
/// What a container that vanished is said to have returned, as Kubernetes does.
const VANISHED: i32 = 137;

impl Inner {
    /// Waits, in the background, for a container to end and takes note of it. `shim` is given by whom the shim is a
    /// child of.
    pub(super) fn watch(self: &Arc<Self>, id: ContainerId, run: Run, shim: Option<Child>) {
        // A task does not keep the runtime alive: it may be dropped while containers run on.
        let inner = Arc::downgrade(self);
        self.tasks.spawn(async move {
            wait_for(run.shim).await;
            if let Some(mut shim) = shim {
                // It has ended: this returns at once and lets its number go.
                let _ = shim.wait();
            }
            let Some(runtime) = inner.upgrade() else { return };
            if runtime.note_exit(&id) {
                return;
            }
            drop(runtime);
            if run.main.is_alive() {
                tracing::warn!(container = %id, "its shim is gone: how the container ends will not be known");
            }
            wait_for(run.main).await;
            if let Some(runtime) = inner.upgrade() {
                runtime.note_vanished(&id, &run, "The container is gone, and its shim was gone before.");
            }
        });
    }

    /// Takes a container's exit from its record; whether there is one comes back.
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

    /// Notes the end of a container that nobody saw.
    pub(super) fn note_vanished(&self, id: &ContainerId, run: &Run, message: &str) {
        if let Ok(Some(paths)) = self.entry(id).map(|entry| entry.cgroup) {
            // No shim was there to end what the container left behind.
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
            // The next agent comes to the same conclusion by itself.
            tracing::warn!(container = %id, %error, "its end cannot be written down");
        }
        self.ended(id, exit);
    }

    fn ended(&self, id: &ContainerId, exit: Exit) {
        tracing::info!(container = %id, code = exit.code, reason = exit.reason.as_str(), "container ended");
        self.set_stage(id, Stage::Exited(exit));
        self.announce();
    }

    pub(super) fn announce(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Cuts logs that have grown too long, for as long as the runtime lives.
    pub(super) fn keep_logs_short(self: &Arc<Self>) {
        let inner = Arc::downgrade(self);
        self.tasks.spawn(async move {
            loop {
                sleep(LOGS_EVERY).await;
                let Some(runtime) = inner.upgrade() else { return };
                // Copying a log may take a while. If it fails, the next round tries again.
                let _ = tokio::task::spawn_blocking(move || runtime.cut_logs()).await;
            }
        });
    }

    fn cut_logs(&self) {
        for (id, _, _) in self.running() {
            if let Err(error) = logs::cut(&self.files(&id), self.log_bytes) {
                tracing::warn!(container = %id, %error, "its log cannot be cut");
            }
        }
    }
}

/// Returns when the process has ended.
async fn wait_for(process: ProcessKey) {
    match end_of(process) {
        Ok(None) => {}
        Ok(Some(end)) => {
            // An error would come again at once: better look now and then.
            if end.readable().await.is_err() {
                poll_for(process).await;
            }
        }
        Err(error) => {
            tracing::debug!(pid = process.pid, %error, "no word from the kernel when it ends, so we look");
            poll_for(process).await;
        }
    }
}

async fn poll_for(process: ProcessKey) {
    while process.is_alive() {
        sleep(LOOK_EVERY).await;
    }
}

/// Something that turns readable at the process's end; `None` when it has ended.
fn end_of(process: ProcessKey) -> io::Result<Option<AsyncFd<OwnedFd>>> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(None) };
    let end = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Ok(end) => end,
        Err(Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // It stands for whoever had the number when it was opened. If ours has it still, it had it then.
    if !process.is_alive() {
        return Ok(None);
    }
    // The successor of this call is unsafe, for types whose descriptor may change under it. An OwnedFd's does not.
    #[allow(deprecated, reason = "sound for an OwnedFd, and nothing else here needs unsafe code")]
    AsyncFd::with_interest(end, Interest::READABLE).map(Some)
}
