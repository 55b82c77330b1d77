//! What the controller says of itself at each turn.

use std::time::Duration;

use muster_proto::condition::ConditionStatus::{True, Unknown};
use muster_proto::pb;

use crate::explain;
use crate::fixtures::simulator::{Simulator, scenario_policy};
use crate::fixtures::{EPOCH, for_unreachable, key, node, pod};
use crate::policy::Policy;

fn explain(sim: &Simulator, name: &str) -> pb::ExplainNodeResponse {
    explain::node::explain(&sim.reconciler, &name.parse().unwrap(), sim.now()).unwrap()
}

fn fleet(sim: &Simulator) -> pb::Fleet {
    explain::fleet::fleet(&sim.reconciler, sim.now())
}

/// An explanation in few words: its state and, in seconds since the beginning, its earliest time.
fn told(account: &pb::ExplainNodeResponse, action: &str) -> (String, Option<f64>) {
    let told = account.explanations.iter().find(|told| told.action == action).unwrap();
    (told.state.clone(), told.earliest.as_ref().map(seconds))
}

fn seconds(stamp: &prost_types::Timestamp) -> f64 {
    (stamp.seconds - EPOCH) as f64 + f64::from(stamp.nanos) / 1e9
}

fn reason<'a>(account: &'a pb::ExplainNodeResponse, action: &str) -> &'a str {
    &account.explanations.iter().find(|told| told.action == action).unwrap().reason
}

/// Five nodes of one zone; so many are dead from the start.
fn five(dead: usize) -> Simulator {
    let mut sim = Simulator::new();
    for i in 0..5 {
        let name = format!("n{i}");
        if i < dead { sim.add_unknown_node(&name, "z") } else { sim.add_ready_node(&name, "z") }
    }
    sim.start();
    sim
}

#[test]
fn a_standby_names_whom_it_waits_for() {
    for (leader, reason) in [
        ("", "Nobody holds the lease: this controller only listens until it has taken it."),
        ("c2", "This controller's own term is over: it only listens until it has taken the lease anew."),
        ("c1", "c1 holds the lease: this controller only listens, and takes the lease when it runs out."),
    ] {
        assert_eq!(explain::fleet::standby("c2", leader), reason);
    }
}

#[test]
fn a_node_that_is_well_knows_until_when() {
    let mut sim = five(0);
    sim.run_until(13.0);
    let account = explain(&sim, "n0");
    assert_eq!(account.summary, "n0 is Ready.");
    assert_eq!(told(&account, "MarkUnknown"), ("Waiting".to_owned(), Some(60.0)), "heard at 10, grace 50");
    assert_eq!(told(&account, "Taint"), ("None".to_owned(), None));
    let silence = account.silence.unwrap();
    assert_eq!((silence.heard_by.as_str(), silence.silent_for.unwrap().seconds), ("Lease", 3));
}

#[test]
fn a_queue_is_told_place_by_place_and_holds() {
    let mut sim = five(2);
    sim.run_until(1.0);
    let given_up = explain(&sim, "n0");
    assert_eq!(told(&given_up, "Taint"), ("Done".to_owned(), None));
    let waits = explain(&sim, "n1");
    assert_eq!((told(&waits, "Taint"), waits.queue_position), (("Queued".to_owned(), Some(10.0)), 1));
    sim.run_until(30.0);
    assert_eq!(sim.tainted_noexecute().last().unwrap(), &(10.0, "n1".to_owned()), "as was said");
}

#[test]
fn a_queue_is_told_to_the_moment_whatever_the_rate() {
    let mut sim = Simulator::with(Policy { eviction_rate: 0.4, ..scenario_policy() });
    for i in 0..9 {
        let name = format!("n{i}");
        if i < 4 { sim.add_unknown_node(&name, "z") } else { sim.add_ready_node(&name, "z") }
    }
    sim.start().run_until(1.0);
    let said = ["n1", "n2", "n3"].map(|name| told(&explain(&sim, name), "Taint").1.unwrap());
    assert_eq!(said, [2.5, 5.0, 7.5]);
    sim.run_until(10.0);
    let given_up: Vec<f64> = sim.tainted_noexecute()[1..].iter().map(|(at, _)| *at).collect();
    assert_eq!(given_up, said, "as was said");
}

#[test]
fn those_who_are_to_join_the_queue_know_their_place_in_it() {
    let mut sim = five(0);
    sim.run_until(11.0);
    for name in ["n3", "n1"] {
        sim.stop_agent(name);
        sim.post_status(name, Unknown);
        sim.run_until(12.0);
    }
    let said = ["n3", "n1"].map(|name| told(&explain(&sim, name), "Taint"));
    assert_eq!(said, [("Waiting".to_owned(), Some(15.0)), ("Waiting".to_owned(), Some(25.0))]);
    sim.run_until(30.0);
    assert_eq!(sim.tainted_noexecute(), [(15.0, "n3".to_owned()), (25.0, "n1".to_owned())], "as was said");
}

#[test]
fn a_zone_that_is_paused_says_why() {
    let mut sim = five(3);
    sim.run_until(20.0);
    let account = explain(&sim, "n0");
    assert_eq!(told(&account, "Taint"), ("Paused".to_owned(), None));
    assert_eq!(
        reason(&account, "Taint"),
        "3 of 5 nodes are not Ready, which is 55 % or more: in a zone of 50 nodes or fewer nobody is given up then."
    );
    let zone = account.zone.unwrap();
    assert_eq!((zone.state.as_str(), zone.rate, zone.health_percent), ("PartialDisruption", 0.0, 40.0));
    assert_eq!(zone.next_taint_at, None);
}

#[test]
fn a_large_zone_is_slowed_and_says_so() {
    let mut sim = Simulator::new();
    for i in 0..60 {
        let name = format!("n{i:02}");
        if i < 40 { sim.add_unknown_node(&name, "z") } else { sim.add_ready_node(&name, "z") }
    }
    sim.start().run_until(1.0);
    let account = explain(&sim, "n02");
    assert_eq!((told(&account, "Taint"), account.queue_position), (("Slowed".to_owned(), Some(200.0)), 2));
}

#[test]
fn when_all_is_lost_everybody_is_told_that_nothing_moves() {
    let mut sim = five(5);
    sim.put_pod(pod("p").on("n0").tolerates(for_unreachable(300)));
    sim.run_until(10.0);
    assert_eq!(fleet(&sim).state, "FullDisruption");
    let account = explain(&sim, "n0");
    assert_eq!(told(&account, "Taint"), ("Paused".to_owned(), None));
    assert!(reason(&account, "Taint").contains("All zones"), "{}", reason(&account, "Taint"));
    let p = &account.pods[0];
    assert_eq!((p.decision.as_str(), p.earliest_eviction.as_ref()), ("Stays", None));
    assert!(
        p.reason.contains("tolerates node.kubernetes.io/unreachable:NoExecute for 5 min 0 s"),
        "{}",
        p.reason
    );
}

#[test]
fn a_hold_counts_down_and_says_who_was_heard() {
    let mut sim = Simulator::with(Policy { hold: Duration::from_secs(50), ..scenario_policy() });
    sim.add_unknown_node("a", "");
    sim.add_ready_node("b", "");
    sim.add_ready_node("c", "");
    sim.put_pod(pod("p").on("a").tolerates(for_unreachable(30)));
    sim.start().run_until(12.0);
    let told_fleet = fleet(&sim);
    let hold = told_fleet.hold.unwrap();
    assert_eq!((hold.heard, hold.nodes, hold.remaining.unwrap().seconds), (2, 3, 38));
    assert_eq!(told_fleet.state, "Holding");
    assert_eq!(told_fleet.zones[0].next_taint_at.as_ref().map(seconds), Some(50.0));
    assert!(hold.reason.contains("2 of 3 nodes were heard so far"), "{}", hold.reason);
    let account = explain(&sim, "a");
    assert_eq!(told(&account, "Taint"), ("Paused".to_owned(), Some(50.0)));
    let p = &account.pods[0];
    assert_eq!((p.decision.as_str(), p.earliest_eviction.as_ref().map(seconds)), ("Leaves", Some(80.0)));
    sim.run_until(100.0);
    assert_eq!((sim.tainted_noexecute()[0].0, sim.times("evict p")), (50.0, vec![80.0]), "as was said");
    assert_eq!(fleet(&sim).hold, None);
}

#[test]
fn each_pod_knows_what_decides_and_when() {
    let mut sim = five(1);
    sim.put_pod(pod("bound").on("n0").tolerates(for_unreachable(300)));
    sim.put_pod(pod("deaf").on("n0"));
    sim.put_pod(
        pod("ever")
            .on("n0")
            .tolerates(muster_proto::taint::Toleration { toleration_seconds: None, ..for_unreachable(1) }),
    );
    sim.run_until(1.0);
    let account = explain(&sim, "n0");
    let of = |name: &str| account.pods.iter().find(|pod| pod.name == name).unwrap();
    let bound = of("bound");
    assert_eq!(
        (bound.decision.as_str(), bound.earliest_eviction.as_ref().map(seconds)),
        ("Leaves", Some(300.0))
    );
    assert_eq!(bound.taint.as_ref().unwrap().key, "node.kubernetes.io/unreachable");
    assert_eq!(bound.toleration.as_ref().unwrap().toleration_seconds, Some(300));
    assert_eq!(of("ever").decision, "Stays");
    assert_eq!(of("deaf").decision, "Leaving", "it had no reason to wait");
}

#[test]
fn a_controller_that_does_not_act_says_so() {
    let mut sim = five(1);
    sim.run_until(1.0).disconnect();
    assert_eq!(fleet(&sim).state, "Blind");
    let now = sim.now();
    sim.reconciler.observe(crate::reconciler::Observation::Leading(false), now);
    assert_eq!(fleet(&sim).state, "Standby");
    assert!(explain(&sim, "n0").summary.contains("judges nobody"), "{}", explain(&sim, "n0").summary);
    assert_eq!(explain::node::explain(&sim.reconciler, &"nobody".parse().unwrap(), now), None);
}

#[test]
fn a_node_that_never_reported_is_told_from_its_creation() {
    let mut sim = five(0);
    sim.put_node(node("new"));
    sim.run_until(20.0);
    let account = explain(&sim, "new");
    assert_eq!(told(&account, "MarkUnknown"), ("Waiting".to_owned(), Some(60.0)));
    assert_eq!(account.silence.unwrap().heard_by, "Created");
    assert_eq!(account.ready, "");
}

#[test]
fn the_fleet_is_counted() {
    let mut sim = five(2);
    sim.put_pod(pod("p").on("n0").tolerates(for_unreachable(300)));
    sim.run_until(1.0);
    let fleet = fleet(&sim);
    let nodes = (fleet.nodes, fleet.ready_nodes, fleet.not_ready_nodes, fleet.unknown_nodes);
    assert_eq!((nodes, fleet.pods, fleet.armed_evictions), ((5, 3, 0, 2), 1, 1));
    assert_eq!(fleet.zones[0].queue, ["n1"]);
    assert_eq!((sim.ready("n0"), sim.ready("n4")), (Unknown, True));
}

fn explain_pod(sim: &Simulator, name: &str) -> pb::ExplainPodResponse {
    explain::pod::explain(&sim.reconciler, &key(name), sim.now()).unwrap()
}

/// The explanation of one action: its state, its earliest time and why.
fn told_of(account: &pb::ExplainPodResponse, action: &str) -> (String, Option<f64>, String) {
    let told = account.explanations.iter().find(|told| told.action == action).unwrap();
    (told.state.clone(), told.earliest.as_ref().map(seconds), told.reason.clone())
}

#[test]
fn a_pod_says_what_keeps_it_from_every_node_and_when_it_is_tried_again() {
    let mut sim = Simulator::new();
    sim.start();
    sim.put_node(node("a").allocatable("cpu=1 pods=9").ready(True));
    sim.put_node(node("b").allocatable("cpu=9 pods=9").cordoned().ready(True));
    sim.run_until(3.0);
    sim.put_pod(pod("p").requests("cpu=2").priority(7));
    let account = explain_pod(&sim, "p");
    let why = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable. It is tried again as soon as a \
               node has become one that will do.";
    assert_eq!(told_of(&account, "Schedule"), ("Waiting".to_owned(), Some(303.0), why.to_owned()));
    assert_eq!(account.summary, format!("p: {why}"));
    let obstacles: Vec<(&str, i64)> =
        account.obstacles.iter().map(|it| (it.reason.as_str(), it.nodes)).collect();
    assert_eq!(obstacles, [("Insufficient cpu", 1), ("node(s) were unschedulable", 1)]);
    let inputs = &account.explanations[0].inputs;
    for (name, value) in [("requests", "cpu=2"), ("priority", "7"), ("nodes", "2"), ("pendingPods", "1")] {
        assert_eq!(inputs[name], value, "{name}");
    }
    assert_eq!((account.node_name.as_str(), account.stay), ("", None));

    sim.put_node(node("c").allocatable("cpu=9 pods=9").ready(True));
    sim.run_until(5.0);
    let account = explain_pod(&sim, "p");
    assert_eq!(told_of(&account, "Schedule"), ("Done".to_owned(), None, "it is on node c.".to_owned()));
    assert_eq!((account.node_name.as_str(), account.stay.unwrap().decision.as_str()), ("c", "Stays"));
    assert_eq!(explain::pod::explain(&sim.reconciler, &key("nobody"), sim.now()), None);
}

#[test]
fn pods_of_a_node_that_is_gone_say_when_they_are_removed() {
    let mut sim = five(0);
    sim.put_pod(pod("p").on("n0"));
    sim.run_until(5.0).delete_node("n0");
    sim.run_until(9.0);
    let account = explain(&sim, "n0");
    assert_eq!(account.summary, "There is no node n0, but 1 pods name it.");
    assert_eq!(told(&account, "CollectPods"), ("Waiting".to_owned(), Some(45.0)));
    assert_eq!(account.pods[0].earliest_eviction.as_ref().map(seconds), Some(45.0));
    let told = told_of(&explain_pod(&sim, "p"), "CollectPods");
    assert_eq!((told.0.as_str(), told.1), ("Waiting", Some(45.0)));
    let nobody = "nobody".parse().unwrap();
    assert_eq!(explain::node::explain(&sim.reconciler, &nobody, sim.now()), None, "no pod names that one");
}
