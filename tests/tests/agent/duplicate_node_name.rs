//! Two machines of one name: the store lets one of them in, and the other says why it does nothing.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::time::Duration;

use muster_proto::pb;
use muster_tests::agent_process::{AgentProcess, Home, is_ready, node_where, pod_where, runs};
use muster_tests::fixtures::*;
use muster_tests::store_process::{Launch, PATIENCE, StoreProcess};
use muster_tests::{Api, Wire, eventually, stays};
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

async fn is_running(api: &Api, path: &str) -> pb::Pod {
    pod_where(api, path, "it runs", |pod| pod.status.as_ref().unwrap().phase == "Running").await
}

/// An agent of the node `n1` that may have so many pods. Its lease is long enough that a machine that is only busy does
/// not let it run out.
fn namesake(home: &Home, store: &StoreProcess, max_pods: &str) -> AgentProcess {
    let launch = home.agent("n1", &store.url()).flag("node-lease-duration-seconds", "15");
    launch.flag("max-pods", max_pods).start()
}

fn times_said(agent: &AgentProcess, text: &str) -> usize {
    agent.log().matches(text).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_namesake_is_refused_with_a_reason_and_takes_over_when_the_first_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let store = Launch::on(directory.path()).start();
    let (api, homes) = (store.api(), [Home::new(), Home::new()]);
    let first = namesake(&homes[0], &store, "11");
    node_where(&api, "n1", "it is ready", is_ready).await;
    api.create(sleeper("a")).await.unwrap();
    let pid = first.process_of("a").await;
    is_running(&api, "default/a").await;
    let before = node_where(&api, "n1", "it is the first's", |node| capacity_of_pods(node) == "11").await;

    let second = namesake(&homes[1], &store, "22");
    second.wait_logged(REFUSED);
    let log = second.log();
    assert!(log.contains("ERROR"), "{log}");
    for part in ["held by another agent", "stop it and wait", "give one of them another name"] {
        assert!(log.contains(part), "{part:?} is not among what it said:\n{log}");
    }
    eventually(PATIENCE, "it says so when it is asked, too", || async {
        second.beliefs().await.store.contains("held by another agent").then_some(())
    })
    .await;
    let nobody_is_disturbed = || async {
        let node = api.get::<pb::Node>("n1").await.unwrap();
        let beliefs = second.beliefs().await;
        let workloads = second.workloads().await;
        let is_idle = workloads.iter().all(|workload| workload.pids.is_empty());
        node.version() == before.version() && beliefs.acknowledged_status.is_none() && is_idle && runs(pid)
    };
    // Longer than the first's lease, so that it is not its first renewal only that counts.
    stays(Duration::from_secs(17), "the first has the node to itself", nobody_is_disturbed).await;
    // A pod that comes meanwhile is the first's, too, and so is the end of one.
    api.create(sleeper("b")).await.unwrap();
    first.process_of("b").await;
    api.create(sleeper("c")).await.unwrap();
    let leaving = first.process_of("c").await;
    api.delete::<pb::Pod>("default/c").await.unwrap();
    eventually(PATIENCE, "the pod is gone", || async {
        api.get::<pb::Pod>("default/c").await.is_err().then_some(())
    })
    .await;
    assert!(!runs(leaving), "its record went before it did");
    assert!(second.workloads().await.iter().all(|workload| workload.pids.is_empty()));
    assert_eq!(times_said(&second, REFUSED), 1, "{}", second.log());

    first.kill();
    second.wait_logged(LET_IN);
    node_where(&api, "n1", "it is the second's", |node| capacity_of_pods(node) == "22").await;
    second.process_of("b").await;
    let beliefs = second.beliefs().await;
    assert!(beliefs.registered && beliefs.acknowledged_renewal_at.is_some(), "{beliefs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_lost_its_node_while_it_was_frozen_keeps_what_runs_and_says_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let store = Launch::on(directory.path()).start();
    let (api, homes) = (store.api(), [Home::new(), Home::new()]);
    let first = namesake(&homes[0], &store, "11");
    node_where(&api, "n1", "it is ready", is_ready).await;
    api.create(sleeper("a")).await.unwrap();
    let pid = first.process_of("a").await;
    is_running(&api, "default/a").await;

    first.signal(Signal::STOP);
    let second = namesake(&homes[1], &store, "22");
    let its = |node: &pb::Node| capacity_of_pods(node) == "22";
    node_where(&api, "n1", "it is the second's", its).await;
    second.process_of("a").await;

    first.signal(Signal::CONT);
    first.wait_logged(REFUSED);
    // To the second the pod had been lost, and was begun again.
    let its_own = |pod: &pb::Pod| pod.status.as_ref().unwrap().container_statuses[0].restart_count == 1;
    pod_where(&api, "default/a", "it is the second's", its_own).await;
    api.create(sleeper("b")).await.unwrap();
    second.process_of("b").await;
    stays(Duration::from_secs(3), "the second has the node to itself", || async {
        let is_silent = its_own(&api.get::<pb::Pod>("default/a").await.unwrap());
        let begun = first.workloads().await.iter().any(|it| it.name == "b" && !it.pids.is_empty());
        its(&api.get::<pb::Node>("n1").await.unwrap()) && is_silent && !begun && runs(pid)
    })
    .await;
    assert_eq!(times_said(&first, REFUSED), 1, "{}", first.log());
}
