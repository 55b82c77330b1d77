//! One trace across processes, collected by the real Jaeger.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::process::{Child, Stdio};
use std::time::Duration;

use muster_proto::pb;
use muster_tests::agent_process::{is_ready, is_running, node_where, pod_where};
use muster_tests::eventually;
use muster_tests::fleet::{Fleet, is_terminating, pause, resume, sleeper};
use muster_tests::jaeger::{Jaeger, Span, render, services};
use muster_tests::store_process::{TIMEOUT, command};

/// The spans from the last renewal of a node to the removal of its pod, in order, with their service.
const NODE_FAILURE: [(&str, &str); 10] = [
    ("muster-controller", "renewal.last"),
    ("muster-controller", "deadline.passed"),
    ("muster-controller", "node.unknown"),
    ("muster-controller", "taint.queued"),
    ("muster-controller", "taint.token"),
    ("muster-controller", "taint.written"),
    ("muster-controller", "toleration.over"),
    ("muster-controller", "pod.deleted"),
    ("muster-agent", "process.stopped"),
    ("muster-controller", "record.gone"),
];

/// Spans are sent every few seconds.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

fn find<'t>(trace: &'t [Span], name: &str) -> &'t Span {
    trace.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name} in\n{}", render(trace)))
}

/// The names of the ancestors of a span, nearest first.
fn ancestors<'t>(trace: &'t [Span], span: &Span) -> Vec<&'t str> {
    let parent = |of: &Span| trace.iter().find(|other| Some(&other.id) == of.parent.as_ref());
    std::iter::successors(parent(span), |span| parent(span)).map(|span| span.name.as_str()).collect()
}

/// Waits until Jaeger has the complete trace of a node's failure.
async fn failure_of(jaeger: &Jaeger, node: &str) -> Vec<Span> {
    let has_span = |trace: &[Span], (service, name): (&str, &str)| {
        trace.iter().any(|span| span.service == service && span.name == name)
    };
    // Services send their spans independently: a child may arrive before its parent.
    let is_complete = |trace: &[Span]| {
        let is_there = |id: &String| trace.iter().any(|span| span.id == *id);
        NODE_FAILURE.iter().all(|step| has_span(trace, *step))
            && trace.iter().filter_map(|span| span.parent.as_ref()).all(is_there)
    };
    let mut traces = Vec::new();
    let whole = async {
        loop {
            traces = jaeger.traces("muster-controller", "renewal.last", ("muster.node", node));
            if let Some(trace) = traces.iter().find(|trace| is_complete(trace)) {
                break trace.clone();
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let Ok(whole) = tokio::time::timeout(TIMEOUT, whole).await else {
        let found: Vec<String> = traces.iter().map(|trace| render(trace)).collect();
        panic!("Jaeger does not have the complete trace, only:\n{}", found.join("\n"));
    };
    assert_eq!(traces.len(), 1, "one failure has one trace");
    whole
}

fn check(trace: &[Span]) {
    let text = render(trace);
    println!("{text}");
    let is_step = |name: &str| NODE_FAILURE.iter().any(|(_, step)| *step == name);
    let mut steps: Vec<(&str, &str)> = trace
        .iter()
        .filter(|span| is_step(&span.name))
        .map(|span| (span.service.as_str(), span.name.as_str()))
        .collect();
    steps.dedup();
    assert_eq!(steps, NODE_FAILURE, "by start time:\n{text}");
    assert_eq!(
        services(trace).into_iter().collect::<Vec<_>>(),
        ["muster-agent", "muster-controller", "muster-store"]
    );

    // Each write of the controller is a call below its decision, and the store's span is below the call.
    for decision in ["node.unknown", "taint.written", "pod.deleted"] {
        let call = trace.iter().find(|span| {
            span.service == "muster-store"
                && span.name.starts_with("muster.v1.")
                && ancestors(trace, span).contains(&decision)
        });
        let call = call.unwrap_or_else(|| panic!("the store has no span below {decision}:\n{text}"));
        assert!(
            ancestors(trace, call)[0].starts_with("muster.v1."),
            "the parent of the store's span is the client's call:\n{text}"
        );
    }
    // The eviction caused the stop of the process, and that caused the removal of the record.
    let stopped = find(trace, "process.stopped");
    assert!(ancestors(trace, stopped).contains(&"pod.deleted"), "{text}");
    assert!(ancestors(trace, find(trace, "record.gone")).contains(&"pod.deleted"), "{text}");
    // Decisions are linked to the writes of the records that they are based on.
    assert!(!find(trace, "pod.deleted").links.is_empty(), "{text}");
    assert_eq!(stopped.tags["muster.pod"], "default/p");
}

async fn gone(fleet: &Fleet, pod: &str) {
    eventually(TIMEOUT, "the pod is removed", || async {
        fleet.api.get::<pb::Pod>(pod).await.is_err().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_agent_that_resumes_leaves_one_trace() {
    let jaeger = Jaeger::start();
    let mut fleet = Fleet::traced(jaeger.collector());
    let _other = fleet.agent("b", "").await;
    let agent = fleet.agent("a", "").await;
    fleet.api.create(sleeper("p", "a", 1)).await.unwrap();
    agent.container_pid("p").await;

    pause(&agent);
    pod_where(&fleet.api, "default/p", "it is evicted", is_terminating).await;
    resume(&agent);
    gone(&fleet, "default/p").await;
    check(&failure_of(&jaeger, "a").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_that_restarts_leaves_one_trace() {
    let jaeger = Jaeger::start();
    let mut fleet = Fleet::traced(jaeger.collector());
    let _other = fleet.agent("b", "").await;
    let launch = fleet.launch("a", "");
    let agent = launch.start();
    node_where(&fleet.api, "a", "it is ready", is_ready).await;
    fleet.api.create(sleeper("p", "a", 1)).await.unwrap();
    let pid = agent.container_pid("p").await;

    agent.kill();
    pod_where(&fleet.api, "default/p", "it is evicted", is_terminating).await;
    assert!(is_running(pid), "no agent runs to stop it");
    let _agent = launch.start();
    gone(&fleet, "default/p").await;
    assert!(!is_running(pid));
    check(&failure_of(&jaeger, "a").await);
}

/// A `muster up` with two simulated nodes. It is killed when it is dropped.
struct Up {
    child: Child,
    /// Holds what the killed process leaves behind.
    _directory: tempfile::TempDir,
}

impl Up {
    fn start(collector: &str) -> Up {
        let directory = tempfile::tempdir().unwrap();
        let mut command = command();
        command.args(["up", "--ephemeral", "--nodes=2", "--zones=1", "--trace-sample-ratio=1"]);
        command.args(["--otlp-endpoint", collector]).env("TMPDIR", directory.path());
        for part in ["", "controller-", "agent-"] {
            command.args([format!("--{part}listen=127.0.0.1:0"), format!("--{part}http-listen=127.0.0.1:0")]);
        }
        command.arg("--simulation-listen=127.0.0.1:0");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Up { child: child.unwrap(), _directory: directory }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s225_muster_up_names_its_parts_as_services_of_their_own() {
    let jaeger = Jaeger::start();
    let _up = Up::start(&jaeger.collector());
    let parts = ["muster-agent", "muster-controller", "muster-store"];
    let named = eventually(TIMEOUT, "spans of all parts", || async {
        let services = jaeger.services();
        parts.iter().all(|part| services.contains(*part)).then_some(services)
    });
    let named = named.await;
    // The simulated agents have the name of the process.
    let others: Vec<&String> = named.iter().filter(|name| !parts.contains(&name.as_str())).collect();
    assert!(others.iter().all(|name| *name == "muster" || name.starts_with("jaeger")), "{named:?}");
}
