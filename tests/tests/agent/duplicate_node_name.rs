//! Two agents with the same node name: the store accepts one, and the other logs why it is idle.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use muster_proto::pb;
use muster_tests::agent_process::{AgentHost, AgentProcess, is_ready, is_running, node_where, pod_where};
use muster_tests::fixtures::*;
use muster_tests::store_process::{StoreLaunch, StoreProcess, TIMEOUT};
use muster_tests::{Api, Resource, eventually, holds_for};
use rustix::process::Signal;

/// The log message of a refused agent, logged once.
const REFUSED: &str = "neither reports the node nor starts pods";
/// The log message of an agent that took over the node.
const TOOK_OVER: &str = "this agent acts for the node now";

fn sleeper(name: &str) -> pb::Pod {
    pod(name).on("n1").spec(|spec| {
        spec.containers[0].command = vec!["sleep".to_owned(), "1000".to_owned()];
    })
}

/// Shows which agent wrote the node's status: all other values are the same for both.
fn capacity_of_pods(node: &pb::Node) -> &str {
    &node.status.as_ref().unwrap().capacity["pods"]
}

async fn pod_is_running(api: &Api, path: &str) -> pb::Pod {
    pod_where(api, path, "it runs", |pod| pod.status.as_ref().unwrap().phase == "Running").await
}

/// An agent of the node `n1` with that `--max-pods`. Its lease is long enough not to expire on a busy machine.
fn agent_of_n1(host: &AgentHost, store: &StoreProcess, max_pods: &str) -> AgentProcess {
    let launch = host.agent("n1", &store.url()).flag("node-lease-duration-seconds", "15");
    launch.flag("max-pods", max_pods).start()
}

fn times_logged(agent: &AgentProcess, text: &str) -> usize {
    agent.log().matches(text).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_of_a_node_is_refused_with_a_reason_and_takes_over_when_the_first_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let store = StoreLaunch::on(directory.path()).start();
    let (api, hosts) = (store.api(), [AgentHost::new(), AgentHost::new()]);
    let first = agent_of_n1(&hosts[0], &store, "11");
    node_where(&api, "n1", "it is ready", is_ready).await;
    api.create(sleeper("a")).await.unwrap();
    let pid = first.container_pid("a").await;
    pod_is_running(&api, "default/a").await;
    let before =
        node_where(&api, "n1", "the first agent wrote its status", |node| capacity_of_pods(node) == "11")
            .await;

    let second = agent_of_n1(&hosts[1], &store, "22");
    second.wait_logged(REFUSED);
    let log = second.log();
    assert!(log.contains("ERROR"), "{log}");
    for part in ["held by another agent", "stop it and wait", "give one of them another name"] {
        assert!(log.contains(part), "{part:?} is not in the log:\n{log}");
    }
    eventually(TIMEOUT, "its service reports the same reason", || async {
        second.state().await.store.contains("held by another agent").then_some(())
    })
    .await;
    let first_is_undisturbed = || async {
        let node = api.get::<pb::Node>("n1").await.unwrap();
        let state = second.state().await;
        let workloads = second.workloads().await;
        let is_idle = workloads.iter().all(|workload| workload.pids.is_empty());
        node.version() == before.version()
            && state.acknowledged_status.is_none()
            && is_idle
            && is_running(pid)
    };
    // Longer than the lease, so that the first agent must have renewed it.
    holds_for(Duration::from_secs(17), "only the first agent acts for the node", first_is_undisturbed).await;
    // The first agent also starts new pods and stops deleted ones.
    api.create(sleeper("b")).await.unwrap();
    first.container_pid("b").await;
    api.create(sleeper("c")).await.unwrap();
    let leaving = first.container_pid("c").await;
    api.delete::<pb::Pod>("default/c").await.unwrap();
    eventually(TIMEOUT, "the pod is removed", || async {
        api.get::<pb::Pod>("default/c").await.is_err().then_some(())
    })
    .await;
    assert!(!is_running(leaving), "the record was removed before the process exited");
    assert!(second.workloads().await.iter().all(|workload| workload.pids.is_empty()));
    assert_eq!(times_logged(&second, REFUSED), 1, "{}", second.log());

    first.kill();
    second.wait_logged(TOOK_OVER);
    node_where(&api, "n1", "the second agent wrote its status", |node| capacity_of_pods(node) == "22").await;
    second.container_pid("b").await;
    // Its status may be acknowledged before its first renewal.
    eventually(TIMEOUT, "the second agent is registered and renews", || async {
        let state = second.state().await;
        (state.registered && state.acknowledged_renewal_at.is_some()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_lost_its_node_while_paused_keeps_its_containers_and_reports_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = StoreLaunch::on(directory.path()).start();
    let (api, hosts) = (store.api(), [AgentHost::new(), AgentHost::new()]);
    let first = agent_of_n1(&hosts[0], &store, "11");
    node_where(&api, "n1", "it is ready", is_ready).await;
    api.create(sleeper("a")).await.unwrap();
    let pid = first.container_pid("a").await;
    pod_is_running(&api, "default/a").await;

    first.signal(Signal::STOP);
    let second = agent_of_n1(&hosts[1], &store, "22");
    let its = |node: &pb::Node| capacity_of_pods(node) == "22";
    node_where(&api, "n1", "the second agent wrote its status", its).await;
    second.container_pid("a").await;

    first.signal(Signal::CONT);
    first.wait_logged(REFUSED);
    // The second agent did not have the container, so it started it again.
    let its_own = |pod: &pb::Pod| pod.status.as_ref().unwrap().container_statuses[0].restart_count == 1;
    pod_where(&api, "default/a", "the second agent wrote its status", its_own).await;
    api.create(sleeper("b")).await.unwrap();
    second.container_pid("b").await;
    holds_for(Duration::from_secs(3), "only the second agent acts for the node", || async {
        let is_unchanged = its_own(&api.get::<pb::Pod>("default/a").await.unwrap());
        let started = first.workloads().await.iter().any(|it| it.name == "b" && !it.pids.is_empty());
        its(&api.get::<pb::Node>("n1").await.unwrap()) && is_unchanged && !started && is_running(pid)
    })
    .await;
    assert_eq!(times_logged(&first, REFUSED), 1, "{}", first.log());
}

/// Copies a directory with its files, as a clone of a machine does.
fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => copy_directory(&entry.path(), &to.join(entry.file_name())),
            kind if kind.is_file() => {
                fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_agents_with_copies_of_one_state_directory_are_reported_and_do_not_fight_in_a_tight_loop() {
    let directory = tempfile::tempdir().unwrap();
    let store = StoreLaunch::on(directory.path()).start();
    let (api, hosts) = (store.api(), [AgentHost::new(), AgentHost::new()]);
    let first = agent_of_n1(&hosts[0], &store, "11");
    node_where(&api, "n1", "it is ready", is_ready).await;
    copy_directory(&hosts[0].file("state"), &hosts[1].file("state"));
    let second = agent_of_n1(&hosts[1], &store, "11");

    store.wait_logged("heartbeat streams of one agent incarnation replace each other again and again");
    assert!(store.metric("muster_store_heartbeat_streams_contested_total") >= 1.0);
    for agent in [&first, &second] {
        agent.wait_logged("another stream of the same agent incarnation took over");
    }
    // An agent takes the stream over only to renew or to post a status, and it limits how often it does either.
    let contested = store.metric("muster_store_heartbeat_streams_contested_total");
    let written = store.metric("muster_store_renewals_total") + store.metric("muster_store_changes_total");
    assert!(contested <= written, "{contested} takeovers were contested, with {written} writes");
}
