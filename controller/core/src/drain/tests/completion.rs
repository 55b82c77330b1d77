//! When a drain is complete, failed or still in progress.

use super::*;
use crate::drain::progress::preview;

#[test]
fn a_drain_is_complete_only_when_the_agent_has_confirmed_the_stop() {
    let mut harness = Harness::with([managed("a")]);
    harness.stops_after = None;
    harness.drain(DrainOptions::default(), None);
    harness.run_to(10_000);
    assert_eq!(harness.log, ["0 evict a"]);
    assert_eq!(harness.progress(), "Draining a:Evict:Stopping");
    harness.remove_pod(&key("a"));
    harness.work();
    assert_eq!(harness.recorded().0, DrainState::Complete);
    assert_eq!(harness.node().spec.drain.unwrap().finished_at, Some(at(10_000).wall));
}

#[test]
fn a_pod_of_that_name_on_another_node_means_that_the_first_has_left() {
    let mut harness = Harness::with([managed("a")]);
    harness.stops_after = None;
    harness.drain(DrainOptions::default(), None);
    harness.run_to(5);
    harness.put_pod(managed("a").identity("second").on("other").build());
    harness.work();
    assert_eq!(harness.recorded().0, DrainState::Complete);
}

#[test]
fn an_empty_node_is_drained_at_once() {
    let mut harness = Harness::with([]);
    harness.drain(DrainOptions::default(), None);
    harness.work();
    assert_eq!(harness.recorded().0, DrainState::Complete);
    assert_eq!(harness.progress(), "Complete");
}

#[test]
fn a_drain_is_not_complete_while_a_pod_is_being_bound_to_the_node() {
    let mut harness = Harness::with([]);
    harness.binding = 1;
    harness.drain(DrainOptions::default(), Some(60));
    harness.run_to(30);
    assert_eq!(harness.recorded().0, DrainState::Draining);
    let progress = harness.drains.progress(&harness.world, NODE, harness.now()).unwrap();
    let binding = "1 pod is being bound to the node, chosen before it was cordoned";
    assert!(progress.message.ends_with(binding), "{}", progress.message);
    harness.run_to(60);
    assert_eq!(harness.recorded(), (DrainState::Failed, format!("the deadline has passed and {binding}")));

    let mut harness = Harness::with([]);
    harness.binding = 2;
    harness.drain(DrainOptions::default(), None);
    harness.run_to(30);
    harness.binding = 0;
    harness.drains.recheck([NODE.parse().unwrap()]);
    harness.work();
    assert_eq!(harness.recorded().0, DrainState::Complete);
}

#[test]
fn a_pod_that_is_bound_during_the_drain_has_to_leave_too() {
    let mut harness = Harness::with([managed("a")]);
    harness.drain(DrainOptions::default(), None);
    harness.work();
    harness.put_pod(managed("late").on(NODE).build());
    harness.run_to(1);
    assert_eq!(harness.log, ["0 evict a", "0 evict late"]);

    // The drain is complete, and before that is written another pod is bound.
    let mut harness = Harness::with([]);
    harness.drain(DrainOptions::default(), None);
    harness.decide();
    harness.put_pod(managed("late").on(NODE).build());
    let plan = harness.decide();
    assert_eq!(plan.actions.len(), 1);
    assert!(!harness.write_changed(), "it is not complete any more");
    assert_eq!(harness.recorded().0, DrainState::Draining);
}

#[test]
fn the_result_is_written_into_the_newest_record() {
    let mut harness = Harness::with([]);
    harness.drain(DrainOptions::default(), None);
    harness.decide();
    assert_eq!(harness.drains.take_changed().len(), 1);
    // That write conflicts with another one, which does not change the drain.
    harness.change_node(|node| drop(node.meta.labels.insert("a".to_owned(), "b".to_owned())));
    harness.work();
    assert_eq!(harness.recorded().0, DrainState::Complete);
    assert_eq!(harness.node().meta.labels["a"], "b");

    // Another request does not get the result of the one before it.
    let mut harness = Harness::with([]);
    harness.drain(DrainOptions::default(), None);
    harness.decide();
    let mut node = harness.node();
    node.spec.drain.as_mut().unwrap().reason = "another".to_owned();
    let before = node.clone();
    harness.drains.apply_to(&mut node, harness.now());
    assert_eq!(node, before);
}

#[test]
fn a_new_leader_continues_the_drain() {
    let mut harness = Harness::with([managed("a"), managed("b"), managed("c")]);
    harness.stops_after = None;
    harness.refusals.insert(key("b"), budget("no"));
    harness.drain(DrainOptions::default(), Some(60));
    harness.run_to(2);
    assert_eq!(harness.log, ["0 evict a", "0 evict b", "0 evict c"]);

    harness.restart();
    harness.events.clear();
    harness.run_to(4);
    assert_eq!(harness.log[3..], ["2 evict b"], "a terminating pod is not evicted again");
    assert_eq!(harness.events.len(), 0, "the start was announced before");
    harness.run_to(60);
    let (state, message) = harness.recorded();
    assert_eq!(state, DrainState::Failed);
    assert_eq!(
        message,
        "the deadline has passed and 3 pods are left: default/a (still stopping), default/b (no), \
         default/c (still stopping)"
    );
}

#[test]
fn a_pod_that_does_not_stop_is_skipped_if_the_options_say_so() {
    let mut harness = Harness::with([managed("a")]);
    harness.stops_after = None;
    harness.drain(DrainOptions { skip_wait_for_delete_seconds: 20, ..DrainOptions::default() }, None);
    harness.run_to(49);
    assert_eq!(harness.progress(), "Draining a:Evict:Stopping");
    harness.run_to(51);
    assert_eq!(harness.recorded().0, DrainState::Complete, "its 30 s and another 20 s are over");
    assert_eq!(harness.progress(), "Complete a:Skip:Stays");
}

#[test]
fn a_terminating_pod_is_evicted_again_only_with_a_shorter_grace_period() {
    for (grace, expected) in
        [(None, vec![]), (Some(30), vec![]), (Some(5), vec!["0 evict a"]), (Some(0), vec!["0 evict a"])]
    {
        let mut harness = Harness::with([managed("a").deleting(30)]);
        harness.drain(DrainOptions { grace_period_seconds: grace, ..DrainOptions::default() }, None);
        harness.run_to(10);
        assert_eq!(harness.log, expected, "{grace:?}");
        let left = grace.is_none_or(|grace| grace == 30);
        assert_eq!(harness.here().is_empty(), !left, "{grace:?}");
    }
}

#[test]
fn a_refused_eviction_fails_the_drain_once_the_other_pods_have_left() {
    let mut harness = Harness::with([managed("a"), managed("b")]);
    harness.stops_after = Some(8000);
    harness.refusals.insert(key("a"), Failure::Refused("two budgets guard it".to_owned()));
    harness.drain(DrainOptions::default(), None);
    harness.run_to(7);
    assert_eq!(harness.progress(), "Draining a:Evict:Blocked b:Evict:Stopping");
    harness.run_to(8);
    assert_eq!(harness.log, ["0 evict a", "0 evict b"], "a refused eviction is not repeated");
    let expected = "the store refuses to let them go and 1 pod is left: default/a (two budgets guard it)";
    assert_eq!(harness.recorded(), (DrainState::Failed, expected.to_owned()));
}

#[test]
fn failed_evictions_are_retried_by_their_kind_of_failure() {
    let newer = |harness: &mut Harness| {
        let pod = Pod::clone(harness.world.pod(&key("a")).unwrap());
        harness.put_pod(pod);
    };
    for (failure, at_once_when_newer) in [
        (Failure::Conflict, true),
        (Failure::Unknown("no answer".to_owned()), true),
        (Failure::Later("busy".to_owned()), false),
        (budget("no"), false),
    ] {
        let mut harness = Harness::with([managed("a")]);
        harness.refusals.insert(key("a"), failure.clone());
        harness.drain(DrainOptions::default(), None);
        harness.run_to(4);
        assert_eq!(harness.log, ["0 evict a"], "{failure:?}");
        newer(&mut harness);
        harness.work();
        assert_eq!(harness.log.len(), if at_once_when_newer { 2 } else { 1 }, "{failure:?}");
        let again = if at_once_when_newer { 9 } else { 5 };
        harness.run_to(again);
        assert_eq!(harness.log.last(), Some(&format!("{again} evict a")), "{failure:?}");
    }
    // A pod that the store does not have any more is about to leave the world too.
    let mut harness = Harness::with([managed("a")]);
    harness.refusals.insert(key("a"), Failure::Gone);
    harness.drain(DrainOptions::default(), None);
    harness.run_to(100);
    assert_eq!(harness.log, ["0 evict a"]);
    assert_eq!(harness.progress(), "Draining a:Evict:Stopping");
}

#[test]
fn a_granted_eviction_is_not_repeated_before_the_record_shows_it() {
    // The answer may come before the watch event, and a pod that is removed at once never shows that it terminates.
    for (answered, observed) in [(9, 5), (9, 7), (9, 9)] {
        let mut harness = Harness::with([]);
        harness.version = 4;
        harness.put_pod(managed("a").on(NODE).build());
        harness.drain(DrainOptions::default(), None);
        let planned = harness.decide().actions.remove(0);
        let last = managed("a").on(NODE).at(answered).build();
        let result = Ok(Answer::Pod(Box::new(last)));
        let outcome = Outcome { controller: ControllerName::Drain, subject: planned.subject, result };
        harness.drains.settle(&outcome, &harness.world, harness.now());
        harness.version = observed - 1;
        harness.put_pod(managed("a").on(NODE).build());
        assert_eq!(harness.decide().actions, [], "answered at {answered}, observed {observed}");
        assert_eq!(harness.progress(), "Draining a:Evict:Stopping");
    }
}

#[test]
fn the_evictions_in_flight_are_limited() {
    let names: Vec<String> = (0..200).map(|i| format!("p{i:03}")).collect();
    let mut harness = Harness::with(names.iter().map(|name| managed(name)));
    harness.drain(DrainOptions::default(), None);
    let first = harness.decide();
    assert_eq!(first.actions.len(), 64);
    for planned in &first.actions[..10] {
        let outcome = harness.perform(planned);
        harness.drains.settle(&outcome, &harness.world, harness.now());
    }
    let next: Vec<_> = harness.decide().actions.iter().map(|planned| planned.subject.clone()).collect();
    let expected: Vec<_> =
        names[64..74].iter().map(|name| Subject::of_pod(harness.world.pod(&key(name)).unwrap())).collect();
    assert_eq!(next, expected);
}

#[test]
fn a_preview_shows_what_a_drain_would_do() {
    let harness = Harness::with([managed("a"), pod("ds").owned_by("DaemonSet", "ds"), pod("b").priority(-1)]);
    let show = |options: DrainOptions| {
        let progress = preview(&harness.world, NODE, &options, harness.now()).unwrap();
        let pods = progress.pods.iter().map(|pod| format!("{}:{}:{}", pod.key.name, pod.action, pod.state));
        (progress.state, pods.collect::<Vec<_>>().join(" "), progress)
    };
    let (state, pods, _) = show(DrainOptions::default());
    assert_eq!(state, ProgressState::Refused);
    assert_eq!(pods, "b:Refuse:Stays a:Evict:Waiting ds:Refuse:Stays");
    let (state, pods, progress) =
        show(DrainOptions { force: true, ignore_daemonsets: true, ..DrainOptions::default() });
    assert_eq!((state, progress.message.as_str()), (ProgressState::Planned, "2 of 3 pods would go"));
    assert_eq!(pods, "b:Evict:Waiting a:Evict:Waiting ds:Leave:Stays");
    assert_eq!(progress.pods[0].reason, "goes because of force; nothing will start it again elsewhere");
    assert_eq!(progress.pods[2].state, PodState::Stays);
    assert_eq!(preview(&harness.world, "unknown", &DrainOptions::default(), harness.now()), None);
}
