//! What runs the containers of this machine: the face that the rest of the agent sees.
//!
//! [`Runtime`] starts, signals, lists and forgets containers; [`process::ProcessRuntime`] is the real one. A container
//! is a process group of this machine under its own small pod_loop ([`shim`]), so that it outlives the agent and its
//! end is known even when nobody was there to see it.

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
pub mod logs;
pub mod process;
pub mod processes;
pub mod record;
pub mod shim;

use record::as_text;

/// Runs containers and knows what became of them.
///
/// Calls block: on the disk, on the start of a program, [`run_hook`](Runtime::run_hook) on the hook itself. Async code
/// makes them from `spawn_blocking`, except [`list`](Runtime::list) and [`changes`](Runtime::changes), which only look
/// at memory.
pub trait Runtime: Send + Sync {
    /// Starts one attempt at a container. On an error nothing of it runs and nothing of it is listed.
    ///
    /// At most one attempt at a container runs at a time.
    fn start(&self, spec: &ContainerSpec) -> Result<Started, RuntimeError>;

    /// Sends a signal to all of a container's process group. A container that has ended takes it without effect.
    fn signal(&self, id: &ContainerId, signal: Signal) -> Result<(), RuntimeError>;

    /// Ends a container and everything it started, at once. Its end is announced through
    /// [`changes`](Runtime::changes) when nothing of it is left. One that is still starting then fails to. A hook of it
    /// that still runs ends too, also when the container has ended before.
    fn kill(&self, id: &ContainerId) -> Result<(), RuntimeError>;

    /// Runs a command beside a running container, with its environment and within its limits, and waits for it. When
    /// the time is over the hook is killed.
    fn run_hook(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Duration,
    ) -> Result<HookEnd, RuntimeError>;

    /// Everything that runs here or ended and was not removed, in the order of ids.
    fn list(&self) -> Vec<Workload>;

    /// Keeps all containers that have no CPUs of their own to these, those that run and those to come; none means any.
    fn share(&self, cpus: &[u32]) -> Result<(), RuntimeError>;

    /// What each running container takes of the machine now.
    fn usages(&self) -> BTreeMap<ContainerId, Usage>;

    /// What each pod has on the disk: its records and logs. It looks at every file, so it is for when that matters.
    fn disk_usages(&self) -> BTreeMap<Uid, DiskUsage>;

    /// Forgets a container that ended, with its files.
    fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError>;

    /// A counter that moves whenever the list changed by itself: a workload ended, or was found to run.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Whether the runtime is able to work: answers, and has its folder.
    fn probe(&self) -> Result<(), RuntimeError>;

    /// What this machine does not let the runtime do, in sentences.
    fn limitations(&self) -> Vec<String>;

    /// Whether limits on swap hold here.
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
    /// The program, by path or to be looked up in PATH, and its first arguments. There are no images here that could
    /// name a program instead, so it must not be empty.
    pub command: Vec<String>,
    /// Further arguments.
    pub args: Vec<String>,
    /// All of the environment; a plain PATH is added when it has none.
    pub env: Vec<(String, String)>,
    /// Where the program starts; `/` when empty.
    pub working_dir: String,
    /// How long the pod may take to end: its record may be gone when that is to be known.
    #[serde(default)]
    pub own_grace_seconds: Option<u64>,
    pub limits: Limits,
    /// How soon the kernel ends it when memory is short: from -1000, never, to 1000, first.
    #[serde(default)]
    pub oom_score_adj: i32,
    /// What all containers of its pod may take together.
    #[serde(default)]
    pub pod_limits: PodLimits,
}

/// What a container may take; `None` and empty mean no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Thousandths of a CPU the container asked for: its weight within its pod when CPUs are scarce.
    pub cpu_request_millis: Option<u64>,
    /// Thousandths of a CPU it gets at most.
    pub cpu_millis: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// Swap beyond its memory; 0 forbids it.
    pub swap_bytes: Option<u64>,
    /// The only CPUs it may run on.
    pub cpus: Vec<u32>,
}

/// What a pod may take, all its containers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodLimits {
    /// Thousandths of a CPU that its containers asked for in all: its weight beside other pods.
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

/// A container as the runtime finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub id: ContainerId,
    pub pod_namespace: Namespace,
    pub pod_name: Name,
    /// The only CPUs it may run on; empty when that is any.
    pub cpus: Vec<u32>,
    /// How long its pod may take to end, if that was said.
    pub own_grace: Option<Duration>,
    /// Whether it is of the machine's present boot.
    pub is_this_boot: bool,
    pub state: State,
}

/// How far a container has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Its start is under way; it takes no signals yet, and can only be killed.
    Starting,
    Running(Started),
    Exited(Exit),
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// What the program returned; 128 and the signal when one ended it.
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

/// Why a container is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitReason {
    /// It returned 0.
    Completed,
    /// It returned something else or was ended by a signal.
    Error,
    /// It was killed for taking more memory than its limit.
    OutOfMemory,
    /// The program could not be started.
    NotStarted,
    /// It is gone and nobody saw how: the machine restarted, or its pod_loop was killed.
    Unknown,
}

/// How a hook came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookEnd {
    /// With this code; 128 and the signal when one ended it.
    Code(i32),
    /// It was killed because its time was over.
    TimedOut,
}

/// What a container takes of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory that could not be had back without swapping.
    pub memory_bytes: u64,
    /// CPU time since its start.
    pub cpu: Duration,
    /// Processes, and with cgroups threads too.
    pub pids: u64,
}

/// What a pod has on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// What its files take, which is not what they hold.
    pub bytes: u64,
    /// Files and folders.
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

/// The runtime did not do as it was told.
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
    /// The word for it in a container's status.
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
