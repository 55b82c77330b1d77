use super::*;
use muster_proto::pb::{DrainPodAction as Action, DrainPodState as Pod, DrainProgressState as State};

fn pod(name: &str, action: pb::DrainPodAction, state: pb::DrainPodState, reason: &str) -> pb::DrainPod {
    pb::DrainPod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
        action: action.into(),
        state: state.into(),
        reason: reason.to_owned(),
        retry_at: None,
    }
}

fn response(state: pb::DrainProgressState, message: &str, pods: Vec<pb::DrainPod>) -> pb::DrainNodeResponse {
    pb::DrainNodeResponse { state: state.into(), message: message.to_owned(), pods }
}

#[test]
fn a_plan_lists_every_pod() {
    let pods = vec![
        pod("web-1", Action::Evict, Pod::Waiting, "managed by ReplicaSet web"),
        pod("web-2", Action::Evict, Pod::Blocked, "budget shop/web needs 2 healthy pods and has 2"),
        pod("loner", Action::Refuse, Pod::Stays, "nothing manages it: --force deletes it"),
        pod("watcher", Action::Leave, Pod::Stays, "a daemon set's"),
    ];
    let planned = response(State::Planned, "1 pod is in the way", pods);
    insta::assert_snapshot!(plan("worker-1", &planned, Paint::Plain, usize::MAX));
    let empty = response(State::Planned, "nothing to do", vec![]);
    assert_eq!(
        plan("a", &empty, Paint::Plain, usize::MAX),
        "node/a: Planned: nothing to do\nThe node has no pods.\n"
    );
}

#[test]
fn progress_shows_every_change_once() {
    let mut progress = Progress::default();
    let mut lines = String::new();
    let look = |one: Pod, two: Pod, why: &str| {
        vec![
            pod("web-1", Action::Evict, one, ""),
            pod("web-2", Action::Evict, two, why),
            pod("watcher", Action::Leave, Pod::Stays, "a daemon set's"),
        ]
    };
    for (state, message, pods) in [
        (State::Draining, "2 pods have to go", look(Pod::Waiting, Pod::Waiting, "")),
        (
            State::Draining,
            "2 pods have to go",
            look(Pod::Stopping, Pod::Blocked, "budget shop/web needs 1 healthy pod and has 1"),
        ),
        (
            State::Draining,
            "2 pods have to go",
            look(Pod::Stopping, Pod::Blocked, "budget shop/web needs 1 healthy pod and has 1"),
        ),
        (
            State::Draining,
            "1 pod has to go",
            look(Pod::Gone, Pod::Blocked, "budget shop/web needs 1 healthy pod and has 0"),
        ),
        (State::Draining, "1 pod has to go", look(Pod::Gone, Pod::Stopping, "")),
        (State::Complete, "all pods are gone but 1 that stays", look(Pod::Gone, Pod::Gone, "")),
    ] {
        lines.push_str(&progress.lines(
            "worker-1",
            &response(state, message, pods),
            Paint::Plain,
            usize::MAX,
        ));
    }
    insta::assert_snapshot!(lines);
}

#[test]
fn the_plans_of_several_nodes_have_totals() {
    let mut totals = PlanTotals::default();
    let pods = vec![
        pod("web-1", Action::Evict, Pod::Waiting, ""),
        pod("web-2", Action::Evict, Pod::Blocked, ""),
        pod("loner", Action::Refuse, Pod::Stays, ""),
        pod("watcher", Action::Leave, Pod::Stays, ""),
    ];
    totals.add(&response(State::Refused, "", pods));
    assert_eq!(totals.line(), "", "one node needs no totals");
    totals.add(&response(State::Planned, "", vec![pod("web-3", Action::Delete, Pod::Waiting, "")]));
    assert_eq!(
        totals.line(),
        "Total of 2 nodes: 2 pods to evict (1 blocked now), 1 to delete, 1 to stay; 1 in the way of 1 of the drains\n"
    );
}

#[test]
fn progress_fits_the_width() {
    let why = "Pod shop/web-1 cannot be evicted: DisruptionBudget shop/web needs 4 healthy pods and has 4";
    let pods = vec![pod("web-1", Action::Evict, Pod::Blocked, why)];
    let message =
        "7 pods have still to go: 1 waiting, 4 blocked, 2 stopping; 12 gone, and no budget allows more";
    let answer = response(State::Draining, message, pods);
    let lines = Progress::default().lines("worker-1", &answer, Paint::Plain, 80);
    assert!(lines.lines().all(|line| line.len() <= 80), "{lines}");
    assert!(lines.starts_with("pod/shop/web-1 blocked (Pod shop/web-1 cannot"), "{lines}");
    assert!(lines.contains("\n    "), "later lines are indented: {lines}");
    let coloured = Progress::default().lines("worker-1", &answer, Paint::Coloured, 80);
    assert!(coloured.contains("\u{1b}[31mblocked\u{1b}[0m"), "{coloured}");
}
