//! Pods of higher priority displace others: with real processes, from the class to the program that runs.

use muster_proto::pb;
use muster_tests::Api;
use muster_tests::agent_process::{is_running, pod_where};
use muster_tests::eventually;
use muster_tests::fixtures::*;
use muster_tests::fleet::{Fleet, is_terminating, sleeper};
use muster_tests::store_process::{TIMEOUT, muster};
use tokio::runtime::Handle;

/// A class as Kubernetes writes it.
async fn create_class(api: &Api, name: &str, value: i32) {
    let metadata = Some(pb::Metadata { name: name.to_owned(), ..Default::default() });
    api.create(pb::PriorityClass { metadata, value, ..Default::default() }).await.unwrap();
}

/// A pod of that class, for any node.
fn of_class(name: &str, class: &str) -> pb::Pod {
    sleeper(name, "", 600).spec(|spec| class.clone_into(&mut spec.priority_class_name))
}

fn displaced(pod: &pb::Pod) -> Option<&pb::PodCondition> {
    let conditions = &pod.status.as_ref()?.conditions;
    conditions.iter().find(|held| held.r#type == "DisruptionTarget" && held.reason == "PreemptionByScheduler")
}

fn nominated(pod: &pb::Pod) -> &str {
    pod.status.as_ref().map_or("", |status| status.nominated_node_name.as_str())
}

/// What `muster explain pod` prints about a pod, once it contains that text.
async fn explained(fleet: &Fleet, pod: &str, text: &str) {
    let controller = fleet.controller.url();
    let args = ["explain", "pod", pod, "--controller", &controller];
    let shown = || async {
        let output = tokio::task::block_in_place(|| muster(&args));
        // The page is wrapped.
        let words: Vec<String> =
            String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect();
        words.join(" ").contains(text).then_some(())
    };
    eventually(TIMEOUT, &format!("{pod} is explained: {text}"), shown).await;
}

/// The messages of the events about a pod, for that reason.
async fn messages(fleet: &Fleet, pod: &str, reason: &str) -> Vec<String> {
    let events = fleet.api.list::<pb::Event>(Default::default()).await.unwrap().records;
    let is_about = |event: &pb::Event| {
        event.reason == reason && event.involved_object.as_ref().is_some_and(|object| object.name == pod)
    };
    events.into_iter().filter(is_about).map(|event| event.message).collect()
}

/// Two nodes without agents, on which nothing ends before the test says so, each with one pod. That of a is less
/// important, but a budget protects it.
async fn prepare(api: &Api) {
    create_class(api, "urgent", 1000).await;
    create_class(api, "batch", 10).await;
    for name in ["a", "b"] {
        let sized = node(name).ready("True").status(|status| {
            let allocatable = [("cpu", "4"), ("memory", "8Gi"), ("pods", "1")];
            status.allocatable = allocatable.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        });
        let created = api.create(sized.clone()).await.unwrap();
        api.update_status(created.status(|status| *status = sized.status.unwrap())).await.unwrap();
    }
    let web = sleeper("web", "a", 600).label("app", "web");
    api.create(budget("web", ("app", "web"), "1")).await.unwrap();
    let created = api.create(web).await.unwrap();
    api.update_status(created.running("True")).await.unwrap();
    let batch = api.create(of_class("batch", "batch").on("b")).await.unwrap();
    api.update_status(batch.running("True")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn s219_a_critical_pod_displaces_one_that_no_budget_protects_and_both_are_explained() {
    // The controller finds everything when it starts: what it decides does not depend on which watch is first.
    let flags = ["--node-monitor-grace-period=1000s", "--node-startup-grace-period=1000s"];
    let fleet = Fleet::with(&flags, |store| {
        let api = store.api();
        tokio::task::block_in_place(|| Handle::current().block_on(prepare(&api)));
    });

    fleet.api.create(of_class("urgent", "urgent")).await.unwrap();

    let victim = pod_where(&fleet.api, "default/batch", "it is displaced", is_terminating).await;
    let condition = displaced(&victim).unwrap();
    assert_eq!(condition.status, "True");
    assert!(condition.message.contains("displaced by pod default/urgent of priority 1000"), "{condition:?}");
    let metadata = victim.metadata.as_ref().unwrap();
    assert_eq!(metadata.deletion_grace_period_seconds, Some(2), "it has its own grace");
    pod_where(&fleet.api, "default/urgent", "it is nominated", |pod| nominated(pod) == "b").await;
    explained(&fleet, "urgent", "displaces batch on node b").await;
    explained(&fleet, "batch", "displaced by pod default/urgent of priority 1000").await;
    eventually(TIMEOUT, "an event says so", || async {
        let messages = messages(&fleet, "batch", "Preempted").await;
        (messages == ["Preempted by pod default/urgent on node b"]).then_some(())
    })
    .await;

    // A pod that is no more important does not get that space: it displaces the only pod that is left.
    fleet
        .api
        .create(
            of_class("late", "urgent").spec(|spec| spec.preemption_policy = "PreemptLowerPriority".into()),
        )
        .await
        .unwrap();
    pod_where(&fleet.api, "default/late", "it displaces the other pod", |pod| nominated(pod) == "a").await;
    let web = pod_where(&fleet.api, "default/web", "there is no other choice", is_terminating).await;
    assert!(displaced(&web).is_some());

    let at_once = muster_tests::Deletion { grace: Some(0), ..Default::default() };
    fleet.api.delete_with::<pb::Pod>("default/batch", at_once).await.unwrap();
    let bound = pod_where(&fleet.api, "default/urgent", "it gets the space", |pod| {
        pod.spec.as_ref().is_some_and(|spec| spec.node_name == "b")
    });
    assert_eq!(nominated(&bound.await), "", "it is nominated no more");
    let late: pb::Pod = fleet.api.get("default/late").await.unwrap();
    assert_eq!((late.spec.as_ref().unwrap().node_name.as_str(), nominated(&late)), ("", "a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn s219_the_program_of_the_displaced_pod_ends_before_the_other_one_starts() {
    let mut fleet = Fleet::start(&[]);
    let launch = fleet.launch("a", "").flag("max-pods", "1");
    let agent = launch.start();
    fleet.node_where("a", "it is ready", muster_tests::agent_process::is_ready).await;
    fleet.api.create(sleeper("low", "", 600)).await.unwrap();
    let low = agent.container_pid("low").await;

    fleet.api.create(of_class("critical", "system-cluster-critical")).await.unwrap();
    agent.container_pid("critical").await;
    assert!(!is_running(low), "its program ended before");
    assert!(fleet.api.get::<pb::Pod>("default/low").await.is_err(), "and its record is gone");
    let placed: pb::Pod = fleet.api.get("default/critical").await.unwrap();
    let spec = placed.spec.unwrap();
    assert_eq!((spec.priority, spec.node_name.as_str()), (Some(2_000_000_000), "a"));
    eventually(TIMEOUT, "an event says so", || async {
        (!messages(&fleet, "low", "Preempted").await.is_empty()).then_some(())
    })
    .await;
}
