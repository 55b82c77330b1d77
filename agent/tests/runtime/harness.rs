//! A runtime in its own directory, for tests.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_agent::runtime::logs::LogLimits;
use muster_agent::runtime::process::{ProcessConfig, ProcessRuntime};
use muster_agent::runtime::processes::ProcessKey;
use muster_agent::runtime::record::{self, Files, Run};
use muster_agent::runtime::{ContainerId, ContainerSpec, Exit, Limits, Runtime, State};
use muster_proto::name::Uid;
use muster_rpc::clock::SystemClock;
use tempfile::TempDir;

/// Far longer than anything here takes on the slowest machine.
const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) struct Harness {
    /// `None` while no agent runs.
    runtime: Option<ProcessRuntime>,
    config: ProcessConfig,
    dir: TempDir,
}

impl Harness {
    /// Without cgroups, which a machine may not have.
    pub(crate) fn new() -> Harness {
        Harness::with_cgroups(None)
    }

    pub(crate) fn with_cgroups(cgroup_root: Option<PathBuf>) -> Harness {
        let dir = tempfile::tempdir().unwrap();
        // Containers run as users of their own, and write files here.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        let mut harness = Harness { runtime: None, config: config(dir.path(), cgroup_root), dir };
        harness.open();
        harness
    }

    /// A directory for the tests' own files.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn pods(&self) -> PathBuf {
        self.config.state_dir.join("pods")
    }

    pub(crate) fn config(&self) -> ProcessConfig {
        self.config.clone()
    }

    /// The settings of the next agent.
    pub(crate) fn config_mut(&mut self) -> &mut ProcessConfig {
        &mut self.config
    }

    /// The agent stops; its containers keep running.
    pub(crate) fn close(&mut self) {
        self.runtime = None;
    }

    /// An agent starts.
    pub(crate) fn open(&mut self) {
        self.runtime = Some(ProcessRuntime::open(self.config.clone(), SystemClock::shared()).unwrap());
    }

    pub(crate) fn runtime(&self) -> &ProcessRuntime {
        self.runtime.as_ref().expect("an agent runs")
    }

    pub(crate) fn start(&self, spec: &ContainerSpec) -> ContainerId {
        self.runtime().start(spec).unwrap();
        spec.id.clone()
    }

    pub(crate) fn state(&self, id: &ContainerId) -> Option<State> {
        self.runtime().list().into_iter().find(|found| found.id == *id).map(|found| found.state)
    }

    pub(crate) fn files(&self, id: &ContainerId) -> Files {
        Files::of(&self.pods(), id)
    }

    pub(crate) fn run(&self, id: &ContainerId) -> Run {
        record::read(&self.files(id).run()).unwrap().expect("the container was started")
    }

    pub(crate) fn log(&self, id: &ContainerId) -> String {
        fs::read_to_string(self.runtime().log_path(id)).unwrap_or_default()
    }

    /// The rest of the log line that starts with `start`, once the whole line is there.
    pub(crate) async fn line(&self, id: &ContainerId, start: &str) -> String {
        eventually(&format!("{start:?} in the log of {id}"), || {
            let log = self.log(id);
            let line =
                log.split_inclusive('\n').find_map(|line| line.strip_suffix('\n')?.strip_prefix(start));
            line.map(str::to_owned)
        })
        .await
    }

    /// The process whose pid the container printed after `start`.
    pub(crate) async fn process(&self, id: &ContainerId, start: &str) -> ProcessKey {
        ProcessKey::of(self.line(id, start).await.trim().parse().unwrap()).unwrap()
    }

    /// Waits until the container's exit is reported.
    pub(crate) async fn exit(&self, id: &ContainerId) -> Exit {
        let mut changes = self.runtime().changes();
        let ended = async {
            loop {
                if let Some(State::Exited(exit)) = self.state(id) {
                    return exit;
                }
                changes.changed().await.expect("the runtime lives");
            }
        };
        tokio::time::timeout(DEADLINE, ended).await.unwrap_or_else(|_| panic!("{id} did not end"))
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        // No container may be left behind, also after a test that failed.
        if self.runtime.is_none() {
            self.open();
        }
        for workload in self.runtime().list() {
            let _ = self.runtime().kill(&workload.id);
        }
    }
}

pub(crate) fn config(state_dir: &Path, cgroup_root: Option<PathBuf>) -> ProcessConfig {
    ProcessConfig {
        state_dir: state_dir.join("state"),
        shim: PathBuf::from(env!("CARGO_BIN_EXE_muster-agent")),
        cgroup_root,
        log_limits: LogLimits::default(),
        own_ids: rustix::process::geteuid().is_root().then(|| "2000000000-2000065535".parse().unwrap()),
    }
}

/// A container of its own pod.
pub(crate) fn container(command: &[&str]) -> ContainerSpec {
    ContainerSpec {
        id: ContainerId { pod: Uid::new(uuid::Uuid::new_v4()), container: "main".to_owned(), attempt: 0 },
        pod_namespace: "default".parse().unwrap(),
        pod_name: "pod-1".parse().unwrap(),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        args: Vec::new(),
        env: Vec::new(),
        working_dir: String::new(),
        own_grace_seconds: None,
        limits: Limits::default(),
        oom_score_adj: 0,
        pod_limits: Default::default(),
        security: Default::default(),
        mounts: Vec::new(),
    }
}

pub(crate) fn shell(script: &str) -> ContainerSpec {
    container(&["sh", "-c", script])
}

/// Waits until `look` returns a value, or fails with what it waited for.
pub(crate) async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, found).await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}
