//! Pods that really run: their processes, how they end, and what is left of them when the agent dies.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]
#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use muster_proto::pb;
use muster_proto::pb::container_state::State;
use muster_tests::agent_process::{AgentProcess, Home, command_line, is_ready, node_where, pod_where, runs};
use muster_tests::fixtures::*;
use muster_tests::single_node::Outpost;
use muster_tests::store_process::{Launch, PATIENCE, free_port};
use muster_tests::{Deletion, Follow, Wire, eventually, stays, stays_until};
use rustix::process::{Pid, Signal, kill_process};

/// Less than the 30 s that a pod has to stop unless it says otherwise.
const SOONER: Duration = Duration::from_secs(25);

/// With a lease as long as it is by default: how soon a connection counts as dead hangs on it.
async fn patient() -> (Outpost, AgentProcess) {
    let (outpost, agent) = Outpost::new().await;
    agent.stop();
    let agent = outpost.launch().without("node-lease-duration-seconds").start();
    node_where(&outpost.api, "n1", "it is ready", is_ready).await;
    (outpost, agent)
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
    eventually(PATIENCE, &format!("{} is written", path.display()), || async {
        fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_bound_to_the_node_really_runs_and_stops_by_term() {
    let (outpost, agent) = Outpost::new().await;
    outpost.api.create(command("a", &["sleep", "1000"])).await.unwrap();
    let pid = agent.process_of("a").await;
    assert_eq!(command_line(pid), ["sleep", "1000"]);
    let running = outpost.pod_where("a", "it runs", |pod| phase(pod) == "Running").await;
    assert!(container_status(&running).unwrap().ready);
    let addresses = &node_where(&outpost.api, "n1", "it is ready", is_ready).await.status.unwrap().addresses;
    assert_eq!(running.status.as_ref().unwrap().host_ip, addresses[0].address);

    // sleep dies of TERM: nobody waits for the 30 s that it may take.
    outpost.api.delete::<pb::Pod>("default/a").await.unwrap();
    outpost.gone("a", SOONER).await;
    assert!(!runs(pid), "the record went before the process");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_bound_later_by_somebody_else_runs() {
    let (outpost, agent) = Outpost::new().await;
    outpost.api.create(command("a", &["sleep", "1000"]).on("")).await.unwrap();
    outpost.api.bind("default/a", "n1", Deletion::default()).await.unwrap();
    assert_eq!(command_line(agent.process_of("a").await), ["sleep", "1000"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn s073_what_ignores_term_is_killed_when_its_grace_is_over_and_the_record_goes_last() {
    let (outpost, agent) = Outpost::new().await;
    let mark = outpost.home.file("term");
    let stubborn =
        format!("trap 'echo asked >> {0}' TERM; echo up > {0}; while :; do sleep 0.1; done", mark.display());
    outpost.api.create(script("a", &stubborn)).await.unwrap();
    let pid = agent.process_of("a").await;
    written(&mark).await;
    let version = outpost.pod_where("a", "it runs", |pod| phase(pod) == "Running").await.version();
    let follow = Follow { namespace: "default", version, ..Follow::default() };
    let mut watch = outpost.api.watch::<pb::Pod>(follow).await.unwrap();

    let asked = Instant::now();
    let deletion = Deletion { grace: Some(6), ..Deletion::default() };
    outpost.api.delete_with::<pb::Pod>("default/a", deletion).await.unwrap();
    let grace = asked + Duration::from_secs(6);
    stays_until(grace, "it may still end by itself", || async { runs(pid) }).await;
    let (mut ended, mut seen) = (None, Vec::new());
    loop {
        let event = watch.next().await;
        seen.push(event.kind.clone());
        if let Some(exit) = terminated(&event.record) {
            assert!(!runs(pid), "told to have ended, but runs");
            ended.get_or_insert_with(|| exit.clone());
        }
        if event.kind == "DELETED" {
            break;
        }
        assert_eq!(event.kind, "MODIFIED");
    }
    let took = asked.elapsed();
    assert!((6..30).contains(&took.as_secs()), "{took:?}: its own grace is not the 30 s of everybody");
    assert!(!runs(pid), "the record went before the process");
    let ended = ended.expect("its end is posted before the record goes");
    assert_eq!((ended.exit_code, ended.signal), (137, 9), "{ended:?}");
    assert_eq!(fs::read_to_string(&mark).unwrap(), "up\nasked\n", "TERM came first, once");
}

#[tokio::test(flavor = "multi_thread")]
async fn s073_a_store_that_is_frozen_does_not_hold_up_a_kill() {
    let (outpost, agent) = patient().await;
    let (mark, gate) = (outpost.home.file("term"), outpost.home.file("gate"));
    let stubborn =
        format!("trap 'echo asked >> {0}' TERM; echo up > {0}; while :; do sleep 0.1; done", mark.display());
    outpost.api.create(script("stubborn", &stubborn)).await.unwrap();
    let waiting = format!("until test -e {}; do sleep 0.05; done; exit 5", gate.display());
    outpost.api.create(restarts(script("other", &waiting), "Never")).await.unwrap();
    let (stubborn, other) = (agent.process_of("stubborn").await, agent.process_of("other").await);
    written(&mark).await;
    for name in ["stubborn", "other"] {
        outpost.pod_where(name, "it runs", |pod| phase(pod) == "Running").await;
    }
    // A call that nobody answers is given up 5 s after the store stands still, or later.
    let deletion = Deletion { grace: Some(3), ..Deletion::default() };
    outpost.api.delete_with::<pb::Pod>("default/stubborn", deletion).await.unwrap();
    agent.wait_logged("how=\"TERM\"");

    outpost.store.signal(Signal::STOP);
    // The end of another pod is now told to nobody, for as long as a call may take.
    fs::write(&gate, "").unwrap();
    eventually(PATIENCE, "the other has ended", || async { (!runs(other)).then_some(()) }).await;
    eventually(PATIENCE, "it is killed", || async { (!runs(stubborn)).then_some(()) }).await;
    // A line of the log can come later than what it tells of.
    agent.wait_logged("how=\"KILL\"");
    let log = agent.log();
    let (before, _) = log.split_once("how=\"KILL\"").expect("a KILL is logged");
    assert!(!before.contains("could not be done yet"), "it waited for a call to fail:\n{log}");

    outpost.store.signal(Signal::CONT);
    outpost.gone("stubborn", PATIENCE).await;
    let ended = outpost.pod_where("other", "its end is told", |pod| phase(pod) == "Failed").await;
    assert_eq!(terminated(&ended).unwrap().exit_code, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_deletion_ends_the_process_too() {
    let (outpost, agent) = Outpost::new().await;
    outpost.api.create(command("a", &["sleep", "1000"])).await.unwrap();
    let pid = agent.process_of("a").await;
    let now = Deletion { grace: Some(0), ..Deletion::default() };
    outpost.api.delete_with::<pb::Pod>("default/a", now).await.unwrap();
    eventually(PATIENCE, "the process is gone", || async { (!runs(pid)).then_some(()) }).await;
    outpost.gone("a", PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_container_left_running_goes_with_it() {
    let (outpost, agent) = Outpost::new().await;
    let file = outpost.home.file("child");
    let body = format!("setsid sleep 1000 & echo $! > {}; exec sleep 1000", file.display());
    outpost.api.create(script("a", &body)).await.unwrap();
    agent.process_of("a").await;
    let child: i32 = written(&file).await.trim().parse().unwrap();
    eventually(PATIENCE, "the child is a sleep", || async {
        (command_line(child) == ["sleep", "1000"]).then_some(())
    })
    .await;
    outpost.api.delete::<pb::Pod>("default/a").await.unwrap();
    outpost.gone("a", PATIENCE).await;
    assert!(!runs(child), "the record went before all of the pod's processes");
}

#[tokio::test(flavor = "multi_thread")]
async fn environment_arguments_and_directory_reach_the_process() {
    let (outpost, _agent) = Outpost::new().await;
    let file = outpost.home.file("told");
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
    outpost.api.create(pod).await.unwrap();
    assert_eq!(written(&file).await, "/usr\ngood day two words $GREETING\n");
    outpost.pod_where("a", "it has succeeded", |pod| phase(pod) == "Succeeded").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_never_restarted_ends_with_its_exit_code() {
    let (outpost, _agent) = Outpost::new().await;
    outpost.api.create(restarts(script("bad", "exit 7"), "Never")).await.unwrap();
    outpost.api.create(restarts(script("good", "exit 0"), "Never")).await.unwrap();
    outpost.api.create(restarts(script("hit", "kill -9 $$"), "Never")).await.unwrap();
    for (name, wanted, code, why) in [
        ("bad", "Failed", 7, "Error"),
        ("good", "Succeeded", 0, "Completed"),
        ("hit", "Failed", 137, "Error"),
    ] {
        let pod = outpost.pod_where(name, "it has ended", |pod| phase(pod) == wanted).await;
        let exit = terminated(&pod).unwrap();
        assert_eq!((exit.exit_code, exit.reason.as_str()), (code, why), "{name}");
        assert_eq!(container_status(&pod).unwrap().restart_count, 0, "{name}");
        assert!(exit.started_at.is_some() && exit.finished_at.is_some(), "{name}: {exit:?}");
    }
    // It has ended for good; its record stays until somebody deletes it, and goes at once then.
    outpost.api.delete::<pb::Pod>("default/bad").await.unwrap();
    outpost.gone("bad", SOONER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_restarted_on_failure_runs_until_it_succeeds() {
    let (outpost, _agent) = Outpost::new().await;
    let file = outpost.home.file("tries");
    let body = format!("echo try >> {0}; test $(wc -l < {0}) -ge 2", file.display());
    outpost.api.create(restarts(script("a", &body), "OnFailure")).await.unwrap();
    let pod = outpost.pod_where("a", "it has succeeded", |pod| phase(pod) == "Succeeded").await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "try\ntry\n");
    let main = container_status(&pod).unwrap();
    assert_eq!((main.restart_count, terminated(&pod).unwrap().exit_code), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_always_restarted_unless_it_says_otherwise() {
    let (outpost, agent) = Outpost::new().await;
    outpost.api.create(command("a", &["sleep", "1000"])).await.unwrap();
    let first = agent.process_of("a").await;
    outpost.pod_where("a", "it runs", |pod| phase(pod) == "Running").await;
    kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    let again = |pod: &pb::Pod| {
        let main = container_status(pod);
        main.is_some_and(|main| main.restart_count == 1 && main.ready)
    };
    let pod = outpost.pod_where("a", "it runs again", again).await;
    assert_eq!(phase(&pod), "Running");
    assert_ne!(agent.process_of("a").await, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_there_is_told_of() {
    let (outpost, _agent) = Outpost::new().await;
    outpost.api.create(restarts(command("a", &["/no/such/program"]), "Never")).await.unwrap();
    let pod = outpost.pod_where("a", "it has failed", |pod| phase(pod) == "Failed").await;
    let exit = terminated(&pod).unwrap();
    assert!(exit.exit_code != 0 && exit.message.contains("/no/such/program"), "{exit:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s075_a_pod_that_needs_more_than_the_node_has_fails_and_stays() {
    let (outpost, agent) = Outpost::new().await;
    let big = command("a", &["sleep", "1000"]).spec(|spec| {
        let requests = [("cpu".to_owned(), "5000".to_owned())].into();
        spec.containers[0].resources = Some(pb::ResourceRequirements { requests, ..Default::default() });
    });
    outpost.api.create(big).await.unwrap();
    let pod = outpost.pod_where("a", "it has failed", |pod| phase(pod) == "Failed").await;
    assert_eq!(reason(&pod), "OutOfcpu", "{:?}", pod.status);
    stays(Duration::from_secs(2), "the record stays and nothing runs", || async {
        let stored = outpost.api.get::<pb::Pod>("default/a").await;
        let started = agent.workloads().await.iter().any(|workload| !workload.pids.is_empty());
        stored.is_ok_and(|stored| phase(&stored) == "Failed") && !started
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s076_a_taint_that_does_not_let_execute_rejects_and_one_that_does_not_let_schedule_does_not() {
    let (outpost, agent) = Outpost::new().await;
    let node = outpost.api.get::<pb::Node>("n1").await.unwrap();
    outpost.api.update(node.at(0).taint("k=v:NoSchedule")).await.unwrap();
    outpost.api.create(command("scheduled", &["sleep", "1000"])).await.unwrap();
    outpost.pod_where("scheduled", "it runs", |pod| phase(pod) == "Running").await;

    let node = outpost.api.get::<pb::Node>("n1").await.unwrap();
    // The agent has the taint when it has put back the label that went missing with it.
    let tainted = node.at(0).taint("gpu=v:NoExecute").without_label("kubernetes.io/os");
    outpost.api.update(tainted).await.unwrap();
    let has_label = |node: &pb::Node| node.metadata.as_ref().unwrap().labels.contains_key("kubernetes.io/os");
    node_where(&outpost.api, "n1", "the label is back", has_label).await;
    outpost.api.create(command("rejected", &["sleep", "1000"])).await.unwrap();
    let tolerant = command("tolerant", &["sleep", "1000"]).toleration(tolerates("gpu", "NoExecute"));
    outpost.api.create(tolerant).await.unwrap();
    let pod = outpost.pod_where("rejected", "it has failed", |pod| phase(pod) == "Failed").await;
    assert_eq!(reason(&pod), "TaintToleration", "{:?}", pod.status);
    agent.process_of("tolerant").await;
    let scheduled = outpost.api.get::<pb::Pod>("default/scheduled").await.unwrap();
    assert_eq!(phase(&scheduled), "Running", "what runs is for others to evict");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_leaves_its_pods_running_and_finds_them_again() {
    let (outpost, agent) = Outpost::new().await;
    let file = outpost.home.file("gate");
    outpost.api.create(command("stays", &["sleep", "1000"])).await.unwrap();
    outpost.api.create(command("deleted", &["sleep", "1001"])).await.unwrap();
    let waiting = format!("until test -e {}; do sleep 0.05; done; exit 9", file.display());
    outpost.api.create(restarts(script("ends", &waiting), "Never")).await.unwrap();
    let mut pids = Vec::new();
    for name in ["stays", "deleted", "ends"] {
        pids.push(agent.process_of(name).await);
        outpost.pod_where(name, "it runs", |pod| phase(pod) == "Running").await;
    }
    let [kept, deleted, ends] = pids[..] else { unreachable!() };
    agent.kill();

    // Nobody is there to see one of them end and another being deleted.
    fs::write(&file, "").unwrap();
    eventually(PATIENCE, "it has ended", || async { (!runs(ends)).then_some(()) }).await;
    outpost.api.delete::<pb::Pod>("default/deleted").await.unwrap();
    assert!(runs(kept) && runs(deleted), "what runs outlives the agent");

    let agent = outpost.agent().await;
    assert_eq!(agent.process_of("stays").await, kept, "the same process");
    let ended = outpost.pod_where("ends", "it has failed", |pod| phase(pod) == "Failed").await;
    assert_eq!(terminated(&ended).unwrap().exit_code, 9);
    outpost.gone("deleted", PATIENCE).await;
    assert!(!runs(deleted), "the record went before the process");
    let pod = outpost.api.get::<pb::Pod>("default/stays").await.unwrap();
    assert_eq!((phase(&pod), container_status(&pod).unwrap().restart_count), ("Running", 0));

    outpost.api.delete::<pb::Pod>("default/stays").await.unwrap();
    outpost.gone("stays", PATIENCE).await;
    assert!(!runs(kept));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_stopped_in_order_leaves_its_pods_running() {
    let (outpost, agent) = Outpost::new().await;
    outpost.api.create(command("a", &["sleep", "1000"])).await.unwrap();
    let pid = agent.process_of("a").await;
    outpost.pod_where("a", "it runs", |pod| phase(pod) == "Running").await;
    assert!(agent.stop().success());
    assert!(runs(pid));
    let agent = outpost.agent().await;
    assert_eq!(agent.process_of("a").await, pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_record_vanished_while_the_agent_was_dead_is_stopped_with_its_own_grace() {
    let (outpost, agent) = Outpost::new().await;
    let mark = outpost.home.file("up");
    let stubborn = format!("trap '' TERM; echo up > {}; while :; do sleep 0.1; done", mark.display());
    outpost.api.create(script("a", &stubborn).grace(2)).await.unwrap();
    let pid = agent.process_of("a").await;
    written(&mark).await;
    outpost.pod_where("a", "it runs", |pod| phase(pod) == "Running").await;
    agent.kill();
    let now = Deletion { grace: Some(0), ..Deletion::default() };
    outpost.api.delete_with::<pb::Pod>("default/a", now).await.unwrap();
    outpost.gone("a", PATIENCE).await;
    assert!(runs(pid));
    let agent = outpost.agent().await;
    agent.wait_logged("how=\"TERM\"");
    let asked = Instant::now();
    eventually(PATIENCE, "the process is gone", || async { (!runs(pid)).then_some(()) }).await;
    let took = asked.elapsed();
    assert!(took < SOONER, "{took:?}: it has 2 s, and others have 30");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_finds_no_store_when_it_comes_back_leaves_its_pods_alone() {
    let (directory, home, port) = (tempfile::tempdir().unwrap(), Home::new(), free_port());
    let launch = Launch::on(directory.path()).at(port);
    let store = launch.start();
    let api = store.api();
    let agent = home.agent("n1", &store.url()).start();
    node_where(&api, "n1", "it is ready", is_ready).await;
    api.create(command("a", &["sleep", "1000"])).await.unwrap();
    let pid = agent.process_of("a").await;
    pod_where(&api, "default/a", "it runs", |pod| phase(pod) == "Running").await;
    let url = store.url();
    store.kill();
    agent.kill();

    let agent = home.agent("n1", &url).start();
    agent.wait_logged("attempt=4");
    stays(Duration::from_secs(2), "the pod runs on", || async { runs(pid) }).await;
    let store = launch.start();
    let api = store.api();
    assert_eq!(agent.process_of("a").await, pid, "the same process");
    let pod = pod_where(&api, "default/a", "it runs", |pod| phase(pod) == "Running").await;
    assert_eq!(container_status(&pod).unwrap().restart_count, 0);
    api.delete::<pb::Pod>("default/a").await.unwrap();
    eventually(PATIENCE, "the pod is gone", || async {
        api.get::<pb::Pod>("default/a").await.is_err().then_some(())
    })
    .await;
    assert!(!runs(pid));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_that_the_agent_died_of_is_finished_by_the_next() {
    let (outpost, agent) = Outpost::new().await;
    let mark = outpost.home.file("term");
    let stubborn =
        format!("trap 'echo asked >> {0}' TERM; echo up > {0}; while :; do sleep 0.1; done", mark.display());
    outpost.api.create(script("a", &stubborn)).await.unwrap();
    let pid = agent.process_of("a").await;
    written(&mark).await;
    outpost.pod_where("a", "it runs", |pod| phase(pod) == "Running").await;
    let deletion = Deletion { grace: Some(12), ..Deletion::default() };
    outpost.api.delete_with::<pb::Pod>("default/a", deletion).await.unwrap();
    eventually(PATIENCE, "it was asked to stop", || async {
        fs::read_to_string(&mark).unwrap().contains("asked").then_some(())
    })
    .await;
    agent.kill();
    assert!(runs(pid));

    let _agent = outpost.agent().await;
    outpost.gone("a", SOONER).await;
    assert!(!runs(pid), "the record went before the process");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_hook_runs_before_term_and_inits_run_before_the_rest() {
    let (outpost, agent) = Outpost::new().await;
    let file = outpost.home.file("story");
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
    outpost.api.create(pod).await.unwrap();
    agent.process_of("a").await;
    let story = || fs::read_to_string(&file).unwrap_or_default();
    eventually(PATIENCE, "it is up", || async { story().contains("main").then_some(()) }).await;
    assert_eq!(story(), "first\nsecond\nmain\n");
    outpost.api.delete::<pb::Pod>("default/a").await.unwrap();
    outpost.gone("a", SOONER).await;
    assert_eq!(story(), "first\nsecond\nmain\nhook\nterm\n");
}
