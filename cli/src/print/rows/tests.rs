use super::*;
use muster_proto::budget::DisruptionBudget;
use muster_proto::certificate_request::CertificateRequest;
use muster_proto::event::Event;
use muster_proto::join_token::JoinToken;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::priority_class::PriorityClass;
use muster_proto::revocation::Revocation;

use super::pod_status::PodSummary;
use crate::print::{Paint, Table};
use crate::samples::{self, now};

fn table<R: Tabular>(view: &View, records: &[R], paint: Paint) -> String {
    let mut table = Table::new(view.headers::<R>());
    for record in records {
        table.push(view.row(record, now()));
    }
    table.take(paint)
}

/// The normal table and the wide one.
fn both<R: Tabular>(records: &[R]) -> String {
    let view = View::default();
    let wide = View { wide: true, namespaces: R::KIND.is_namespaced(), labels: true, ..View::default() };
    format!("{}\n{}", table(&view, records, Paint::Plain), table(&wide, records, Paint::Plain))
}

fn unreachable(mut node: Node) -> Node {
    node.meta.name = "worker-2".parse().unwrap();
    node.spec = Default::default();
    for condition in &mut node.status.conditions {
        condition.status = muster_proto::condition::ConditionStatus::Unknown;
    }
    node
}

#[test]
fn nodes() {
    let nodes = [samples::new_node(), samples::node(), unreachable(samples::node())];
    insta::assert_snapshot!(both::<Node>(&nodes));
}

#[test]
fn colours() {
    let mut healthy = unreachable(samples::node());
    for condition in &mut healthy.status.conditions {
        condition.status = muster_proto::condition::ConditionStatus::True;
    }
    let nodes = [healthy, samples::node(), unreachable(samples::node())];
    let shown = table::<Node>(&View::default(), &nodes, Paint::Coloured);
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
    Event::sort(&mut events);
    insta::assert_snapshot!(both::<Event>(&events));
}

#[test]
fn budgets() {
    insta::assert_snapshot!(both::<DisruptionBudget>(&[samples::budget()]));
}

#[test]
fn a_priority_class_shows_kubectls_columns() {
    let class: PriorityClass = samples::priority_class();
    assert_eq!(wide_cells(&class), ["urgent", "1000", "false", "4h", "Never", "for what people wait for"]);
}

/// A pod with two containers, an init container and a sidecar, in the given state.
fn pod_in(phase: &str, inits: &str, containers: &str) -> Pod {
    samples::record(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: a, namespace: b}},
          spec: {{containers: [{{name: x}}, {{name: y}}],
                 initContainers: [{{name: i}}, {{name: s, restartPolicy: Always}}]}},
          status: {{{phase}, initContainerStatuses: [{inits}], containerStatuses: [{containers}]}}}}"
    ))
}

#[test]
fn the_status_of_a_pod_follows_kubectls_rules() {
    let is = |name: &str, state: &str| format!("{{name: {name}, state: {{{state}}}}}");
    let waits = |reason: &str| format!("waiting: {{reason: {reason}}}");
    let (runs, done) = ("running: {}", "terminated: {}");
    let failed = |how: &str| format!("terminated: {{{how}}}");
    for (phase, inits, containers, expected) in [
        ("phase: Pending", String::new(), String::new(), "Pending"),
        ("reason: Unschedulable", String::new(), String::new(), "Unschedulable"),
        ("phase: Running", String::new(), is("x", runs), "Running"),
        ("phase: Pending", String::new(), is("x", &waits("ContainerCreating")), "ContainerCreating"),
        ("phase: Running", String::new(), [is("x", runs), is("y", &waits("Crash"))].join(","), "Crash"),
        ("phase: Running", String::new(), [is("x", done), is("y", runs)].join(","), "Running"),
        ("phase: Succeeded", String::new(), is("x", done), "Completed"),
        ("phase: Failed", String::new(), is("x", &failed("exitCode: 3")), "ExitCode:3"),
        ("phase: Failed", String::new(), is("x", &failed("exitCode: 137, signal: 9")), "Signal:9"),
        ("phase: Failed, reason: Evicted", String::new(), is("x", &failed("exitCode: 1")), "Evicted"),
        ("phase: Pending", is("i", runs), String::new(), "Init:0/2"),
        (
            "phase: Pending",
            [is("i", done), is("s", &waits("PodInitializing"))].join(","),
            String::new(),
            "Init:1/2",
        ),
        ("phase: Running", [is("i", done), is("s", runs)].join(","), String::new(), "Running"),
        ("phase: Pending", is("i", &waits("Crash")), String::new(), "Init:Crash"),
        ("phase: Pending", is("i", &failed("exitCode: 2")), String::new(), "Init:ExitCode:2"),
    ] {
        let found = PodSummary::of(&pod_in(phase, &inits, &containers)).status;
        assert_eq!(found, expected, "{phase} {inits} {containers}");
    }
    let mut ending = samples::pod();
    ending.meta.deletion_timestamp = Some(now());
    assert_eq!(PodSummary::of(&ending).status, "Terminating");
    let ready = pb::ContainerStatus { name: "x".to_owned(), ready: true, ..Default::default() };
    let mut pod = samples::pod();
    pod.status.container_statuses = vec![ready];
    assert_eq!(PodSummary::of(&pod).ready, 0, "a container that does not run is not ready");
}

/// The cells of a wide table with this record only; three spaces at least are between them.
fn wide_cells<R: Tabular>(record: &R) -> Vec<String> {
    let view = View { wide: true, ..View::default() };
    let shown = table(&view, std::slice::from_ref(record), Paint::Plain);
    let cells = shown.lines().nth(1).unwrap().split("   ").map(str::trim);
    cells.filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
}

#[test]
fn what_belongs_to_joining_is_shown_with_its_state_and_times() {
    let token: JoinToken = samples::record(
        r#"{"kind": "JoinToken", "apiVersion": "v1", "metadata": {"name": "8000000000",
            "creationTimestamp": "2026-05-04T11:59:00Z"}, "spec": {"secretSha256":
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "expireTime": "2026-05-04T12:30:00Z",
            "maxUses": 2, "labels": {"rack": "r1"}, "createdBy": "eva"}, "status": {"uses": 1}}"#,
    );
    assert_eq!(wide_cells(&token), ["8000000000", "<none>", "rack=r1", "1/2", "30m", "60s", "eva", "never"]);
    let request: CertificateRequest = samples::record(
        r#"{"kind": "CertificateRequest", "apiVersion": "v1", "metadata": {"name": "csr-1",
            "creationTimestamp": "2026-05-04T11:59:00Z"}, "spec": {"nodeName": "n1", "request": "PEM", "requestedBy":
            "anonymous", "sourceAddress": "10.0.0.1", "publicKeySha256":
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}, "status": {"state": "Issued",
            "decidedBy": "eva", "certificate": "PEM", "serial": "3a07", "notAfter": "2026-05-04T12:30:00Z"}}"#,
    );
    assert_eq!(
        wide_cells(&request),
        ["csr-1", "n1", "Issued", "anonymous", "10.0.0.1", "60s", "eva", "3a07", "30m", "<none>"]
    );
    let revocation: Revocation = samples::record(
        r#"{"kind": "Revocation", "apiVersion": "v1", "metadata": {"name": "node-n1"}, "spec": {"nodeName": "n1",
            "reason": "stolen", "expireTime": "2026-05-04T12:30:00Z"}, "status": {"revokedBy": "eva",
            "revokeTime": "2026-05-04T11:59:00Z"}}"#,
    );
    assert_eq!(wide_cells(&revocation), ["node-n1", "node n1", "eva", "stolen", "60s", "30m"]);
}
