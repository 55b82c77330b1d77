//! `muster drain` as an operator runs it: the plan names what goes, what stays and what is in the way, and the run does
//! what the plan said. Whoever loses sight of a drain finds it again.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Output, Stdio};

use muster_proto::pb;
use muster_tests::agent_process::{AgentProcess, is_running};
use muster_tests::eventually;
use muster_tests::fixtures::*;
use muster_tests::fleet::Fleet;
use muster_tests::store_process::{TIMEOUT, command, muster};
use muster_tests::tcp_proxy::TcpProxy;

fn sleeper(name: &str) -> pb::Pod {
    let command = ["sleep", "1000"].map(str::to_owned).to_vec();
    pod(name).on("a").grace(2).label("app", name).spec(|spec| spec.containers[0].command = command)
}

/// The line of the output that speaks of a pod.
fn line<'a>(output: &'a str, pod: &str) -> &'a str {
    output
        .lines()
        .find(|line| line.contains(pod))
        .unwrap_or_else(|| panic!("{pod} is not named in:\n{output}"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// An agent whose pod `web` a budget keeps, once it is counted.
async fn with_a_kept_pod(fleet: &mut Fleet) -> (AgentProcess, pb::DisruptionBudget) {
    let agent = fleet.agent("a", "").await;
    fleet.api.create(budget("shield", ("app", "web"), "1")).await.unwrap();
    fleet.api.create(sleeper("web").owned_by("ReplicaSet", "web", "uid-of-web")).await.unwrap();
    let counted = eventually(TIMEOUT, "the budget counts", || async {
        let budget: pb::DisruptionBudget = fleet.api.get("default/shield").await.unwrap();
        (budget.status.as_ref()?.current_healthy == 1).then_some(budget)
    });
    let budget = counted.await;
    (agent, budget)
}

/// From now on it keeps nobody.
async fn relax(fleet: &Fleet, held: pb::DisruptionBudget) {
    let spec =
        held.spec.clone().map(|spec| pb::DisruptionBudgetSpec { min_available: "0".to_owned(), ..spec });
    fleet.api.update(pb::DisruptionBudget { spec, ..held }.at(0)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plan_names_each_pod_and_the_run_does_what_it_said() {
    let mut fleet = Fleet::start(&[]);
    let (agent, held) = with_a_kept_pod(&mut fleet).await;
    for (record, priority) in
        [(sleeper("logs").owned_by("DaemonSet", "logs", "uid-of-logs"), 10), (sleeper("alone"), 20)]
    {
        fleet.api.create(record.spec(|spec| spec.priority = Some(priority))).await.unwrap();
    }
    let [web, logs, alone] = [
        agent.container_pid("web").await,
        agent.container_pid("logs").await,
        agent.container_pid("alone").await,
    ];
    let controller = fleet.controller.url();
    let drain = |more: &[&str]| {
        let fixed = ["drain", "a", "--reason=a new kernel", "--controller", &controller];
        muster(&fixed.into_iter().chain(more.iter().copied()).collect::<Vec<_>>())
    };

    // The agent may have heard of the pods before the controller has.
    let refused = eventually(TIMEOUT, "the plan names them all", || async {
        let refused = said(&drain(&["--plan"]));
        ["web", "logs", "alone"].iter().all(|pod| refused.contains(pod)).then_some(refused)
    })
    .await;
    assert!(
        line(&refused, "logs").contains("Refuse") && line(&refused, "alone").contains("Refuse"),
        "{refused}"
    );
    let willing = ["--force", "--ignore-daemonsets"];
    let plan = said(&drain(&[&willing[..], &["--plan"]].concat()));
    assert!(line(&plan, "default/web").contains("Blocked"), "{plan}");
    assert!(line(&plan, "default/web").contains("default/shield"), "the budget in the way is named: {plan}");
    assert!(line(&plan, "logs").contains("Leave"), "{plan}");
    assert!(line(&plan, "alone").contains("Evict") || line(&plan, "alone").contains("Delete"), "{plan}");
    let places = ["default/web", "default/logs", "default/alone"].map(|name| plan.find(name).unwrap());
    assert!(places.is_sorted(), "the least important first: {plan}");
    assert!(is_running(web) && is_running(logs) && is_running(alone), "a plan does nothing");

    // The budget holds it up until it gives way.
    let stuck = drain(&[&willing[..], &["--timeout=10s"]].concat());
    assert!(!stuck.status.success(), "{}", said(&stuck));
    assert!(is_running(web) && is_running(logs), "the budget was kept");
    eventually(TIMEOUT, "what nobody kept is gone", || async { (!is_running(alone)).then_some(()) }).await;
    relax(&fleet, held).await;
    let done = drain(&willing);
    assert!(done.status.success(), "{}", said(&done));
    assert!(!is_running(web), "complete means that the agent has confirmed it");
    assert!(is_running(logs), "what was to stay has stayed");
}

/// Starts a drain that cannot end yet, and waits until it has said so.
fn blocked(controller: &str) -> Child {
    let arguments =
        ["drain", "a", "--reason=a new kernel", "--request-timeout=5s", "--controller", controller];
    let child = command().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("blocked") {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "it ended before its time");
    }
    // It goes on talking to us.
    std::thread::spawn(move || out.lines().count());
    child
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_was_lost_sight_of_goes_on_and_is_followed_again() {
    let mut fleet = Fleet::start(&[]);
    let (agent, held) = with_a_kept_pod(&mut fleet).await;
    let web = agent.container_pid("web").await;
    let asked = || async {
        let node: pb::Node = fleet.api.get("a").await.unwrap();
        node.spec.unwrap_or_default().drain.unwrap()
    };
    let controller = fleet.controller.url();
    let proxy = TcpProxy::to(controller.trim_start_matches("http://").parse().unwrap()).await;

    let first = tokio::task::block_in_place(|| blocked(&proxy.url()));
    let before = asked().await;
    proxy.blackhole();
    let lost = tokio::task::block_in_place(|| first.wait_with_output()).unwrap();
    assert_eq!(lost.status.code(), Some(6), "{}", said(&lost));
    assert!(
        said(&lost).contains("hint: the drain goes on: the same command follows it again"),
        "{}",
        said(&lost)
    );

    let second = tokio::task::block_in_place(|| blocked(&proxy.url()));
    let after = asked().await;
    assert_eq!(
        (after.requested_at, after.state.as_str()),
        (before.requested_at, "Draining"),
        "it is the same one"
    );
    relax(&fleet, held).await;
    let done = tokio::task::block_in_place(|| second.wait_with_output()).unwrap();
    assert!(done.status.success(), "{}", said(&done));
    assert!(!is_running(web));
    assert_eq!((asked().await.requested_at, asked().await.state.as_str()), (before.requested_at, "Complete"));
}
