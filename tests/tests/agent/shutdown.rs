//! Graceful node shutdown: the order in which pods stop, and the cancellation of a shutdown.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::fs;

use muster_proto::pb;
use muster_tests::agent_process::{
    AgentHost, AgentLaunch, AgentProcess, condition, is_ready, is_running, node_where, pod_where,
};
use muster_tests::fixtures::*;
use muster_tests::store_process::{StoreLaunch, StoreProcess, TIMEOUT};
use muster_tests::{Api, RpcError, TestStore, eventually};
use rustix::process::Signal;
use tempfile::TempDir;
use tonic::{Code, Status};

/// The priority from which pods count as critical.
const CRITICAL: i32 = 2_000_000_000;

/// A store and the host of an agent.
struct StoreAndHost {
    _directory: TempDir,
    host: AgentHost,
    store: StoreProcess,
    api: Api,
}

impl StoreAndHost {
    fn new() -> StoreAndHost {
        let directory = tempfile::tempdir().unwrap();
        let store = StoreLaunch::on(directory.path()).start();
        let (api, host) = (store.api(), AgentHost::new());
        StoreAndHost { _directory: directory, host, store, api }
    }

    fn launch(&self) -> AgentLaunch {
        self.host.agent("n1", &self.store.url())
    }

    /// Starts an agent that reserves half of its shutdown grace for critical pods; returns when its node is ready.
    async fn agent(&self) -> AgentProcess {
        let launch = self.launch().flag("shutdown-grace-period", "20m");
        self.ready(&launch.flag("shutdown-grace-period-critical-pods", "10m")).await
    }

    async fn ready(&self, launch: &AgentLaunch) -> AgentProcess {
        let agent = launch.start();
        node_where(&self.api, "n1", "it is ready", is_ready).await;
        agent
    }

    async fn pod_where(&self, name: &str, what: &str, holds: impl Fn(&pb::Pod) -> bool) -> pb::Pod {
        pod_where(&self.api, &format!("default/{name}"), what, holds).await
    }

    /// A pod that records SIGTERM in a file, and exits when the file is removed.
    async fn stubborn(&self, agent: &AgentProcess, name: &str, priority: i32) -> i32 {
        let file = self.host.file(name);
        let body = format!(
            "trap 'echo terminating >> {0}' TERM; echo up > {0}; while test -e {0}; do sleep 0.05; done",
            file.display()
        );
        let pod = pod(name).on("n1").grace(600).spec(|spec| {
            spec.containers[0].command = vec!["sh".to_owned(), "-c".to_owned(), body];
            spec.priority = Some(priority);
        });
        self.api.create(pod).await.unwrap();
        self.pod_where(name, "it runs", |pod| phase(pod) == "Running").await;
        eventually(TIMEOUT, "it is up", || async { fs::exists(&file).unwrap().then_some(()) }).await;
        agent.container_pid(name).await
    }

    async fn wait_for_sigterm(&self, name: &str) {
        eventually(TIMEOUT, &format!("{name} got SIGTERM"), || async {
            fs::read_to_string(self.host.file(name)).unwrap().contains("terminating").then_some(())
        })
        .await;
    }
}

fn phase(pod: &pb::Pod) -> &str {
    pod.status.as_ref().map_or("", |status| &status.phase)
}

fn reason(pod: &pb::Pod) -> &str {
    pod.status.as_ref().map_or("", |status| &status.reason)
}

fn sleeper(name: &str) -> pb::Pod {
    pod(name).on("n1").spec(|spec| {
        spec.containers[0].command = vec!["sleep".to_owned(), "1000".to_owned()];
    })
}

async fn begin(agent: &AgentProcess) -> Result<pb::BeginShutdownResponse, Status> {
    agent.service().begin_shutdown(pb::BeginShutdownRequest {}).await.map(tonic::Response::into_inner)
}

async fn cancel(agent: &AgentProcess) -> Result<pb::CancelShutdownResponse, Status> {
    agent.service().cancel_shutdown(pb::CancelShutdownRequest {}).await.map(tonic::Response::into_inner)
}

#[tokio::test(flavor = "multi_thread")]
async fn s069_s072_a_cancelled_shutdown_keeps_the_pods_that_it_had_not_stopped_yet() {
    let setup = StoreAndHost::new();
    let mut agent = setup.agent().await;
    let normal = setup.stubborn(&agent, "normal", 0).await;
    let critical = setup.stubborn(&agent, "critical", CRITICAL).await;

    let begun = begin(&agent).await.unwrap();
    assert!(begun.began_at.is_some());
    assert_eq!(begun.longest.map(|longest| longest.seconds), Some(20 * 60));
    let down = node_where(&setup.api, "n1", "it is not ready", |node| !is_ready(node)).await;
    let message = &condition(&down, "Ready").unwrap().message;
    assert!(message.contains("node is shutting down"), "{message}");
    setup.wait_for_sigterm("normal").await;
    setup.api.create(sleeper("early")).await.unwrap();
    let early = setup.pod_where("early", "it is rejected", |pod| phase(pod) == "Failed").await;
    assert_eq!(reason(&early), "NodeShutdown");
    assert_eq!(agent.state().await.shutting_down_since, begun.began_at);
    let again = begin(&agent).await.unwrap();
    assert_eq!(again.began_at, begun.began_at, "it was in progress already");

    assert_eq!(cancel(&agent).await.unwrap().began_at, begun.began_at);
    let up = node_where(&setup.api, "n1", "it is ready again", is_ready).await;
    let since = |node: &pb::Node| {
        let at = condition(node, "Ready").unwrap().last_transition_time.unwrap();
        (at.seconds, at.nanos)
    };
    assert!(since(&up) > since(&down), "a new transition time");
    setup.api.create(sleeper("late")).await.unwrap();
    setup.pod_where("late", "it runs", |pod| phase(pod) == "Running").await;
    assert!(is_running(normal), "it got SIGTERM and may use its grace");
    fs::remove_file(setup.host.file("normal")).unwrap();
    let ended = setup.pod_where("normal", "it has terminated", |pod| phase(pod) == "Failed").await;
    assert_eq!(reason(&ended), "Terminated", "a pod that got SIGTERM still terminates");
    assert!(is_running(critical) && !is_running(normal));
    assert_eq!(fs::read_to_string(setup.host.file("critical")).unwrap(), "up\n", "it got no SIGTERM");
    let early = setup.pod_where("early", "it is there", |_| true).await;
    assert_eq!(phase(&early), "Failed", "a rejected pod stays rejected");
    assert_eq!(cancel(&agent).await.unwrap().began_at, None, "no shutdown is in progress");
    assert_eq!(agent.state().await.shutting_down_since, None);
    assert!(agent.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn s069_a_shutdown_by_call_stops_all_pods_in_order_and_the_agent_keeps_running() {
    let setup = StoreAndHost::new();
    let mut agent = setup.agent().await;
    setup.stubborn(&agent, "normal", 0).await;
    setup.stubborn(&agent, "critical", CRITICAL).await;
    begin(&agent).await.unwrap();
    setup.wait_for_sigterm("normal").await;
    assert_eq!(fs::read_to_string(setup.host.file("critical")).unwrap(), "up\n", "critical pods stop later");
    for name in ["normal", "critical"] {
        setup.wait_for_sigterm(name).await;
        fs::remove_file(setup.host.file(name)).unwrap();
        let ended = setup.pod_where(name, "it has terminated", |pod| phase(pod) == "Failed").await;
        assert_eq!(reason(&ended), "Terminated");
    }
    assert!(agent.is_running());
    node_where(&setup.api, "n1", "it is not ready", |node| !is_ready(node)).await;
    // The agent still runs, so the shutdown can be cancelled.
    cancel(&agent).await.unwrap();
    node_where(&setup.api, "n1", "it is ready again", is_ready).await;
    setup.api.create(sleeper("late")).await.unwrap();
    setup.pod_where("late", "it runs", |pod| phase(pod) == "Running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_by_signal_cannot_be_cancelled() {
    let setup = StoreAndHost::new();
    let launch = setup.launch().flag("shutdown-grace-period", "20m").switch("shutdown-on-sigterm");
    let mut agent = setup.ready(&launch).await;
    setup.stubborn(&agent, "normal", 0).await;
    agent.signal(Signal::TERM);
    setup.wait_for_sigterm("normal").await;
    let refused = cancel(&agent).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert!(refused.message().contains("signal"), "{refused:?}");
    fs::remove_file(setup.host.file("normal")).unwrap();
    assert!(agent.wait().success());
    assert!(!is_ready(&setup.api.get::<pb::Node>("n1").await.unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn s070_without_a_shutdown_grace_period_a_shutdown_is_refused() {
    let setup = StoreAndHost::new();
    let agent = setup.ready(&setup.launch()).await;
    let refused = begin(&agent).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert!(refused.message().contains("--shutdown-grace-period"), "{refused:?}");
    assert_eq!(cancel(&agent).await.unwrap().began_at, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_administrator_and_the_node_itself_may_start_and_cancel_a_shutdown() {
    let (store, host) = (TestStore::secure().await, AgentHost::new());
    let (api, authority) = (store.api(), store.authority().unwrap());
    let [cert, key] = authority.issue("node:n1", "muster:nodes").map(|path| path.display().to_string());
    let launch = host.agent("n1", &store.url()).flag("shutdown-grace-period", "20m");
    let launch = launch.flag("tls-cert", &cert).flag("tls-key", &key);
    let agent = launch.flag("tls-client-ca", &authority.own().display().to_string()).start();
    node_where(&api, "n1", "it is ready", is_ready).await;
    for (name, group) in [
        ("node:n2", "muster:nodes"),
        ("c1", "muster:controllers"),
        ("s1", "muster:schedulers"),
        ("v1", "muster:viewers"),
        ("node:n1", "muster:viewers"),
    ] {
        let mut service = agent.service_as(&authority.client(name, group));
        let refused = [
            service.begin_shutdown(pb::BeginShutdownRequest {}).await.map(drop).unwrap_err(),
            service.cancel_shutdown(pb::CancelShutdownRequest {}).await.map(drop).unwrap_err(),
        ];
        for refused in refused {
            assert_eq!(refused.code(), Code::PermissionDenied, "{name} of {group}: {refused:?}");
            assert!(refused.message().contains("n1"), "{refused:?}");
        }
    }
    let mut viewer = agent.service_as(&authority.client("v1", "muster:viewers"));
    let state = viewer.get_agent(pb::GetAgentRequest {}).await.unwrap().into_inner();
    assert_eq!(state.shutting_down_since, None);
    for (name, group) in [("eva", "muster:admins"), ("node:n1", "muster:nodes")] {
        let mut service = agent.service_as(&authority.client(name, group));
        service.begin_shutdown(pb::BeginShutdownRequest {}).await.unwrap();
        node_where(&api, "n1", "it is not ready", |node| !is_ready(node)).await;
        service.cancel_shutdown(pb::CancelShutdownRequest {}).await.unwrap();
        node_where(&api, "n1", "it is ready again", is_ready).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_administrators_viewers_and_the_node_itself_may_read_the_state_of_an_agent() {
    let (store, host) = (TestStore::secure().await, AgentHost::new());
    let (api, authority) = (store.api(), store.authority().unwrap());
    let [cert, key] = authority.issue("node:n1", "muster:nodes").map(|path| path.display().to_string());
    let launch = host.agent("n1", &store.url()).flag("tls-cert", &cert).flag("tls-key", &key);
    let agent = launch.flag("tls-client-ca", &authority.own().display().to_string()).start();
    node_where(&api, "n1", "it is ready", is_ready).await;
    for (name, group, allowed) in [
        ("eva", "muster:admins", true),
        ("v1", "muster:viewers", true),
        ("node:n1", "muster:nodes", true),
        ("node:n2", "muster:nodes", false),
        ("c1", "muster:controllers", false),
        ("s1", "muster:schedulers", false),
        ("node:n1", "guests", false),
    ] {
        let mut service = agent.service_as(&authority.client(name, group));
        let answers = [
            service.get_agent(pb::GetAgentRequest {}).await.map(drop),
            service.list_workloads(pb::ListWorkloadsRequest {}).await.map(drop),
        ];
        for answer in answers {
            match answer {
                Ok(()) => assert!(allowed, "{name} of {group} may read it"),
                Err(refused) => {
                    assert!(!allowed, "{name} of {group}: {refused:?}");
                    let error = RpcError::from(&refused);
                    match group {
                        // Refused before the call reaches the agent's service.
                        "guests" => error.is_denied().mentions("gives it no role"),
                        _ => error.is_denied().mentions("node n1").mentions("only an administrator"),
                    };
                }
            }
        }
    }
}
