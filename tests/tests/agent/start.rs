//! Starts of containers that hang, and restarts of the agent.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_proto::pb;
use muster_tests::agent_process::{is_running, pod_where};
use muster_tests::fixtures::*;
use muster_tests::single_node::SingleNodeCluster;
use muster_tests::{Deletion, TIMEOUT, eventually};

/// Creates a pod whose start hangs: its log is a FIFO, which opens only when it is read. Returns the path of the FIFO.
async fn hung(cluster: &SingleNodeCluster, name: &str) -> PathBuf {
    let created = cluster.api.create(sleeper(name).on("")).await.unwrap();
    let folder = cluster.folder(&created);
    fs::create_dir_all(&folder).unwrap();
    let log = folder.join("0.log");
    assert!(Command::new("mkfifo").arg(&log).status().unwrap().success());
    cluster.api.bind(&format!("default/{name}"), "n1", Deletion::default()).await.unwrap();
    // The agent has started the container when it has written this file.
    let order = folder.join("0.order");
    eventually(TIMEOUT, "its start has begun", || async { order.exists().then_some(()) }).await;
    log
}

async fn delete(cluster: &SingleNodeCluster, name: &str) {
    cluster.api.delete::<pb::Pod>(&format!("default/{name}")).await.unwrap();
    cluster.gone(name, TIMEOUT).await;
}

fn sleeper(name: &str) -> pb::Pod {
    pod(name).on("n1").spec(|spec| {
        spec.containers[0].command = vec!["sleep".to_owned(), "1000".to_owned()];
    })
}

fn read(log: &Path) -> std::thread::JoinHandle<()> {
    let log = log.to_owned();
    std::thread::spawn(move || drop(fs::read(log)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_hangs_does_not_block_other_pods() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    cluster.api.create(sleeper("before")).await.unwrap();
    agent.container_pid("before").await;
    let log = hung(&cluster, "hung").await;
    delete(&cluster, "before").await;
    cluster.api.create(sleeper("after")).await.unwrap();
    agent.container_pid("after").await;
    let hung = cluster.api.get::<pb::Pod>("default/hung").await.unwrap();
    assert_eq!(hung.status.as_ref().unwrap().phase, "Pending", "{hung:?}");

    // Reading the FIFO lets the start continue.
    let reading = read(&log);
    agent.container_pid("hung").await;
    let running = |pod: &pb::Pod| pod.status.as_ref().unwrap().phase == "Running";
    pod_where(&cluster.api, "default/hung", "it runs", running).await;
    delete(&cluster, "hung").await;
    reading.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_start_hangs_can_be_deleted() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    hung(&cluster, "hung").await;
    let path = "default/hung";
    let grace = Deletion { grace: Some(1), ..Deletion::default() };
    cluster.api.delete_with::<pb::Pod>(path, grace).await.unwrap();
    eventually(TIMEOUT, "it is removed", || async {
        cluster.api.get::<pb::Pod>(path).await.is_err().then_some(())
    })
    .await;
    eventually(TIMEOUT, "the agent has removed it", || async {
        agent.workloads().await.is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_agent_does_not_change_the_cpu_affinity_of_containers() {
    let allowed = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    };
    let (cluster, agent) = SingleNodeCluster::new().await;
    let first = allowed(std::process::id().cast_signed()).split([',', '-']).next().unwrap().to_owned();
    let pinned = sleeper("a").spec(|spec| {
        spec.containers[0].command = ["taskset", "-c", &first, "sleep", "1000"].map(str::to_owned).to_vec();
    });
    cluster.api.create(pinned).await.unwrap();
    let pid = agent.container_pid("a").await;
    eventually(TIMEOUT, "it has set its affinity", || async { (allowed(pid) == first).then_some(()) }).await;
    agent.kill();
    let agent = cluster.launch().start();
    assert_eq!(agent.container_pid("a").await, pid);
    cluster.api.create(sleeper("b")).await.unwrap();
    agent.container_pid("b").await;
    assert_eq!(allowed(pid), first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_agent_does_not_wait_for_a_pre_stop_hook() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    let marker = cluster.host.file("hook");
    let hooked = sleeper("a").grace(300).spec(|spec| {
        let body = format!("echo up > {}; exec sleep 300", marker.display());
        let command = ["sh", "-c", &body].map(str::to_owned).to_vec();
        let pre_stop = Some(pb::ExecAction { command });
        spec.containers[0].lifecycle = Some(pb::Lifecycle { pre_stop });
    });
    cluster.api.create(hooked).await.unwrap();
    let pid = agent.container_pid("a").await;
    cluster.api.delete::<pb::Pod>("default/a").await.unwrap();
    eventually(TIMEOUT, "its hook runs", || async { marker.exists().then_some(()) }).await;
    // `stop` waits less than the 300 s of the hook.
    assert!(agent.stop().success());
    assert!(is_running(pid), "the container keeps running");
}
