//! How containers that exit are restarted, by this agent and by the next.

use muster_proto::pb::container_state::State;
use muster_proto::pod::{PodPhase, RestartPolicy};

use crate::testing::harness::Harness;
use crate::testing::{ContainerBuilder, amounts, container, pod, uid};

#[test]
fn the_restart_policy_decides_what_follows_an_exit() {
    use RestartPolicy::{Always, Never, OnFailure};
    for (policy, code, expected) in [
        (Always, 0, &["start a/main#1", "report a Running ready"][..]),
        (Always, 1, &["start a/main#1", "report a Running ready"]),
        (OnFailure, 0, &["release a but files", "report a Succeeded"]),
        (OnFailure, 1, &["start a/main#1", "report a Running ready"]),
        (Never, 0, &["release a but files", "report a Succeeded"]),
        (Never, 1, &["release a but files", "report a Failed"]),
    ] {
        let mut harness = Harness::with([pod("a").restart(policy)]);
        harness.settle();
        harness.log.clear();
        harness.exits("a", "main", code);
        assert_eq!(harness.steps(), expected, "{policy} {code}");
    }
}

#[test]
fn a_pod_has_finished_when_its_main_containers_have_and_sidecars_stop_last() {
    let inits = vec![container("s1").sidecar(), container("s2").sidecar()];
    let mains = vec![container("x"), container("y")];
    let mut harness = Harness::with([pod("a").inits(inits).containers(mains).restart(RestartPolicy::Never)]);
    harness.settle();
    harness.exits("a", "x", 0);
    harness.log.clear();
    assert_eq!(harness.steps(), ["report a Running"]);
    harness.exits("a", "y", 2);
    assert_eq!(harness.steps(), ["term a/s2", "report a Running"]);
    harness.exits("a", "s2", 0);
    assert_eq!(harness.steps(), ["term a/s1", "report a Running"]);
    harness.advance(30);
    assert_eq!(harness.steps(), ["kill a/s1", "release a but files", "report a Failed"]);
}

#[test]
fn a_container_that_keeps_exiting_waits_longer_each_time() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    for delay in [0, 10, 20, 40, 80, 160, 300, 300] {
        harness.exits("a", "main", 1);
        if delay > 0 {
            harness.log.clear();
            let plan = harness.settle();
            assert_eq!(harness.log, ["report a Running"], "before {delay}");
            assert_eq!(plan.wake_at, Some(harness.now().mono + std::time::Duration::from_secs(delay)));
            let status = &harness.stored("a").status.container_statuses[0];
            let Some(State::Waiting(waiting)) = status.state.as_ref().and_then(|state| state.state.as_ref())
            else {
                panic!("{status:?}");
            };
            assert_eq!(waiting.reason, "CrashLoopBackOff");
            let said = &waiting.message;
            assert!(
                said.starts_with("back-off ") && said.contains("s restarting failed container "),
                "{said}"
            );
            assert!(said.contains(": the next start is at ") && said.ends_with('Z'), "{said}");
            harness.advance(delay);
        }
        harness.log.clear();
        harness.settle();
        assert!(harness.log[0].starts_with("start a/main#"), "after {delay}: {:?}", harness.log);
    }
    assert_eq!(harness.stored("a").status.container_statuses[0].restart_count, 8);
    harness.advance(600);
    harness.exits("a", "main", 1);
    harness.log.clear();
    assert_eq!(
        harness.steps(),
        ["start a/main#9", "report a Running ready"],
        "after ten minutes without a crash the count starts again"
    );
}

#[test]
fn a_start_that_fails_is_a_crash_with_back_off() {
    let mut harness = Harness::with([pod("a"), pod("b").restart(RestartPolicy::Never)]);
    harness.unstartable.push("main".to_owned());
    let mut steps = harness.steps();
    steps.sort();
    let expected =
        ["release b but files", "report a Running", "report b Failed", "start a/main#0", "start b/main#0"];
    assert_eq!(steps, expected);
    harness.advance(10);
    assert_eq!(harness.steps()[0], "start a/main#1");
}

#[test]
fn the_next_agent_takes_over_running_containers() {
    let mut harness =
        Harness::with([pod("a").inits(vec![container("i")]), pod("done").restart(RestartPolicy::Never)]);
    harness.settle();
    harness.exits("a", "i", 0);
    harness.exits("done", "main", 0);
    harness.settle();
    harness.exits("a", "main", 1);
    harness.settle();
    harness.log.clear();
    harness.restart_agent();
    assert_eq!(harness.steps(), ["release done but files"], "nothing has to be posted");
    harness.exits("a", "main", 1);
    assert_eq!(harness.steps()[0], "start a/main#2", "attempts are counted on");
}

#[test]
fn a_finished_pod_takes_no_resources_from_a_new_one_after_an_agent_restart() {
    let wide = |name: &str| pod(name).containers(vec![container("main").requests("cpu=3")]);
    // Whichever of the two is admitted first.
    for (done, new) in [("a", "b"), ("b", "a")] {
        let mut harness = Harness::bare([wide(done).restart(RestartPolicy::Never)]);
        harness.node.facts.allocatable = amounts("cpu=4 memory=8Gi pods=1");
        harness.look();
        harness.settle();
        harness.exits(done, "main", 0);
        harness.settle();
        assert_eq!(harness.stored(done).status.phase, PodPhase::Succeeded);
        harness.log.clear();

        // It is bound while no agent runs; the next agent observes the node and the files before the pods.
        harness.store.insert(uid(new), wide(new).build());
        harness.restart_agent();
        let expected = [
            format!("release {done} but files"),
            format!("start {new}/main#0"),
            format!("report {new} Running ready"),
        ];
        assert_eq!(harness.steps(), expected, "released resources are there for the start");
    }
}

#[test]
fn a_pod_that_is_recorded_as_finished_takes_resources_as_long_as_it_runs() {
    let mut harness = Harness::with([pod("ghost")]);
    harness.settle();
    harness.node.facts.allocatable = amounts("cpu=4 memory=8Gi pods=1");
    harness.write_unseen("ghost", |pod| pod.status.phase = PodPhase::Failed);
    harness.store.insert(uid("new"), pod("new").build());
    harness.log.clear();
    harness.restart_agent();
    harness.settle();
    assert_eq!(harness.stored("new").status.reason, "OutOfpods");
}

#[test]
fn a_container_that_exited_while_no_agent_ran_is_handled() {
    let mut harness = Harness::with([pod("a"), pod("once").restart(RestartPolicy::Never)]);
    harness.settle();
    harness.exits("once", "main", 0);
    harness.restart_agent();
    harness.settle();
    assert_eq!(harness.stored("once").status.phase, PodPhase::Succeeded);
}

#[test]
fn after_a_reboot_pods_start_with_their_init_containers() {
    let inits = vec![container("i"), container("s").sidecar()];
    let mut harness = Harness::with([pod("a").inits(inits), pod("once").restart(RestartPolicy::Never)]);
    harness.settle();
    harness.exits("a", "i", 0);
    harness.settle();
    harness.log.clear();
    harness.reboot();
    let steps = harness.steps();
    assert!(steps.contains(&"start a/i#1".to_owned()), "{steps:?}");
    assert!(steps.contains(&"report once Failed".to_owned()), "it must not run twice: {steps:?}");
    harness.exits("a", "i", 0);
    let steps = harness.steps();
    assert_eq!(steps, ["start a/s#1", "start a/main#1", "report a Running ready"]);
    harness.restart_agent();
    assert_eq!(harness.steps(), ["release once but files"], "another agent of the same boot finds it done");
}

#[test]
fn a_machine_that_lost_its_records_starts_with_the_init_containers_too() {
    let inits = vec![container("i"), container("s").sidecar()];
    let mut harness = Harness::with([pod("a").inits(inits)]);
    harness.settle();
    harness.exits("a", "i", 0);
    harness.settle();
    harness.runtime.clear();
    harness.log.clear();
    harness.restart_agent();
    let steps = harness.steps();
    assert!(steps.contains(&"start a/i#0".to_owned()), "{steps:?}");
    harness.exits("a", "i", 0);
    assert_eq!(harness.steps(), ["start a/s#0", "start a/main#1", "report a Running ready"]);
}

#[test]
fn an_attempt_that_was_never_posted_counts() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    harness.exits("a", "main", 1);
    harness.is_connected = false;
    harness.settle();
    harness.write_unseen("a", |pod| {
        let status = &mut pod.status.container_statuses[0];
        let ended = muster_proto::pb::ContainerStateTerminated { exit_code: 1, ..Default::default() };
        status.state = Some(muster_proto::pb::ContainerState { state: Some(State::Terminated(ended)) });
    });
    harness.is_connected = true;
    harness.restart_agent();
    harness.settle();
    assert_eq!(harness.stored("a").status.container_statuses[0].restart_count, 1);
}

#[test]
fn attempts_while_the_store_was_out_of_reach_count_for_the_next_agent() {
    let mut harness = Harness::with([pod("a")]);
    harness.settle();
    harness.is_connected = false;
    for delay in [0, 10, 20] {
        harness.exits("a", "main", 1);
        harness.advance(delay);
        harness.settle();
    }
    harness.is_connected = true;
    let status = &harness.stored("a").status.container_statuses[0];
    assert_eq!(status.restart_count, 0, "they could not be posted");
    harness.restart_agent();
    harness.settle();
    assert_eq!(harness.stored("a").status.container_statuses[0].restart_count, 3);
    harness.exits("a", "main", 1);
    harness.log.clear();
    assert_eq!(harness.steps()[0], "start a/main#4", "an attempt number that was not used yet");
}

#[test]
fn an_exit_after_attempts_that_were_never_posted_is_posted() {
    let mut harness = Harness::with([pod("a").restart(RestartPolicy::OnFailure)]);
    harness.settle();
    harness.is_connected = false;
    harness.exits("a", "main", 1);
    harness.settle();
    harness.exits("a", "main", 0);
    harness.is_connected = true;
    harness.restart_agent();
    harness.settle();
    let status = &harness.stored("a").status;
    assert_eq!((status.phase, status.container_statuses[0].restart_count), (PodPhase::Succeeded, 1));
}
