//! Static pods of the real agent: from a file to a process and to a mirror in the store, and back.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::fs;
use std::path::PathBuf;

use muster_proto::pb;
use muster_tests::agent_process::{
    AgentHost, AgentProcess, command_line, is_ready, is_running, node_where, pod_where,
};
use muster_tests::fixtures::*;
use muster_tests::store_process::{StoreLaunch, TIMEOUT, free_port};
use muster_tests::{Api, eventually};

/// The placeholder pod of the oldest source page, as it is.
const PLACEHOLDER: &str = include_str!("../../manifests/placeholder-pod.yaml");
/// The pod that it becomes on node n1.
const RESERVER: &str = "resource-reserver-n1";

fn manifests(host: &AgentHost) -> PathBuf {
    let directory = host.file("manifests");
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// The process of the placeholder pod, once it runs.
async fn reserver_pid(agent: &AgentProcess) -> i32 {
    let found = eventually(TIMEOUT, "the placeholder runs", || async {
        let workloads = agent.workloads().await;
        let reserver =
            workloads.into_iter().find(|workload| workload.name == RESERVER && !workload.stopping)?;
        reserver.pids.get("sleep-forever").copied()
    });
    i32::try_from(found.await).unwrap()
}

async fn mirror(api: &Api) -> pb::Pod {
    let ready = |pod: &pb::Pod| pod.status.as_ref().is_some_and(|status| status.phase == "Running");
    pod_where(api, &format!("default/{RESERVER}"), "it is shown as running", ready).await
}

async fn no_pod(api: &Api, name: &str) {
    eventually(TIMEOUT, &format!("{name} is gone"), || async {
        api.get::<pb::Pod>(&format!("default/{name}")).await.is_err().then_some(())
    })
    .await;
}

async fn stops(pid: i32) {
    eventually(TIMEOUT, "the process has ended", || async { (!is_running(pid)).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s212_s214_the_placeholder_pod_runs_without_a_store_and_reserves_what_it_requests() {
    let (host, port, disk) = (AgentHost::new(), free_port(), tempfile::tempdir().unwrap());
    let directory = manifests(&host);
    fs::write(directory.join("reserve.yaml"), PLACEHOLDER).unwrap();
    // A --config that names a directory is the directory of static pods, as the page has it.
    let launch = host.agent("n1", &format!("http://127.0.0.1:{port}"));
    let agent = launch.flag("config", directory.to_str().unwrap()).start();
    let pid = reserver_pid(&agent).await;
    assert_eq!(command_line(pid).last().unwrap(), "pause", "there is no store yet");

    let store = StoreLaunch::on(disk.path()).at(port).start();
    let api = store.api();
    let shown = mirror(&api).await;
    let requests = &shown.spec.as_ref().unwrap().containers[0].resources.as_ref().unwrap().requests;
    assert_eq!((requests["cpu"].as_str(), requests["memory"].as_str()), ("100m", "100Mi"));
    node_where(&api, "n1", "it is ready", is_ready).await;

    // What is reserved is not given to others: with the 100m, all cores do not fit any more.
    let node = node_where(&api, "n1", "it is ready", is_ready).await;
    let cores = node.status.unwrap().allocatable["cpu"].clone();
    let greedy = pod("greedy").on("n1").spec(|spec| {
        let requests = [("cpu".to_owned(), cores)].into();
        spec.containers[0].resources = Some(pb::ResourceRequirements { requests, ..Default::default() });
    });
    api.create(greedy).await.unwrap();
    let failed = pod_where(&api, "default/greedy", "it fails", |pod| {
        pod.status.as_ref().is_some_and(|status| status.phase == "Failed")
    });
    assert_eq!(failed.await.status.unwrap().reason, "OutOfcpu");

    // An agent that is replaced finds the pod running.
    agent.stop();
    assert!(is_running(pid));
    let agent = host.agent("n1", &store.url()).flag("pod-manifest-path", directory.to_str().unwrap()).start();
    assert_eq!(reserver_pid(&agent).await, pid);

    // Its mirror is only shown: deleted, it comes back, and the process stays.
    let before = mirror(&api).await.metadata.unwrap().uid;
    api.delete::<pb::Pod>(&format!("default/{RESERVER}")).await.unwrap();
    pod_where(&api, &format!("default/{RESERVER}"), "there is another mirror", |pod| {
        pod.metadata.as_ref().is_some_and(|meta| meta.uid != before)
    })
    .await;
    assert!(is_running(pid));

    fs::remove_file(directory.join("reserve.yaml")).unwrap();
    no_pod(&api, RESERVER).await;
    assert!(!is_running(pid), "the mirror was removed before the process exited");
}

/// How many files the agent says that it cannot use.
fn broken_files(agent: &AgentProcess) -> f64 {
    agent.metric("muster_agent_static_pod_files_broken")
}

#[tokio::test(flavor = "multi_thread")]
async fn s212_a_file_that_changes_changes_the_pod_and_a_broken_one_costs_no_other() {
    let (host, disk) = (AgentHost::new(), tempfile::tempdir().unwrap());
    let store = StoreLaunch::on(disk.path()).start();
    let directory = manifests(&host);
    fs::write(directory.join("a.yaml"), PLACEHOLDER).unwrap();
    fs::write(directory.join("broken.yaml"), "apiVersion: v1\nkind: Pod\nspec: [").unwrap();
    let agent = host.agent("n1", &store.url()).flag("pod-manifest-path", directory.to_str().unwrap()).start();
    let api = store.api();
    mirror(&api).await;
    let pid = reserver_pid(&agent).await;
    eventually(TIMEOUT, "the broken file is counted", || async {
        (broken_files(&agent) > 0.5).then_some(())
    })
    .await;

    // Half a file must not stop the pod that the whole file held.
    fs::write(directory.join("a.yaml"), &PLACEHOLDER[..PLACEHOLDER.len() / 2]).unwrap();
    eventually(TIMEOUT, "both are counted", || async { (broken_files(&agent) > 1.5).then_some(()) }).await;
    assert!(is_running(pid));

    fs::write(directory.join("a.yaml"), PLACEHOLDER.replace("100m", "200m")).unwrap();
    stops(pid).await;
    pod_where(&api, &format!("default/{RESERVER}"), "it asks for more", |pod| {
        let container = &pod.spec.as_ref().unwrap().containers[0];
        container.resources.as_ref().unwrap().requests["cpu"] == "200m"
    })
    .await;
    assert_ne!(reserver_pid(&agent).await, pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn s213_a_mirror_that_somebody_made_up_is_never_run() {
    let (host, disk) = (AgentHost::new(), tempfile::tempdir().unwrap());
    let store = StoreLaunch::on(disk.path()).start();
    let agent = host.agent("n1", &store.url()).start();
    let api = store.api();
    node_where(&api, "n1", "it is ready", is_ready).await;
    let annotated = |name: &str| {
        let made_up = pod(name).on("n1").annotation("kubernetes.io/config.mirror", "hash");
        made_up.annotation("kubernetes.io/config.source", "file")
    };
    api.create(annotated("fake")).await.unwrap();
    api.create(pod("real").on("n1").spec(|spec| {
        spec.containers[0].command = vec!["sleep".to_owned(), "1000".to_owned()];
    }))
    .await
    .unwrap();
    agent.container_pid("real").await;
    let fake = api.get::<pb::Pod>("default/fake").await.unwrap();
    assert_eq!(fake.status.unwrap().phase, "Pending", "bound first, and not started");
    api.delete::<pb::Pod>("default/fake").await.unwrap();
    no_pod(&api, "fake").await;
}
