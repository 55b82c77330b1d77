//! Pods of the real agent: their processes, how they terminate, and what survives the agent.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]
#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use muster_proto::pb;
use muster_proto::pb::container_state::State;
use muster_tests::agent_process::{
    AgentHost, AgentProcess, command_line, is_ready, is_running, node_where, pod_where,
};
use muster_tests::fixtures::*;
use muster_tests::single_node::SingleNodeCluster;
use muster_tests::store_process::{StoreLaunch, TIMEOUT, free_port};
use muster_tests::{Deletion, Resource, WatchQuery, eventually, holds_for, holds_until};
use rustix::process::{Pid, Signal, kill_process};

/// Less than the default grace period of a pod, 30 s.
const BEFORE_DEFAULT_GRACE: Duration = Duration::from_secs(25);

/// With the default lease duration, which determines when a connection counts as dead.
async fn with_default_lease() -> (SingleNodeCluster, AgentProcess) {
    let (cluster, agent) = SingleNodeCluster::new().await;
    agent.stop();
    let agent = cluster.launch().without("node-lease-duration-seconds").start();
    node_where(&cluster.api, "n1", "it is ready", is_ready).await;
    (cluster, agent)
}

fn command(name: &str, command: &[&str]) -> pb::Pod {
    pod(name).on("n1").spec(|spec| {
        spec.containers[0].command = command.iter().map(|word| (*word).to_owned()).collect();
    })
}

fn script(name: &str, script: &str) -> pb::Pod {
    command(name, &["sh", "-c", script])
}

fn restarts(pod: pb::Pod, policy: &str) -> pb::Pod {
    pod.spec(|spec| policy.clone_into(&mut spec.restart_policy))
}

fn phase(pod: &pb::Pod) -> &str {
    pod.status.as_ref().map_or("", |status| &status.phase)
}

fn reason(pod: &pb::Pod) -> &str {
    pod.status.as_ref().map_or("", |status| &status.reason)
}

fn container_status(pod: &pb::Pod) -> Option<&pb::ContainerStatus> {
    pod.status.as_ref()?.container_statuses.first()
}

fn terminated(pod: &pb::Pod) -> Option<&pb::ContainerStateTerminated> {
    match container_status(pod)?.state.as_ref()?.state.as_ref()? {
        State::Terminated(terminated) => Some(terminated),
        _ => None,
    }
}

async fn written(path: &Path) -> String {
    eventually(TIMEOUT, &format!("{} is written", path.display()), || async {
        fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_bound_to_the_node_runs_and_stops_on_sigterm() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    cluster.api.create(command("a", &["sleep", "1000"])).await.unwrap();
    let pid = agent.container_pid("a").await;
    assert_eq!(command_line(pid), ["sleep", "1000"]);
    let running = cluster.pod_where("a", "it runs", |pod| phase(pod) == "Running").await;
    assert!(container_status(&running).unwrap().ready);
    let addresses = &node_where(&cluster.api, "n1", "it is ready", is_ready).await.status.unwrap().addresses;
    assert_eq!(running.status.as_ref().unwrap().host_ip, addresses[0].address);

    // `sleep` exits on SIGTERM, so the agent does not wait for the whole grace of 30 s.
    cluster.api.delete::<pb::Pod>("default/a").await.unwrap();
    cluster.gone("a", BEFORE_DEFAULT_GRACE).await;
    assert!(!is_running(pid), "the record was removed before the process exited");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_bound_after_its_creation_runs() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    cluster.api.create(command("a", &["sleep", "1000"]).on("")).await.unwrap();
    cluster.api.bind("default/a", "n1", Deletion::default()).await.unwrap();
    assert_eq!(command_line(agent.container_pid("a").await), ["sleep", "1000"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn s073_a_container_that_ignores_sigterm_is_killed_after_its_grace_before_the_record_is_removed() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    let marker = cluster.host.file("term");
    let stubborn = format!(
        "trap 'echo terminating >> {0}' TERM; echo up > {0}; while :; do sleep 0.1; done",
        marker.display()
    );
    cluster.api.create(script("a", &stubborn)).await.unwrap();
    let pid = agent.container_pid("a").await;
    written(&marker).await;
    let version = cluster.pod_where("a", "it runs", |pod| phase(pod) == "Running").await.version();
    let follow = WatchQuery { namespace: "default", version, ..WatchQuery::default() };
    let mut watch = cluster.api.watch::<pb::Pod>(follow).await.unwrap();

    let asked = Instant::now();
    let deletion = Deletion { grace: Some(6), ..Deletion::default() };
    cluster.api.delete_with::<pb::Pod>("default/a", deletion).await.unwrap();
    let grace = asked + Duration::from_secs(6);
    holds_until(grace, "it is not killed within its grace", || async { is_running(pid) }).await;
    let (mut ended, mut seen) = (None, Vec::new());
    loop {
        let event = watch.next().await;
        seen.push(event.kind.clone());
        if let Some(exit) = terminated(&event.record) {
            assert!(!is_running(pid), "reported as terminated, but still running");
            ended.get_or_insert_with(|| exit.clone());
        }
        if event.kind == "DELETED" {
            break;
        }
        assert_eq!(event.kind, "MODIFIED");
    }
    let took = asked.elapsed();
    assert!(
        (6..30).contains(&took.as_secs()),
        "{took:?}: the grace of the deletion is used, not the default of 30 s"
    );
    assert!(!is_running(pid), "the record was removed before the process exited");
    let ended = ended.expect("its exit is posted before the record is removed");
    assert_eq!((ended.exit_code, ended.signal), (137, 9), "{ended:?}");
    assert_eq!(fs::read_to_string(&marker).unwrap(), "up\nterminating\n", "SIGTERM was sent first, once");
}

#[tokio::test(flavor = "multi_thread")]
async fn s073_a_paused_store_does_not_delay_a_kill() {
    let (cluster, agent) = with_default_lease().await;
    let (marker, gate) = (cluster.host.file("term"), cluster.host.file("gate"));
    let stubborn = format!(
        "trap 'echo terminating >> {0}' TERM; echo up > {0}; while :; do sleep 0.1; done",
        marker.display()
    );
    cluster.api.create(script("stubborn", &stubborn)).await.unwrap();
    let waiting = format!("until test -e {}; do sleep 0.05; done; exit 5", gate.display());
    cluster.api.create(restarts(script("other", &waiting), "Never")).await.unwrap();
    let (stubborn, other) = (agent.container_pid("stubborn").await, agent.container_pid("other").await);
    written(&marker).await;
    for name in ["stubborn", "other"] {
        cluster.pod_where(name, "it runs", |pod| phase(pod) == "Running").await;
    }
    // A call without an answer fails 5 s after the store was paused, or later.
    let deletion = Deletion { grace: Some(3), ..Deletion::default() };
    cluster.api.delete_with::<pb::Pod>("default/stubborn", deletion).await.unwrap();
    agent.wait_logged("signal=\"TERM\"");

    cluster.store.signal(Signal::STOP);
    // The report of the other pod's exit now waits for the timeout of the call.
    fs::write(&gate, "").unwrap();
    eventually(TIMEOUT, "the other pod has exited", || async { (!is_running(other)).then_some(()) }).await;
    eventually(TIMEOUT, "it is killed", || async { (!is_running(stubborn)).then_some(()) }).await;
    // The log line can appear after the kill.
    agent.wait_logged("signal=\"KILL\"");
    let log = agent.log();
    let (before, _) = log.split_once("signal=\"KILL\"").expect("a KILL is logged");
    assert!(!before.contains("could not be done yet"), "the kill waited for a call to fail:\n{log}");

    cluster.store.signal(Signal::CONT);
    cluster.gone("stubborn", TIMEOUT).await;
    let ended = cluster.pod_where("other", "its exit is reported", |pod| phase(pod) == "Failed").await;
    assert_eq!(terminated(&ended).unwrap().exit_code, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_deletion_kills_the_process() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    cluster.api.create(command("a", &["sleep", "1000"])).await.unwrap();
    let pid = agent.container_pid("a").await;
    let now = Deletion { grace: Some(0), ..Deletion::default() };
    cluster.api.delete_with::<pb::Pod>("default/a", now).await.unwrap();
    eventually(TIMEOUT, "the process has exited", || async { (!is_running(pid)).then_some(()) }).await;
    cluster.gone("a", TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn background_processes_of_a_container_are_killed_with_it() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    let file = cluster.host.file("child");
    let body = format!("setsid sleep 1000 & echo $! > {}; exec sleep 1000", file.display());
    cluster.api.create(script("a", &body)).await.unwrap();
    agent.container_pid("a").await;
    let child: i32 = written(&file).await.trim().parse().unwrap();
    eventually(TIMEOUT, "the child is a sleep", || async {
        (command_line(child) == ["sleep", "1000"]).then_some(())
    })
    .await;
    cluster.api.delete::<pb::Pod>("default/a").await.unwrap();
    cluster.gone("a", TIMEOUT).await;
    assert!(!is_running(child), "the record was removed before all processes exited");
}

#[tokio::test(flavor = "multi_thread")]
async fn environment_arguments_and_working_directory_are_set() {
    let (cluster, _agent) = SingleNodeCluster::new().await;
    let file = cluster.host.file("output");
    let pod =
        script("a", "pwd > \"$OUT.new\"; echo \"$GREETING $0 $1\" >> \"$OUT.new\"; mv \"$OUT.new\" \"$OUT\"");
    let pod = restarts(pod, "Never").spec(|spec| {
        let main = &mut spec.containers[0];
        main.args = vec!["two words".to_owned(), "$GREETING".to_owned()];
        "/usr".clone_into(&mut main.working_dir);
        for (name, value) in [("GREETING", "good day"), ("OUT", file.to_str().unwrap())] {
            main.env.push(pb::EnvVar { name: name.to_owned(), value: value.to_owned(), value_from: None });
        }
    });
    cluster.api.create(pod).await.unwrap();
    assert_eq!(written(&file).await, "/usr\ngood day two words $GREETING\n");
    cluster.pod_where("a", "it has succeeded", |pod| phase(pod) == "Succeeded").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_never_restarted_reports_its_exit_code() {
    let (cluster, _agent) = SingleNodeCluster::new().await;
    cluster.api.create(restarts(script("bad", "exit 7"), "Never")).await.unwrap();
    cluster.api.create(restarts(script("good", "exit 0"), "Never")).await.unwrap();
    cluster.api.create(restarts(script("hit", "kill -9 $$"), "Never")).await.unwrap();
    for (name, wanted, code, why) in [
        ("bad", "Failed", 7, "Error"),
        ("good", "Succeeded", 0, "Completed"),
        ("hit", "Failed", 137, "Error"),
    ] {
        let pod = cluster.pod_where(name, "it has terminated", |pod| phase(pod) == wanted).await;
        let exit = terminated(&pod).unwrap();
        assert_eq!((exit.exit_code, exit.reason.as_str()), (code, why), "{name}");
        assert_eq!(container_status(&pod).unwrap().restart_count, 0, "{name}");
        assert!(exit.started_at.is_some() && exit.finished_at.is_some(), "{name}: {exit:?}");
    }
    // The record of a finished pod stays until it is deleted, and then is removed at once.
    cluster.api.delete::<pb::Pod>("default/bad").await.unwrap();
    cluster.gone("bad", BEFORE_DEFAULT_GRACE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_restarted_on_failure_runs_until_it_succeeds() {
    let (cluster, _agent) = SingleNodeCluster::new().await;
    let file = cluster.host.file("tries");
    let body = format!("echo try >> {0}; test $(wc -l < {0}) -ge 2", file.display());
    cluster.api.create(restarts(script("a", &body), "OnFailure")).await.unwrap();
    let pod = cluster.pod_where("a", "it has succeeded", |pod| phase(pod) == "Succeeded").await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "try\ntry\n");
    let main = container_status(&pod).unwrap();
    assert_eq!((main.restart_count, terminated(&pod).unwrap().exit_code), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_restart_policy_is_always() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    cluster.api.create(command("a", &["sleep", "1000"])).await.unwrap();
    let first = agent.container_pid("a").await;
    cluster.pod_where("a", "it runs", |pod| phase(pod) == "Running").await;
    kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    let again = |pod: &pb::Pod| {
        let main = container_status(pod);
        main.is_some_and(|main| main.restart_count == 1 && main.ready)
    };
    let pod = cluster.pod_where("a", "it runs again", again).await;
    assert_eq!(phase(&pod), "Running");
    assert_ne!(agent.container_pid("a").await, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_program_is_reported() {
    let (cluster, _agent) = SingleNodeCluster::new().await;
    cluster.api.create(restarts(command("a", &["/no/such/program"]), "Never")).await.unwrap();
    let pod = cluster.pod_where("a", "it has failed", |pod| phase(pod) == "Failed").await;
    let exit = terminated(&pod).unwrap();
    assert!(exit.exit_code != 0 && exit.message.contains("/no/such/program"), "{exit:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s075_a_pod_that_does_not_fit_the_node_fails_and_its_record_stays() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    let big = command("a", &["sleep", "1000"]).spec(|spec| {
        let requests = [("cpu".to_owned(), "5000".to_owned())].into();
        spec.containers[0].resources = Some(pb::ResourceRequirements { requests, ..Default::default() });
    });
    cluster.api.create(big).await.unwrap();
    let pod = cluster.pod_where("a", "it has failed", |pod| phase(pod) == "Failed").await;
    assert_eq!(reason(&pod), "OutOfcpu", "{:?}", pod.status);
    holds_for(Duration::from_secs(2), "the record stays and nothing runs", || async {
        let stored = cluster.api.get::<pb::Pod>("default/a").await;
        let started = agent.workloads().await.iter().any(|workload| !workload.pids.is_empty());
        stored.is_ok_and(|stored| phase(&stored) == "Failed") && !started
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s076_a_noexecute_taint_rejects_a_pod_and_a_noschedule_taint_does_not() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    let node = cluster.api.get::<pb::Node>("n1").await.unwrap();
    cluster.api.update(node.at(0).taint("k=v:NoSchedule")).await.unwrap();
    cluster.api.create(command("scheduled", &["sleep", "1000"])).await.unwrap();
    cluster.pod_where("scheduled", "it runs", |pod| phase(pod) == "Running").await;

    let node = cluster.api.get::<pb::Node>("n1").await.unwrap();
    // When the agent has restored the label, it has also seen the taint of the same update.
    let tainted = node.at(0).taint("gpu=v:NoExecute").without_label("kubernetes.io/os");
    cluster.api.update(tainted).await.unwrap();
    let has_label = |node: &pb::Node| node.metadata.as_ref().unwrap().labels.contains_key("kubernetes.io/os");
    node_where(&cluster.api, "n1", "the label is back", has_label).await;
    cluster.api.create(command("rejected", &["sleep", "1000"])).await.unwrap();
    let tolerant = command("tolerant", &["sleep", "1000"]).toleration(tolerates("gpu", "NoExecute"));
    cluster.api.create(tolerant).await.unwrap();
    let pod = cluster.pod_where("rejected", "it has failed", |pod| phase(pod) == "Failed").await;
    assert_eq!(reason(&pod), "TaintToleration", "{:?}", pod.status);
    agent.container_pid("tolerant").await;
    let scheduled = cluster.api.get::<pb::Pod>("default/scheduled").await.unwrap();
    assert_eq!(phase(&scheduled), "Running", "the agent does not evict running pods");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_survive_a_killed_agent_and_are_adopted_by_the_next() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    let file = cluster.host.file("gate");
    cluster.api.create(command("stays", &["sleep", "1000"])).await.unwrap();
    cluster.api.create(command("deleted", &["sleep", "1001"])).await.unwrap();
    let waiting = format!("until test -e {}; do sleep 0.05; done; exit 9", file.display());
    cluster.api.create(restarts(script("ends", &waiting), "Never")).await.unwrap();
    let mut pids = Vec::new();
    for name in ["stays", "deleted", "ends"] {
        pids.push(agent.container_pid(name).await);
        cluster.pod_where(name, "it runs", |pod| phase(pod) == "Running").await;
    }
    let [kept, deleted, ends] = pids[..] else { unreachable!() };
    agent.kill();

    // While no agent runs, one pod exits and another is deleted.
    fs::write(&file, "").unwrap();
    eventually(TIMEOUT, "it has terminated", || async { (!is_running(ends)).then_some(()) }).await;
    cluster.api.delete::<pb::Pod>("default/deleted").await.unwrap();
    assert!(is_running(kept) && is_running(deleted), "containers survive the agent");

    let agent = cluster.agent().await;
    assert_eq!(agent.container_pid("stays").await, kept, "the same process");
    let ended = cluster.pod_where("ends", "it has failed", |pod| phase(pod) == "Failed").await;
    assert_eq!(terminated(&ended).unwrap().exit_code, 9);
    cluster.gone("deleted", TIMEOUT).await;
    assert!(!is_running(deleted), "the record was removed before the process exited");
    let pod = cluster.api.get::<pb::Pod>("default/stays").await.unwrap();
    assert_eq!((phase(&pod), container_status(&pod).unwrap().restart_count), ("Running", 0));

    cluster.api.delete::<pb::Pod>("default/stays").await.unwrap();
    cluster.gone("stays", TIMEOUT).await;
    assert!(!is_running(kept));
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_survive_a_stopped_agent() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    cluster.api.create(command("a", &["sleep", "1000"])).await.unwrap();
    let pid = agent.container_pid("a").await;
    cluster.pod_where("a", "it runs", |pod| phase(pod) == "Running").await;
    assert!(agent.stop().success());
    assert!(is_running(pid));
    let agent = cluster.agent().await;
    assert_eq!(agent.container_pid("a").await, pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_record_was_removed_while_no_agent_ran_is_stopped_with_its_own_grace() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    let marker = cluster.host.file("up");
    let stubborn = format!("trap '' TERM; echo up > {}; while :; do sleep 0.1; done", marker.display());
    cluster.api.create(script("a", &stubborn).grace(2)).await.unwrap();
    let pid = agent.container_pid("a").await;
    written(&marker).await;
    cluster.pod_where("a", "it runs", |pod| phase(pod) == "Running").await;
    agent.kill();
    let now = Deletion { grace: Some(0), ..Deletion::default() };
    cluster.api.delete_with::<pb::Pod>("default/a", now).await.unwrap();
    cluster.gone("a", TIMEOUT).await;
    assert!(is_running(pid));
    let agent = cluster.agent().await;
    agent.wait_logged("signal=\"TERM\"");
    let asked = Instant::now();
    eventually(TIMEOUT, "the process has exited", || async { (!is_running(pid)).then_some(()) }).await;
    let took = asked.elapsed();
    assert!(took < BEFORE_DEFAULT_GRACE, "{took:?}: its own grace is 2 s, not the default of 30 s");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_restarts_without_a_store_keeps_its_pods() {
    let (directory, host, port) = (tempfile::tempdir().unwrap(), AgentHost::new(), free_port());
    let launch = StoreLaunch::on(directory.path()).at(port);
    let store = launch.start();
    let api = store.api();
    let agent = host.agent("n1", &store.url()).start();
    node_where(&api, "n1", "it is ready", is_ready).await;
    api.create(command("a", &["sleep", "1000"])).await.unwrap();
    let pid = agent.container_pid("a").await;
    pod_where(&api, "default/a", "it runs", |pod| phase(pod) == "Running").await;
    let url = store.url();
    store.kill();
    agent.kill();

    let agent = host.agent("n1", &url).start();
    agent.wait_logged("attempt=4");
    holds_for(Duration::from_secs(2), "the pod keeps running", || async { is_running(pid) }).await;
    let store = launch.start();
    let api = store.api();
    assert_eq!(agent.container_pid("a").await, pid, "the same process");
    let pod = pod_where(&api, "default/a", "it runs", |pod| phase(pod) == "Running").await;
    assert_eq!(container_status(&pod).unwrap().restart_count, 0);
    api.delete::<pb::Pod>("default/a").await.unwrap();
    eventually(TIMEOUT, "the pod is removed", || async {
        api.get::<pb::Pod>("default/a").await.is_err().then_some(())
    })
    .await;
    assert!(!is_running(pid));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_termination_is_finished_by_the_next_agent() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    let marker = cluster.host.file("term");
    let stubborn = format!(
        "trap 'echo terminating >> {0}' TERM; echo up > {0}; while :; do sleep 0.1; done",
        marker.display()
    );
    cluster.api.create(script("a", &stubborn)).await.unwrap();
    let pid = agent.container_pid("a").await;
    written(&marker).await;
    cluster.pod_where("a", "it runs", |pod| phase(pod) == "Running").await;
    let deletion = Deletion { grace: Some(12), ..Deletion::default() };
    cluster.api.delete_with::<pb::Pod>("default/a", deletion).await.unwrap();
    eventually(TIMEOUT, "it got SIGTERM", || async {
        fs::read_to_string(&marker).unwrap().contains("terminating").then_some(())
    })
    .await;
    agent.kill();
    assert!(is_running(pid));

    let _agent = cluster.agent().await;
    cluster.gone("a", BEFORE_DEFAULT_GRACE).await;
    assert!(!is_running(pid), "the record was removed before the process exited");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_hook_runs_before_term_and_inits_run_before_the_rest() {
    let (cluster, agent) = SingleNodeCluster::new().await;
    let file = cluster.host.file("output");
    let say = |word: &str| format!("echo {word} >> {}", file.display());
    let shell = |script: String| ["sh".to_owned(), "-c".to_owned(), script].to_vec();
    let body = format!("trap '{}; exit 0' TERM; {}; while :; do sleep 0.1; done", say("term"), say("main"));
    let pod = script("a", &body).spec(|spec| {
        for name in ["first", "second"] {
            spec.init_containers.push(pb::Container { command: shell(say(name)), ..container(name) });
        }
        let pre_stop = Some(pb::ExecAction { command: shell(say("hook")) });
        spec.containers[0].lifecycle = Some(pb::Lifecycle { pre_stop });
    });
    cluster.api.create(pod).await.unwrap();
    agent.container_pid("a").await;
    let output = || fs::read_to_string(&file).unwrap_or_default();
    eventually(TIMEOUT, "it is up", || async { output().contains("main").then_some(()) }).await;
    assert_eq!(output(), "first\nsecond\nmain\n");
    cluster.api.delete::<pb::Pod>("default/a").await.unwrap();
    cluster.gone("a", BEFORE_DEFAULT_GRACE).await;
    assert_eq!(output(), "first\nsecond\nmain\nhook\nterm\n");
}
