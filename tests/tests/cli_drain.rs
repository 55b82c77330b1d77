//! `muster drain` as an operator runs it: the plan names what goes, what stays and what is in the way, and the run does
//! what the plan said.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::process::Output;

use muster_proto::pb;
use muster_tests::agent_process::runs;
use muster_tests::eventually;
use muster_tests::fixtures::*;
use muster_tests::fleet::Fleet;
use muster_tests::process::{PATIENCE, muster};

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

#[tokio::test(flavor = "multi_thread")]
async fn the_plan_names_each_pod_and_the_run_does_what_it_said() {
    let mut fleet = Fleet::start(&[]);
    let agent = fleet.agent("a", "").await;
    fleet.api.create(budget("web", ("app", "web"), "1")).await.unwrap();
    for record in [
        sleeper("web").owned_by("ReplicaSet", "web", "uid-of-web"),
        sleeper("logs").owned_by("DaemonSet", "logs", "uid-of-logs"),
        sleeper("alone"),
    ] {
        fleet.api.create(record).await.unwrap();
    }
    let [web, logs, alone] =
        [agent.process_of("web").await, agent.process_of("logs").await, agent.process_of("alone").await];
    let counted = eventually(PATIENCE, "the budget counts", || async {
        let budget: pb::DisruptionBudget = fleet.api.get("default/web").await.unwrap();
        (budget.status.as_ref()?.current_healthy == 1).then_some(budget)
    });
    let held = counted.await;
    let controller = fleet.controller.url();
    let drain = |more: &[&str]| {
        let fixed = ["drain", "a", "--reason=a new kernel", "--controller", &controller];
        muster(&fixed.into_iter().chain(more.iter().copied()).collect::<Vec<_>>())
    };

    let refused = said(&drain(&["--plan"]));
    assert!(
        line(&refused, "logs").contains("Refuse") && line(&refused, "alone").contains("Refuse"),
        "{refused}"
    );
    let willing = ["--force", "--ignore-daemonsets"];
    let plan = said(&drain(&[&willing[..], &["--plan"]].concat()));
    assert!(line(&plan, "web").contains("Blocked"), "{plan}");
    assert!(line(&plan, "logs").contains("Leave"), "{plan}");
    assert!(line(&plan, "alone").contains("Evict") || line(&plan, "alone").contains("Delete"), "{plan}");
    assert!(runs(web) && runs(logs) && runs(alone), "a plan does nothing");

    // The budget holds it up until it gives way.
    let stuck = drain(&[&willing[..], &["--timeout=3s"]].concat());
    assert!(!stuck.status.success(), "{}", said(&stuck));
    assert!(runs(web) && runs(logs), "the budget was kept");
    assert!(!runs(alone));
    let relaxed = pb::DisruptionBudget {
        spec: held
            .spec
            .clone()
            .map(|spec| pb::DisruptionBudgetSpec { min_available: "0".to_owned(), ..spec }),
        ..held
    };
    fleet.api.update(relaxed.at(0)).await.unwrap();
    let done = drain(&willing);
    assert!(done.status.success(), "{}", said(&done));
    assert!(!runs(web), "complete means that the agent has confirmed it");
    assert!(runs(logs), "what was to stay has stayed");
}
