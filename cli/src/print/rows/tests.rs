use super::*;
use muster_proto::budget::DisruptionBudget;
use muster_proto::event::Event;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pod::Pod;

use super::pod_status::PodSummary;
use crate::print::{Paint, Table};
use crate::samples::{self, now};

fn table<R: Tabular>(view: View, records: &[R], paint: Paint) -> String {
    let mut table = Table::new(view.headers::<R>());
    for record in records {
        table.push(view.row(record, now()));
    }
    table.take(paint)
}

/// The usual table and the wide one, below each other.
fn both<R: Tabular>(records: &[R]) -> String {
    let view = View::default();
    let wide = View { wide: true, namespaces: R::KIND.is_namespaced(), labels: true };
    format!("{}\n{}", table(view, records, Paint::Plain), table(wide, records, Paint::Plain))
}

fn lost(mut node: Node) -> Node {
    node.meta.name = "worker-2".parse().unwrap();
    node.spec = Default::default();
    for condition in &mut node.status.conditions {
        condition.status = muster_proto::condition::ConditionStatus::Unknown;
    }
    node
}

#[test]
fn nodes() {
    let nodes = [samples::silent_node(), samples::node(), lost(samples::node())];
    insta::assert_snapshot!(both::<Node>(&nodes));
}

#[test]
fn colours() {
    let mut healthy = lost(samples::node());
    for condition in &mut healthy.status.conditions {
        condition.status = muster_proto::condition::ConditionStatus::True;
    }
    let nodes = [healthy, samples::node(), lost(samples::node())];
    let shown = table::<Node>(View::default(), &nodes, Paint::Coloured);
    insta::assert_snapshot!(shown.replace('\u{1b}', "ESC"));
}

#[test]
fn pods() {
    let mut pending = samples::pod();
    pending.meta.name = "web-2".parse().unwrap();
    pending.meta.owner_references.clear();
    pending.spec.node_name = None;
    pending.spec.priority = None;
    pending.status = Default::default();
    insta::assert_snapshot!(both::<Pod>(&[samples::pod(), pending]));
}

#[test]
fn leases() {
    let mut stale = samples::lease();
    stale.meta.name = "worker-2".parse().unwrap();
    stale.spec = Default::default();
    insta::assert_snapshot!(both::<Lease>(&[samples::lease(), stale]));
}

#[test]
fn events() {
    let mut normal = samples::event();
    normal.kind = Default::default();
    normal.reason = "NodeReady".to_owned();
    normal.message = "two\nlines".to_owned();
    normal.count = 1;
    normal.last_timestamp = Some(now());
    let mut events = [normal, samples::event()];
    Event::arrange(&mut events);
    insta::assert_snapshot!(both::<Event>(&events));
}

#[test]
fn budgets() {
    insta::assert_snapshot!(both::<DisruptionBudget>(&[samples::budget()]));
}

#[test]
fn a_pods_state_is_the_most_telling_one() {
    let state = |state: &str| {
        samples::record::<Pod>(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: a, namespace: b}}, spec: {{containers: [{{name: x}}, {{name: y}}], initContainers: [{{name: i}}, {{name: s, restartPolicy: Always}}]}}, status: {state}}}"
        ))
    };
    for (given, expected) in [
        ("{}", "Pending"),
        ("{phase: Running, containerStatuses: [{name: x, state: {running: {}}}]}", "Running"),
        ("{phase: Pending, reason: Unschedulable}", "Unschedulable"),
        (
            "{phase: Failed, reason: Evicted, containerStatuses: [{name: x, state: {terminated: {exitCode: 1}}}]}",
            "Evicted",
        ),
        (
            "{phase: Pending, containerStatuses: [{name: x, state: {waiting: {reason: ContainerCreating}}}]}",
            "ContainerCreating",
        ),
        (
            "{phase: Running, containerStatuses: [{name: x, state: {waiting: {reason: CrashLoopBackOff}}}, {name: y, state: {running: {}}}]}",
            "CrashLoopBackOff",
        ),
        ("{phase: Succeeded, containerStatuses: [{name: x, state: {terminated: {}}}]}", "Completed"),
        ("{phase: Failed, containerStatuses: [{name: x, state: {terminated: {exitCode: 3}}}]}", "ExitCode:3"),
        (
            "{phase: Failed, containerStatuses: [{name: x, state: {terminated: {exitCode: 137, signal: 9}}}]}",
            "Signal:9",
        ),
        (
            "{phase: Running, containerStatuses: [{name: x, state: {terminated: {}}}, {name: y, state: {running: {}}}]}",
            "Running",
        ),
        ("{phase: Pending, initContainerStatuses: [{name: i, state: {running: {}}}]}", "Init:0/2"),
        (
            "{phase: Pending, initContainerStatuses: [{name: i, state: {terminated: {}}}, {name: s, state: {waiting: {reason: PodInitializing}}}]}",
            "Init:1/2",
        ),
        (
            "{phase: Running, initContainerStatuses: [{name: i, state: {terminated: {}}}, {name: s, state: {running: {}}}]}",
            "Running",
        ),
        (
            "{phase: Pending, initContainerStatuses: [{name: i, state: {waiting: {reason: CrashLoopBackOff}}}]}",
            "Init:CrashLoopBackOff",
        ),
        (
            "{phase: Pending, initContainerStatuses: [{name: i, state: {terminated: {exitCode: 2}}}]}",
            "Init:ExitCode:2",
        ),
    ] {
        assert_eq!(PodSummary::of(&state(given)).status, expected, "{given}");
    }
    let mut ending = samples::pod();
    ending.meta.deletion_timestamp = Some(now());
    assert_eq!(PodSummary::of(&ending).status, "Terminating");
    let ready = pb::ContainerStatus { name: "x".to_owned(), ready: true, ..Default::default() };
    let mut pod = samples::pod();
    pod.status.container_statuses = vec![ready];
    assert_eq!(PodSummary::of(&pod).ready, 0, "what does not run serves nobody");
}
