//! What becomes of a pod between being given a node and its record saying so.

use muster_proto::pod::PodPhase;

use super::*;
use crate::plan::PlannedAction;

/// A node with room for one pod, and a pod that was given it.
fn given() -> (Bench, PlannedAction) {
    let mut bench = Bench::new();
    bench.node(node("n").allocatable("pods=1"));
    bench.pod(pod("p"));
    let mut plan = bench.decide();
    assert_eq!(said(&plan), ["p -> n"]);
    (bench, plan.actions.remove(0))
}

/// Whether there is room on the node for another.
fn has_room(bench: &mut Bench) -> bool {
    let node = "n".parse().unwrap();
    let fits = bench.placement.fleet.fits(&Demand::of(&pod("other").build().spec), &node);
    assert_eq!(fits, bench.placement.fleet.taken("n").pods == 0);
    fits
}

fn unknown() -> Result<crate::plan::Answer, Failure> {
    Err(Failure::Unknown("no answer came".to_owned()))
}

#[test]
fn a_place_is_taken_from_the_moment_it_is_given() {
    let (mut bench, proposal) = given();
    bench.pod(pod("q"));
    assert_eq!(said(&bench.decide()), ["q ? 0/1 nodes are available: 1 Too many pods."]);
    assert_eq!(bench.standing("p").to_string(), "The pod is being bound to node n.");
    assert_eq!(bench.placement.pending(), 1, "the other one");
    let outcome = bench.outcome(&proposal);
    bench.settle(&proposal, outcome);
    assert_eq!((bench.placement.fleet.taken("n").pods, has_room(&mut bench)), (1, false));
    bench.decide();
    assert_eq!(bench.events.last().unwrap(), "Scheduled: Successfully assigned default/p to n");
    bench.remove_pod("p");
    assert!(has_room(&mut bench));
}

#[test]
fn the_record_may_come_before_the_answer() {
    let (mut bench, proposal) = given();
    let answer = bench.outcome(&proposal);
    bench.pod(pod("p").on("n"));
    assert!(!has_room(&mut bench));
    bench.settle(&proposal, answer);
    bench.decide();
    assert_eq!(bench.events, ["Scheduled: Successfully assigned default/p to n"]);
    bench.change_pod("p", |pod| pod.status.phase = PodPhase::Succeeded);
    assert!(has_room(&mut bench));
}

#[test]
fn after_a_conflict_the_pod_lines_up_again() {
    let (mut bench, proposal) = given();
    bench.settle(&proposal, Err(Failure::Conflict));
    assert!(has_room(&mut bench));
    assert_eq!(bench.standing("p").to_string(), "The pod could not be bound: its record has changed.");
    assert_eq!(bench.run_until(1), ["1: p -> n"]);

    let (mut bench, proposal) = given();
    bench.settle(&proposal, Err(Failure::Conflict));
    bench.pod(pod("p").on("elsewhere"));
    assert_eq!(bench.run_until(20), Vec::<String>::new(), "somebody else had bound it");
    assert!(has_room(&mut bench));
}

#[test]
fn rests_double_when_the_store_will_not_bind() {
    let (mut bench, mut proposal) = given();
    let mut rests = Vec::new();
    for _ in 0..5 {
        let tried = bench.millis;
        bench.settle(&proposal, Err(Failure::Conflict));
        let again_at = bench.standing("p").again_at().unwrap();
        bench.millis += (again_at - bench.now().mono).as_millis() as u64;
        rests.push(bench.millis - tried);
        proposal = bench.decide().actions.remove(0);
    }
    assert_eq!(rests, [1_000, 2_000, 4_000, 8_000, 10_000]);
}

#[test]
fn a_pod_that_is_gone_is_forgotten() {
    let (mut bench, proposal) = given();
    bench.settle(&proposal, Err(Failure::Gone));
    assert!(has_room(&mut bench));
    assert_eq!(bench.run_until(1_000), Vec::<String>::new());
    bench.change_pod("p", |pod| pod.status.reason = "still here".to_owned());
    assert_eq!(bench.run(), ["p -> n"], "its record says that it is not gone");
}

#[test]
fn a_place_stays_taken_while_nobody_knows() {
    let (mut bench, proposal) = given();
    bench.settle(&proposal, unknown());
    assert!(!has_room(&mut bench));
    let standing = bench.standing("p");
    assert_eq!(standing.to_string(), "It is not known whether the pod was bound to node n: no answer came.");
    assert_eq!(standing.again_at(), Some(at(1).mono));
    bench.node(roomy("better"));
    assert_eq!(bench.run_until(1), ["1: p -> n"], "the same node is asked for again");
    assert_eq!(bench.node_of("p"), "n");
}

#[test]
fn a_conflict_after_a_doubt_may_be_our_own_doing() {
    let (mut bench, proposal) = given();
    bench.settle(&proposal, unknown());
    bench.millis = 1_000;
    let again = bench.decide().actions.remove(0);
    bench.settle(&again, Err(Failure::Conflict));
    assert!(!has_room(&mut bench), "it stays taken until the record tells");
    bench.pod(pod("p").on("n"));
    assert_eq!((bench.placement.fleet.taken("n").pods, bench.placement.pending()), (1, 0));

    // The record does not tell: the pod starts over.
    let (mut bench, proposal) = given();
    bench.settle(&proposal, unknown());
    bench.millis = 1_000;
    let again = bench.decide().actions.remove(0);
    bench.settle(&again, Err(Failure::Conflict));
    assert_eq!(bench.run_until(60), ["31: p -> n"]);
}

#[test]
fn a_doubt_ends_after_half_a_minute() {
    let (mut bench, mut proposal) = given();
    bench.node(node("m").allocatable("pods=1"));
    let mut asked = Vec::new();
    while bench.millis < 60_000 {
        bench.settle(&proposal, unknown());
        let again_at = bench.standing("p").again_at().unwrap();
        bench.millis += (again_at - bench.now().mono).as_millis() as u64;
        proposal = bench.decide().actions.remove(0);
        asked.push(format!("{} {}", bench.millis / 1000, words(&proposal)));
    }
    assert_eq!(asked[..4], ["1 p -> n", "3 p -> n", "7 p -> n", "15 p -> n"]);
    assert_eq!(
        asked[4..6],
        ["25 p -> n", "35 p -> m"],
        "it is tried like any other, and m is the lower name"
    );
}

#[test]
fn a_doubt_about_a_node_that_went_is_waited_out() {
    let (mut bench, proposal) = given();
    bench.settle(&proposal, unknown());
    bench.remove_node("n");
    bench.node(roomy("m"));
    assert_eq!(
        bench.run_until(40),
        ["30: p -> m"],
        "it may have been bound, and a namesake of the node may come"
    );
}

#[test]
fn what_is_refused_for_good_is_told_and_left_for_long() {
    let (mut bench, proposal) = given();
    bench.settle(&proposal, Err(Failure::Refused("not permitted".to_owned())));
    assert_eq!(bench.standing("p").to_string(), "The pod could not be bound: not permitted.");
    assert_eq!(bench.run_until(299), Vec::<String>::new());
    assert_eq!(bench.events, ["FailedScheduling: not permitted"]);
    assert_eq!(bench.run_until(300), ["300: p -> n"]);
}

#[test]
fn a_pod_deleted_while_it_is_bound_gives_its_place_back() {
    let (mut bench, proposal) = given();
    bench.change_pod("p", |pod| pod.meta.deletion_timestamp = Some(at(0).wall));
    assert!(has_room(&mut bench), "an unbound pod that ends takes nothing");
    bench.settle(&proposal, Err(Failure::Conflict));
    assert_eq!(bench.run_until(60), Vec::<String>::new());
}

#[test]
fn a_namesake_is_another_pod() {
    let (mut bench, proposal) = given();
    bench.pod(pod("p").identity("other"));
    assert!(has_room(&mut bench));
    bench.settle(&proposal, Err(Failure::Gone));
    assert_eq!(said(&bench.decide()), ["p -> n"], "the other one is placed by itself");
}

#[test]
fn what_the_store_did_not_write_is_told_again() {
    for (failure, again_after) in [
        (Failure::Conflict, Some(1)),
        (Failure::Later("busy".to_owned()), Some(1)),
        (Failure::Unknown("no answer".to_owned()), Some(1)),
        (Failure::Refused("not permitted".to_owned()), None),
    ] {
        let mut bench = Bench::new();
        bench.pod(pod("p"));
        let proposal = bench.decide().actions.remove(0);
        assert_eq!(bench.decide().actions, [], "it is under way");
        bench.settle(&proposal, Err(failure.clone()));
        let told = bench.run_until(100);
        let expected = again_after.map(|at| format!("{at}: p ? 0/0 nodes are available."));
        assert_eq!(told, expected.into_iter().collect::<Vec<_>>(), "{failure:?}");
    }
}

#[test]
fn who_is_being_told_is_placed_when_that_is_done() {
    let mut bench = Bench::new();
    bench.pod(pod("p"));
    let telling = bench.decide().actions.remove(0);
    bench.millis = 2_000;
    bench.node(roomy("n"));
    assert_eq!(bench.decide().actions, [], "one thing at a time");
    bench.settle(&telling, Err(Failure::Conflict));
    assert_eq!(said(&bench.decide()), ["p -> n"]);
}

#[test]
fn who_is_told_why_it_waits_was_not_placed_by_us() {
    let mut bench = Bench::new();
    bench.pod(pod("p"));
    let telling = bench.decide().actions.remove(0);
    let mut bound = bench.record("p");
    bound.spec.node_name = Some("elsewhere".parse().unwrap());
    bench.settle(&telling, Ok(crate::plan::Answer::Pod(Box::new(bound))));
    bench.decide();
    assert!(!bench.events.iter().any(|told| told.starts_with("Scheduled")), "{:?}", bench.events);
}

#[test]
fn an_answer_to_an_earlier_leader_changes_nothing() {
    let mut bench = Bench::new();
    bench.pod(pod("p"));
    let stray = PlannedAction {
        controller: crate::plan::ControllerName::Scheduler,
        subject: crate::plan::Subject::of_pod(&bench.record("p")),
        action: crate::plan::Action::BindPod { node: "x".parse().unwrap() },
        why: "it was so".into(),
    };
    for failure in [Failure::Conflict, Failure::Gone, Failure::Later(String::new())] {
        bench.settle(&stray, Err(failure));
    }
    bench.node(roomy("n"));
    assert_eq!(bench.run(), ["p -> n"]);
}
