use std::time::Duration;

use muster_proto::condition::ConditionStatus::{True, Unknown};

use muster_proto::watch_event::WatchEvent;

use crate::fixtures::simulator::{Stage, scenario_policy};
use crate::fixtures::{for_unreachable, node, pod};
use crate::policy::Policy;
use crate::reconciler::{News, Stance};
use crate::world::Reach;

fn three(policy: Policy) -> Stage {
    let mut stage = Stage::with(policy);
    stage.start();
    for name in ["a", "b", "c"] {
        stage.living(name, "");
    }
    stage.put_pod(pod("p").on("a").tolerates(for_unreachable(300)));
    stage
}

#[test]
fn s122_a_new_controller_takes_the_taint_off_and_earns_it_anew() {
    let mut stage = three(scenario_policy());
    stage.kill("a");
    stage.run_until(100.0);
    let (tainted, _) = stage.given_up()[0];
    stage.run_until(tainted + 200.0);
    let restarted = stage.seconds();
    stage.restart();
    assert_eq!(stage.when("-unreachable:NE").len(), 1);
    stage.run_until(restarted + 6.0);
    let again = stage.given_up()[1].0;
    assert!(again <= restarted + 6.0);
    stage.run_until(again + 299.0);
    assert!(!stage.is_leaving("p"), "its time began anew");
    stage.run_until(again + 300.0);
    assert!(stage.is_leaving("p"));
}

#[test]
fn s123_nodes_that_spoke_while_no_controller_listened_are_not_silent() {
    let mut stage = three(scenario_policy());
    stage.run_until(10.0);
    stage.core = crate::reconciler::Core::new(scenario_policy());
    stage.run_until(310.0).start();
    stage.run_until(600.0);
    assert_eq!(stage.times("Unknown").len(), 0);
}

#[test]
fn s124_a_new_controller_gives_a_whole_grace() {
    let mut stage = three(scenario_policy());
    stage.run_until(20.0).kill("a");
    stage.run_until(60.0).restart();
    stage.run_until(110.0);
    assert_eq!(stage.ready("a"), True);
    stage.run_until(111.0);
    assert_eq!(stage.ready("a"), Unknown);
}

#[test]
fn a_store_that_is_not_heard_makes_nobody_silent() {
    let mut stage = three(scenario_policy());
    stage.run_until(20.0).lose_the_store();
    stage.run_until(500.0);
    assert_eq!(stage.times("Unknown").len(), 0, "while it is away");
    stage.kill("a");
    stage.find_the_store();
    stage.run_until(549.0);
    assert_eq!(stage.times("Unknown").len(), 0, "everybody has a new grace");
    stage.run_until(551.0);
    assert_eq!(stage.when("Unknown"), [(550.001, "a".to_owned())]);
}

#[test]
fn whoever_stood_still_takes_nobody_for_silent() {
    let mut stage = three(scenario_policy());
    stage.run_until(20.0).kill("a");
    stage.stand_still_until(100.0);
    stage.run_until(149.0);
    assert_eq!(stage.times("Unknown").len(), 0, "everybody has a new grace");
    stage.run_until(300.0);
    assert_eq!(stage.when("Unknown"), [(150.001, "a".to_owned())]);
}

#[test]
fn a_short_pause_of_our_own_changes_nothing() {
    let mut stage = three(scenario_policy());
    stage.run_until(20.0).kill("a");
    stage.stand_still_until(35.0);
    stage.run_until(100.0);
    assert_eq!(stage.when("Unknown"), [(70.001, "a".to_owned())]);
}

#[test]
fn whoever_comes_to_lead_waits_for_what_was_written_before() {
    let mut stage = three(scenario_policy());
    stage.run_until(10.0);
    let (now, told) = (stage.now(), stage.core.world().told());
    let last = Reach { nodes: told.nodes + 5, ..told };
    for news in [News::Leading(false), News::Leading(true), News::Horizon(Reach::NEVER)] {
        stage.core.observe(news, now);
    }
    stage.act();
    assert_eq!(stage.core.stance(), Stance::Blind, "nobody knows yet how far that is");
    stage.core.observe(News::Horizon(last), now);
    for (revision, expected) in [(told.nodes + 4, Stance::Blind), (told.nodes + 5, Stance::Judging)] {
        stage.core.observe(News::Node(WatchEvent::Synced { revision }), now);
        stage.act();
        assert_eq!(
            (stage.core.stance(), stage.core.rooms().is_some()),
            (expected, expected == Stance::Judging)
        );
    }
}

#[test]
fn whoever_seemed_silent_because_the_store_was_has_a_new_grace() {
    let mut stage = three(scenario_policy());
    // The store is gone before we notice: no renewal arrives and no write succeeds.
    stage.fail("its grace has passed", usize::MAX);
    stage.run_until(20.0).kill("a");
    stage.run_until(75.0);
    assert_eq!(stage.ready("a"), True, "its mark was not written");
    stage.lose_the_store();
    stage.run_until(100.0);
    stage.failures.clear();
    stage.find_the_store();
    stage.run_until(149.0);
    assert_eq!(stage.ready("a"), True, "it is not judged by what we could not hear");
    stage.run_until(151.0);
    assert_eq!(stage.ready("a"), Unknown);
}

#[test]
fn a_mark_that_had_to_wait_is_dropped_when_the_node_is_heard() {
    let mut stage = three(scenario_policy());
    stage.hold_back("its grace has passed");
    stage.run_until(20.0).kill("a");
    stage.run_until(75.0);
    stage.renew("a");
    let proposal = stage.held_back[0].clone();
    assert_eq!(stage.core.moot(&proposal, stage.now()), Some("the node was heard meanwhile"));
    stage.lose_the_store();
    assert_eq!(stage.core.moot(&proposal, stage.now()), Some("nothing is judged now"));
}

#[test]
fn a_removal_that_had_to_wait_is_dropped_when_the_node_is_in_service_again() {
    for is_back in [true, false] {
        let mut stage = Stage::new();
        stage.start().living("b", "");
        let off = "node.kubernetes.io/out-of-service=nodeshutdown:NoSchedule";
        stage.put_node(node("a").ready(Unknown).taint(off));
        stage.put_pod(pod("p").on("a").deleting(30));
        stage.hold_back("the node is out of service");
        stage.run_until(25.0);
        let proposal = stage.held_back[0].clone();
        assert_eq!(stage.core.moot(&proposal, stage.now()), None);
        if is_back {
            stage.post("a", True);
        } else {
            stage.edit_node("a", |node| node.spec.taints.retain(|taint| taint.to_string() != off));
        }
        assert_eq!(stage.core.moot(&proposal, stage.now()), Some("somebody can see to its end again"));
    }
}

#[test]
fn nobody_is_evicted_until_the_fleet_was_heard_for_a_whole_grace() {
    let policy = Policy { hold: Duration::from_secs(50), ..scenario_policy() };
    let mut stage = three(policy);
    stage.kill("a");
    stage.run_until(100.0);
    assert_eq!(stage.given_up().len(), 1);
    stage.restart();
    stage.run_until(149.0);
    assert_eq!(stage.given_up().len(), 1, "held back");
    assert_eq!(stage.rooms().hold.until - stage.now().mono, Duration::from_secs(1));
    stage.run_until(155.0);
    assert_eq!(stage.given_up().len(), 2);
}

#[test]
fn evictions_that_fall_due_after_an_interruption_wait_for_the_fleet_to_be_heard() {
    let policy = Policy { hold: Duration::from_secs(50), ..scenario_policy() };
    let mut stage = three(policy);
    stage.run_until(60.0).kill("a");
    stage.run_until(120.0);
    let (tainted, _) = stage.given_up()[0];
    stage.run_until(200.0).lose_the_store();
    stage.run_until(tainted + 310.0).find_the_store();
    let heard = stage.seconds();
    stage.run_until(heard + 49.0);
    assert!(!stage.is_leaving("p"));
    stage.run_until(heard + 51.0);
    assert!(stage.is_leaving("p"));
}

#[test]
fn a_hold_outlasts_those_who_fell_silent_while_nobody_was_heard() {
    let mut stage = Stage::with(Policy { hold: Duration::from_secs(50), ..scenario_policy() });
    for name in ["a", "b"] {
        stage.dead(name, "");
    }
    for name in ["c", "d", "e"] {
        stage.living(name, "");
    }
    stage.start().run_until(55.0).lose_the_store();
    for name in ["c", "d", "e"] {
        stage.kill(name);
    }
    stage.run_until(90.0).find_the_store();
    // What was missed is told a little after the store is heard again.
    stage.run_until(90.5);
    for name in ["c", "d", "e"] {
        stage.renew(name);
    }
    stage.run_until(200.0);
    assert_eq!(stage.given_up(), [(50.0, "a".to_owned())], "nobody else, since the whole fleet is silent");
}

#[test]
fn who_may_leave_when_a_hold_ends_is_judged_by_the_zones_of_that_moment() {
    let mut stage = Stage::with(Policy { hold: Duration::from_secs(50), ..scenario_policy() });
    stage.dead("a", "");
    stage.living("b", "");
    stage.living("c", "");
    stage.put_pod(pod("p").on("a").tolerates(for_unreachable(60)));
    stage.start().run_until(80.0).lose_the_store();
    stage.kill("b");
    stage.kill("c");
    stage.run_until(92.0).find_the_store();
    // Their graces end at 142 s, after the pass of 140 s; the hold ends at 143 s.
    stage.run_until(142.5);
    assert_eq!((stage.ready("b"), stage.ready("c")), (Unknown, Unknown));
    stage.run_until(200.0);
    assert!(!stage.is_leaving("p"), "the whole fleet is silent");
}

#[test]
fn a_standby_does_nothing() {
    let mut stage = three(scenario_policy());
    let now = stage.now();
    stage.core.observe(News::Leading(false), now);
    stage.kill("a");
    stage.run_until(300.0);
    assert_eq!(stage.times("Unknown").len(), 0);
}

#[test]
fn a_controller_that_starts_amid_a_full_outage_takes_every_taint_back() {
    let mut stage = three(scenario_policy());
    stage.kill("a");
    stage.run_until(60.0);
    stage.kill("b");
    stage.kill("c");
    stage.core = crate::reconciler::Core::new(scenario_policy());
    for name in ["b", "c"] {
        stage.post(name, Unknown);
    }
    stage.start();
    stage.run_until(1000.0);
    assert_eq!(stage.taints("a"), "unreachable:NS");
    assert!(!stage.is_leaving("p"));
}
