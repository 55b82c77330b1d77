//! What the controller is asked, and how its answers look.

use muster_proto::pb;
use tonic::Status;

use crate::fake_controller::{Asked, Controller, Script};
use crate::harness::Stage;

async fn stage(script: Script) -> (Stage, Controller) {
    let mut stage = Stage::with_store().await;
    let controller = Controller::start(script).await;
    stage.say("MUSTER_CONTROLLER", controller.url.clone());
    (stage, controller)
}

fn judging() -> Script {
    let zone = pb::FleetZone {
        name: "eu/eu-1".to_owned(),
        region: "eu".to_owned(),
        zone: "eu-1".to_owned(),
        state: "Normal".to_owned(),
        nodes: 3,
        health_percent: 100.0,
        rate: 0.1,
        ..Default::default()
    };
    let fleet = pb::Fleet { state: "Judging".to_owned(), nodes: 3, zones: vec![zone], ..Default::default() };
    Script { fleet, ..Script::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_is_shown_once_or_again_and_again() {
    let (stage, controller) = stage(judging()).await;
    let shown = stage.muster("fleet").await.ok();
    assert!(shown.starts_with("State    Judging\n") && shown.contains("eu/eu-1   Normal"), "{shown}");
    assert_eq!(controller.asked(), [Asked::Fleet]);

    let document: serde_json::Value =
        serde_json::from_str(&stage.muster("fleet -o json").await.ok()).unwrap();
    assert_eq!(document["zones"][0]["name"], "eu/eu-1");
    assert_eq!(controller.asked(), [Asked::Fleet]);

    let watched = stage.muster("fleet -w --interval 250ms").await;
    assert!(
        watched.out.contains("State    Judging\n") && watched.out.contains("\n\nState    Later\n"),
        "{}",
        watched.out
    );
    assert!(!watched.out.contains('\u{1b}'), "a pipe is no screen");
    watched.refused(6);
    let interval = prost_types::Duration { seconds: 0, nanos: 250_000_000 };
    assert_eq!(controller.asked(), [Asked::Watch(pb::WatchFleetRequest { min_interval: Some(interval) })]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_explained() {
    let explanation = pb::ExplainNodeResponse {
        name: "worker-1".to_owned(),
        summary: "worker-1 is fine.".to_owned(),
        ready: "True".to_owned(),
        ..Default::default()
    };
    let (stage, controller) = stage(Script { explanation, ..Script::default() }).await;
    for asked in ["explain node worker-1", "explain node/worker-1"] {
        let shown = stage.muster(asked).await.ok();
        assert!(shown.starts_with("worker-1 is fine.\n\nNode    worker-1\nReady   True\n"), "{shown}");
        assert_eq!(controller.asked(), [Asked::Explain("worker-1".to_owned())]);
    }
    assert!(
        stage.muster("explain node worker-1 -o yaml").await.ok().contains("summary: worker-1 is fine.\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_explained() {
    let pod = pb::ExplainPodResponse {
        namespace: "shop".to_owned(),
        name: "web-1".to_owned(),
        summary: "web-1: 0/1 nodes are available: 1 Insufficient cpu.".to_owned(),
        obstacles: vec![pb::PodObstacle { reason: "Insufficient cpu".to_owned(), nodes: 1 }],
        ..Default::default()
    };
    let (stage, controller) = stage(Script { pod, ..Script::default() }).await;
    for (asked, namespace) in [("explain pod web-1 -n shop", "shop"), ("explain pod/web-1", "default")] {
        let shown = stage.muster(asked).await.ok();
        assert!(shown.starts_with("web-1: 0/1 nodes are available: 1 Insufficient cpu.\n\n"), "{shown}");
        assert!(shown.contains("NODES   WHY\n1       Insufficient cpu\n"), "{shown}");
        let request = pb::ExplainPodRequest { namespace: namespace.to_owned(), name: "web-1".to_owned() };
        assert_eq!(controller.asked(), [Asked::ExplainPod(request)]);
    }
    let document = stage.muster("explain pod web-1 -o json").await.ok();
    assert!(document.contains("\"reason\": \"Insufficient cpu\""), "{document}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_cordoned_with_a_reason_and_uncordoned() {
    let (stage, controller) = stage(Script::default()).await;
    let cordon = |name: &str, reason: &str| {
        Asked::Cordon(pb::CordonNodeRequest { name: name.to_owned(), reason: reason.to_owned() })
    };
    assert_eq!(stage.muster("cordon a b --reason fans").await.ok(), "node/a cordoned\nnode/b cordoned\n");
    assert_eq!(controller.asked(), [cordon("a", "fans"), cordon("b", "fans")]);
    assert_eq!(stage.muster("cordon node/a").await.ok(), "node/a cordoned\n");
    assert_eq!(controller.asked(), [cordon("a", "muster cordon by eva")], "nobody is left without a trace");

    stage
        .piped("apply -f -", "{kind: Node, apiVersion: v1, metadata: {name: c, labels: {rack: '7'}}}")
        .await
        .ok();
    assert_eq!(stage.muster("uncordon -l rack=7").await.ok(), "node/c uncordoned\n");
    let uncordon = |reason: &str| {
        Asked::Uncordon(pb::UncordonNodeRequest { name: "c".to_owned(), reason: reason.to_owned() })
    };
    assert_eq!(controller.asked(), [uncordon("muster uncordon by eva")]);
    stage.muster("uncordon c --reason mended").await.ok();
    assert_eq!(controller.asked(), [uncordon("mended")]);
    let complaint = stage.muster("cordon").await.refused(2);
    assert!(complaint.contains("no nodes are named"), "{complaint}");
}

fn pod(name: &str, action: &str, state: &str, reason: &str) -> pb::DrainPod {
    pb::DrainPod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        action: action.to_owned(),
        state: state.to_owned(),
        reason: reason.to_owned(),
        retry_at: None,
    }
}

fn told(state: &str, message: &str, pods: Vec<pb::DrainPod>) -> pb::DrainNodeResponse {
    pb::DrainNodeResponse { state: state.to_owned(), message: message.to_owned(), pods }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_tells_how_it_goes_and_ends_as_the_controller_says() {
    let drain = vec![
        told(
            "Draining",
            "",
            vec![pod("web-1", "Evict", "Waiting", ""), pod("watcher", "Leave", "Stays", "a daemon set's")],
        ),
        told("Draining", "", vec![pod("web-1", "Evict", "Stopping", "")]),
        told("Complete", "1 pod stays", vec![pod("web-1", "Evict", "Gone", "")]),
    ];
    let (stage, controller) = stage(Script { drain, ..Script::default() }).await;
    let flags = "--force --ignore-daemonsets --delete-emptydir-data --disable-eviction --grace-period 9 \
                 --skip-wait-for-delete-timeout 8 --timeout 2m --reason fans";
    let said = stage.muster(&format!("drain worker-1 {flags}")).await.ok();
    assert_eq!(
        said,
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
    assert_eq!(controller.asked(), [Asked::Drain(request)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_names_what_is_in_the_way_and_does_nothing() {
    let pods =
        vec![pod("web-1", "Evict", "Waiting", ""), pod("loner", "Refuse", "Stays", "nothing manages it")];
    let (stage, controller) =
        stage(Script { drain: vec![told("Planned", "1 is in the way", pods)], ..Script::default() }).await;
    let planned = stage.muster("drain worker-1 --plan").await;
    assert!(planned.out.contains("shop/loner   Refuse   Stays     nothing manages it"), "{}", planned.out);
    let complaint = planned.refused(4);
    assert!(complaint.contains("--force"), "{complaint}");
    let asked = controller.asked();
    let [Asked::Drain(request)] = asked.as_slice() else { panic!("{asked:?}") };
    assert!(request.plan_only);
    assert_eq!(request.options, Some(pb::DrainOptions::default()));
    assert_eq!((request.timeout, request.reason.as_str()), (None, "muster drain by eva"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_ends_early_says_how_to_go_on() {
    let web = || vec![pod("web-1", "Evict", "Waiting", "")];
    let refusal = vec![told("Refused", "refused: shop/loner is managed by nothing", web())];
    let (stage, _controller) = stage(Script { drain: refusal, ..Script::default() }).await;
    let complaint = stage.muster("drain worker-1").await.refused(4);
    assert!(complaint.contains("node/worker-1: Refused: shop/loner is managed by nothing\n"), "{complaint}");
    assert!(complaint.contains("the node stays cordoned, `muster uncordon worker-1`"), "{complaint}");

    let drain = vec![told("Draining", "", web())];
    for ending in [None, Some(Status::unavailable("the controller stops; the drain goes on"))] {
        let reason = ending.as_ref().map(|status| status.message().to_owned()).unwrap_or_default();
        let (stage, _controller) =
            self::stage(Script { drain: drain.clone(), ending, ..Script::default() }).await;
        let complaint = stage.muster("drain worker-1").await.refused(6);
        assert!(complaint.contains(&reason), "{complaint}");
        assert!(
            complaint.contains("hint: the drain goes on: the same command follows it again"),
            "{complaint}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_controller_refuses_is_told_with_its_code() {
    for (status, code) in [
        (Status::not_found("node worker-1 does not exist"), 3),
        (Status::failed_precondition("this controller is on standby; c1 leads"), 4),
        (Status::permission_denied("viewers may not"), 4),
        (Status::aborted("changed meanwhile"), 5),
        (Status::unavailable("stopping"), 6),
    ] {
        let message = status.message().to_owned();
        let (stage, _controller) = stage(Script { refusal: Some(status), ..Script::default() }).await;
        for asked in ["explain node worker-1", "cordon worker-1", "drain worker-1", "fleet"] {
            let complaint = stage.muster(asked).await.refused(code);
            assert!(complaint.contains(&message), "{complaint}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn top_prints_its_picture_where_there_is_no_screen() {
    let (stage, _controller) = stage(judging()).await;
    let node = "{kind: Node, apiVersion: v1, metadata: {name: a, labels: {topology.kubernetes.io/region: eu, \
                topology.kubernetes.io/zone: eu-1}}}";
    stage.piped("apply -f -", node).await.ok();
    let shown = stage.muster("top").await.ok();
    assert!(shown.starts_with("1 node: 0 ready, 0 not ready, 1 unknown; Judging\n"), "{shown}");
    assert!(shown.contains("eu/eu-1              Normal             0.1/s"), "{shown}");
    let alone = stage.muster("top --controller http://127.0.0.1:1").await.ok();
    assert!(alone.contains("the controller is not heard"), "{alone}");
    stage.muster("top --store http://127.0.0.1:1").await.refused(6);
}
