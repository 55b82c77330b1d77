//! The log of decisions about a zone that fails, written by real processes.

use std::collections::{BTreeMap, BTreeSet};

use muster_grpc::decision_service_client::DecisionServiceClient;
use muster_proto::pb;
use muster_tests::fleet::{Fleet, is_terminating, pause, ready, resume, sleeper, taints};
use muster_tests::resource::{Resource, WatchQuery};
use muster_tests::store_process::{TIMEOUT, muster};
use muster_tests::{eventually, in_time};

/// A change that a watcher of the store saw: the rule that makes it, the name of its record and the version.
type Change = (&'static str, String, u64);

async fn decisions(fleet: &Fleet) -> Vec<pb::Decision> {
    let mut service = DecisionServiceClient::new(fleet.store.channel());
    let (mut all, mut request) =
        (Vec::new(), pb::ListDecisionsRequest { page_size: 500, ..Default::default() });
    loop {
        let page = in_time("a page of decisions", service.list_decisions(request.clone()))
            .await
            .unwrap()
            .into_inner();
        all.extend(page.decisions);
        if page.next_page_token.is_empty() {
            all.reverse();
            return all;
        }
        request.page_token = page.next_page_token;
    }
}

/// What the controller did to the nodes, by what a watcher sees, until each of them has failed and recovered.
async fn node_changes(fleet: &Fleet, from: u64, nodes: Vec<pb::Node>) -> (Vec<Change>, BTreeSet<u64>) {
    let query = WatchQuery { version: from, ..WatchQuery::default() };
    let mut watch = fleet.api.watch::<pb::Node>(query).await.unwrap();
    let (mut changes, mut versions) = (Vec::new(), BTreeSet::new());
    let mut last: BTreeMap<String, pb::Node> =
        nodes.into_iter().map(|node| (node.name().to_owned(), node)).collect();
    let (mut failed, mut recovered) = (BTreeSet::new(), BTreeSet::new());
    while recovered.len() < last.len() {
        let node = watch.next().await.record;
        let (name, version) = (node.name().to_owned(), node.version());
        versions.insert(version);
        let Some(before) = last.get(&name).filter(|before| before.version() < version).cloned() else {
            continue;
        };
        let with = |node: &pb::Node, effect: &str| -> Vec<String> {
            taints(node).into_iter().filter(|taint| taint.ends_with(effect)).collect()
        };
        let mut add = |rule| changes.push((rule, name.clone(), version));
        if ready(&before) == "True" && ready(&node) == "Unknown" {
            add("grace-period-passed");
            failed.insert(name.clone());
        }
        match (with(&before, ":NoExecute"), with(&node, ":NoExecute")) {
            (old, new) if old.is_empty() && !new.is_empty() => add("health-taint"),
            (old, new) if !old.is_empty() && new.is_empty() => add("health-taint-removed"),
            _ => {}
        }
        if with(&before, ":NoSchedule") != with(&node, ":NoSchedule") {
            add("condition-taints");
        }
        if failed.contains(&name) && ready(&node) == "True" && taints(&node).is_empty() {
            recovered.insert(name.clone());
        }
        last.insert(name, node);
    }
    (changes, versions)
}

/// The same for pods, until each of them is gone.
async fn pod_changes(fleet: &Fleet, from: u64, pods: Vec<pb::Pod>) -> (Vec<Change>, BTreeSet<u64>) {
    let query = WatchQuery { version: from, ..WatchQuery::default() };
    let mut watch = fleet.api.watch::<pb::Pod>(query).await.unwrap();
    let mut last: BTreeMap<String, pb::Pod> =
        pods.into_iter().map(|pod| (pod.name().to_owned(), pod)).collect();
    let (mut changes, mut versions, mut gone) = (Vec::new(), BTreeSet::new(), 0);
    let expected = last.len();
    while gone < expected {
        let event = watch.next().await;
        let (name, version) = (event.record.name().to_owned(), event.record.version());
        versions.insert(version);
        let before = last.insert(name.clone(), event.record.clone());
        if event.kind == "DELETED" {
            gone += 1;
            continue;
        }
        let Some(before) = before else { continue };
        if is_pod_ready(&before) && !is_pod_ready(&event.record) {
            changes.push(("pod-not-ready", name.clone(), version));
        }
        if !is_terminating(&before) && is_terminating(&event.record) {
            changes.push(("toleration-over", name, version));
        }
    }
    (changes, versions)
}

fn is_pod_ready(pod: &pb::Pod) -> bool {
    let status = pod.status.as_ref();
    status.is_some_and(|it| it.conditions.iter().any(|held| held.r#type == "Ready" && held.status == "True"))
}

fn is_written(decision: &pb::Decision) -> bool {
    decision.outcome.as_ref().is_some_and(|outcome| outcome.result() == pb::DecisionResult::Written)
}

fn is_found(decision: &pb::Decision) -> bool {
    decision.outcome.as_ref().is_some_and(|outcome| outcome.reason.starts_with("found in the store"))
}

/// The changes that no decision explains.
fn unexplained(changes: &[Change], decisions: &[pb::Decision]) -> Vec<Change> {
    let explains = |decision: &pb::Decision, (rule, name, version): &Change| {
        let subject = decision.subject.as_ref().expect("it has a subject");
        let revision = decision.outcome.as_ref().map_or(0, |outcome| outcome.revision);
        decision.rule == *rule
            && subject.name == *name
            && is_written(decision)
            // What a new leader finds was written at that version or before.
            && (revision == *version || (is_found(decision) && revision >= *version))
    };
    let is_missing = |change: &&Change| !decisions.iter().any(|decision| explains(decision, change));
    changes.iter().filter(is_missing).cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn s257_a_zone_outage_is_in_the_log_in_causal_order_though_the_controller_is_killed_in_the_middle() {
    let mut fleet = Fleet::start(&[]);
    let healthy = fleet.agent("b1", "b").await;
    let agents = [fleet.agent("a1", "a").await, fleet.agent("a2", "a").await];
    let mut pods = Vec::new();
    for (name, node) in [("p1", "a1"), ("p2", "a2")] {
        fleet.api.create(sleeper(name, node, 2)).await.unwrap();
        let path = format!("default/{name}");
        let ready = eventually(TIMEOUT, "the pod is ready", || async {
            fleet.api.get::<pb::Pod>(&path).await.ok().filter(is_pod_ready)
        });
        pods.push(ready.await);
    }
    let nodes = vec![fleet.api.get::<pb::Node>("a1").await.unwrap(), fleet.api.get("a2").await.unwrap()];
    let from = fleet.api.revision().await;
    agents.iter().for_each(pause);
    let is_tainted = |node: &pb::Node| taints(node).iter().any(|taint| taint.ends_with(":NoExecute"));
    fleet.node_where("a1", "it is tainted NoExecute", is_tainted).await;
    fleet.replace_controller(&[]);
    for name in ["p1", "p2"] {
        let path = format!("default/{name}");
        eventually(TIMEOUT, "the pod is evicted", || async {
            fleet.api.get::<pb::Pod>(&path).await.ok().filter(is_terminating)
        })
        .await;
    }
    agents.iter().for_each(resume);
    let (mut changes, mut versions) = node_changes(&fleet, from, nodes).await;
    let (of_pods, of_pods_versions) = pod_changes(&fleet, from, pods).await;
    changes.extend(of_pods);
    versions.extend(of_pods_versions);
    let rules: BTreeSet<&str> = changes.iter().map(|(rule, ..)| *rule).collect();
    assert!(rules.contains("health-taint") && rules.contains("toleration-over"), "{changes:?}");

    let recorded = eventually(TIMEOUT, "every change is in the log", || async {
        let recorded = decisions(&fleet).await;
        let missing = unexplained(&changes, &recorded);
        let gone = recorded.iter().filter(|decision| decision.rule == "pod-gone").count();
        if !missing.is_empty() {
            println!("not in the log yet: {missing:?}");
        }
        (missing.is_empty() && gone >= 2).then_some(recorded)
    })
    .await;
    let ids: Vec<u64> = recorded.iter().map(|decision| decision.id).collect();
    assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<u64>>(), "one log without a gap");
    let leaders: BTreeSet<(u64, &str)> = recorded.iter().map(|it| (it.term, it.leader.as_str())).collect();
    assert_eq!(leaders.len(), 2, "two leaders wrote it: {leaders:?}");
    let terms: Vec<u64> = recorded.iter().map(|decision| decision.term).collect();
    assert!(terms.is_sorted(), "one after the other: {terms:?}");
    assert!(recorded.iter().all(|decision| decision.follows < decision.id), "a cause comes first");
    let newest = versions.last().copied().unwrap_or(from);
    let of_zone = |name: &str| ["a1", "a2", "p1", "p2"].contains(&name);
    for decision in recorded.iter().filter(|it| is_written(it) && !is_found(it)) {
        let outcome = decision.outcome.as_ref().unwrap();
        let subject = decision.subject.as_ref().unwrap();
        if of_zone(&subject.name) && (from + 1..=newest).contains(&outcome.revision) {
            assert!(
                versions.contains(&outcome.revision),
                "it is recorded as done and was not written: {decision:?}"
            );
        }
    }
    let by_id = |id: u64| recorded.iter().find(|decision| decision.id == id);
    for evicted in recorded.iter().filter(|it| it.rule == "toleration-over" && is_written(it)) {
        let mut rules = vec![evicted.rule.as_str()];
        let mut next = by_id(evicted.follows);
        while let Some(decision) = next {
            rules.push(&decision.rule);
            next = by_id(decision.follows);
        }
        assert_eq!(
            rules.last(),
            Some(&"grace-period-passed"),
            "an eviction leads back to the silence: {rules:?}"
        );
    }
    check_commands(&fleet);
    drop(healthy);
}

/// Checks that a page has these texts, each after the one before.
fn check_steps(page: &str, steps: &[&str]) {
    steps.iter().fold(page, |rest, step| {
        let found = rest.split_once(step).map(|(_, behind)| behind);
        found.unwrap_or_else(|| panic!("{step:?} is not behind the steps before it in\n{page}"))
    });
}

/// What `muster why` and `muster decisions` say of the outage.
fn check_commands(fleet: &Fleet) {
    let url = fleet.store.url();
    let run = |args: &[&str]| {
        let output = muster(&[args, &["--store", &url][..]].concat());
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.success(), "{args:?}: {err}");
        out
    };
    let page = run(&["why", "node", "a1"]);
    let steps = ["No sign of life for", "health-taint,", "The node gives signs of life"];
    check_steps(&page, &steps);
    assert!(page.contains("pod default/p1:"), "the pods of the node are there too:\n{page}");
    assert!(page.contains("zone /a: The zone is in FullDisruption"), "and its zone:\n{page}");
    let page = run(&["why", "pod", "p1"]);
    let steps =
        ["No sign of life for", "tolerates the taint", "toleration-over", "The record of the pod is gone"];
    check_steps(&page, &steps);
    assert!(run(&["why", "zone", "/a"]).contains("zone-state"));
    let json: serde_json::Value = serde_json::from_str(&run(&["why", "node", "a1", "-o", "json"])).unwrap();
    assert!(json["decisions"].as_array().is_some_and(|decisions| decisions.len() > 5), "{json}");
    let table = run(&["decisions", "--rule", "health-taint", "--since", "1h"]);
    assert!(table.lines().count() >= 3 && table.contains("node a1"), "{table}");
    let nothing = muster(&["why", "node", "a1", "--at", "2020-01-01T00:00:00Z", "--store", &url]);
    assert_eq!(nothing.status.code(), Some(3), "there was nothing then");
}
