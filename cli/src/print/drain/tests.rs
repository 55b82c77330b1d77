use super::*;

fn pod(name: &str, action: &str, state: &str, reason: &str) -> pb::DrainPod {
    pb::DrainPod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
        action: action.to_owned(),
        state: state.to_owned(),
        reason: reason.to_owned(),
        retry_at: None,
    }
}

fn told(state: &str, message: &str, pods: Vec<pb::DrainPod>) -> pb::DrainNodeResponse {
    pb::DrainNodeResponse { state: state.to_owned(), message: message.to_owned(), pods }
}

#[test]
fn a_plan_lists_every_pod() {
    let pods = vec![
        pod("web-1", "Evict", "Waiting", "managed by ReplicaSet web"),
        pod("web-2", "Evict", "Blocked", "budget shop/web needs 2 healthy pods and has 2"),
        pod("loner", "Refuse", "Stays", "nothing manages it: --force deletes it"),
        pod("watcher", "Leave", "Stays", "a daemon set's"),
    ];
    let planned = told("Planned", "1 pod is in the way", pods);
    insta::assert_snapshot!(plan("worker-1", &planned, Paint::Plain));
    let empty = told("Planned", "nothing to do", vec![]);
    assert_eq!(plan("a", &empty, Paint::Plain), "node/a: Planned: nothing to do\nThe node has no pods.\n");
}

#[test]
fn progress_shows_every_change_once() {
    let mut progress = Progress::default();
    let mut lines = String::new();
    let look = |one: &str, two: &str, why: &str| {
        vec![
            pod("web-1", "Evict", one, ""),
            pod("web-2", "Evict", two, why),
            pod("watcher", "Leave", "Stays", "a daemon set's"),
        ]
    };
    for (state, message, pods) in [
        ("Draining", "2 pods have to go", look("Waiting", "Waiting", "")),
        (
            "Draining",
            "2 pods have to go",
            look("Stopping", "Blocked", "budget shop/web needs 1 healthy pod and has 1"),
        ),
        (
            "Draining",
            "2 pods have to go",
            look("Stopping", "Blocked", "budget shop/web needs 1 healthy pod and has 1"),
        ),
        (
            "Draining",
            "1 pod has to go",
            look("Gone", "Blocked", "budget shop/web needs 1 healthy pod and has 0"),
        ),
        ("Draining", "1 pod has to go", look("Gone", "Stopping", "")),
        ("Complete", "all pods are gone but 1 that stays", look("Gone", "Gone", "")),
    ] {
        lines.push_str(&progress.lines("worker-1", &told(state, message, pods), Paint::Plain));
    }
    insta::assert_snapshot!(lines);
}
