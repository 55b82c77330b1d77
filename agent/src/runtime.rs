//! The container runtime: the interface that the rest of the agent uses.
//!
//! [`Runtime`] starts, signals, lists and removes containers; [`process::ProcessRuntime`] is the real one. A container
//! is a process group of this machine under its own small supervisor ([`shim`]), so that it outlives the agent and its
//! exit is recorded even while no agent runs.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::time::Duration;

use jiff::Timestamp;
use muster_proto::name::{Name, Namespace, Uid};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub mod affinity;
pub mod cgroup;
pub mod exec_shim;
pub mod logs;
pub mod nonblocking;
pub mod pause;
pub mod process;
pub mod processes;
pub mod record;
pub mod sandbox;
mod seccomp;
pub mod shim;
pub mod volumes;

use record::as_text;
use volumes::Mount;

/// Runs containers and reports their states.
///
/// Calls block: on the disk, on the start of a program, [`run_hook`](Runtime::run_hook) on the hook itself. Async code
/// makes them from `spawn_blocking`, except [`list`](Runtime::list) and [`changes`](Runtime::changes), which only read
/// memory.
pub trait Runtime: Send + Sync {
    /// Starts one attempt at a container. On an error none of its processes runs and it is not listed.
    ///
    /// At most one attempt at a container runs at a time.
    fn start(&self, spec: &ContainerSpec) -> Result<Started, RuntimeError>;

    /// Sends a signal to a container's process group. It has no effect on a container that has exited.
    fn signal(&self, id: &ContainerId, signal: Signal) -> Result<(), RuntimeError>;

    /// Kills a container and all processes that it started. [`changes`](Runtime::changes) signals its exit when none of
    /// them is left. The start of a container that is still starting then fails. A hook that still runs is killed too,
    /// even if its container has exited before.
    fn kill(&self, id: &ContainerId) -> Result<(), RuntimeError>;

    /// Runs a command beside a running container, with its environment and within its limits, and waits for it. The
    /// hook is killed when the timeout is over.
    fn run_hook(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Duration,
    ) -> Result<HookEnd, RuntimeError>;

    /// All containers that run, or have exited and were not removed, in the order of ids.
    fn list(&self) -> Vec<Workload>;

    /// Restricts all containers without exclusive CPUs to these, the running ones and later ones; none means any.
    fn share(&self, cpus: &[u32]) -> Result<(), RuntimeError>;

    /// What each running container uses now.
    fn usages(&self) -> BTreeMap<ContainerId, Usage>;

    /// What each pod has on the disk: its records and logs. It reads every file, so it is called only when disk space
    /// is short.
    fn disk_usages(&self) -> BTreeMap<Uid, DiskUsage>;

    /// Removes a container that has exited, with its files.
    fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError>;

    /// A counter that changes whenever the list changed without a call: a container exited, or was found running.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Whether the runtime works: it answers, and its directory exists.
    fn probe(&self) -> Result<(), RuntimeError>;

    /// What the runtime cannot do on this machine, in sentences.
    fn limitations(&self) -> Vec<String>;

    /// Whether swap limits are enforced here.
    fn controls_swap(&self) -> bool;
}

/// One attempt at one container of one pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContainerId {
    #[serde(with = "as_text")]
    pub pod: Uid,
    pub container: String,
    /// 0 for the first start, one more for each restart.
    pub attempt: u32,
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    pub id: ContainerId,
    #[serde(with = "as_text")]
    pub pod_namespace: Namespace,
    #[serde(with = "as_text")]
    pub pod_name: Name,
    /// The program, by path or to be looked up in PATH, and its first arguments. Containers have no images that could
    /// name a program instead, so it must not be empty.
    pub command: Vec<String>,
    /// Further arguments.
    pub args: Vec<String>,
    /// The whole environment; a default PATH is added when it has none.
    pub env: Vec<(String, String)>,
    /// The working directory; `/` when empty.
    pub working_dir: String,
    /// The pod's grace period: when it is needed, the pod's record may be gone.
    #[serde(default)]
    pub own_grace_seconds: Option<u64>,
    pub limits: Limits,
    /// The oom_score_adj: from -1000, never killed, to 1000, killed first.
    #[serde(default)]
    pub oom_score_adj: i32,
    /// The limits of all containers of its pod together.
    #[serde(default)]
    pub pod_limits: PodLimits,
    #[serde(default)]
    pub security: Security,
    /// What it sees of the pod's volumes.
    #[serde(default)]
    pub mounts: Vec<Mount>,
}

/// The user and the privileges that a container asks for. Whether it may have them was decided before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Security {
    /// The user; `None` is the pod's own or, for a privileged container, the agent's.
    pub user: Option<u32>,
    /// The group, likewise.
    pub group: Option<u32>,
    pub privilege: Privilege,
}

/// What the processes of a container may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Privilege {
    /// No capabilities, no new privileges, and a seccomp filter.
    #[default]
    Confined,
    /// Programs may gain privileges, such as by setuid.
    Escalating,
    /// Everything that the agent may do.
    Privileged,
}

/// A user and a group of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// The limits of a container; `None` and empty mean no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Thousandths of a CPU that the container requests: its weight within its pod when CPUs are short.
    pub cpu_request_millis: Option<u64>,
    /// The most thousandths of a CPU that it gets.
    pub cpu_millis: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// Swap beyond its memory; 0 forbids it.
    pub swap_bytes: Option<u64>,
    /// The only CPUs it may run on.
    pub cpus: Vec<u32>,
}

/// The limits of a pod, for all its containers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodLimits {
    /// Thousandths of a CPU that its containers request in all: its weight beside other pods.
    pub cpu_request_millis: u64,
    /// Processes and threads; `None` means no limit.
    pub pids: Option<u64>,
}

/// A container that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// The leader of its process group.
    pub pid: i32,
    pub started_at: Timestamp,
}

/// A container as the runtime lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub id: ContainerId,
    pub pod_namespace: Namespace,
    pub pod_name: Name,
    /// The only CPUs it may run on; empty means any.
    pub cpus: Vec<u32>,
    /// The pod's grace period, if it is known.
    pub own_grace: Option<Duration>,
    /// Whether it ran in the machine's current boot.
    pub is_this_boot: bool,
    pub state: State,
}

/// The state of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Its start is in progress; it cannot be signalled yet, only killed.
    Starting,
    Running(Started),
    Exited(Exit),
}

/// How a container terminated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code; 128 plus the signal if a signal terminated it.
    pub code: i32,
    pub signal: Option<i32>,
    pub reason: ExitReason,
    /// More about the reason, or empty.
    pub message: String,
    #[serde(with = "as_text")]
    pub started_at: Timestamp,
    #[serde(with = "as_text")]
    pub finished_at: Timestamp,
}

/// Why a container terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitReason {
    /// It exited with 0.
    Completed,
    /// It exited with another code, or a signal terminated it.
    Error,
    /// It was killed for using more memory than its limit.
    OutOfMemory,
    /// The program could not be started.
    NotStarted,
    /// Its exit was not observed: the machine rebooted, or its shim was killed.
    Unknown,
}

/// How a hook ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookEnd {
    /// With this exit code; 128 plus the signal if a signal terminated it.
    Code(i32),
    /// It was killed because its timeout was over.
    TimedOut,
}

/// What a container uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory that cannot be reclaimed without swapping.
    pub memory_bytes: u64,
    /// CPU time since its start.
    pub cpu: Duration,
    /// Processes, and with cgroups threads too.
    pub pids: u64,
}

/// What a pod has on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// The disk blocks that its files use, which is not the length of their content.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
}

/// A signal that a container can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Hangup,
    Interrupt,
    Quit,
    Term,
    Kill,
    User1,
    User2,
}

/// Why the runtime could not do what it was called for.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error(
        "container {0} names no command: there are no images here to run from, so the first word of the command must \
         be the program"
    )]
    NoCommand(String),
    #[error("container {container}: {reason}")]
    Malformed { container: String, reason: String },
    #[error("{0} exists already")]
    Exists(ContainerId),
    #[error("{id} cannot start while attempt {running} still runs")]
    Busy { id: ContainerId, running: u32 },
    #[error("{id} did not start: {reason}")]
    NotStarted { id: ContainerId, reason: String },
    #[error("no container {0} is known here")]
    Unknown(ContainerId),
    #[error("{0} is still starting")]
    Starting(ContainerId),
    #[error(
        "{0} has no user to run as: every id of --pod-uid-range belongs to another pod; give the agent a larger range"
    )]
    NoUser(ContainerId),
    #[error("{0} still runs")]
    StillRunning(ContainerId),
    #[error("{0} has ended")]
    Ended(ContainerId),
    #[error("could not {doing}")]
    Machine {
        doing: String,
        #[source]
        source: io::Error,
    },
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.pod, self.container, self.attempt)
    }
}

impl Workload {
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Exited(_))
    }
}

impl ExitReason {
    /// The reason in a container's status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "Completed",
            Self::Error => "Error",
            Self::OutOfMemory => "OOMKilled",
            Self::NotStarted => "StartError",
            Self::Unknown => "ContainerStatusUnknown",
        }
    }
}

impl Signal {
    pub(crate) fn to_rustix(self) -> rustix::process::Signal {
        use rustix::process::Signal as Raw;
        match self {
            Self::Hangup => Raw::HUP,
            Self::Interrupt => Raw::INT,
            Self::Quit => Raw::QUIT,
            Self::Term => Raw::TERM,
            Self::Kill => Raw::KILL,
            Self::User1 => Raw::USR1,
            Self::User2 => Raw::USR2,
        }
    }
}

impl RuntimeError {
    pub(crate) fn machine(doing: impl Into<String>) -> impl FnOnce(io::Error) -> RuntimeError {
        let doing = doing.into();
        move |source| RuntimeError::Machine { doing, source }
    }
}
