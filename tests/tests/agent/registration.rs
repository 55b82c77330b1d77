//! Registration: the fields of a new node, what an existing node keeps, and flags that prevent the start.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::time::Duration;

use muster_proto::pb;
use muster_tests::agent_process::{
    AgentHost, events, is_ready, is_running, lease_where, node_where, pod_where,
};
use muster_tests::fixtures::*;
use muster_tests::store_process::{StoreLaunch, StoreProcess, free_port};
use muster_tests::{Api, ReceivedEvent, Resource, TIMEOUT, TestStore, WatchQuery, eventually, holds_for};
use rustix::process::Signal;
use tempfile::TempDir;
use tonic::Code;

/// A running store and its directory.
fn store() -> (TempDir, StoreProcess) {
    let directory = tempfile::tempdir().unwrap();
    let store = StoreLaunch::on(directory.path()).start();
    (directory, store)
}

fn labels(node: &pb::Node) -> impl Fn(&str) -> Option<String> {
    let labels = node.metadata.as_ref().unwrap().labels.clone();
    move |key| labels.get(key).cloned()
}

fn taints(node: &pb::Node) -> Vec<String> {
    let taints = &node.spec.as_ref().unwrap().taints;
    taints.iter().map(|taint| format!("{}={}:{}", taint.key, taint.value, taint.effect)).collect()
}

async fn is_absent<R: muster_tests::resource::WritableResource>(api: &Api, path: &str) -> bool {
    matches!(api.get::<R>(path).await, Err(status) if status.code() == Code::NotFound)
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s035_a_new_node_has_its_labels_taints_capacity_and_conditions() {
    let (_directory, store) = store();
    let (api, host) = (store.api(), AgentHost::new());
    let launch = host.agent("n1", &store.url());
    let mut watch = api.watch::<pb::Node>(WatchQuery::default()).await.unwrap();
    let agent = launch.flag("node-labels", "a=b").flag("register-with-taints", "k=v:NoSchedule").start();
    let ReceivedEvent { kind, record: node } = watch.next().await;
    assert_eq!(kind, "ADDED");

    let label = labels(&node);
    assert_eq!(label("a").as_deref(), Some("b"));
    assert_eq!(label("kubernetes.io/hostname").as_deref(), Some("n1"));
    for prefix in ["", "beta."] {
        assert_eq!(label(&format!("{prefix}kubernetes.io/os")).as_deref(), Some("linux"));
        assert_eq!(label(&format!("{prefix}kubernetes.io/arch")).as_deref(), Some(architecture()));
    }
    let taints = taints(&node);
    assert!(taints.contains(&"k=v:NoSchedule".to_owned()), "{taints:?}");
    assert!(taints.contains(&"node.kubernetes.io/not-ready=:NoSchedule".to_owned()), "{taints:?}");
    // On a slow machine the node is registered first and its status follows.
    let node = node_where(&api, "n1", "it is ready", is_ready).await;
    let status = node.status.as_ref().unwrap();
    for resource in ["cpu", "memory", "pods", "ephemeral-storage"] {
        assert!(status.capacity.contains_key(resource), "{resource} in {:?}", status.capacity);
        assert!(status.allocatable.contains_key(resource), "{resource} in {:?}", status.allocatable);
    }
    let conditions: Vec<&str> = status.conditions.iter().map(|condition| condition.r#type.as_str()).collect();
    assert_eq!(conditions, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);

    lease_where(&api, "n1", "it is held", |lease| lease.spec.as_ref().unwrap().holder_identity == "n1").await;
    let state = agent.state().await;
    assert_eq!((state.node_name.as_str(), state.node_uid.as_str()), ("n1", node.uid()));
    assert!(state.registered);
}

#[tokio::test(flavor = "multi_thread")]
async fn s036_a_node_that_exists_keeps_its_labels_taints_and_cordon() {
    let (_directory, store) = store();
    let (api, host) = (store.api(), AgentHost::new());
    let old = node("n1").label("a", "old").label("x", "y").taint("q=:NoSchedule").cordoned();
    let old = api.create(old.label("kubernetes.io/hostname", "wrong")).await.unwrap();
    let launch = host.agent("n1", &store.url());
    let _agent = launch.flag("node-labels", "a=new").flag("register-with-taints", "k=v:NoSchedule").start();

    let node = node_where(&api, "n1", "it is ready", is_ready).await;
    let label = labels(&node);
    assert_eq!((label("a").as_deref(), label("x").as_deref()), (Some("old"), Some("y")));
    assert_eq!(label("kubernetes.io/hostname").as_deref(), Some("n1"));
    assert_eq!(label("kubernetes.io/os").as_deref(), Some("linux"));
    assert_eq!(label("kubernetes.io/arch").as_deref(), Some(architecture()));
    assert_eq!(node.spec, old.spec, "taints and cordon belong to operators");
    assert_eq!(node.uid(), old.uid());
}

#[tokio::test(flavor = "multi_thread")]
async fn s037_labels_of_the_machine_are_corrected_at_start_and_later() {
    let (_directory, store) = store();
    let (api, host) = (store.api(), AgentHost::new());
    api.create(node("n1").label("kubernetes.io/arch", "wrong")).await.unwrap();
    let _agent = host.agent("n1", &store.url()).start();
    let right = |node: &pb::Node| labels(node)("kubernetes.io/arch").as_deref() == Some(architecture());
    let node = node_where(&api, "n1", "the label is right", |node| right(node) && is_ready(node)).await;

    api.update(node.at(0).without_label("kubernetes.io/os")).await.unwrap();
    let back = |node: &pb::Node| labels(node)("kubernetes.io/os").as_deref() == Some("linux");
    node_where(&api, "n1", "the label is back", back).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s038_s039_an_agent_with_an_invalid_flag_exits_and_names_the_flag() {
    let (_directory, store) = store();
    let (api, host) = (store.api(), AgentHost::new());
    for (flag, value, said) in [
        ("node-labels", "node-role.kubernetes.io/master=", "node-role.kubernetes.io/master"),
        ("node-labels", "node-restriction.kubernetes.io/x=1", "node-restriction.kubernetes.io/x"),
        ("register-with-taints", "a=1:NoSchedule,a=2:NoSchedule", "earlier taint"),
        ("register-with-taints", "a", "\"a\""),
        ("node-ip", "10.0.0.5,10.0.0.6", "two IPv4"),
        ("node-lease-duration-seconds", "0", "1 to 3600"),
        ("memory-swap-behavior", "UnlimitedSwap", "UnlimitedSwap"),
        ("system-reserved", "memory=1000Ti", "memory"),
        ("eviction-hard", "foo<1Mi", "foo"),
        ("max-pods", "-1", "max-pods"),
        ("no-such-flag", "1", "no-such-flag"),
    ] {
        let (status, log) = host.agent("n1", &store.url()).flag(flag, value).run_to_exit();
        assert!(!status.success(), "--{flag}={value} was accepted:\n{log}");
        assert!(log.contains(&format!("--{flag}")), "--{flag}={value} is not named:\n{log}");
        assert!(log.contains(said), "--{flag}={value} should be explained with {said:?}:\n{log}");
        assert!(is_absent::<pb::Node>(&api, "n1").await, "--{flag}={value} created a node");
    }

    let _agent = host.agent("n1", &store.url()).flag("node-labels", "kubelet.kubernetes.io/x=1").start();
    let node = node_where(&api, "n1", "it is there", |_| true).await;
    assert_eq!(labels(&node)("kubelet.kubernetes.io/x").as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn s040_s053_without_register_node_the_agent_waits_for_its_node_and_creates_no_lease() {
    let (_directory, store) = store();
    let (api, host) = (store.api(), AgentHost::new());
    let mut agent = host.agent("n1", &store.url()).flag("register-node", "false").start();
    holds_for(Duration::from_secs(4), "there is neither node nor lease", || async {
        is_absent::<pb::Node>(&api, "n1").await && is_absent::<pb::Lease>(&api, "kube-node-lease/n1").await
    })
    .await;
    assert!(agent.is_running());

    let created = api.create(node("n1").label("by", "hand")).await.unwrap();
    let node = node_where(&api, "n1", "it is ready", is_ready).await;
    assert_eq!((labels(&node)("by").as_deref(), node.uid()), (Some("hand"), created.uid()));
    lease_where(&api, "n1", "it exists", |_| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s041_a_deleted_node_is_created_again_only_by_a_restarted_agent() {
    let (_directory, store) = store();
    let (api, host) = (store.api(), AgentHost::new());
    let mut agent = host.agent("n1", &store.url()).start();
    let first = node_where(&api, "n1", "it is ready", is_ready).await;
    lease_where(&api, "n1", "it exists", |_| true).await;

    api.delete::<pb::Node>("n1").await.unwrap();
    holds_for(Duration::from_secs(5), "the node is deleted", || is_absent::<pb::Node>(&api, "n1")).await;
    assert!(agent.is_running());
    agent.stop();

    let _agent = host.agent("n1", &store.url()).start();
    let second = node_where(&api, "n1", "it is back", is_ready).await;
    assert_ne!(first.uid(), second.uid());
    let owned = |lease: &pb::Lease| {
        let owners = &lease.metadata.as_ref().unwrap().owner_references;
        owners.iter().any(|owner| owner.uid == second.uid())
    };
    lease_where(&api, "n1", "the new node owns it", owned).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s042_an_agent_that_starts_before_the_store_registers_later() {
    let (directory, host, port) = (tempfile::tempdir().unwrap(), AgentHost::new(), free_port());
    let agent = host.agent("n1", &format!("http://127.0.0.1:{port}")).start();
    // Attempts come after 0.1, 0.3, 0.7 and 1.5 s; the fourth has failed by then.
    agent.wait_logged("attempt=4");
    assert!(!agent.state().await.registered);

    let store = StoreLaunch::on(directory.path()).at(port).start();
    let api = store.api();
    let node =
        eventually(TIMEOUT, "the node is registered", || async { api.get::<pb::Node>("n1").await.ok() })
            .await;
    assert_eq!(node.name(), "n1");
    lease_where(&api, "n1", "it exists", |_| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_starts_while_the_store_is_paused_registers_later() {
    let (_directory, store) = store();
    let (api, host) = (store.api(), AgentHost::new());
    store.signal(Signal::STOP);
    let agent = host.agent("n1", &store.url()).start();
    holds_for(Duration::from_secs(6), "it is not registered", || async { !agent.state().await.registered })
        .await;
    store.signal(Signal::CONT);
    node_where(&api, "n1", "it is ready", is_ready).await;
    lease_where(&api, "n1", "it was renewed", |lease| lease.spec.as_ref().unwrap().status_digest != 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_does_not_start_on_a_directory_in_use_or_of_another_node() {
    let (_directory, store) = store();
    let host = AgentHost::new();
    let agent = host.agent("n1", &store.url()).start();
    let (status, log) = host.agent("n1", &store.url()).run_to_exit();
    assert!(!status.success() && log.contains("--state-dir") && log.contains("another agent"), "{log}");
    agent.stop();
    let (status, log) = host.agent("n2", &store.url()).run_to_exit();
    assert!(!status.success() && log.contains("belongs to node n1"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_of_a_node_are_enough_for_an_agent() {
    let (store, host) = (TestStore::secure().await, AgentHost::new());
    let api = store.api();
    let credentials = |name: &str| store.authority().unwrap().credentials(name, "muster:nodes");
    let launch = host
        .agent("n1", &store.url())
        .flag("node-labels", "a=b")
        .flag("register-with-taints", "k=v:NoSchedule");
    let agent = launch.flag("credentials", credentials("node:n1").to_str().unwrap()).start();
    node_where(&api, "n1", "it is ready", is_ready).await;
    lease_where(&api, "n1", "it was renewed", |lease| lease.spec.as_ref().unwrap().status_digest != 0).await;

    let sleeper = pod("a").on("n1").spec(|spec| {
        spec.containers[0].command = vec!["sleep".to_owned(), "1000".to_owned()];
    });
    api.create(sleeper).await.unwrap();
    let pid = agent.container_pid("a").await;
    pod_where(&api, "default/a", "it runs", |pod| pod.status.as_ref().unwrap().phase == "Running").await;
    let node = api.get::<pb::Node>("n1").await.unwrap();
    api.update(node.at(0).without_label("kubernetes.io/os").cordoned()).await.unwrap();
    node_where(&api, "n1", "the label is back", |node| labels(node)("kubernetes.io/os").is_some()).await;
    eventually(TIMEOUT, "the cordon event is recorded", || async {
        (!events(&api, "n1", "NodeNotSchedulable").await.is_empty()).then_some(())
    })
    .await;
    api.delete::<pb::Pod>("default/a").await.unwrap();
    eventually(TIMEOUT, "the pod is removed", || async {
        is_absent::<pb::Pod>(&api, "default/a").await.then_some(())
    })
    .await;
    assert!(!is_running(pid));
    assert!(!agent.log().contains("PERMISSION_DENIED"), "{}", agent.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn s043_an_agent_without_the_right_to_create_its_node_logs_it_and_retries() {
    let (store, host) = (TestStore::secure().await, AgentHost::new());
    let api = store.api();
    let credentials = store.authority().unwrap().credentials("node:other", "muster:nodes");
    let launch = host.agent("n1", &store.url()).flag("credentials", credentials.to_str().unwrap());
    let mut agent = launch.start();
    agent.wait_logged("attempt=3");
    assert!(agent.is_running() && agent.log().contains("could not be registered yet"), "{}", agent.log());
    assert!(is_absent::<pb::Node>(&api, "n1").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn s043_an_agent_without_the_right_to_create_its_node_adopts_an_existing_one() {
    let (store, host) = (TestStore::secure().await, AgentHost::new());
    let api = store.api();
    // This role can read nodes and write their status, but cannot create nodes.
    let credentials = store.authority().unwrap().credentials("eva", "muster:controllers");
    let launch = host.agent("n1", &store.url()).flag("credentials", credentials.to_str().unwrap());
    let agent = launch.start();
    agent.wait_logged("attempt=2");
    let log = agent.log();
    assert!(log.contains("not permitted") && log.contains("create Node n1"), "{log}");
    assert!(!agent.state().await.registered);

    let made = node("n1").label("by", "hand").label("kubernetes.io/arch", "wrong").taint("q=:NoSchedule");
    let made = api.create(made).await.unwrap();
    let node = node_where(&api, "n1", "it is ready", is_ready).await;
    let state = agent.state().await;
    assert!(state.registered && state.node_uid == made.uid(), "{state:?}");
    assert_eq!((node.uid(), &node.spec), (made.uid(), &made.spec));
    let label = labels(&node);
    assert_eq!(
        (label("by").as_deref(), label("kubernetes.io/arch").as_deref()),
        (Some("hand"), Some(architecture()))
    );
    assert!(node.status.as_ref().unwrap().capacity.contains_key("cpu"));
    // The agent owns the status: it corrects changes of other writers.
    let over = api.get::<pb::Node>("n1").await.unwrap().at(0).status(|status| status.conditions.clear());
    api.update_status(over).await.unwrap();
    node_where(&api, "n1", "it is ready again", is_ready).await;
}
