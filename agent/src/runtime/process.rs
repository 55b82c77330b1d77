//! The runtime of real processes: orders, shims, and a table of containers.
//!
//! The table in memory is what [`list`](Runtime::list) returns; it is built from the records on disk. Each running
//! container has one task that waits for its shim and then reads the exit.

mod adopt;
pub mod exec;
mod exit_watch;
mod hook;
mod launch;
mod shared_cpus;
mod usage;

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use muster_agent_core::pod_security::IdRange;
use muster_proto::name::{Name, Namespace, Uid};
use muster_rpc::clock::SharedClock;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::cgroup::{self, Tree};
use super::logs::{ContainerLog, LogLimits};
use super::processes::ProcessKey;
use super::record::{self, CgroupPaths, Files, Run};
use super::volumes::Volumes;
use super::{
    ContainerId, ContainerSpec, DiskUsage, HookEnd, Runtime, RuntimeError, Signal, Started, State, Usage,
    Workload, logs, processes,
};

/// How often, and with what pause, to try to lock the directory before another agent is assumed to have it.
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// What pods can do that share the agent's user.
const SHARED_USER: &str = "The agent does not run as root, so its pods run as the agent's user: they can read the \
                           agent's files and credentials, and the files and environment of each other.";

/// The settings of a [`ProcessRuntime`].
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// The directory of containers' records and logs, under `pods/`.
    pub state_dir: PathBuf,
    /// The program that becomes a shim when its first argument is [`SUBCOMMAND`](super::shim::SUBCOMMAND).
    pub shim: PathBuf,
    /// Where cgroup v2 is mounted; `None` runs containers without cgroups.
    pub cgroup_root: Option<PathBuf>,
    /// How long logs may be.
    pub log_limits: LogLimits,
    /// The ids from which each pod gets a user of its own; `None` runs containers as the agent's user. Only root can
    /// give them out.
    pub own_ids: Option<IdRange>,
}

impl ProcessConfig {
    /// With the machine's cgroups, and containers that run as the agent's user.
    pub fn new(state_dir: impl Into<PathBuf>, shim: PathBuf) -> ProcessConfig {
        ProcessConfig {
            state_dir: state_dir.into(),
            shim,
            cgroup_root: Tree::find_root(),
            log_limits: LogLimits::default(),
            own_ids: None,
        }
    }
}

/// Runs containers as process groups of this machine. They keep running when it is dropped.
pub struct ProcessRuntime {
    inner: Arc<Inner>,
}

struct Inner {
    pods: PathBuf,
    /// The emptyDir volumes, one directory for each pod.
    volumes: Volumes,
    shim: PathBuf,
    tree: Option<Tree>,
    limitations: Vec<String>,
    boot_id: String,
    log_limits: LogLimits,
    own_ids: Option<IdRange>,
    clock: SharedClock,
    /// Runs the tasks that wait for shims.
    tasks: Handle,
    table: Mutex<BTreeMap<ContainerId, Entry>>,
    /// The CPUs of containers without exclusive ones; `None` until they are set.
    shared: Mutex<Option<Vec<u32>>>,
    changes: watch::Sender<u64>,
    /// Held for the runtime's whole life: two agents on one directory would both control its containers.
    _lock: File,
}

/// A container in the table.
#[derive(Clone, Debug)]
struct Entry {
    pod_namespace: Namespace,
    pod_name: Name,
    cpus: Vec<u32>,
    cgroup: Option<CgroupPaths>,
    /// The user and group id that belongs to its pod alone.
    own_id: Option<u32>,
    own_grace: Option<Duration>,
    is_this_boot: bool,
    /// The shim that is starting the container, if this process started it.
    starter: Option<ProcessKey>,
    /// Its hook, while that runs.
    hook: Option<ProcessKey>,
    log: Arc<ContainerLog>,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    Starting,
    Running(Run),
    Exited(super::Exit),
}

impl ProcessRuntime {
    /// Opens the directory of containers and adopts those that an earlier agent left, running or exited.
    ///
    /// Must be called within a tokio runtime, which then watches the containers.
    pub fn open(config: ProcessConfig, clock: SharedClock) -> Result<ProcessRuntime, RuntimeError> {
        let pods = std::path::absolute(config.state_dir.join("pods"))
            .map_err(RuntimeError::machine("make the path of the state directory absolute"))?;
        let at = pods.display();
        record::make_private_dir(&pods).map_err(RuntimeError::machine(format!("make the folder {at}")))?;
        let lock = sole_lock(&pods)?;
        let boot_id = processes::boot_id().map_err(RuntimeError::machine("read the machine's boot id"))?;
        let (tree, mut limitations) = open_tree(config.cgroup_root.as_deref());
        if config.own_ids.is_none() {
            limitations.push(SHARED_USER.to_owned());
        }

        let inner = Arc::new(Inner {
            shim: config.shim,
            tree,
            limitations,
            boot_id,
            log_limits: config.log_limits,
            own_ids: config.own_ids,
            clock,
            tasks: Handle::current(),
            table: Mutex::default(),
            shared: Mutex::default(),
            changes: watch::Sender::new(0),
            _lock: lock,
            volumes: Volumes::beside(&pods),
            pods,
        });
        inner.adopt_all().map_err(RuntimeError::machine("read the records of earlier containers"))?;
        inner.remove_stray_volumes();
        inner.keep_logs_short();
        Ok(ProcessRuntime { inner })
    }

    /// The file of the container's output.
    pub fn log_path(&self, id: &ContainerId) -> PathBuf {
        self.inner.files(id).log()
    }

    /// Removes the emptyDir volumes of a pod. None of its containers may run.
    pub fn remove_volumes(&self, pod: Uid) -> Result<(), RuntimeError> {
        let doing = format!("remove the volumes of {pod}");
        self.inner.volumes.remove(pod).map_err(RuntimeError::machine(doing))
    }

    /// The log of a container.
    pub fn log(&self, id: &ContainerId) -> Result<Arc<ContainerLog>, RuntimeError> {
        Ok(self.inner.entry(id)?.log)
    }

    /// The last bytes of a container's output, at most `bytes` of them.
    pub fn log_tail(&self, id: &ContainerId, bytes: u64) -> io::Result<Vec<u8>> {
        logs::tail(&self.log_path(id), bytes)
    }
}

fn sole_lock(pods: &Path) -> Result<File, RuntimeError> {
    let doing = || RuntimeError::machine(format!("lock {}", pods.display()));
    let lock = File::open(pods).map_err(doing())?;
    for _ in 0..LOCK_TRIES {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            // An agent that was killed a moment ago may have left a forked child that has not called exec yet, and that
            // inherited the lock.
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(doing()(error)),
        }
    }
    Err(doing()(io::Error::other("another agent uses this state directory")))
}

fn open_tree(root: Option<&Path>) -> (Option<Tree>, Vec<String>) {
    let lost = "CPU, memory, swap and process limits of containers are not enforced, and what they use is read from \
                /proc";
    let Some(root) = root else {
        return (None, vec![format!("There is no cgroup v2 tree: {lost}.")]);
    };
    match Tree::open(root) {
        Ok(tree) => {
            let limitations = tree.limitations();
            (Some(tree), limitations)
        }
        Err(error) => {
            let at = root.display();
            (None, vec![format!("The cgroup v2 tree at {at} cannot be used ({error}): {lost}.")])
        }
    }
}

impl Runtime for ProcessRuntime {
    fn start(&self, spec: &ContainerSpec) -> Result<Started, RuntimeError> {
        launch::check(spec)?;
        let id = &spec.id;
        let own_id = self.inner.reserve(spec)?;
        let cpus = self.inner.cpus_of(&spec.limits);
        match self.inner.launch(spec, &cpus, own_id) {
            Ok((run, shim)) => {
                let started = run.started();
                tracing::info!(container = %id, pid = started.pid, "container started");
                self.inner.set_stage(id, Stage::Running(run.clone()));
                self.inner.follow_sharers(spec, &run, &cpus);
                self.inner.watch(id.clone(), run, Some(shim));
                Ok(started)
            }
            Err(error) => {
                if let Some(tree) = &self.inner.tree {
                    tree.remove(id);
                }
                if let Err(error) = self.inner.files(id).remove() {
                    tracing::warn!(container = %id, %error, "files of a container that did not start stay behind");
                }
                self.inner.table().remove(id);
                Err(error)
            }
        }
    }

    fn signal(&self, id: &ContainerId, signal: Signal) -> Result<(), RuntimeError> {
        self.inner.signal(id, signal)
    }

    fn kill(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let entry = self.inner.entry(id)?;
        if let Some(hook) = entry.hook {
            hook.signal_group(Signal::Kill.to_rustix())
                .map_err(RuntimeError::machine(format!("end the hook of {id}")))?;
        }
        if let (Stage::Starting, Some(starter)) = (&entry.stage, entry.starter) {
            return self.inner.give_up(id, starter);
        }
        if let (Stage::Running(_), Some(paths)) = (&entry.stage, &entry.cgroup)
            && let Err(error) = cgroup::kill(&paths.container)
        {
            tracing::debug!(container = %id, %error, "cgroup not killed, the group is");
        }
        self.inner.signal(id, Signal::Kill)
    }

    fn run_hook(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Duration,
    ) -> Result<HookEnd, RuntimeError> {
        if command.is_empty() {
            return Err(RuntimeError::NoCommand(id.to_string()));
        }
        match self.inner.entry(id)?.stage {
            Stage::Starting => Err(RuntimeError::Starting(id.clone())),
            Stage::Exited(_) => Err(RuntimeError::Ended(id.clone())),
            Stage::Running(_) => {
                let mut shim = self.inner.shim_for(&self.inner.files(id));
                shim.args(command).stdout(Stdio::null()).stderr(Stdio::null());
                let ran = hook::run(shim, timeout, |hook| self.inner.set_hook(id, Some(hook)));
                self.inner.set_hook(id, None);
                ran.map_err(RuntimeError::machine(format!("run a hook of {id}")))
            }
        }
    }

    fn list(&self) -> Vec<Workload> {
        let table = self.inner.table();
        let workloads = table.iter().map(|(id, entry)| Workload {
            id: id.clone(),
            pod_namespace: entry.pod_namespace.clone(),
            pod_name: entry.pod_name.clone(),
            cpus: entry.cpus.clone(),
            own_grace: entry.own_grace,
            is_this_boot: entry.is_this_boot,
            state: match &entry.stage {
                Stage::Starting => State::Starting,
                Stage::Running(run) => State::Running(run.started()),
                Stage::Exited(exit) => State::Exited(exit.clone()),
            },
        });
        workloads.collect()
    }

    fn share(&self, cpus: &[u32]) -> Result<(), RuntimeError> {
        self.inner.share(cpus).map_err(RuntimeError::machine("move containers to other CPUs"))
    }

    fn usages(&self) -> BTreeMap<ContainerId, Usage> {
        self.inner.usages()
    }

    fn disk_usages(&self) -> BTreeMap<Uid, DiskUsage> {
        self.inner.disk_usages()
    }

    fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        match self.inner.entry(id)?.stage {
            Stage::Starting => return Err(RuntimeError::Starting(id.clone())),
            Stage::Running(_) => return Err(RuntimeError::StillRunning(id.clone())),
            Stage::Exited(_) => {}
        }
        let files = self.inner.files(id);
        files.remove().map_err(RuntimeError::machine(format!("remove the files of {id}")))?;
        let mut table = self.inner.table();
        table.remove(id);
        // Attempts at one container share a cgroup, and a later one may be using it.
        let shared = table.keys().any(|other| other.pod == id.pod && other.container == id.container);
        if let (false, Some(tree)) = (shared, &self.inner.tree) {
            tree.remove(id);
        }
        Ok(())
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }

    fn probe(&self) -> Result<(), RuntimeError> {
        // A table that stays locked would block everything else too.
        drop(self.inner.table());
        let at = &self.inner.pods;
        let found = std::fs::read_dir(at).map(drop);
        found.map_err(RuntimeError::machine(format!("look into {}, the folder of containers", at.display())))
    }

    fn limitations(&self) -> Vec<String> {
        self.inner.limitations.clone()
    }

    fn controls_swap(&self) -> bool {
        self.inner.tree.as_ref().is_some_and(Tree::controls_swap)
    }
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self, id: &ContainerId) -> Files {
        Files::of(&self.pods, id)
    }

    fn entry(&self, id: &ContainerId) -> Result<Entry, RuntimeError> {
        self.table().get(id).cloned().ok_or_else(|| RuntimeError::Unknown(id.clone()))
    }

    fn logs_of_running(&self) -> Vec<(ContainerId, Arc<ContainerLog>)> {
        let table = self.table();
        let running = table.iter().filter(|(_, entry)| matches!(entry.stage, Stage::Running(_)));
        running.map(|(id, entry)| (id.clone(), Arc::clone(&entry.log))).collect()
    }

    fn running(&self) -> Vec<(ContainerId, Run, Option<CgroupPaths>)> {
        let table = self.table();
        let running = table.iter().filter_map(|(id, entry)| match &entry.stage {
            Stage::Running(run) => Some((id.clone(), run.clone(), entry.cgroup.clone())),
            Stage::Starting | Stage::Exited(_) => None,
        });
        running.collect()
    }

    fn set_hook(&self, id: &ContainerId, hook: Option<ProcessKey>) {
        if let Some(entry) = self.table().get_mut(id) {
            entry.hook = hook;
        }
    }

    fn set_stage(&self, id: &ContainerId, stage: Stage) {
        if let Some(entry) = self.table().get_mut(id) {
            entry.stage = stage;
        }
    }

    fn signal(&self, id: &ContainerId, signal: Signal) -> Result<(), RuntimeError> {
        let run = match self.entry(id)?.stage {
            Stage::Starting => return Err(RuntimeError::Starting(id.clone())),
            Stage::Exited(_) => return Ok(()),
            Stage::Running(run) => run,
        };
        let doing = || RuntimeError::machine(format!("signal {id}"));
        let held = match File::open(self.files(id).run()) {
            Ok(file) => file,
            // Exited and removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(doing()(error)),
        };
        // While the lock is held the shim does not reap, so the pid that is checked still belongs to the container when
        // it is signalled.
        held.lock().map_err(doing())?;
        run.main.signal_group(signal.to_rustix()).map_err(doing())?;
        Ok(())
    }
}

impl Run {
    fn started(&self) -> Started {
        Started { pid: self.main.pid, started_at: self.started_at }
    }
}
