//! Files of containers on the agent's disk: they are kept while the pod's record exists, then removed.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::fs;
use std::path::Path;

use muster_proto::pb;
use muster_tests::fixtures::*;
use muster_tests::single_node::SingleNodeCluster;
use muster_tests::{TIMEOUT, eventually};

fn script(name: &str, script: &str, policy: &str) -> pb::Pod {
    pod(name).on("n1").spec(|spec| {
        spec.containers[0].command = ["sh", "-c", script].map(str::to_owned).to_vec();
        policy.clone_into(&mut spec.restart_policy);
    })
}

fn restarts(pod: &pb::Pod) -> i32 {
    let containers = &pod.status.as_ref().unwrap().container_statuses;
    containers.first().map_or(0, |container| container.restart_count)
}

/// The attempts that have files, in order.
fn attempts(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<u32> = names.filter_map(|name| name.strip_suffix(".order")?.parse().ok()).collect();
    found.sort_unstable();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_job_is_kept_until_its_record_is_removed() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    cluster.api.create(script("job", "echo why it failed; exit 3", "Never")).await.unwrap();
    let failed = |pod: &pb::Pod| pod.status.as_ref().unwrap().phase == "Failed";
    let job = cluster.pod_where("job", "it has failed", failed).await;
    let folder = cluster.folder(&job);
    let printed = || fs::read_to_string(folder.join("0.log")).unwrap_or_default();
    assert_eq!(printed(), "why it failed\n");

    agent.stop();
    let _agent = cluster.agent().await;
    assert_eq!(printed(), "why it failed\n", "a restarted agent keeps the log");
    cluster.api.delete::<pb::Pod>("default/job").await.unwrap();
    eventually(TIMEOUT, "its files are removed", || async { (!folder.exists()).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_last_two_attempts_of_a_restarting_container_are_kept() {
    let (cluster, _agent) = SingleNodeCluster::new().await;
    let tries = cluster.host.file("tries");
    // The first restart has no back-off. The third attempt stays running.
    let body =
        format!("echo try >> {0}; test $(wc -l < {0}) -ge 3 && exec sleep 1000; exit 1", tries.display());
    cluster.api.create(script("a", &body, "Always")).await.unwrap();
    let third = |pod: &pb::Pod| restarts(pod) == 2 && pod.status.as_ref().unwrap().phase == "Running";
    let pod = cluster.pod_where("a", "it runs for the third time", third).await;
    let folder = cluster.folder(&pod);
    eventually(TIMEOUT, "the first attempt's files are removed", || async {
        (attempts(&folder) == [1, 2]).then_some(())
    })
    .await;
    cluster.api.delete::<pb::Pod>("default/a").await.unwrap();
    eventually(TIMEOUT, "all files are removed", || async { (!folder.exists()).then_some(()) }).await;
}
