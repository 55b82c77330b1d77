use muster_proto::condition::ConditionStatus::{False, True, Unknown};
use muster_proto::pod::PodPhase;

use self::harness::Harness;
use super::*;
use crate::fixtures::{NodeSample, PodSample, at, node, pod};

mod harness;
mod invariants;

const OFF: &str = "node.kubernetes.io/out-of-service=nodeshutdown:NoSchedule";

fn off(name: &str) -> NodeSample {
    node(name).ready(Unknown).taint(OFF)
}

fn running(name: &str) -> PodSample {
    pod(name).running(True)
}

#[test]
fn s159_the_pods_of_a_deleted_node_are_deleted_forty_to_eighty_seconds_later() {
    for deleted_at in [0, 1, 10, 19] {
        let mut harness = Harness::new();
        harness.node(node("n").ready(True));
        for name in ["a", "b", "c"] {
            harness.pod(running(name).on("n"));
        }
        assert_eq!(harness.run_until(deleted_at), Vec::<String>::new());
        harness.delete_node("n");
        let ended = harness.run_until(200);
        let expected = ["a", "b", "c"]
            .map(|name| format!("60 {name} Failed DeletionByPodGC: PodGC: node no longer exists"));
        let expected = if deleted_at == 0 { expected.map(|line| line.replace("60", "40")) } else { expected };
        let (read, ended) = ended.split_first().unwrap();
        assert_eq!(
            (read[2..].to_owned(), ended),
            (" n?".to_owned(), &expected[..]),
            "deleted at {deleted_at}"
        );
        assert_eq!(harness.run_until(1_000), Vec::<String>::new());
    }
}

#[test]
fn a_pod_of_a_node_that_does_not_exist_leaves_an_event() {
    let mut harness = Harness::new();
    harness.pod(pod("p").on("a"));
    harness.run_until(100);
    let texts: Vec<(&str, &str)> =
        harness.events.iter().map(|event| (event.reason.as_str(), event.message.as_str())).collect();
    assert_eq!(texts, [("NodeGone", "Node a does not exist, so the pod is removed")]);
}

#[test]
fn s160_a_node_that_comes_back_in_time_keeps_its_pods() {
    let mut harness = Harness::new();
    harness.node(node("n").ready(True));
    harness.pod(running("a").on("n"));
    harness.run_until(5);
    harness.delete_node("n");
    assert_eq!(harness.pod_gc.forecast("n"), PodGcForecast::NodeMissing { until: at(45).mono });
    harness.run_until(35);
    harness.node(node("n").identity("another"));
    assert_eq!(harness.pod_gc.forecast("n"), PodGcForecast::None);
    assert_eq!(harness.run_until(500), Vec::<String>::new());
}

#[test]
fn s160_a_node_that_comes_back_while_it_is_read_keeps_its_pods() {
    let mut harness = Harness::new();
    harness.pod(running("a").on("n"));
    harness.run_until(39);
    harness.millis = 40_000;
    let read = harness.decide().actions.remove(0);
    assert_eq!((&read.action, harness.pod_gc.forecast("n")), (&Action::ReadNode, PodGcForecast::Deleting));
    assert!(harness.decide().actions.is_empty(), "it is read once");
    harness.node(node("n"));
    harness.settle(&read, Err(Failure::Gone));
    assert_eq!(harness.run_until(500), Vec::<String>::new());
}

#[test]
fn the_outcome_of_an_old_read_is_ignored_after_the_node_came_and_went() {
    let mut harness = Harness::new();
    harness.pod(running("a").on("n"));
    harness.run_until(39);
    harness.millis = 40_000;
    let read = harness.decide().actions.remove(0);
    harness.node(node("n"));
    harness.delete_node("n");
    harness.settle(&read, Err(Failure::Gone));
    assert_eq!(harness.pod_gc.forecast("n"), PodGcForecast::NodeMissing { until: at(80).mono });
    assert_eq!(harness.run_until(79), Vec::<String>::new());
    assert_eq!(harness.run_until(80)[0], "80 n?");
}

#[test]
fn quarantine_is_not_extended_by_more_pods_or_changes() {
    let mut harness = Harness::new();
    harness.pod(running("a").on("n"));
    harness.run_until(30);
    harness.pod(running("b").on("n"));
    harness.change_pod("a", |pod| pod.status.message = "changed".to_owned());
    let ended = harness.run_until(59);
    assert_eq!(ended.len(), 3, "{ended:?}");
    assert_eq!(ended[1..].iter().map(|line| &line[..4]).collect::<Vec<_>>(), ["40 a", "40 b"]);
}

#[test]
fn pods_stay_unless_the_store_confirms_that_the_node_is_gone() {
    let answer = Ok(Answer::Node(Box::new(node("n").build())));
    for result in [answer, Err(Failure::Later("busy".to_owned())), Err(Failure::Unknown(String::new()))] {
        let mut harness = Harness::new();
        harness.pod(running("a").on("n"));
        harness.run_until(39);
        harness.millis = 40_000;
        let read = harness.decide().actions.remove(0);
        harness.settle(&read, result);
        assert_eq!(harness.run_until(79), Vec::<String>::new());
        assert_eq!(harness.run_until(80)[0], "80 n?", "after another quarantine it is read again");
    }
}

#[test]
fn s161_terminating_pods_on_an_out_of_service_node_are_deleted() {
    for (what, sample, wanted, is_removed) in [
        ("all of it", off("n"), running("a").deleting(30), true),
        ("no taint", node("n").ready(Unknown), running("a").deleting(30), false),
        ("it is ready", off("n").ready(True), running("a").deleting(30), false),
        ("not being deleted", off("n"), running("a"), false),
        ("NotReady is enough", off("n").ready(False), running("a").deleting(30), true),
        ("never said whether it is ready", node("n").taint(OFF), running("a").deleting(30), true),
    ] {
        let mut harness = Harness::new();
        harness.run_until(1);
        harness.node(sample);
        harness.pod(wanted.on("n"));
        let ended = harness.run_until(22);
        let expected = "20 a Failed DeletionByPodGC: PodGC: the node is out of service";
        assert_eq!(ended, if is_removed { vec![expected] } else { vec![] }, "{what}");
        if !is_removed {
            assert_eq!(harness.run_until(300), Vec::<String>::new(), "{what}");
        }
    }
}

#[test]
fn s162_pods_of_an_out_of_service_node_are_deleted_at_the_next_pass() {
    let mut harness = Harness::new();
    harness.node(node("n").ready(Unknown).taint("node.kubernetes.io/out-of-service:NoExecute"));
    harness.pod(running("a").on("n"));
    harness.pod(running("b").on("n"));
    assert_eq!(harness.run_until(25), Vec::<String>::new());
    // The taint evicts them; their agent does not respond.
    for name in ["a", "b"] {
        harness.change_pod(name, |pod| pod.meta.deletion_timestamp = Some(at(55).wall));
    }
    assert_eq!(harness.pod_gc.terminating_on("n").count(), 2);
    assert_eq!(harness.pod_gc.forecast("n"), PodGcForecast::OutOfService { at: at(40).mono });
    let ended = harness.run_until(46);
    assert_eq!(ended.iter().map(|line| &line[..4]).collect::<Vec<_>>(), ["40 a", "40 b"]);
}

#[test]
fn s163_a_terminating_pod_that_was_never_bound_is_deleted() {
    let mut harness = Harness::new();
    harness.run_until(7);
    harness.pod(pod("a").deleting(30));
    harness.pod(pod("b"));
    let expected = "20 a Failed DeletionByPodGC: PodGC: the pod was never bound";
    assert_eq!(harness.run_until(28), [expected]);
}

fn ended(name: &str, phase: PodPhase, created: i64, reason: &str) -> PodSample {
    pod(name).phase(phase).with(|pod| {
        pod.status.reason = reason.to_owned();
        pod.meta.creation_timestamp = jiff::Timestamp::from_second(created).ok();
    })
}

#[test]
fn s164_of_too_many_terminated_pods_evicted_ones_are_deleted_first_and_then_the_oldest() {
    use PodPhase::{Failed, Running, Succeeded};
    let fill = |harness: &mut Harness| {
        harness.node(node("n"));
        harness.pod(ended("a", Failed, 100, "").on("n"));
        harness.pod(ended("b", Succeeded, 200, "").on("n"));
        harness.pod(ended("c", Failed, 300, "Evicted").on("n"));
        harness.pod(ended("d", Running, 50, "").on("n"));
    };
    for (terminated_pod_threshold, expected) in [
        (Some(0), vec!["0 c gone", "0 a gone", "0 b gone"]),
        (Some(1), vec!["0 c gone", "0 a gone"]),
        (Some(2), vec!["0 c gone"]),
        (Some(3), vec![]),
        (None, vec![]),
    ] {
        let mut harness = Harness::with(Settings { terminated_pod_threshold, ..Settings::default() });
        fill(&mut harness);
        assert_eq!(harness.run_until(100), expected, "{terminated_pod_threshold:?}");
    }
}

#[test]
fn terminated_pods_of_one_age_are_deleted_by_name() {
    let mut harness = Harness::with(Settings { terminated_pod_threshold: Some(1), ..Settings::default() });
    harness.node(node("n"));
    for name in ["b", "c", "a"] {
        harness.pod(ended(name, PodPhase::Succeeded, 100, "").on("n"));
    }
    assert_eq!(harness.run_until(1), ["0 a gone", "0 b gone"]);
}

#[test]
fn a_terminated_pod_is_not_marked_as_failed() {
    let mut harness = Harness::new();
    harness.pod(pod("a").phase(PodPhase::Succeeded).on("n"));
    harness.pod(pod("b").phase(PodPhase::Succeeded).deleting(0));
    assert_eq!(harness.run_until(1), ["0 b gone"]);
    assert_eq!(harness.run_until(41), ["40 n?", "40 a gone"]);
}

#[test]
fn one_decision_deletes_a_batch_and_the_rest_follows_at_once() {
    let mut harness =
        Harness::with(Settings { batch: 2, terminated_pod_threshold: Some(1), ..Settings::default() });
    for i in 0..6 {
        harness.pod(ended(&format!("e{i}"), PodPhase::Succeeded, i, "").on("n"));
    }
    for i in 0..3 {
        harness.pod(pod(&format!("u{i}")).deleting(0));
    }
    let sizes = |harness: &mut Harness| {
        let plan = harness.decide();
        (plan.actions.len(), plan.wake_at == Some(harness.now().mono))
    };
    assert_eq!(
        [(); 5].map(|()| sizes(&mut harness)),
        [(2, true), (2, true), (2, true), (2, true), (0, false)]
    );
    harness.millis = 40_000;
    let read = harness.decide().actions.remove(0);
    harness.settle(&read, Err(Failure::Gone));
    assert_eq!(
        sizes(&mut harness),
        (1, false),
        "the one below the threshold; the deletions of the others are in flight"
    );
}

#[test]
fn a_failed_deletion_is_retried_at_the_next_pass_and_none_is_planned_twice() {
    for failure in [
        Failure::Conflict,
        Failure::Gone,
        Failure::Later(String::new()),
        Failure::Unknown(String::new()),
        Failure::Refused(String::new()),
    ] {
        let mut harness = Harness::new();
        harness.pod(pod("a").deleting(30));
        let planned = harness.decide().actions.remove(0);
        harness.millis = 25_000;
        assert!(harness.decide().actions.is_empty(), "it is in flight");
        harness.settle(&planned, Err(failure.clone()));
        assert_eq!(harness.run_until(44), Vec::<String>::new(), "{failure:?}");
        assert_eq!(harness.run_until(45).len(), 1, "{failure:?}");
    }
}

#[test]
fn a_pod_with_finalizers_is_deleted_once() {
    let mut harness = Harness::new();
    harness.pod(pod("a").deleting(0).with(|pod| pod.meta.finalizers = vec!["example.com/hold".to_owned()]));
    assert_eq!(harness.run_until(100).len(), 1);
    harness.change_pod("a", |pod| pod.meta.labels = Default::default());
    assert_eq!(harness.run_until(200).len(), 1, "it has changed since");
}

#[test]
fn a_pod_of_the_same_name_with_another_uid_is_another_pod() {
    let mut harness = Harness::new();
    harness.pod(pod("a").deleting(30));
    let planned = harness.decide().actions.remove(0);
    harness.pod(pod("a").identity("other").deleting(30));
    harness.millis = 20_000;
    let other = harness.decide().actions.remove(0);
    assert_ne!(planned.subject, other.subject);
    harness.settle(&planned, Err(Failure::Gone));
    harness.millis = 40_000;
    assert!(harness.decide().actions.is_empty(), "the deletion of the other pod is still in flight");
}

#[test]
fn a_delayed_deletion_is_obsolete_once_the_node_has_been_back() {
    let mut harness = Harness::new();
    harness.pod(running("a").on("n"));
    harness.run_until(39);
    harness.millis = 40_000;
    let read = harness.decide().actions.remove(0);
    harness.settle(&read, Err(Failure::Gone));
    let planned = harness.decide().actions.remove(0);
    let Subject::Pod(key, uid) = &planned.subject else { panic!("{planned:?}") };
    assert!(harness.pod_gc.is_due(key, *uid, &harness.world));
    harness.node(node("n"));
    assert!(!harness.pod_gc.is_due(key, *uid, &harness.world));
    harness.delete_node("n");
    assert!(!harness.pod_gc.is_due(key, *uid, &harness.world), "it has a new quarantine");
    // So the deletion is dropped, and planned again only after the quarantine.
    harness.settle(&planned, Err(Failure::Later("dropped".to_owned())));
    assert_eq!(harness.run_until(79), Vec::<String>::new());
    assert_eq!(harness.run_until(80).len(), 2, "the node is read, and then the pod is deleted");
}

#[test]
fn a_delayed_deletion_stays_due_while_its_cause_holds() {
    let mut harness = Harness::with(Settings { terminated_pod_threshold: Some(0), ..Settings::default() });
    harness.node(off("n"));
    harness.pod(ended("a", PodPhase::Succeeded, 1, "").on("n"));
    harness.pod(running("b").on("n").deleting(30));
    harness.pod(pod("c").deleting(30));
    let actions = harness.decide().actions;
    let due = |harness: &Harness| -> Vec<bool> {
        let subjects = actions.iter().map(|planned| &planned.subject);
        let of = |subject: &Subject| match subject {
            Subject::Pod(key, uid) => harness.pod_gc.is_due(key, *uid, &harness.world),
            other => panic!("{other:?}"),
        };
        subjects.map(of).collect()
    };
    assert_eq!(due(&harness), [true, true, true]);
    harness.node(off("n").ready(True));
    assert_eq!(due(&harness), [true, false, true], "the agent is back and stops it");
    harness.change_pod("c", |pod| pod.spec.node_name = "n".parse().ok());
    assert_eq!(due(&harness), [true, false, false]);
    harness.pod(pod("a").identity("another"));
    assert_eq!(due(&harness), [false, false, false], "it is another pod by now");
}

#[test]
fn quarantine_continues_while_there_are_no_decisions() {
    let mut harness = Harness::new();
    harness.pod(running("a").on("n"));
    harness.run_until(10);
    // The watch is broken for a while, so there are no decisions.
    harness.millis = 90_000;
    assert_eq!(harness.run_until(90)[0], "90 n?");
}
