//! A fleet of real processes: a store, a controller and agents, with all durations divided by ten.

use std::time::Duration;

use muster_grpc::fleet_service_client::FleetServiceClient;
use muster_proto::pb;
use rustix::process::Signal;
use tempfile::TempDir;
use tonic::Status;
use tonic::transport::Channel;

use crate::agent_process::{AgentHost, AgentLaunch, AgentProcess, is_ready, node_where};
use crate::api::Api;
use crate::controller_process::ControllerProcess;
use crate::fixtures::{MetadataBuilder, NodeBuilder, PodBuilder, node, pod, tolerates};
use crate::store_process::{StoreLaunch, StoreProcess, TIMEOUT, channel};
use crate::{eventually, in_time};

/// All durations divided by ten and all rates times ten. The grace is a little longer, so that healthy agents are not
/// marked Unknown on a busy machine.
pub const FAST_TIMINGS: [&str; 8] = [
    "--node-monitor-period=500ms",
    "--node-monitor-grace-period=6s",
    "--node-startup-grace-period=6s",
    "--node-eviction-rate=1",
    "--secondary-node-eviction-rate=0.1",
    "--eviction-hold=0s",
    "--pod-gc-period=2s",
    "--pod-gc-quarantine=4s",
];

/// A store and a controller, to which tests add agents.
pub struct Fleet {
    pub store: StoreProcess,
    pub controller: ControllerProcess,
    pub api: Api,
    hosts: Vec<AgentHost>,
    /// Flags that every process is started with, without their dashes.
    telemetry: Vec<(&'static str, String)>,
    _directory: TempDir,
}

impl Fleet {
    pub fn start(flags: &[&str]) -> Fleet {
        Self::with(flags, |_| {})
    }

    /// Calls `prepare` before the controller starts, to create the records that it shall find.
    pub fn with(flags: &[&str], prepare: impl FnOnce(&StoreProcess)) -> Fleet {
        Self::build(flags, Vec::new(), prepare)
    }

    /// Every process sends all traces to this collector.
    pub fn traced(collector: String) -> Fleet {
        Self::build(&[], vec![("otlp-endpoint", collector), ("trace-sample-ratio", "1".to_owned())], |_| {})
    }

    fn build(
        flags: &[&str],
        telemetry: Vec<(&'static str, String)>,
        prepare: impl FnOnce(&StoreProcess),
    ) -> Fleet {
        let directory = tempfile::tempdir().expect("a directory for a store");
        let launch = StoreLaunch::on(directory.path());
        let launch =
            telemetry.iter().fold(launch, |launch, (flag, value)| launch.flag(&format!("--{flag}"), value));
        let store = launch.start();
        prepare(&store);
        let extra: Vec<String> = telemetry.iter().map(|(flag, value)| format!("--{flag}={value}")).collect();
        let flags: Vec<&str> = flags.iter().copied().chain(extra.iter().map(String::as_str)).collect();
        let controller = controller(&store, &flags);
        let api = store.api();
        Fleet { store, controller, api, hosts: Vec::new(), telemetry, _directory: directory }
    }

    /// Kills the controller and starts another one.
    pub fn replace_controller(&mut self, flags: &[&str]) {
        self.controller = controller(&self.store, flags);
    }

    /// Starts a real agent in that zone; returns when its node is Ready.
    pub async fn agent(&mut self, name: &str, zone: &str) -> AgentProcess {
        let launch = self.launch(name, zone);
        let agent = launch.start();
        node_where(&self.api, name, "it is ready", is_ready).await;
        agent
    }

    /// How to start an agent in that zone. It can be started again on the same host.
    pub fn launch(&mut self, name: &str, zone: &str) -> AgentLaunch {
        let host = AgentHost::new();
        let mut launch = host.agent(name, &self.store.url());
        if !zone.is_empty() {
            launch = launch.flag("node-labels", &format!("topology.kubernetes.io/zone={zone}"));
        }
        self.hosts.push(host);
        self.telemetry.iter().fold(launch, |launch, (flag, value)| launch.flag(flag, value))
    }

    /// Creates a node that has no agent, with that status of the Ready condition.
    pub async fn node_without_agent(&self, name: &str, zone: &str, ready: &str) -> pb::Node {
        let record = node(name).label("topology.kubernetes.io/zone", zone).ready(ready);
        self.api.create(record).await.expect("a node can be created")
    }

    pub fn service(&self) -> FleetServiceClient<Channel> {
        FleetServiceClient::new(channel(&self.controller.url()))
    }

    pub async fn fleet(&self) -> pb::Fleet {
        let answer = in_time("the fleet", async { self.service().get_fleet(pb::GetFleetRequest {}).await });
        answer.await.expect("the controller answers").into_inner().fleet.expect("it has a fleet")
    }

    pub async fn explain(&self, name: &str) -> pb::ExplainNodeResponse {
        let request = pb::ExplainNodeRequest { name: name.to_owned() };
        let answer = in_time("an explanation", async { self.service().explain_node(request).await });
        answer.await.expect("the controller answers").into_inner()
    }

    /// The state of an action for a node, as `ExplainNode` reports it.
    pub async fn explanation_state(&self, name: &str, action: pb::ExplanationAction) -> pb::ExplanationState {
        let explanation = self.explain(name).await;
        let found = explanation.explanations.into_iter().find(|found| found.action() == action);
        found.map(|found| found.state()).unwrap_or_default()
    }

    pub async fn node_where(&self, name: &str, what: &str, holds: impl Fn(&pb::Node) -> bool) -> pb::Node {
        node_where(&self.api, name, what, holds).await
    }

    /// Waits until a condition holds for what `GetFleet` returns.
    pub async fn fleet_where(&self, what: &str, holds: impl Fn(&pb::Fleet) -> bool) -> pb::Fleet {
        eventually(TIMEOUT, &format!("the fleet: {what}"), || async {
            Some(self.fleet().await).filter(&holds)
        })
        .await
    }

    /// Drains a node; returns all progress messages when the drain has ended.
    pub async fn drain(&self, request: pb::DrainNodeRequest) -> Result<Vec<pb::DrainNodeResponse>, Status> {
        let mut progress = self.service().drain_node(request).await?.into_inner();
        let mut messages = Vec::new();
        while let Some(message) = in_time("the drain makes progress", progress.message()).await? {
            messages.push(message);
        }
        Ok(messages)
    }
}

/// Leader election timings. A replaced controller was killed, so its lease must expire soon; but the lease must be long
/// enough that a store that is slow for a moment does not end a term.
pub const FAST_LEASE: [&str; 3] = [
    "--leader-elect-lease-duration=8s",
    "--leader-elect-renew-deadline=6s",
    "--leader-elect-retry-period=200ms",
];

fn controller(store: &StoreProcess, flags: &[&str]) -> ControllerProcess {
    ControllerProcess::start(&store.url(), &controller_flags(flags))
}

/// These flags, and the usual ones that they do not replace.
pub fn controller_flags<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
    let is_usual = |usual: &&str| flags.iter().all(|flag| name(flag) != name(usual));
    FAST_TIMINGS.into_iter().chain(FAST_LEASE).filter(is_usual).chain(flags.iter().copied()).collect()
}

/// A pod that sleeps on a node and tolerates its unreachability for `seconds`.
pub fn sleeper(name: &str, node: &str, seconds: i64) -> pb::Pod {
    let mut toleration = tolerates("node.kubernetes.io/unreachable", "NoExecute");
    toleration.toleration_seconds = Some(seconds);
    let pod = pod(name).on(node).grace(2).toleration(toleration);
    pod.spec(|spec| spec.containers[0].command = ["sleep", "1000"].map(str::to_owned).to_vec())
}

/// Whether a pod is being deleted.
pub fn is_terminating(pod: &pb::Pod) -> bool {
    pod.metadata.as_ref().is_some_and(|metadata| metadata.deletion_timestamp.is_some())
}

/// Pauses an agent (SIGSTOP): it stops renewing, and its connections stay open.
pub fn pause(agent: &AgentProcess) {
    agent.signal(Signal::STOP);
}

/// Resumes a paused agent.
pub fn resume(agent: &AgentProcess) {
    agent.signal(Signal::CONT);
}

/// A node's taints as `key:effect`, without the prefix `node.kubernetes.io/`.
pub fn taints(node: &pb::Node) -> Vec<String> {
    let taints = node.spec.iter().flat_map(|spec| &spec.taints);
    taints
        .map(|taint| format!("{}:{}", taint.key.trim_start_matches("node.kubernetes.io/"), taint.effect))
        .collect()
}

/// The status of a node's Ready condition.
pub fn ready(node: &pb::Node) -> &str {
    crate::agent_process::condition(node, "Ready").map_or("", |ready| &ready.status)
}

/// How long to check that something does not happen: several passes over the zones.
pub const OBSERVATION_TIME: Duration = Duration::from_secs(4);
