//! What pods of the real agent may do: their users, their system calls, and what they can see of others.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::fs;
use std::path::Path;

use muster_proto::pb;
use muster_tests::agent_process::{AgentHost, binary, is_ready, is_running, node_where, pod_where};
use muster_tests::fixtures::*;
use muster_tests::single_node::SingleNodeCluster;
use muster_tests::store_process::StoreLaunch;
use muster_tests::{Resource, TIMEOUT, eventually};
use rustix::process::{Pid, Signal, kill_process};

/// The default of --pod-uid-range.
const OWN_IDS: std::ops::RangeInclusive<u32> = 2_000_000_000..=2_000_065_535;
/// The user of an agent that is not root.
const NOBODY: u32 = 65_534;

fn script(name: &str, script: &str) -> pb::Pod {
    pod(name).on("n1").spec(|spec| {
        spec.containers[0].command = ["sh", "-c", script].map(str::to_owned).to_vec();
    })
}

fn asking(pod: pb::Pod, given: pb::SecurityContext) -> pb::Pod {
    pod.spec(|spec| spec.containers[0].security_context = Some(given))
}

fn privileged() -> pb::SecurityContext {
    pb::SecurityContext { privileged: Some(true), ..Default::default() }
}

/// What a pod's first container has written, once it has written `done`.
async fn output(cluster: &SingleNodeCluster, name: &str) -> String {
    let pod = cluster.api.get::<pb::Pod>(&format!("default/{name}")).await.unwrap();
    let log = cluster.folder(&pod).join("0.log");
    written(&log).await
}

async fn written(log: &Path) -> String {
    eventually(TIMEOUT, &format!("{} ends", log.display()), || async {
        fs::read_to_string(log).ok().filter(|text| text.ends_with("done\n"))
    })
    .await
}

/// A field of /proc/PID/status.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim()
}

fn status(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/status")).unwrap()
}

/// The user of a process, which must be its user in every respect.
fn user(status: &str) -> u32 {
    let ids: Vec<u32> = field(status, "Uid").split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{status}");
    ids[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_runs_as_a_user_of_its_own_without_privileges() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    let mut users = Vec::new();
    for name in ["a", "b"] {
        cluster.api.create(script(name, "exec sleep 1000")).await.unwrap();
        let status = status(agent.container_pid(name).await);
        let user = user(&status);
        assert!(OWN_IDS.contains(&user), "{status}");
        let groups: Vec<&str> = field(&status, "Gid").split_whitespace().collect();
        assert!(groups.iter().all(|group| *group == user.to_string()), "{status}");
        assert_eq!(field(&status, "Groups"), "", "{status}");
        assert_eq!((field(&status, "NoNewPrivs"), field(&status, "Seccomp")), ("1", "2"), "{status}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(&status, set).trim_start_matches('0'), "", "{set}: {status}");
        }
        users.push(user);
    }
    assert_ne!(users[0], users[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_cannot_see_or_touch_the_agent_or_another_pod() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    let with_secret = script("a", "echo in the log; echo done; exec sleep 1000").spec(|spec| {
        let (name, value) = ("TOKEN".to_owned(), "secret-of-a".to_owned());
        spec.containers[0].env.push(pb::EnvVar { name, value, value_from: None });
    });
    let created = cluster.api.create(with_secret).await.unwrap();
    let other = agent.container_pid("a").await;
    output(&cluster, "a").await;
    let (agent_pid, state) = (agent.pid().as_raw_nonzero(), cluster.host.file("state"));
    let log = cluster.folder(&created).join("0.log");
    let body = format!(
        "for each in 'ls {state}' 'cat {log}' 'cat /proc/{other}/environ' 'cat /proc/{agent_pid}/environ' \
         'kill -9 {other}' 'kill -9 {agent_pid}' 'ls /proc/{other}/fd' 'ls /proc/{agent_pid}/fd'; do \
         $each && echo \"done by: $each\"; done; echo done; exec sleep 1000",
        state = state.display(),
        log = log.display(),
    );
    cluster.api.create(script("b", &body)).await.unwrap();
    agent.container_pid("b").await;
    let said = output(&cluster, "b").await;
    assert!(!said.contains("done by:") && !said.contains("secret-of-a"), "{said}");
    let refused = said.to_lowercase();
    let refused = refused.matches("permission denied").count() + refused.matches("not permitted").count();
    assert_eq!(refused, 8, "{said}");
    assert!(is_running(other));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_act_on_the_machine_are_refused() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    let body = "for each in 'unshare --user true' 'unshare --mount true' 'mount -t tmpfs none /mnt' \
                'nsenter --target 1 --net true' 'setpriv --reuid 0 true'; do \
                $each && echo \"done by: $each\"; done; echo done; exec sleep 1000";
    cluster.api.create(script("a", body)).await.unwrap();
    agent.container_pid("a").await;
    let said = output(&cluster, "a").await;
    assert!(!said.contains("done by:"), "{said}");
    for program in ["unshare: unshare failed: Operation not permitted", "mount: ", "nsenter: ", "setpriv: "] {
        assert!(said.contains(program), "{program}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_agent_does_not_allow_is_refused_with_the_reason() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    let root = pb::SecurityContext { run_as_user: Some(0), ..Default::default() };
    let escalating = pb::SecurityContext { allow_privilege_escalation: Some(true), ..Default::default() };
    for (name, given, expected) in [
        (
            "privileged",
            privileged(),
            "asks for privileged, which this node does not allow (--allow-privileged",
        ),
        ("escalating", escalating, "asks for allowPrivilegeEscalation, which"),
        ("root", root, "asks for runAsUser 0, which this node does not allow (--allow-run-as"),
    ] {
        cluster.api.create(asking(script(name, "exec sleep 1000"), given)).await.unwrap();
        let failed = |pod: &pb::Pod| pod.status.as_ref().unwrap().phase == "Failed";
        let status = cluster.pod_where(name, "it has failed", failed).await.status.unwrap();
        assert_eq!(status.reason, "SecurityContextDenied", "{status:?}");
        assert!(status.message.contains(expected), "{status:?}");
    }
    assert!(agent.workloads().await.iter().all(|workload| workload.pids.is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_agent_allows_runs_as_it_asks() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    agent.stop();
    let agent = cluster.launch().switch("allow-privileged").flag("allow-run-as", "12345").start();
    cluster.api.create(asking(script("a", "exec sleep 1000"), privileged())).await.unwrap();
    let seen = status(agent.container_pid("a").await);
    assert_eq!((user(&seen), field(&seen, "NoNewPrivs"), field(&seen, "Seccomp")), (0, "0", "0"), "{seen}");
    agent.stop();

    let agent = cluster.launch().flag("allow-run-as", "12345,20000-20010").start();
    let given =
        pb::SecurityContext { run_as_user: Some(12_345), run_as_group: Some(20_010), ..Default::default() };
    cluster.api.create(asking(script("b", "exec sleep 1000"), given)).await.unwrap();
    let seen = status(agent.container_pid("b").await);
    assert_eq!((user(&seen), field(&seen, "Seccomp")), (12_345, "2"), "{seen}");
    assert!(field(&seen, "Gid").starts_with("20010"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_keeps_its_user_when_the_agent_and_its_container_restart() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    cluster.api.create(script("a", "exec sleep 1000")).await.unwrap();
    let first = agent.container_pid("a").await;
    let before = user(&status(first));
    agent.kill();
    let agent = cluster.agent().await;
    assert_eq!(agent.container_pid("a").await, first, "the same process");
    kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    let second = eventually(TIMEOUT, "it runs again", || async {
        let pid = agent.container_pid("a").await;
        (pid != first).then_some(pid)
    })
    .await;
    assert_eq!(user(&status(second)), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_an_agent_without_root_are_confined_as_its_user() {
    let (directory, host) = (tempfile::tempdir().unwrap(), AgentHost::new());
    let store = StoreLaunch::on(directory.path()).start();
    let api = store.api();
    // The binary may be where only root can read it.
    let program = host.file("muster-agent");
    fs::copy(binary(), &program).unwrap();
    let become_nobody = format!(
        "shift; exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups {} \"$@\"",
        program.display()
    );
    let launch = host.agent("n1", &store.url());
    let agent = launch.within(["sh", "-c", &become_nobody, "sh"]).start();
    node_where(&api, "n1", "it is ready", is_ready).await;
    let limitations = agent.state().await.limitations;
    assert!(limitations.iter().any(|each| each.contains("run as the agent's user")), "{limitations:?}");

    let created = api.create(script("a", "unshare --user true || echo done; exec sleep 1000")).await.unwrap();
    let seen = status(agent.container_pid("a").await);
    assert_eq!(user(&seen), NOBODY, "{seen}");
    assert_eq!((field(&seen, "NoNewPrivs"), field(&seen, "Seccomp")), ("1", "2"), "{seen}");
    let log = host.file("state").join("runtime/pods").join(created.uid()).join("main/0.log");
    assert!(written(&log).await.contains("Operation not permitted"));

    let other = pb::SecurityContext { run_as_user: Some(12_345), ..Default::default() };
    api.create(asking(script("b", "exec sleep 1000"), other)).await.unwrap();
    let failed = |pod: &pb::Pod| pod.status.as_ref().unwrap().phase == "Failed";
    let failed = pod_where(&api, "default/b", "it has failed", failed).await.status.unwrap();
    assert!(failed.message.contains("this node's agent runs without root, as 65534"), "{failed:?}");
}
