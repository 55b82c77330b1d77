//! The real `muster-agent` as a child process, and the host that it runs on.
//!
//! Containers survive their agent by design. So the [`AgentHost`] cleans them up: when it is dropped, its agents and
//! all processes that they started are killed.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

pub mod fault_proxy;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use muster_grpc::agent_service_client::AgentServiceClient;
use muster_proto::identity::ServerRole;
use muster_proto::pb;
use muster_rpc::tls::ClientTls;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::api::Api;
use crate::child_process::{ChildProcess, within};
use crate::store_process::{TIMEOUT, build, channel};
use crate::{ListQuery, eventually, in_time};

/// The agent's binary, built from the current sources.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| build("muster-agent"))
}

/// A state directory, with the agents and containers that use it.
#[derive(Debug)]
pub struct AgentHost {
    directory: TempDir,
}

impl AgentHost {
    #[allow(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> AgentHost {
        let directory = tempfile::tempdir().expect("a directory for an agent");
        // Pods run as users of their own, and write files here.
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(directory.path(), open).expect("a directory that pods can write to");
        AgentHost { directory }
    }

    /// A file beside the agent's state, for containers to write to.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// How to start the agent of that node here, with intervals that are short enough for a test.
    pub fn agent(&self, node: &str, store: &str) -> AgentLaunch {
        let mut flags = BTreeMap::new();
        for (flag, value) in [
            ("store", store),
            ("hostname-override", node),
            ("listen", "127.0.0.1:0"),
            ("http-listen", "127.0.0.1:0"),
            ("node-status-update-frequency", "1s"),
            ("node-status-report-frequency", "5m"),
            ("node-lease-duration-seconds", "4"),
            // The result must not depend on how much memory and disk the test machine has left.
            ("eviction-hard", "memory.available<1Mi"),
            ("fail-swap-on", "false"),
        ] {
            flags.insert(flag.to_owned(), value.to_owned());
        }
        AgentLaunch { state_dir: self.file("state"), flags, switches: Vec::new(), wrapper: Vec::new() }
    }

    /// The agents and shims of this directory, and all their descendants.
    fn processes(&self) -> BTreeSet<i32> {
        let all = processes();
        let host = self.directory.path().as_os_str().as_encoded_bytes().to_owned();
        let own = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let program = line.split(|byte| *byte == 0).next().unwrap_or_default();
            program.ends_with(b"muster-agent") && line.windows(host.len()).any(|part| part == host)
        };
        let mut found: BTreeSet<i32> = all.keys().copied().filter(own).collect();
        loop {
            let below = |(pid, parent): (&i32, &i32)| found.contains(parent).then_some(*pid);
            let more: BTreeSet<i32> = all.iter().filter_map(below).collect();
            if more.is_subset(&found) {
                return found;
            }
            found.extend(more);
        }
    }
}

impl Drop for AgentHost {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            for pid in left.iter().filter_map(|pid| Pid::from_raw(*pid)) {
                // It may have exited already.
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The parent of every process on this machine, without zombies.
fn processes() -> BTreeMap<i32, i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, stat(pid).filter(|(state, _)| *state != 'Z')?.1))).collect()
}

/// The state and the parent of a process.
fn stat(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in brackets, may contain spaces and brackets.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Whether a process runs. A zombie does not count.
pub fn is_running(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok())
        && stat(pid).is_some_and(|(state, _)| state != 'Z')
}

/// The command line of a process.
pub fn command_line(pid: i32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    words.filter(|word| !word.is_empty()).collect()
}

/// How to start an agent.
#[derive(Clone, Debug)]
pub struct AgentLaunch {
    state_dir: PathBuf,
    flags: BTreeMap<String, String>,
    switches: Vec<String>,
    wrapper: Vec<OsString>,
}

impl AgentLaunch {
    /// With a flag, which replaces its earlier value.
    #[must_use]
    pub fn flag(mut self, flag: &str, value: &str) -> AgentLaunch {
        self.flags.insert(flag.to_owned(), value.to_owned());
        self
    }

    /// With a flag that takes no value.
    #[must_use]
    pub fn switch(mut self, flag: &str) -> AgentLaunch {
        self.switches.push(flag.to_owned());
        self
    }

    /// With a flag left at its default.
    #[must_use]
    pub fn without(mut self, flag: &str) -> AgentLaunch {
        self.flags.remove(flag);
        self
    }

    /// Run by a wrapper command that takes the agent's command as its last arguments and must `exec` it.
    #[must_use]
    pub fn within(mut self, wrapper: impl IntoIterator<Item = impl Into<OsString>>) -> AgentLaunch {
        self.wrapper = wrapper.into_iter().map(Into::into).collect();
        self
    }

    /// Starts it without waiting for anything.
    pub fn spawn(&self) -> AgentProcess {
        let mut command = within(&self.wrapper, binary());
        command.arg(format!("--state-dir={}", self.state_dir.display()));
        command.args(self.flags.iter().map(|(flag, value)| format!("--{flag}={value}")));
        command.args(self.switches.iter().map(|flag| format!("--{flag}")));
        AgentProcess(ChildProcess::start("muster-agent", command))
    }

    /// Starts it and waits until it serves.
    pub fn start(&self) -> AgentProcess {
        let agent = self.spawn();
        agent.wait_ready();
        agent
    }

    /// Runs an agent that is expected to exit; returns its exit status and log.
    pub fn run_to_exit(&self) -> (ExitStatus, String) {
        let mut agent = self.spawn();
        let status = agent.wait();
        (status, agent.log())
    }
}

/// A running agent. It is killed when it is dropped; its containers are killed with its [`AgentHost`].
#[derive(Debug)]
pub struct AgentProcess(ChildProcess);

impl AgentProcess {
    /// Its service, without TLS.
    pub fn service(&self) -> AgentServiceClient<Channel> {
        AgentServiceClient::new(channel(&self.url()))
    }

    /// Its service, called with that certificate. The agent must have been started with TLS.
    pub fn service_as(&self, tls: &ClientTls) -> AgentServiceClient<Channel> {
        let url = format!("https://{}", self.address("grpc"));
        let target = tls.target(&url, ServerRole::Agent).expect("an agent has an address");
        AgentServiceClient::new(target.connect_lazy())
    }

    /// Kills it with SIGKILL and waits until it has exited.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    /// Stops it with SIGTERM and waits until it has exited.
    pub fn stop(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Its own view of its node (`GetAgent`).
    pub async fn state(&self) -> pb::GetAgentResponse {
        let mut agent = self.service();
        in_time("the agent answers", agent.get_agent(pb::GetAgentRequest {}))
            .await
            .expect("the agent answers")
            .into_inner()
    }

    /// Its pods (`ListWorkloads`).
    pub async fn workloads(&self) -> Vec<pb::Workload> {
        let mut agent = self.service();
        in_time("the agent answers", agent.list_workloads(pb::ListWorkloadsRequest {}))
            .await
            .expect("the agent answers")
            .into_inner()
            .workloads
    }

    /// The process id of a pod's container `main`; waits until it runs.
    pub async fn container_pid(&self, pod: &str) -> i32 {
        eventually(TIMEOUT, &format!("pod {pod} runs"), || async {
            let workloads = self.workloads().await;
            let workload = workloads.iter().find(|workload| workload.name == pod)?;
            let pid = i32::try_from(*workload.pids.get("main")?).ok()?;
            is_running(pid).then_some(pid)
        })
        .await
    }
}

impl Deref for AgentProcess {
    type Target = ChildProcess;

    fn deref(&self) -> &ChildProcess {
        &self.0
    }
}

impl DerefMut for AgentProcess {
    fn deref_mut(&mut self) -> &mut ChildProcess {
        &mut self.0
    }
}

/// A condition of a node.
pub fn condition<'a>(node: &'a pb::Node, kind: &str) -> Option<&'a pb::NodeCondition> {
    node.status.as_ref()?.conditions.iter().find(|condition| condition.r#type == kind)
}

/// Whether the Ready condition of a node is True.
pub fn is_ready(node: &pb::Node) -> bool {
    condition(node, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Waits until a condition holds for a node; returns the node.
pub async fn node_where(api: &Api, name: &str, what: &str, holds: impl Fn(&pb::Node) -> bool) -> pb::Node {
    eventually(TIMEOUT, &format!("node {name}: {what}"), || async {
        api.get::<pb::Node>(name).await.ok().filter(&holds)
    })
    .await
}

/// Waits until a condition holds for a node's lease; returns the lease.
pub async fn lease_where(api: &Api, name: &str, what: &str, holds: impl Fn(&pb::Lease) -> bool) -> pb::Lease {
    eventually(TIMEOUT, &format!("the lease of {name}: {what}"), || async {
        api.get::<pb::Lease>(&format!("kube-node-lease/{name}")).await.ok().filter(&holds)
    })
    .await
}

/// When a lease was last renewed.
pub fn renewed_at(lease: &pb::Lease) -> Option<(i64, i32)> {
    lease.spec.as_ref()?.renew_time.map(|time| (time.seconds, time.nanos))
}

/// Waits until a condition holds for a pod; returns the pod.
pub async fn pod_where(api: &Api, path: &str, what: &str, holds: impl Fn(&pb::Pod) -> bool) -> pb::Pod {
    eventually(TIMEOUT, &format!("pod {path}: {what}"), || async {
        api.get::<pb::Pod>(path).await.ok().filter(&holds)
    })
    .await
}

/// The events about a node with that reason, oldest first.
pub async fn events(api: &Api, node: &str, reason: &str) -> Vec<pb::Event> {
    let page = api.list::<pb::Event>(ListQuery::default()).await.expect("events can be listed");
    let about = |event: &pb::Event| {
        event.reason == reason && event.involved_object.as_ref().is_some_and(|object| object.name == node)
    };
    page.records.into_iter().filter(about).collect()
}
