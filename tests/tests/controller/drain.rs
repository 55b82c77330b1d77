use muster_proto::pb::{self, DrainPodAction as Action, DrainProgressState as State};
use muster_tests::agent_process::{events, is_running};
use muster_tests::eventually;
use muster_tests::fixtures::*;
use muster_tests::fleet::{Fleet, sleeper, taints};
use muster_tests::store_process::TIMEOUT;
use tonic::Code;

fn drain(name: &str, options: pb::DrainOptions) -> pb::DrainNodeRequest {
    let (name, reason) = (name.to_owned(), "a new kernel".to_owned());
    pb::DrainNodeRequest { name, reason, options: Some(options), timeout: None, plan_only: false }
}

fn managed(name: &str, node: &str) -> pb::Pod {
    sleeper(name, node, 600).label("app", "web").owned_by("ReplicaSet", "web", "uid-of-web")
}

fn daemon(name: &str, node: &str) -> pb::Pod {
    sleeper(name, node, 600).owned_by("DaemonSet", "logs", "uid-of-logs")
}

/// The action and state of a pod in a drain plan or progress message.
fn pod_action(turn: &pb::DrainNodeResponse, name: &str) -> (pb::DrainPodAction, pb::DrainPodState) {
    let pod = turn.pods.iter().find(|pod| pod.name == name).unwrap();
    (pod.action(), pod.state())
}

#[tokio::test(flavor = "multi_thread")]
async fn s099_s175_a_cordon_has_a_requester_and_a_reason_and_can_be_removed() {
    let mut fleet = Fleet::start(&[]);
    let _agent = fleet.agent("a", "").await;
    let mut service = fleet.service();
    let request = |reason: &str| pb::CordonNodeRequest {
        name: "a".to_owned(),
        reason: reason.to_owned(),
        duration: None,
    };
    let refused = service.cordon_node(request(" ")).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message().starts_with("reason: is required")),
        (Code::InvalidArgument, true)
    );
    let first = service.cordon_node(request("the fan is loud")).await.unwrap().into_inner().node.unwrap();
    let second = service.cordon_node(request("another reason")).await.unwrap().into_inner().node.unwrap();
    let cordon = second.spec.unwrap().cordon.unwrap();
    assert_eq!((cordon.requested_by.as_str(), cordon.reason.as_str()), ("admin", "the fan is loud"));
    assert!(first.spec.unwrap().unschedulable);
    fleet
        .node_where("a", "it is tainted unschedulable", |node| taints(node) == ["unschedulable:NoSchedule"])
        .await;
    eventually(TIMEOUT, "its agent records the event", || async {
        (!events(&fleet.api, "a", "NodeNotSchedulable").await.is_empty()).then_some(())
    })
    .await;

    let request = |name: &str, reason: &str| pb::UncordonNodeRequest {
        name: name.to_owned(),
        reason: reason.to_owned(),
        all: false,
    };
    let refused = service.uncordon_node(request("a", "")).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message().starts_with("reason: is required")),
        (Code::InvalidArgument, true)
    );
    for _ in 0..2 {
        service.uncordon_node(request("a", "a new fan")).await.unwrap();
    }
    fleet.node_where("a", "it has no taint", |node| taints(node).is_empty()).await;
    let missing = service.uncordon_node(request("b", "why not")).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    for (reason, message) in [
        ("NodeCordoned", "admin cordoned the node: the fan is loud"),
        ("NodeUncordoned", "admin uncordoned the node: a new fan"),
    ] {
        let recorded = events(&fleet.api, "a", reason).await;
        let recorded: Vec<(&str, i32)> =
            recorded.iter().map(|event| (event.message.as_str(), event.count)).collect();
        assert_eq!(recorded, [(message, 1)], "a repeated request records no event");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s193_a_node_takes_pods_again_when_the_last_of_its_cordons_is_gone() {
    let mut fleet = Fleet::start(&[]);
    let _agent = fleet.agent("a", "").await;
    let mut service = fleet.service();
    let second = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    let cordon = |duration| pb::CordonNodeRequest {
        name: "a".to_owned(),
        reason: "the fan is loud".to_owned(),
        duration,
    };
    let owners = |node: &pb::Node| -> Vec<String> {
        let cordons = node.spec.iter().flat_map(|spec| &spec.cordons);
        cordons.map(|cordon| cordon.owner.clone()).collect()
    };

    // A client that knows only the field, beside a cordon that ends by itself.
    let record: pb::Node = fleet.api.get("a").await.unwrap();
    let by_field = fleet.api.update(record.cordoned().at(0)).await.unwrap();
    assert_eq!(owners(&by_field), ["spec.unschedulable"]);
    service.cordon_node(cordon(second)).await.unwrap();
    let left =
        fleet.node_where("a", "the cordon has ended", |node| owners(node) == ["spec.unschedulable"]).await;
    assert!(left.spec.as_ref().unwrap().unschedulable);
    eventually(TIMEOUT, "an event says so", || async {
        (events(&fleet.api, "a", "CordonEnded").await.len() == 1).then_some(())
    })
    .await;

    // The field takes off its own cordon only.
    service.cordon_node(cordon(None)).await.unwrap();
    let record: pb::Node = fleet.api.get("a").await.unwrap();
    let cleared = fleet.api.update(record.spec(|spec| spec.unschedulable = false).at(0)).await.unwrap();
    assert_eq!((owners(&cleared), cleared.spec.unwrap().unschedulable), (vec!["admin".to_owned()], true));
    // The controller hears of the field's change from its watch.
    eventually(TIMEOUT, "the explanation names the cordon that is left", || async {
        let explanations = fleet.explain("a").await.explanations;
        let schedule = explanations.into_iter().find(|it| it.action() == pb::ExplanationAction::Schedule);
        schedule.filter(|it| it.reason == "The node is cordoned by admin (the fan is loud).")
    })
    .await;

    let uncordon =
        |all| pb::UncordonNodeRequest { name: "a".to_owned(), reason: "a new fan".to_owned(), all };
    service.uncordon_node(uncordon(false)).await.unwrap();
    fleet.node_where("a", "it has no taint", |node| taints(node).is_empty() && owners(node).is_empty()).await;

    // An administrator takes off those of others.
    let record: pb::Node = fleet.api.get("a").await.unwrap();
    fleet.api.update(record.cordoned().at(0)).await.unwrap();
    let remains = service.uncordon_node(uncordon(false)).await.unwrap().into_inner().node.unwrap();
    assert_eq!(owners(&remains), ["spec.unschedulable"]);
    let free = service.uncordon_node(uncordon(true)).await.unwrap().into_inner().node.unwrap();
    assert_eq!((owners(&free), free.spec.unwrap().unschedulable), (vec![], false));
}

#[tokio::test(flavor = "multi_thread")]
async fn s176_s177_a_drain_refuses_protected_pods_and_does_what_its_plan_says() {
    let mut fleet = Fleet::start(&[]);
    let agent = fleet.agent("a", "").await;
    for record in [managed("web", "a"), daemon("logs", "a"), sleeper("alone", "a", 600)] {
        fleet.api.create(record).await.unwrap();
    }
    let (web, alone, logs) = (
        agent.container_pid("web").await,
        agent.container_pid("alone").await,
        agent.container_pid("logs").await,
    );

    let plan = pb::DrainNodeRequest { plan_only: true, ..drain("a", pb::DrainOptions::default()) };
    // The agent may have received the pods before the controller.
    let plan = eventually(TIMEOUT, "the plan names them all", || async {
        Some(fleet.drain(plan.clone()).await.unwrap()).filter(|plan| plan[0].pods.len() == 3)
    })
    .await;
    assert_eq!((plan.len(), plan[0].state()), (1, State::Refused));
    for (name, action) in [("web", Action::Evict), ("logs", Action::Refuse), ("alone", Action::Refuse)] {
        assert_eq!(pod_action(&plan[0], name).0, action, "{name}");
    }
    let untouched: pb::Node = fleet.api.get("a").await.unwrap();
    assert!(!untouched.spec.unwrap().unschedulable, "a plan changes nothing");

    let refused = fleet.drain(drain("a", pb::DrainOptions::default())).await.unwrap();
    assert_eq!(refused.last().unwrap().state(), State::Refused);
    let cordoned = fleet.node_where("a", "its drain has failed", |node| {
        node.spec.as_ref().unwrap().drain.as_ref().is_some_and(|drain| drain.state == "Failed")
    });
    assert!(cordoned.await.spec.unwrap().unschedulable);
    assert!(is_running(web) && is_running(alone) && is_running(logs), "nothing was evicted");

    let options = pb::DrainOptions { force: true, ignore_daemonsets: true, ..Default::default() };
    let plan = pb::DrainNodeRequest { plan_only: true, ..drain("a", options) };
    let plan = fleet.drain(plan).await.unwrap();
    assert_eq!(plan[0].state(), State::Planned);
    let done = fleet.drain(drain("a", options)).await.unwrap();
    let last = done.last().unwrap();
    assert_eq!(last.state(), State::Complete, "{}", last.message);
    assert!(
        !is_running(web) && !is_running(alone),
        "a drain is complete when the agent has confirmed the exit"
    );
    assert!(is_running(logs), "DaemonSet pods stay");
    assert_eq!(pod_action(&plan[0], "logs").0, pod_action(last, "logs").0);
    let drained: pb::Node = fleet.api.get("a").await.unwrap();
    let record = drained.spec.unwrap().drain.unwrap();
    assert_eq!(
        (record.state.as_str(), record.requested_by.as_str(), record.reason.as_str()),
        ("Complete", "admin", "a new kernel")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn s178_a_drain_blocked_by_a_budget_continues_when_the_budget_allows_it() {
    let mut fleet = Fleet::start(&[]);
    let agent = fleet.agent("a", "").await;
    fleet.api.create(budget("web", ("app", "web"), "1")).await.unwrap();
    fleet.api.create(managed("web", "a")).await.unwrap();
    let pid = agent.container_pid("web").await;
    let budget_is = |allowed: i32| {
        let fleet = &fleet;
        async move {
            eventually(TIMEOUT, "the budget is computed", || async {
                let budget: pb::DisruptionBudget = fleet.api.get("default/web").await.unwrap();
                let status = budget.status.clone().unwrap_or_default();
                (status.current_healthy == 1 && status.disruptions_allowed == allowed).then_some(budget)
            })
            .await
        }
    };
    let held = budget_is(0).await;

    let mut progress = fleet.service().drain_node(drain("a", Default::default())).await.unwrap().into_inner();
    loop {
        let turn = progress.message().await.unwrap().unwrap();
        if turn.pods.iter().any(|pod| (pod.name.as_str(), pod.state()) == ("web", pb::DrainPodState::Blocked))
        {
            assert_eq!(turn.pods[0].action(), Action::Evict);
            assert!(turn.pods[0].reason.contains("web"), "it names the budget: {}", turn.pods[0].reason);
            break;
        }
    }
    assert!(is_running(pid));
    let relaxed = pb::DisruptionBudget {
        spec: held
            .spec
            .clone()
            .map(|spec| pb::DisruptionBudgetSpec { min_available: "0".to_owned(), ..spec }),
        ..held
    };
    fleet.api.update(relaxed.at(0)).await.unwrap();
    let mut last = None;
    while let Some(turn) = progress.message().await.unwrap() {
        last = Some(turn);
    }
    assert_eq!(last.unwrap().state(), State::Complete);
    assert!(!is_running(pid));
}
