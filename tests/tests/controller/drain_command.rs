//! `muster drain` as an operator runs it: the plan names the pods that are evicted, kept or blocked, and the drain does
//! what the plan said. A drain whose connection was lost can be followed again.

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

/// The line of the output that names a pod.
fn line<'a>(output: &'a str, pod: &str) -> &'a str {
    output
        .lines()
        .find(|line| line.contains(pod))
        .unwrap_or_else(|| panic!("{pod} is not named in:\n{output}"))
}

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Starts an agent with a pod `web` that a budget protects; returns when the budget is computed.
async fn with_a_protected_pod(fleet: &mut Fleet) -> (AgentProcess, pb::DisruptionBudget) {
    let agent = fleet.agent("a", "").await;
    fleet.api.create(budget("shield", ("app", "web"), "1")).await.unwrap();
    fleet.api.create(sleeper("web").owned_by("ReplicaSet", "web", "uid-of-web")).await.unwrap();
    let counted = eventually(TIMEOUT, "the budget is computed", || async {
        let budget: pb::DisruptionBudget = fleet.api.get("default/shield").await.unwrap();
        (budget.status.as_ref()?.current_healthy == 1).then_some(budget)
    });
    let budget = counted.await;
    (agent, budget)
}

/// Lets the budget allow every eviction.
async fn relax(fleet: &Fleet, held: pb::DisruptionBudget) {
    let spec =
        held.spec.clone().map(|spec| pb::DisruptionBudgetSpec { min_available: "0".to_owned(), ..spec });
    fleet.api.update(pb::DisruptionBudget { spec, ..held }.at(0)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plan_names_each_pod_and_the_drain_does_what_it_says() {
    let mut fleet = Fleet::start(&[]);
    let (agent, held) = with_a_protected_pod(&mut fleet).await;
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

    // The agent may have received the pods before the controller.
    let refused = eventually(TIMEOUT, "the plan names them all", || async {
        let refused = output_text(&drain(&["--plan"]));
        ["web", "logs", "alone"].iter().all(|pod| refused.contains(pod)).then_some(refused)
    })
    .await;
    assert!(
        line(&refused, "logs").contains("Refuse") && line(&refused, "alone").contains("Refuse"),
        "{refused}"
    );
    let willing = ["--force", "--ignore-daemonsets"];
    let plan = output_text(&drain(&[&willing[..], &["--plan"]].concat()));
    assert!(line(&plan, "default/web").contains("Blocked"), "{plan}");
    assert!(line(&plan, "default/web").contains("default/shield"), "the blocking budget is named: {plan}");
    assert!(line(&plan, "logs").contains("Leave"), "{plan}");
    assert!(line(&plan, "alone").contains("Evict") || line(&plan, "alone").contains("Delete"), "{plan}");
    let places = ["default/web", "default/logs", "default/alone"].map(|name| plan.find(name).unwrap());
    assert!(places.is_sorted(), "the lowest priority first: {plan}");
    assert!(is_running(web) && is_running(logs) && is_running(alone), "a plan evicts nothing");

    // The budget blocks the drain until it is relaxed.
    let stuck = drain(&[&willing[..], &["--timeout=10s"]].concat());
    assert!(!stuck.status.success(), "{}", output_text(&stuck));
    assert!(is_running(web) && is_running(logs), "the budget was respected");
    eventually(TIMEOUT, "the pod without a budget has exited", || async {
        (!is_running(alone)).then_some(())
    })
    .await;
    relax(&fleet, held).await;
    let done = drain(&willing);
    assert!(done.status.success(), "{}", output_text(&done));
    assert!(!is_running(web), "a drain is complete when the agent has confirmed the exit");
    assert!(is_running(logs), "the DaemonSet pod stays");
}

/// Starts a drain and waits until it prints that it is blocked.
fn blocked(controller: &str) -> Child {
    let arguments =
        ["drain", "a", "--reason=a new kernel", "--request-timeout=5s", "--controller", controller];
    let child = command().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("blocked") {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "it exited early");
    }
    // Keep reading, so that its pipe does not fill up.
    std::thread::spawn(move || out.lines().count());
    child
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_whose_connection_was_lost_continues_and_can_be_followed_again() {
    let mut fleet = Fleet::start(&[]);
    let (agent, held) = with_a_protected_pod(&mut fleet).await;
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
    assert_eq!(lost.status.code(), Some(6), "{}", output_text(&lost));
    assert!(
        output_text(&lost).contains("hint: the drain continues: run the same command to follow it"),
        "{}",
        output_text(&lost)
    );

    let second = tokio::task::block_in_place(|| blocked(&proxy.url()));
    let after = asked().await;
    assert_eq!(
        (after.requested_at, after.state.as_str()),
        (before.requested_at, "Draining"),
        "it is the same drain"
    );
    relax(&fleet, held).await;
    let done = tokio::task::block_in_place(|| second.wait_with_output()).unwrap();
    assert!(done.status.success(), "{}", output_text(&done));
    assert!(!is_running(web));
    assert_eq!((asked().await.requested_at, asked().await.state.as_str()), (before.requested_at, "Complete"));
}
