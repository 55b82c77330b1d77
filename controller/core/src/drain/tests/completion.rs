//! When a drain is over, and when it is not.

use super::*;
use crate::drain::progress::preview;

#[test]
fn a_drain_is_complete_only_when_the_agent_has_confirmed_the_stop() {
    let mut site = Site::with([managed("a")]);
    site.stops_after = None;
    site.drain(DrainOptions::default(), None);
    site.run_to(10_000);
    assert_eq!(site.log, ["0 evict a"]);
    assert_eq!(site.progress(), "Draining a:Evict:Stopping");
    site.remove_pod(&key("a"));
    site.work();
    assert_eq!(site.recorded().0, DrainState::Complete);
    assert_eq!(site.node().spec.drain.unwrap().finished_at, Some(at(10_000).wall));
}

#[test]
fn a_namesake_elsewhere_means_that_the_first_has_gone() {
    let mut site = Site::with([managed("a")]);
    site.stops_after = None;
    site.drain(DrainOptions::default(), None);
    site.run_to(5);
    site.put_pod(managed("a").identity("second").on("other").build());
    site.work();
    assert_eq!(site.recorded().0, DrainState::Complete);
}

#[test]
fn an_empty_node_is_drained_at_once() {
    let mut site = Site::with([]);
    site.drain(DrainOptions::default(), None);
    site.work();
    assert_eq!(site.recorded().0, DrainState::Complete);
    assert_eq!(site.progress(), "Complete");
}

#[test]
fn a_drain_is_not_complete_while_somebody_is_on_the_way_to_the_node() {
    let mut site = Site::with([]);
    site.coming = 1;
    site.drain(DrainOptions::default(), Some(60));
    site.run_to(30);
    assert_eq!(site.recorded().0, DrainState::Draining);
    let progress = site.drains.progress(&site.world, NODE, site.now()).unwrap();
    let coming = "1 pod is being bound to the node, chosen before it was cordoned";
    assert!(progress.message.ends_with(coming), "{}", progress.message);
    site.run_to(60);
    assert_eq!(site.recorded(), (DrainState::Failed, format!("the deadline has passed and {coming}")));

    let mut site = Site::with([]);
    site.coming = 2;
    site.drain(DrainOptions::default(), None);
    site.run_to(30);
    site.coming = 0;
    site.drains.stir([NODE.parse().unwrap()]);
    site.work();
    assert_eq!(site.recorded().0, DrainState::Complete);
}

#[test]
fn a_pod_that_came_in_a_race_has_to_go_too() {
    let mut site = Site::with([managed("a")]);
    site.drain(DrainOptions::default(), None);
    site.work();
    site.put_pod(managed("late").on(NODE).build());
    site.run_to(1);
    assert_eq!(site.log, ["0 evict a", "0 evict late"]);

    // The drain is found complete, and before that is written another one comes.
    let mut site = Site::with([]);
    site.drain(DrainOptions::default(), None);
    site.decide();
    site.put_pod(managed("late").on(NODE).build());
    let plan = site.decide();
    assert_eq!(plan.actions.len(), 1);
    assert!(!site.write_touched(), "it is not complete any more");
    assert_eq!(site.recorded().0, DrainState::Draining);
}

#[test]
fn the_end_is_written_into_whatever_the_record_has_become() {
    let mut site = Site::with([]);
    site.drain(DrainOptions::default(), None);
    site.decide();
    assert_eq!(site.drains.take_changed().len(), 1);
    // That write is lost to another one, which does not touch the drain.
    site.change_node(|node| drop(node.meta.labels.insert("a".to_owned(), "b".to_owned())));
    site.work();
    assert_eq!(site.recorded().0, DrainState::Complete);
    assert_eq!(site.node().meta.labels["a"], "b");

    // Another request is not answered with the end of the one before it.
    let mut site = Site::with([]);
    site.drain(DrainOptions::default(), None);
    site.decide();
    let mut node = site.node();
    node.spec.drain.as_mut().unwrap().reason = "another".to_owned();
    let before = node.clone();
    site.drains.apply_to(&mut node, site.now());
    assert_eq!(node, before);
}

#[test]
fn another_controller_goes_on_where_the_first_left_off() {
    let mut site = Site::with([managed("a"), managed("b"), managed("c")]);
    site.stops_after = None;
    site.refusals.insert(key("b"), budget("no"));
    site.drain(DrainOptions::default(), Some(60));
    site.run_to(2);
    assert_eq!(site.log, ["0 evict a", "0 evict b", "0 evict c"]);

    site.restart();
    site.events.clear();
    site.run_to(4);
    assert_eq!(site.log[3..], ["2 evict b"], "what is stopping is not asked again");
    assert_eq!(site.events.len(), 0, "that it began has been told");
    site.run_to(60);
    let (state, message) = site.recorded();
    assert_eq!(state, DrainState::Failed);
    assert_eq!(
        message,
        "the deadline has passed and 3 pods are left: default/a (still stopping), default/b (no), \
         default/c (still stopping)"
    );
}

#[test]
fn a_pod_that_hangs_is_skipped_when_asked_for() {
    let mut site = Site::with([managed("a")]);
    site.stops_after = None;
    site.drain(DrainOptions { skip_wait_for_delete_seconds: 20, ..DrainOptions::default() }, None);
    site.run_to(49);
    assert_eq!(site.progress(), "Draining a:Evict:Stopping");
    site.run_to(51);
    assert_eq!(site.recorded().0, DrainState::Complete, "its 30 s and another 20 s are over");
    assert_eq!(site.progress(), "Complete a:Skip:Stays");
}

#[test]
fn pods_that_are_ending_are_asked_again_only_to_be_quicker() {
    for (grace, expected) in
        [(None, vec![]), (Some(30), vec![]), (Some(5), vec!["0 evict a"]), (Some(0), vec!["0 evict a"])]
    {
        let mut site = Site::with([managed("a").deleting(30)]);
        site.drain(DrainOptions { grace_period_seconds: grace, ..DrainOptions::default() }, None);
        site.run_to(10);
        assert_eq!(site.log, expected, "{grace:?}");
        let left = grace.is_none_or(|grace| grace == 30);
        assert_eq!(site.here().is_empty(), !left, "{grace:?}");
    }
}

#[test]
fn what_the_store_refuses_for_good_fails_the_drain_once_the_others_have_gone() {
    let mut site = Site::with([managed("a"), managed("b")]);
    site.stops_after = Some(8000);
    site.refusals.insert(key("a"), Failure::Refused("two budgets guard it".to_owned()));
    site.drain(DrainOptions::default(), None);
    site.run_to(7);
    assert_eq!(site.progress(), "Draining a:Evict:Blocked b:Evict:Stopping");
    site.run_to(8);
    assert_eq!(site.log, ["0 evict a", "0 evict b"], "it is not asked again");
    let expected = "the store refuses to let them go and 1 pod is left: default/a (two budgets guard it)";
    assert_eq!(site.recorded(), (DrainState::Failed, expected.to_owned()));
}

#[test]
fn setbacks_are_tried_again_when_that_makes_sense() {
    let newer = |site: &mut Site| {
        let pod = Pod::clone(site.world.pod(&key("a")).unwrap());
        site.put_pod(pod);
    };
    for (failure, at_once_when_newer) in [
        (Failure::Conflict, true),
        (Failure::Unknown("no answer".to_owned()), true),
        (Failure::Later("busy".to_owned()), false),
        (budget("no"), false),
    ] {
        let mut site = Site::with([managed("a")]);
        site.refusals.insert(key("a"), failure.clone());
        site.drain(DrainOptions::default(), None);
        site.run_to(4);
        assert_eq!(site.log, ["0 evict a"], "{failure:?}");
        newer(&mut site);
        site.work();
        assert_eq!(site.log.len(), if at_once_when_newer { 2 } else { 1 }, "{failure:?}");
        let again = if at_once_when_newer { 9 } else { 5 };
        site.run_to(again);
        assert_eq!(site.log.last(), Some(&format!("{again} evict a")), "{failure:?}");
    }
    // One that the store does not know any more is about to go from the world too.
    let mut site = Site::with([managed("a")]);
    site.refusals.insert(key("a"), Failure::Gone);
    site.drain(DrainOptions::default(), None);
    site.run_to(100);
    assert_eq!(site.log, ["0 evict a"]);
    assert_eq!(site.progress(), "Draining a:Evict:Stopping");
}

#[test]
fn a_pod_that_was_granted_is_not_asked_for_again_before_its_record_shows_it() {
    // The answer may come before the change, and a pod that is removed at once never shows that it is ending.
    for (answered, heard) in [(9, 5), (9, 7), (9, 9)] {
        let mut site = Site::with([]);
        site.version = 4;
        site.put_pod(managed("a").on(NODE).build());
        site.drain(DrainOptions::default(), None);
        let proposal = site.decide().actions.remove(0);
        let last = managed("a").on(NODE).at(answered).build();
        let result = Ok(Answer::Pod(Box::new(last)));
        let outcome = Outcome { controller: ControllerName::Drain, subject: proposal.subject, result };
        site.drains.settle(&outcome, &site.world, site.now());
        site.version = heard - 1;
        site.put_pod(managed("a").on(NODE).build());
        assert_eq!(site.decide().actions, [], "answered at {answered}, heard of {heard}");
        assert_eq!(site.progress(), "Draining a:Evict:Stopping");
    }
}

#[test]
fn at_most_so_many_are_asked_for_at_a_time() {
    let names: Vec<String> = (0..200).map(|i| format!("p{i:03}")).collect();
    let mut site = Site::with(names.iter().map(|name| managed(name)));
    site.drain(DrainOptions::default(), None);
    let first = site.decide();
    assert_eq!(first.actions.len(), 64);
    for proposal in &first.actions[..10] {
        let outcome = site.perform(proposal);
        site.drains.settle(&outcome, &site.world, site.now());
    }
    let next: Vec<_> = site.decide().actions.iter().map(|proposal| proposal.subject.clone()).collect();
    let expected: Vec<_> =
        names[64..74].iter().map(|name| Subject::of_pod(site.world.pod(&key(name)).unwrap())).collect();
    assert_eq!(next, expected);
}

#[test]
fn a_plan_shows_what_would_be_done_without_doing_it() {
    let site = Site::with([managed("a"), pod("ds").owned_by("DaemonSet", "ds"), pod("b").priority(-1)]);
    let show = |options: DrainOptions| {
        let progress = preview(&site.world, NODE, &options, site.now()).unwrap();
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
    assert_eq!(preview(&site.world, "nobody", &DrainOptions::default(), site.now()), None);
}
