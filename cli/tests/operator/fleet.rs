//! Commands that call the controller: the requests they send, and the output for its responses.

use muster_proto::pb::{self, DrainPodAction as Action, DrainPodState as Pod, DrainProgressState as State};
use tonic::Status;

use crate::fake_controller::{Call, FakeController, Responses};
use crate::harness::Harness;

async fn with_controller(responses: Responses) -> (Harness, FakeController) {
    let mut harness = Harness::with_store().await;
    let controller = FakeController::start(responses).await;
    harness.set_env("MUSTER_CONTROLLER", controller.url.clone());
    (harness, controller)
}

fn healthy_fleet() -> Responses {
    let zone = pb::FleetZone {
        name: "eu/eu-1".to_owned(),
        region: "eu".to_owned(),
        zone: "eu-1".to_owned(),
        state: pb::ZoneState::Normal.into(),
        nodes: 3,
        health_percent: 100.0,
        rate: 0.1,
        ..Default::default()
    };
    let fleet =
        pb::Fleet { state: pb::FleetState::Normal.into(), nodes: 3, zones: vec![zone], ..Default::default() };
    Responses { fleet, ..Responses::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_is_shown_once_or_watched() {
    let (harness, controller) = with_controller(healthy_fleet()).await;
    let shown = harness.muster("fleet").await.ok();
    assert!(shown.starts_with("State    Normal\n") && shown.contains("eu/eu-1   Normal"), "{shown}");
    assert_eq!(controller.calls(), [Call::Fleet]);

    let document: serde_json::Value =
        serde_json::from_str(&harness.muster("fleet -o json").await.ok()).unwrap();
    assert_eq!(document["zones"][0]["name"], "eu/eu-1");
    assert_eq!(controller.calls(), [Call::Fleet]);

    let watched = harness.muster("fleet -w --interval 250ms").await;
    assert!(
        watched.out.contains("State    Normal\n") && watched.out.contains("\n\nState    Standby\n"),
        "{}",
        watched.out
    );
    assert!(!watched.out.contains('\u{1b}'), "a pipe gets no escape codes");
    watched.failed(6);
    let interval = prost_types::Duration { seconds: 0, nanos: 250_000_000 };
    assert_eq!(controller.calls(), [Call::Watch(pb::WatchFleetRequest { min_interval: Some(interval) })]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_explanation_of_a_node_is_shown() {
    let explanation = pb::ExplainNodeResponse {
        name: "worker-1".to_owned(),
        summary: "worker-1 is fine.".to_owned(),
        ready: "True".to_owned(),
        ..Default::default()
    };
    let (harness, controller) = with_controller(Responses { explanation, ..Responses::default() }).await;
    for command in ["explain node worker-1", "explain node/worker-1"] {
        let shown = harness.muster(command).await.ok();
        assert!(shown.starts_with("worker-1 is fine.\n\nNode    worker-1\nReady   True\n"), "{shown}");
        assert_eq!(controller.calls(), [Call::Explain("worker-1".to_owned())]);
    }
    assert!(
        harness.muster("explain node worker-1 -o yaml").await.ok().contains("summary: worker-1 is fine.\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_explanation_of_a_pod_is_shown() {
    let pod = pb::ExplainPodResponse {
        namespace: "shop".to_owned(),
        name: "web-1".to_owned(),
        summary: "web-1: 0/1 nodes are available: 1 Insufficient cpu.".to_owned(),
        obstacles: vec![pb::PodObstacle { reason: "Insufficient cpu".to_owned(), nodes: 1 }],
        ..Default::default()
    };
    let (harness, controller) = with_controller(Responses { pod, ..Responses::default() }).await;
    for (command, namespace) in [("explain pod web-1 -n shop", "shop"), ("explain pod/web-1", "default")] {
        let shown = harness.muster(command).await.ok();
        assert!(shown.starts_with("web-1: 0/1 nodes are available: 1 Insufficient cpu.\n\n"), "{shown}");
        assert!(shown.contains("NODES   WHY\n1       Insufficient cpu\n"), "{shown}");
        let request = pb::ExplainPodRequest { namespace: namespace.to_owned(), name: "web-1".to_owned() };
        assert_eq!(controller.calls(), [Call::ExplainPod(request)]);
    }
    let document = harness.muster("explain pod web-1 -o json").await.ok();
    assert!(document.contains("\"reason\": \"Insufficient cpu\""), "{document}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_cordoned_with_a_reason_and_uncordoned() {
    let (harness, controller) = with_controller(Responses::default()).await;
    let cordon = |name: &str, reason: &str| {
        Call::Cordon(pb::CordonNodeRequest {
            name: name.to_owned(),
            reason: reason.to_owned(),
            duration: None,
        })
    };
    assert_eq!(harness.muster("cordon a b --reason fans").await.ok(), "node/a cordoned\nnode/b cordoned\n");
    assert_eq!(controller.calls(), [cordon("a", "fans"), cordon("b", "fans")]);
    assert_eq!(harness.muster("cordon node/a").await.ok(), "node/a cordoned\n");
    assert_eq!(controller.calls(), [cordon("a", "muster cordon by eva")], "the default reason has the user");

    harness
        .muster_with_stdin(
            "apply -f -",
            "{kind: Node, apiVersion: v1, metadata: {name: c, labels: {rack: '7'}}}",
        )
        .await
        .ok();
    assert_eq!(harness.muster("uncordon -l rack=7").await.ok(), "node/c uncordoned\n");
    let uncordon = |reason: &str| {
        Call::Uncordon(pb::UncordonNodeRequest {
            name: "c".to_owned(),
            reason: reason.to_owned(),
            all: false,
        })
    };
    assert_eq!(controller.calls(), [uncordon("muster uncordon by eva")]);
    harness.muster("uncordon c --reason mended").await.ok();
    assert_eq!(controller.calls(), [uncordon("mended")]);
    for command in ["uncordon c --all --reason mended", "uncordon c --all-owners --reason mended"] {
        harness.muster(command).await.ok();
        let Call::Uncordon(request) = uncordon("mended") else { unreachable!("it is an uncordon") };
        assert_eq!(controller.calls(), [Call::Uncordon(pb::UncordonNodeRequest { all: true, ..request })]);
    }
    harness.muster("cordon a --for 2h --reason fans").await.ok();
    let two_hours = Some(prost_types::Duration { seconds: 7200, nanos: 0 });
    let Call::Cordon(request) = cordon("a", "fans") else { unreachable!("it is a cordon") };
    assert_eq!(controller.calls(), [Call::Cordon(pb::CordonNodeRequest { duration: two_hours, ..request })]);
    let stderr = harness.muster("cordon").await.failed(2);
    assert!(stderr.contains("no nodes are given"), "{stderr}");
}

fn pod(name: &str, action: pb::DrainPodAction, state: pb::DrainPodState, reason: &str) -> pb::DrainPod {
    pb::DrainPod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        action: action.into(),
        state: state.into(),
        reason: reason.to_owned(),
        retry_at: None,
    }
}

fn response(state: pb::DrainProgressState, message: &str, pods: Vec<pb::DrainPod>) -> pb::DrainNodeResponse {
    pb::DrainNodeResponse { state: state.into(), message: message.to_owned(), pods }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_shows_its_progress_and_its_final_state() {
    let drain = vec![
        response(
            State::Draining,
            "",
            vec![
                pod("web-1", Action::Evict, Pod::Waiting, ""),
                pod("watcher", Action::Leave, Pod::Stays, "a daemon set's"),
            ],
        ),
        response(State::Draining, "", vec![pod("web-1", Action::Evict, Pod::Stopping, "")]),
        response(State::Complete, "1 pod stays", vec![pod("web-1", Action::Evict, Pod::Gone, "")]),
    ];
    let (harness, controller) = with_controller(Responses { drain, ..Responses::default() }).await;
    let flags = "--force --ignore-daemonsets --delete-emptydir-data --disable-eviction --grace-period 9 \
                 --skip-wait-for-delete-timeout 8 --timeout 2m --reason fans";
    let output = harness.muster(&format!("drain worker-1 {flags}")).await.ok();
    assert_eq!(
        output,
        "pod/shop/web-1 to be evicted\npod/shop/watcher stays (a daemon set's)\nnode/worker-1: Draining\n\
         pod/shop/web-1 stopping\npod/shop/web-1 gone\nnode/worker-1: Complete: 1 pod stays\n"
    );
    let options = pb::DrainOptions {
        force: true,
        ignore_daemonsets: true,
        delete_emptydir_data: true,
        disable_eviction: true,
        grace_period_seconds: Some(9),
        skip_wait_for_delete_seconds: 8,
    };
    let request = pb::DrainNodeRequest {
        name: "worker-1".to_owned(),
        reason: "fans".to_owned(),
        options: Some(options),
        timeout: Some(prost_types::Duration { seconds: 120, nanos: 0 }),
        plan_only: false,
    };
    assert_eq!(controller.calls(), [Call::Drain(request)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_names_the_pods_that_block_the_drain_and_changes_nothing() {
    let pods = vec![
        pod("web-1", Action::Evict, Pod::Waiting, ""),
        pod("loner", Action::Refuse, Pod::Stays, "nothing manages it"),
    ];
    let (harness, controller) = with_controller(Responses {
        drain: vec![response(State::Planned, "1 is in the way", pods)],
        ..Responses::default()
    })
    .await;
    let planned = harness.muster("drain worker-1 --plan").await;
    assert!(planned.out.contains("shop/loner   Refuse   Stays     nothing manages it"), "{}", planned.out);
    let stderr = planned.failed(4);
    assert!(stderr.contains("--force") && !stderr.contains("cordoned"), "a plan cordons nothing: {stderr}");
    let calls = controller.calls();
    let [Call::Drain(request)] = calls.as_slice() else { panic!("{calls:?}") };
    assert!(request.plan_only);
    assert_eq!(request.options, Some(pb::DrainOptions::default()));
    assert_eq!((request.timeout, request.reason.as_str()), (None, "muster drain by eva"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_ends_early_has_a_hint() {
    let web = || vec![pod("web-1", Action::Evict, Pod::Waiting, "")];
    let refused = vec![response(State::Refused, "refused: shop/loner is managed by nothing", web())];
    let (harness, _controller) = with_controller(Responses { drain: refused, ..Responses::default() }).await;
    let drained = harness.muster("drain worker-1").await;
    assert!(!drained.out.contains("loner"), "the reason is said once: {}", drained.out);
    let stderr = drained.failed(4);
    assert!(stderr.contains("node/worker-1: Refused: shop/loner is managed by nothing\n"), "{stderr}");
    assert!(stderr.contains("the node stays cordoned until `muster uncordon worker-1`"), "{stderr}");

    let drain = vec![response(State::Draining, "", web())];
    for stream_error in [None, Some(Status::unavailable("the controller stops; the drain goes on"))] {
        let reason = stream_error.as_ref().map(|status| status.message().to_owned()).unwrap_or_default();
        let (harness, _controller) =
            with_controller(Responses { drain: drain.clone(), stream_error, ..Responses::default() }).await;
        let stderr = harness.muster("drain worker-1").await.failed(6);
        assert!(stderr.contains(&reason), "{stderr}");
        assert!(stderr.contains("hint: the drain continues: run the same command to follow it"), "{stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_controller_has_its_exit_code() {
    for (status, code) in [
        (Status::not_found("node worker-1 does not exist"), 3),
        (Status::failed_precondition("this controller is on standby; c1 leads"), 4),
        (Status::permission_denied("viewers may not"), 4),
        (Status::aborted("changed by another client"), 5),
        (Status::unavailable("stopping"), 6),
    ] {
        let message = status.message().to_owned();
        let (harness, _controller) =
            with_controller(Responses { error: Some(status), ..Responses::default() }).await;
        for command in ["explain node worker-1", "cordon worker-1", "drain worker-1", "fleet"] {
            let stderr = harness.muster(command).await.failed(code);
            assert!(stderr.contains(&message), "{stderr}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn top_prints_its_view_once_if_the_output_is_no_terminal() {
    let (harness, _controller) = with_controller(healthy_fleet()).await;
    let node = "{kind: Node, apiVersion: v1, metadata: {name: a, labels: {topology.kubernetes.io/region: eu, \
                topology.kubernetes.io/zone: eu-1}}}";
    harness.muster_with_stdin("apply -f -", node).await.ok();
    let shown = harness.muster("top").await.ok();
    assert!(shown.starts_with("1 node: 0 ready, 0 not ready, 1 unknown; Normal\n"), "{shown}");
    assert!(shown.contains("eu/eu-1            Normal   0/1       0.1/s"), "{shown}");
    let unreachable = harness.muster("top --controller http://127.0.0.1:1").await.ok();
    assert!(unreachable.contains("controller unreachable"), "{unreachable}");
    harness.muster("top --store http://127.0.0.1:1").await.failed(6);
}
