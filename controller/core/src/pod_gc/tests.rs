use muster_proto::condition::ConditionStatus::{False, True, Unknown};
use muster_proto::pod::PodPhase;

use self::harness::Bench;
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
fn s159_the_pods_of_a_node_that_is_gone_go_forty_to_eighty_seconds_later() {
    for deleted_at in [0, 1, 10, 19] {
        let mut bench = Bench::new();
        bench.node(node("n").ready(True));
        for name in ["a", "b", "c"] {
            bench.pod(running(name).on("n"));
        }
        assert_eq!(bench.run_until(deleted_at), Vec::<String>::new());
        bench.delete_node("n");
        let ended = bench.run_until(200);
        let expected = ["a", "b", "c"]
            .map(|name| format!("60 {name} Failed DeletionByPodGC: PodGC: node no longer exists"));
        let expected = if deleted_at == 0 { expected.map(|line| line.replace("60", "40")) } else { expected };
        let (asked, ended) = ended.split_first().unwrap();
        assert_eq!(
            (asked[2..].to_owned(), ended),
            (" n?".to_owned(), &expected[..]),
            "deleted at {deleted_at}"
        );
        assert_eq!(bench.run_until(1_000), Vec::<String>::new());
    }
}

#[test]
fn s160_a_node_that_comes_back_in_time_keeps_its_pods() {
    let mut bench = Bench::new();
    bench.node(node("n").ready(True));
    bench.pod(running("a").on("n"));
    bench.run_until(5);
    bench.delete_node("n");
    assert_eq!(bench.collection.explain_node("n"), Prospect::Orphaned { until: at(45).mono });
    bench.run_until(35);
    bench.node(node("n").identity("another"));
    assert_eq!(bench.collection.explain_node("n"), Prospect::Left);
    assert_eq!(bench.run_until(500), Vec::<String>::new());
}

#[test]
fn s160_a_node_that_comes_back_while_the_store_is_asked_keeps_them_too() {
    let mut bench = Bench::new();
    bench.pod(running("a").on("n"));
    bench.run_until(39);
    bench.millis = 40_000;
    let question = bench.decide().actions.remove(0);
    assert_eq!(
        (&question.action, bench.collection.explain_node("n")),
        (&Action::ReadNode, Prospect::Condemned)
    );
    assert!(bench.decide().actions.is_empty(), "it is asked once");
    bench.node(node("n"));
    bench.settle(&question, Err(Failure::Gone));
    assert_eq!(bench.run_until(500), Vec::<String>::new());
}

#[test]
fn an_old_answer_says_nothing_about_a_node_that_came_and_went_since() {
    let mut bench = Bench::new();
    bench.pod(running("a").on("n"));
    bench.run_until(39);
    bench.millis = 40_000;
    let question = bench.decide().actions.remove(0);
    bench.node(node("n"));
    bench.delete_node("n");
    bench.settle(&question, Err(Failure::Gone));
    assert_eq!(bench.collection.explain_node("n"), Prospect::Orphaned { until: at(80).mono });
    assert_eq!(bench.run_until(79), Vec::<String>::new());
    assert_eq!(bench.run_until(80)[0], "80 n?");
}

#[test]
fn quarantine_is_not_extended_by_more_of_the_same() {
    let mut bench = Bench::new();
    bench.pod(running("a").on("n"));
    bench.run_until(30);
    bench.pod(running("b").on("n"));
    bench.change_pod("a", |pod| pod.status.message = "news".to_owned());
    let ended = bench.run_until(59);
    assert_eq!(ended.len(), 3, "{ended:?}");
    assert_eq!(ended[1..].iter().map(|line| &line[..4]).collect::<Vec<_>>(), ["40 a", "40 b"]);
}

#[test]
fn unless_the_store_says_that_there_is_no_such_node_its_pods_stay() {
    let answer = Ok(Answer::Node(Box::new(node("n").build())));
    for result in [answer, Err(Failure::Later("busy".to_owned())), Err(Failure::Unknown(String::new()))] {
        let mut bench = Bench::new();
        bench.pod(running("a").on("n"));
        bench.run_until(39);
        bench.millis = 40_000;
        let question = bench.decide().actions.remove(0);
        bench.settle(&question, result);
        assert_eq!(bench.run_until(79), Vec::<String>::new());
        assert_eq!(bench.run_until(80)[0], "80 n?", "after another quarantine it is asked again");
    }
}

#[test]
fn s161_pods_that_end_on_a_node_that_is_off_are_removed() {
    for (what, sample, wanted, is_removed) in [
        ("all of it", off("n"), running("a").deleting(30), true),
        ("no taint", node("n").ready(Unknown), running("a").deleting(30), false),
        ("it is ready", off("n").ready(True), running("a").deleting(30), false),
        ("it does not end", off("n"), running("a"), false),
        ("not ready will do", off("n").ready(False), running("a").deleting(30), true),
        ("never said whether it is ready", node("n").taint(OFF), running("a").deleting(30), true),
    ] {
        let mut bench = Bench::new();
        bench.run_until(1);
        bench.node(sample);
        bench.pod(wanted.on("n"));
        let ended = bench.run_until(22);
        let expected = "20 a Failed DeletionByPodGC: PodGC: the node is out of service";
        assert_eq!(ended, if is_removed { vec![expected] } else { vec![] }, "{what}");
        if !is_removed {
            assert_eq!(bench.run_until(300), Vec::<String>::new(), "{what}");
        }
    }
}

#[test]
fn s162_taken_out_of_service_pods_end_and_are_removed_at_the_next_pass() {
    let mut bench = Bench::new();
    bench.node(node("n").ready(Unknown).taint("node.kubernetes.io/out-of-service:NoExecute"));
    bench.pod(running("a").on("n"));
    bench.pod(running("b").on("n"));
    assert_eq!(bench.run_until(25), Vec::<String>::new());
    // The taint drives them off; their agent will not answer.
    for name in ["a", "b"] {
        bench.change_pod(name, |pod| pod.meta.deletion_timestamp = Some(at(55).wall));
    }
    assert_eq!(bench.collection.ending_on("n").count(), 2);
    assert_eq!(bench.collection.explain_node("n"), Prospect::OutOfService { at: at(40).mono });
    let ended = bench.run_until(46);
    assert_eq!(ended.iter().map(|line| &line[..4]).collect::<Vec<_>>(), ["40 a", "40 b"]);
}

#[test]
fn s163_a_pod_that_ends_and_was_never_bound_is_removed() {
    let mut bench = Bench::new();
    bench.run_until(7);
    bench.pod(pod("a").deleting(30));
    bench.pod(pod("b"));
    let expected = "20 a Failed DeletionByPodGC: PodGC: the pod was never bound";
    assert_eq!(bench.run_until(28), [expected]);
}

fn ended(name: &str, phase: PodPhase, created: i64, reason: &str) -> PodSample {
    pod(name).phase(phase).with(|pod| {
        pod.status.reason = reason.to_owned();
        pod.meta.creation_timestamp = jiff::Timestamp::from_second(created).ok();
    })
}

#[test]
fn s164_of_too_many_that_have_ended_evicted_ones_go_first_and_then_the_oldest() {
    use PodPhase::{Failed, Running, Succeeded};
    let fill = |bench: &mut Bench| {
        bench.node(node("n"));
        bench.pod(ended("a", Failed, 100, "").on("n"));
        bench.pod(ended("b", Succeeded, 200, "").on("n"));
        bench.pod(ended("c", Failed, 300, "Evicted").on("n"));
        bench.pod(ended("d", Running, 50, "").on("n"));
    };
    for (kept, expected) in [
        (Some(0), vec!["0 c gone", "0 a gone", "0 b gone"]),
        (Some(1), vec!["0 c gone", "0 a gone"]),
        (Some(2), vec!["0 c gone"]),
        (Some(3), vec![]),
        (None, vec![]),
    ] {
        let mut bench = Bench::with(Settings { kept, ..Settings::default() });
        fill(&mut bench);
        assert_eq!(bench.run_until(100), expected, "{kept:?}");
    }
}

#[test]
fn pods_of_one_age_go_by_name() {
    let mut bench = Bench::with(Settings { kept: Some(1), ..Settings::default() });
    bench.node(node("n"));
    for name in ["b", "c", "a"] {
        bench.pod(ended(name, PodPhase::Succeeded, 100, "").on("n"));
    }
    assert_eq!(bench.run_until(1), ["0 a gone", "0 b gone"]);
}

#[test]
fn what_has_ended_is_not_marked_as_failed() {
    let mut bench = Bench::new();
    bench.pod(pod("a").phase(PodPhase::Succeeded).on("n"));
    bench.pod(pod("b").phase(PodPhase::Succeeded).deleting(0));
    assert_eq!(bench.run_until(1), ["0 b gone"]);
    assert_eq!(bench.run_until(41), ["40 n?", "40 a gone"]);
}

#[test]
fn one_decision_ends_only_so_many_and_the_rest_at_once() {
    let mut bench = Bench::with(Settings { batch: 2, kept: Some(1), ..Settings::default() });
    for i in 0..6 {
        bench.pod(ended(&format!("e{i}"), PodPhase::Succeeded, i, "").on("n"));
    }
    for i in 0..3 {
        bench.pod(pod(&format!("u{i}")).deleting(0));
    }
    let sizes = |bench: &mut Bench| {
        let plan = bench.decide();
        (plan.actions.len(), plan.wake_at == Some(bench.now().mono))
    };
    assert_eq!([(); 5].map(|()| sizes(&mut bench)), [(2, true), (2, true), (2, true), (2, true), (0, false)]);
    bench.millis = 40_000;
    let question = bench.decide().actions.remove(0);
    bench.settle(&question, Err(Failure::Gone));
    assert_eq!(sizes(&mut bench), (1, false), "the one that is kept; the end of the others is under way");
}

#[test]
fn what_failed_is_tried_at_the_next_pass_and_nothing_is_asked_for_twice() {
    for failure in [
        Failure::Conflict,
        Failure::Gone,
        Failure::Later(String::new()),
        Failure::Unknown(String::new()),
        Failure::Refused(String::new()),
    ] {
        let mut bench = Bench::new();
        bench.pod(pod("a").deleting(30));
        let proposal = bench.decide().actions.remove(0);
        bench.millis = 25_000;
        assert!(bench.decide().actions.is_empty(), "it is under way");
        bench.settle(&proposal, Err(failure.clone()));
        assert_eq!(bench.run_until(44), Vec::<String>::new(), "{failure:?}");
        assert_eq!(bench.run_until(45).len(), 1, "{failure:?}");
    }
}

#[test]
fn a_pod_that_finalizers_hold_is_asked_for_once() {
    let mut bench = Bench::new();
    bench.pod(pod("a").deleting(0).with(|pod| pod.meta.finalizers = vec!["example.com/hold".to_owned()]));
    assert_eq!(bench.run_until(100).len(), 1);
    bench.change_pod("a", |pod| pod.meta.labels = Default::default());
    assert_eq!(bench.run_until(200).len(), 1, "it has changed since");
}

#[test]
fn a_namesake_is_another_pod() {
    let mut bench = Bench::new();
    bench.pod(pod("a").deleting(30));
    let proposal = bench.decide().actions.remove(0);
    bench.pod(pod("a").identity("other").deleting(30));
    bench.millis = 20_000;
    let other = bench.decide().actions.remove(0);
    assert_ne!(proposal.subject, other.subject);
    bench.settle(&proposal, Err(Failure::Gone));
    bench.millis = 40_000;
    assert!(bench.decide().actions.is_empty(), "the end of the other one is under way still");
}

#[test]
fn an_end_that_had_to_wait_is_not_due_once_the_node_has_been_back() {
    let mut bench = Bench::new();
    bench.pod(running("a").on("n"));
    bench.run_until(39);
    bench.millis = 40_000;
    let question = bench.decide().actions.remove(0);
    bench.settle(&question, Err(Failure::Gone));
    let proposal = bench.decide().actions.remove(0);
    let Subject::Pod(key, uid) = &proposal.subject else { panic!("{proposal:?}") };
    assert!(bench.collection.is_due(key, *uid, &bench.world));
    bench.node(node("n"));
    assert!(!bench.collection.is_due(key, *uid, &bench.world));
    bench.delete_node("n");
    assert!(!bench.collection.is_due(key, *uid, &bench.world), "it has a new quarantine");
    // So it is dropped, and asked for again only after that.
    bench.settle(&proposal, Err(Failure::Later("dropped".to_owned())));
    assert_eq!(bench.run_until(79), Vec::<String>::new());
    assert_eq!(bench.run_until(80).len(), 2, "the store is asked for the node, and then the pod goes");
}

#[test]
fn an_end_that_had_to_wait_stays_due_while_its_cause_holds() {
    let mut bench = Bench::with(Settings { kept: Some(0), ..Settings::default() });
    bench.node(off("n"));
    bench.pod(ended("a", PodPhase::Succeeded, 1, "").on("n"));
    bench.pod(running("b").on("n").deleting(30));
    bench.pod(pod("c").deleting(30));
    let actions = bench.decide().actions;
    let due = |bench: &Bench| -> Vec<bool> {
        let subjects = actions.iter().map(|proposal| &proposal.subject);
        let of = |subject: &Subject| match subject {
            Subject::Pod(key, uid) => bench.collection.is_due(key, *uid, &bench.world),
            other => panic!("{other:?}"),
        };
        subjects.map(of).collect()
    };
    assert_eq!(due(&bench), [true, true, true]);
    bench.node(off("n").ready(True));
    assert_eq!(due(&bench), [true, false, true], "the agent that is back ends it");
    bench.change_pod("c", |pod| pod.spec.node_name = "n".parse().ok());
    assert_eq!(due(&bench), [true, false, false]);
    bench.pod(pod("a").identity("another"));
    assert_eq!(due(&bench), [false, false, false], "it is another pod by now");
}

#[test]
fn quarantine_goes_on_while_nobody_decides() {
    let mut bench = Bench::new();
    bench.pod(running("a").on("n"));
    bench.run_until(10);
    // The store is not heard for a while, so nobody decides.
    bench.millis = 90_000;
    assert_eq!(bench.run_until(90)[0], "90 n?");
}
