//! Two machines of one name: the store lets one of them in, and the other says why it does nothing.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::time::Duration;

use muster_proto::pb;
use muster_tests::agent_process::{AgentHost, AgentProcess, is_ready, is_running, node_where, pod_where};
use muster_tests::fixtures::*;
use muster_tests::store_process::{StoreLaunch, StoreProcess, TIMEOUT};
use muster_tests::{Api, Resource, eventually, holds_for};
use rustix::process::Signal;

/// What a refused agent says, once.
const REFUSED: &str = "neither reports the node nor starts pods";
/// What it says when its turn has come.
const LET_IN: &str = "this one speaks for the node now";

fn sleeper(name: &str) -> pb::Pod {
    pod(name).on("n1").spec(|spec| {
        spec.containers[0].command = vec!["sleep".to_owned(), "1000".to_owned()];
    })
}

/// A marker of each machine in the node's status: the kernel's own facts are the same for both.
fn capacity_of_pods(node: &pb::Node) -> &str {
    &node.status.as_ref().unwrap().capacity["pods"]
}

async fn pod_is_running(api: &Api, path: &str) -> pb::Pod {
    pod_where(api, path, "it runs", |pod| pod.status.as_ref().unwrap().phase == "Running").await
}

/// An agent of the node `n1` that may have so many pods. Its lease is long enough that a machine that is only busy does
/// not let it run out.
fn namesake(host: &AgentHost, store: &StoreProcess, max_pods: &str) -> AgentProcess {
    let launch = host.agent("n1", &store.url()).flag("node-lease-duration-seconds", "15");
    launch.flag("max-pods", max_pods).start()
}

fn times_said(agent: &AgentProcess, text: &str) -> usize {
    agent.log().matches(text).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_namesake_is_refused_with_a_reason_and_takes_over_when_the_first_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let store = StoreLaunch::on(directory.path()).start();
    let (api, homes) = (store.api(), [AgentHost::new(), AgentHost::new()]);
    let first = namesake(&homes[0], &store, "11");
    node_where(&api, "n1", "it is ready", is_ready).await;
    api.create(sleeper("a")).await.unwrap();
    let pid = first.container_pid("a").await;
    pod_is_running(&api, "default/a").await;
    let before = node_where(&api, "n1", "it is the first's", |node| capacity_of_pods(node) == "11").await;

    let second = namesake(&homes[1], &store, "22");
    second.wait_logged(REFUSED);
    let log = second.log();
    assert!(log.contains("ERROR"), "{log}");
    for part in ["held by another agent", "stop it and wait", "give one of them another name"] {
        assert!(log.contains(part), "{part:?} is not among what it said:\n{log}");
    }
    eventually(TIMEOUT, "it says so when it is asked, too", || async {
        second.state().await.store.contains("held by another agent").then_some(())
    })
    .await;
    let nobody_is_disturbed = || async {
        let node = api.get::<pb::Node>("n1").await.unwrap();
        let state = second.state().await;
        let workloads = second.workloads().await;
        let is_idle = workloads.iter().all(|workload| workload.pids.is_empty());
        node.version() == before.version()
            && state.acknowledged_status.is_none()
            && is_idle
            && is_running(pid)
    };
    // Longer than the first's lease, so that it is not its first renewal only that counts.
    holds_for(Duration::from_secs(17), "the first has the node to itself", nobody_is_disturbed).await;
    // A pod that comes meanwhile is the first's, too, and so is the end of one.
    api.create(sleeper("b")).await.unwrap();
    first.container_pid("b").await;
    api.create(sleeper("c")).await.unwrap();
    let leaving = first.container_pid("c").await;
    api.delete::<pb::Pod>("default/c").await.unwrap();
    eventually(TIMEOUT, "the pod is gone", || async {
        api.get::<pb::Pod>("default/c").await.is_err().then_some(())
    })
    .await;
    assert!(!is_running(leaving), "its record went before it did");
    assert!(second.workloads().await.iter().all(|workload| workload.pids.is_empty()));
    assert_eq!(times_said(&second, REFUSED), 1, "{}", second.log());

    first.kill();
    second.wait_logged(LET_IN);
    node_where(&api, "n1", "it is the second's", |node| capacity_of_pods(node) == "22").await;
    second.container_pid("b").await;
    let state = second.state().await;
    assert!(state.registered && state.acknowledged_renewal_at.is_some(), "{state:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_lost_its_node_while_it_was_frozen_keeps_what_runs_and_says_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let store = StoreLaunch::on(directory.path()).start();
    let (api, homes) = (store.api(), [AgentHost::new(), AgentHost::new()]);
    let first = namesake(&homes[0], &store, "11");
    node_where(&api, "n1", "it is ready", is_ready).await;
    api.create(sleeper("a")).await.unwrap();
    let pid = first.container_pid("a").await;
    pod_is_running(&api, "default/a").await;

    first.signal(Signal::STOP);
    let second = namesake(&homes[1], &store, "22");
    let its = |node: &pb::Node| capacity_of_pods(node) == "22";
    node_where(&api, "n1", "it is the second's", its).await;
    second.container_pid("a").await;

    first.signal(Signal::CONT);
    first.wait_logged(REFUSED);
    // To the second the pod had been lost, and was begun again.
    let its_own = |pod: &pb::Pod| pod.status.as_ref().unwrap().container_statuses[0].restart_count == 1;
    pod_where(&api, "default/a", "it is the second's", its_own).await;
    api.create(sleeper("b")).await.unwrap();
    second.container_pid("b").await;
    holds_for(Duration::from_secs(3), "the second has the node to itself", || async {
        let is_silent = its_own(&api.get::<pb::Pod>("default/a").await.unwrap());
        let begun = first.workloads().await.iter().any(|it| it.name == "b" && !it.pids.is_empty());
        its(&api.get::<pb::Node>("n1").await.unwrap()) && is_silent && !begun && is_running(pid)
    })
    .await;
    assert_eq!(times_said(&first, REFUSED), 1, "{}", first.log());
}
