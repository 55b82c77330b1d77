use super::node::NodePage;
use super::pod::PodPage;
use super::*;
use crate::samples::{self, now};

#[test]
fn a_node_with_all_fields() {
    let (node, lease, event) = (samples::node(), samples::lease(), samples::event());
    let mut daemon = samples::pod();
    daemon.meta.name = "watcher".parse().unwrap();
    daemon.spec.containers.truncate(1);
    daemon.spec.init_containers.clear();
    daemon.spec.containers[0].resources = Default::default();
    let mut done = samples::pod();
    done.status.phase = muster_proto::pod::PodPhase::Succeeded;
    let pods = [samples::pod(), daemon, done];
    let page = NodePage { node: &node, lease: Some(&lease), pods: &pods, events: &[event] };
    insta::assert_snapshot!(page.text(now(), Paint::Plain, usize::MAX));
}

#[test]
fn a_node_that_never_connected() {
    let page = NodePage { node: &samples::new_node(), lease: None, pods: &[], events: &[] };
    insta::assert_snapshot!(page.text(now(), Paint::Plain, usize::MAX));
}

#[test]
fn a_pod_with_all_fields() {
    let mut event = samples::event();
    event.count = 1;
    insta::assert_snapshot!(PodPage { pod: &samples::pod(), events: &[event] }.text(
        now(),
        Paint::Plain,
        usize::MAX
    ));
}

#[test]
fn a_terminating_pod_without_a_node() {
    let mut pod = samples::pod();
    pod.spec =
        muster_proto::pod::PodSpec { containers: pod.spec.containers[1..].to_vec(), ..Default::default() };
    pod.meta.owner_references.clear();
    pod.meta.labels.clear();
    pod.meta.deletion_timestamp = Some("2026-05-04T12:00:20Z".parse().unwrap());
    pod.meta.deletion_grace_period_seconds = Some(30);
    pod.status = Default::default();
    insta::assert_snapshot!(PodPage { pod: &pod, events: &[] }.text(now(), Paint::Plain, usize::MAX));
}

#[test]
fn a_pod_shows_its_class_and_where_others_make_space_for_it() {
    let mut pod = samples::pod();
    pod.spec.node_name = None;
    pod.spec.priority_class_name = "urgent".into();
    pod.spec.preemption_policy = Some(Default::default());
    pod.status.nominated_node_name = Some("worker-1".parse().unwrap());
    let page = PodPage { pod: &pod, events: &[] }.text(now(), Paint::Plain, usize::MAX);
    let shown = |label: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(label)).unwrap_or_default();
        line.trim().to_owned()
    };
    assert_eq!(shown("Priority Class Name:"), "urgent", "{page}");
    assert_eq!(shown("Preemption Policy:"), "PreemptLowerPriority", "{page}");
    assert_eq!(shown("Nominated Node:"), "worker-1", "{page}");
}

#[test]
fn a_class_with_all_fields() {
    let page = priority_class::page(&samples::priority_class());
    for expected in ["urgent", "1000", "false", "Never", "for what people wait for"] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
}

#[test]
fn a_container_shows_what_it_asks_for() {
    let mut pod = samples::pod();
    pod.spec.containers[0].security_context = Some(muster_proto::pb::SecurityContext {
        run_as_user: Some(1000),
        allow_privilege_escalation: Some(false),
        ..Default::default()
    });
    let page = PodPage { pod: &pod, events: &[] }.text(now(), Paint::Plain, usize::MAX);
    let (_, shown) = page.split_once("Security Context:").unwrap();
    let shown: Vec<&str> = shown.lines().take(2).map(str::trim).collect();
    assert_eq!(shown, ["runAsUser: 1000", "allowPrivilegeEscalation: false"], "{page}");
}

#[test]
fn control_characters_in_records_do_not_reach_the_terminal() {
    let mut node = samples::node();
    node.meta.annotations.insert("x".to_owned(), "\u{1b}[2Jgone".to_owned());
    node.status.conditions[0].message = "\u{1b}]0;title\u{7}".to_owned();
    let mut pod = samples::pod();
    pod.status.reason = "\u{1b}[31mRed".to_owned();
    let node =
        NodePage { node: &node, lease: None, pods: &[], events: &[] }.text(now(), Paint::Plain, usize::MAX);
    let pod = PodPage { pod: &pod, events: &[] }.text(now(), Paint::Plain, usize::MAX);
    for page in [node, pod] {
        assert!(!page.contains(|c: char| c.is_control() && c != '\n'), "{page:?}");
    }
}

#[test]
fn pages_fit_80_columns() {
    let (node, event) = (samples::node(), samples::event());
    let pods = [samples::pod()];
    let page = NodePage { node: &node, lease: None, pods: &pods, events: std::slice::from_ref(&event) };
    let page = page.text(now(), Paint::Plain, 80);
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    for expected in ["Since", "Why", "CPU Requests"] {
        assert!(page.contains(expected), "no {expected} in {page}");
    }
    let page = PodPage { pod: &samples::pod(), events: &[event] }.text(now(), Paint::Plain, 80);
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
}
