//! Adopts the containers that an earlier agent left: running, exited meanwhile, or never started.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_proto::name::Uid;
use tokio::time::sleep;

use super::super::logs::ContainerLog;
use super::super::record::{self, Files, Order, Run};
use super::super::{ContainerId, Exit, ExitReason};
use super::{Entry, Inner, Stage};

/// How often to check whether a shim has started its container.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What the records say about a container.
enum Finding {
    Ended(Exit),
    Ran(Run),
    /// A shim works on the order and has recorded nothing yet.
    Starting,
}

impl Inner {
    /// Fills the table from the records on disk.
    pub(super) fn adopt_all(self: &Arc<Self>) -> io::Result<()> {
        record::sweep(&self.pods)?;
        for path in record::find_orders(&self.pods)? {
            if let Err(error) = self.adopt(&path) {
                // One damaged record must not keep the agent from adopting the others.
                tracing::error!(order = %path.display(), %error, "a container's records cannot be read");
            }
        }
        Ok(())
    }

    /// Removes the volumes of pods that an earlier agent had removed, or had not started yet.
    pub(super) fn remove_stray_volumes(&self) {
        let known: BTreeSet<Uid> = self.table().keys().map(|id| id.pod).collect();
        for pod in self.volumes.pods() {
            if !known.contains(&pod)
                && let Err(error) = self.volumes.remove(pod)
            {
                tracing::warn!(%pod, %error, "volumes of a pod that is gone stay behind");
            }
        }
    }

    fn adopt(self: &Arc<Self>, path: &Path) -> io::Result<()> {
        let order: Order = record::read(path)?.ok_or(io::ErrorKind::NotFound)?;
        let id = order.spec.id.clone();
        if self.files(&id).order() != path {
            return Err(io::Error::other(format!("it is the order of {id}, which belongs elsewhere")));
        }
        // The exit may have been recorded after a reboot; the run says in which boot the container ran.
        let run: Option<Run> = record::read(&self.files(&id).run())?;
        let entry = Entry {
            pod_namespace: order.spec.pod_namespace,
            pod_name: order.spec.pod_name,
            cpus: order.spec.limits.cpus,
            cgroup: order.cgroup,
            own_id: order.own_id,
            own_grace: order.spec.own_grace_seconds.map(Duration::from_secs),
            is_this_boot: run.is_none_or(|run| run.boot_id == self.boot_id),
            starter: None,
            hook: None,
            log: Arc::new(ContainerLog::new(self.files(&id))),
            stage: Stage::Starting,
        };
        let finding = find(path, self)?;
        self.table().insert(id.clone(), entry);
        match finding {
            Finding::Starting => self.await_start(id, path.to_owned()),
            known => self.take(&id, known),
        }
        Ok(())
    }

    fn take(self: &Arc<Self>, id: &ContainerId, finding: Finding) {
        match finding {
            Finding::Starting => {}
            Finding::Ended(exit) => {
                tracing::info!(container = %id, code = exit.code, "container found exited");
                self.set_stage(id, Stage::Exited(exit));
                self.announce();
            }
            Finding::Ran(run) if run.boot_id != self.boot_id => {
                self.note_vanished(id, &run, "The machine was restarted while the container ran.");
            }
            Finding::Ran(run) => {
                // If it has exited, the watch finds that at once.
                if run.shim.is_alive() || run.main.is_alive() {
                    tracing::info!(container = %id, pid = run.main.pid, "container found running");
                }
                self.set_stage(id, Stage::Running(run.clone()));
                self.watch(id.clone(), run, None);
                self.announce();
            }
        }
    }

    /// Waits, in the background, for a shim that an earlier agent started a moment ago.
    fn await_start(self: &Arc<Self>, id: ContainerId, path: PathBuf) {
        let inner = Arc::downgrade(self);
        self.tasks.spawn(async move {
            loop {
                sleep(LOOK_EVERY).await;
                let Some(runtime) = inner.upgrade() else { return };
                match find(&path, &runtime) {
                    Ok(Finding::Starting) => {}
                    Ok(known) => return runtime.take(&id, known),
                    Err(error) => tracing::warn!(container = %id, %error, "its records cannot be read"),
                }
            }
        });
    }
}

/// Reads the records of an order. An order that no shim works on is closed, so that no shim begins later.
fn find(order: &Path, inner: &Inner) -> io::Result<Finding> {
    let files = Files::beside(order);
    // Whether a shim is at work must be known before its records are read: it may finish in between.
    let idle = record::lock_if_idle(order)?;
    if let Some(exit) = record::read_exit(&files)? {
        return Ok(Finding::Ended(exit));
    }
    if let Some(run) = record::read(&files.run())? {
        return Ok(Finding::Ran(run));
    }
    if idle.is_none() {
        return Ok(Finding::Starting);
    }
    let now = inner.clock.wall();
    let exit = Exit {
        code: 128,
        signal: None,
        reason: ExitReason::NotStarted,
        message: "The agent ended before the container was started.".to_owned(),
        started_at: now,
        finished_at: now,
    };
    record::write(&files.exit(), &exit)?;
    Ok(Finding::Ended(exit))
}
