//! One trace across time and processes, collected and told by the real Jaeger.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::time::Duration;

use muster_proto::pb;
use muster_tests::agent_process::{is_ready, is_running, node_where, pod_where};
use muster_tests::eventually;
use muster_tests::fleet::{Fleet, is_terminating, pause, resume, sleeper};
use muster_tests::jaeger::{Jaeger, Span, render, services};
use muster_tests::store_process::TIMEOUT;

/// How a node falls silent and what comes of it, in the order it happens, and who tells of it.
const FALL: [(&str, &str); 10] = [
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
const LOOK_AGAIN: Duration = Duration::from_millis(200);

fn find<'t>(trace: &'t [Span], name: &str) -> &'t Span {
    trace.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name} in\n{}", render(trace)))
}

/// The spans above one, from the nearest on.
fn above<'t>(trace: &'t [Span], span: &Span) -> Vec<&'t str> {
    let parent = |of: &Span| trace.iter().find(|other| Some(&other.id) == of.parent.as_ref());
    std::iter::successors(parent(span), |span| parent(span)).map(|span| span.name.as_str()).collect()
}

/// The one trace of a node's fall, once all of it has been collected.
async fn fall_of(jaeger: &Jaeger, node: &str) -> Vec<Span> {
    let is_told = |trace: &[Span], (service, name): (&str, &str)| {
        trace.iter().any(|span| span.service == service && span.name == name)
    };
    // Each service sends when it likes: what lies below may be there before what lies above it.
    let is_whole = |trace: &[Span]| {
        let is_there = |id: &String| trace.iter().any(|span| span.id == *id);
        FALL.iter().all(|step| is_told(trace, *step))
            && trace.iter().filter_map(|span| span.parent.as_ref()).all(is_there)
    };
    let mut traces = Vec::new();
    let whole = async {
        loop {
            traces = jaeger.traces("muster-controller", "renewal.last", ("muster.node", node));
            if let Some(trace) = traces.iter().find(|trace| is_whole(trace)) {
                break trace.clone();
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    let Ok(whole) = tokio::time::timeout(TIMEOUT, whole).await else {
        let tales: Vec<String> = traces.iter().map(|trace| render(trace)).collect();
        panic!("Jaeger does not have the whole trace, but:\n{}", tales.join("\n"));
    };
    assert_eq!(traces.len(), 1, "a node that fell once has one story");
    whole
}

fn check(trace: &[Span]) {
    let render = render(trace);
    println!("{render}");
    let told = |name: &str| FALL.iter().any(|(_, step)| *step == name);
    let mut steps: Vec<(&str, &str)> = trace
        .iter()
        .filter(|span| told(&span.name))
        .map(|span| (span.service.as_str(), span.name.as_str()))
        .collect();
    steps.dedup();
    assert_eq!(steps, FALL, "by when they began:\n{render}");
    assert_eq!(
        services(trace).into_iter().collect::<Vec<_>>(),
        ["muster-agent", "muster-controller", "muster-store"]
    );

    // Each write of the controller is a call below its decision, and the store's part lies below the call.
    for decision in ["node.unknown", "taint.written", "pod.deleted"] {
        let call = trace.iter().find(|span| {
            span.service == "muster-store"
                && span.name.starts_with("muster.v1.")
                && above(trace, span).contains(&decision)
        });
        let call = call.unwrap_or_else(|| panic!("the store tells nothing of {decision}:\n{render}"));
        assert!(above(trace, call)[0].starts_with("muster.v1."), "a call has two ends:\n{render}");
    }
    // The eviction caused the stop, and the stop the end of the record.
    let stopped = find(trace, "process.stopped");
    assert!(above(trace, stopped).contains(&"pod.deleted"), "{render}");
    assert!(above(trace, find(trace, "record.gone")).contains(&"pod.deleted"), "{render}");
    // Decisions follow from the writes that made their records what they are.
    assert!(!find(trace, "pod.deleted").links.is_empty(), "{render}");
    assert_eq!(stopped.tags["muster.pod"], "default/p");
}

async fn gone(fleet: &Fleet, pod: &str) {
    eventually(TIMEOUT, "the pod is gone", || async {
        fleet.api.get::<pb::Pod>(pod).await.is_err().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_freezes_and_thaws_leaves_one_trace() {
    let jaeger = Jaeger::start();
    let mut fleet = Fleet::traced(jaeger.collector());
    let _other = fleet.agent("b", "").await;
    let agent = fleet.agent("a", "").await;
    fleet.api.create(sleeper("p", "a", 1)).await.unwrap();
    agent.container_pid("p").await;

    pause(&agent);
    pod_where(&fleet.api, "default/p", "it has to leave", is_terminating).await;
    resume(&agent);
    gone(&fleet, "default/p").await;
    check(&fall_of(&jaeger, "a").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_agent_is_killed_and_started_again_leaves_one_trace() {
    let jaeger = Jaeger::start();
    let mut fleet = Fleet::traced(jaeger.collector());
    let _other = fleet.agent("b", "").await;
    let launch = fleet.launch("a", "");
    let agent = launch.start();
    node_where(&fleet.api, "a", "it is ready", is_ready).await;
    fleet.api.create(sleeper("p", "a", 1)).await.unwrap();
    let pid = agent.container_pid("p").await;

    agent.kill();
    pod_where(&fleet.api, "default/p", "it has to leave", is_terminating).await;
    assert!(is_running(pid), "nobody is there to stop it");
    let _agent = launch.start();
    gone(&fleet, "default/p").await;
    assert!(!is_running(pid));
    check(&fall_of(&jaeger, "a").await);
}
