//! Explanations of nodes, pods and the fleet, compared with what then happens.

use std::time::Duration;

use muster_proto::condition::ConditionStatus::{True, Unknown};
use muster_proto::pb::{
    self, EvictionDecision, ExplanationAction, ExplanationState, FleetState, SignOfLife, ZoneState,
};

use crate::explain;
use crate::fixtures::simulator::{Simulator, scenario_policy};
use crate::fixtures::{EPOCH, at, for_unreachable, key, node, pod};
use crate::policy::Policy;

fn explain(sim: &Simulator, name: &str) -> pb::ExplainNodeResponse {
    explain::node::explain(&sim.reconciler, &name.parse().unwrap(), sim.now()).unwrap()
}

fn fleet(sim: &Simulator) -> pb::Fleet {
    explain::fleet::fleet(&sim.reconciler, sim.now())
}

/// The state of an explanation and its earliest time, in seconds since the beginning.
fn explained(
    response: &pb::ExplainNodeResponse,
    action: ExplanationAction,
) -> (ExplanationState, Option<f64>) {
    let explanation =
        response.explanations.iter().find(|explanation| explanation.action() == action).unwrap();
    (explanation.state(), explanation.earliest.as_ref().map(seconds))
}

fn seconds(stamp: &prost_types::Timestamp) -> f64 {
    (stamp.seconds - EPOCH) as f64 + f64::from(stamp.nanos) / 1e9
}

fn reason(response: &pb::ExplainNodeResponse, action: ExplanationAction) -> &str {
    &response.explanations.iter().find(|explanation| explanation.action() == action).unwrap().reason
}

/// Five nodes of one zone; the first `unknown` of them are Unknown from the start.
fn five(unknown: usize) -> Simulator {
    let mut sim = Simulator::new();
    for i in 0..5 {
        let name = format!("n{i}");
        if i < unknown { sim.add_unknown_node(&name, "z") } else { sim.add_ready_node(&name, "z") }
    }
    sim.start();
    sim
}

#[test]
fn a_standby_names_the_holder_of_the_lease() {
    for (leader, reason) in [
        ("", "No controller holds the lease: this controller is on standby until it has acquired the lease."),
        ("c2", "This controller's own term is over: it is on standby until it has acquired the lease again."),
        ("c1", "c1 holds the lease: this controller is on standby and acquires the lease when it expires."),
    ] {
        assert_eq!(explain::fleet::standby("c2", leader), reason);
    }
}

#[test]
fn a_ready_node_is_explained_with_its_deadline() {
    let mut sim = five(0);
    sim.run_until(13.0);
    let response = explain(&sim, "n0");
    assert_eq!(response.summary, "n0 is Ready.");
    assert_eq!(
        explained(&response, ExplanationAction::MarkUnknown),
        (ExplanationState::Waiting, Some(60.0)),
        "seen at 10, grace 50"
    );
    assert_eq!(explained(&response, ExplanationAction::Taint), (ExplanationState::None, None));
    let silence = response.silence.unwrap();
    assert_eq!((silence.seen_by(), silence.silent_for.unwrap().seconds), (SignOfLife::Lease, 3));
}

#[test]
fn a_queued_node_is_explained_with_its_position_and_time() {
    let mut sim = five(2);
    sim.run_until(1.0);
    let tainted = explain(&sim, "n0");
    assert_eq!(explained(&tainted, ExplanationAction::Taint), (ExplanationState::Done, None));
    let waits = explain(&sim, "n1");
    assert_eq!(
        (explained(&waits, ExplanationAction::Taint), waits.queue_position),
        ((ExplanationState::Queued, Some(10.0)), 1)
    );
    sim.run_until(30.0);
    assert_eq!(sim.tainted_noexecute().last().unwrap(), &(10.0, "n1".to_owned()), "as explained");
}

#[test]
fn the_explained_times_of_a_queue_are_exact_at_any_rate() {
    let mut sim = Simulator::with(Policy { eviction_rate: 0.4, ..scenario_policy() });
    for i in 0..9 {
        let name = format!("n{i}");
        if i < 4 { sim.add_unknown_node(&name, "z") } else { sim.add_ready_node(&name, "z") }
    }
    sim.start().run_until(1.0);
    let explained =
        ["n1", "n2", "n3"].map(|name| explained(&explain(&sim, name), ExplanationAction::Taint).1.unwrap());
    assert_eq!(explained, [2.5, 5.0, 7.5]);
    sim.run_until(10.0);
    let tainted: Vec<f64> = sim.tainted_noexecute()[1..].iter().map(|(at, _)| *at).collect();
    assert_eq!(tainted, explained, "as explained");
}

#[test]
fn nodes_that_will_join_the_queue_are_explained_with_their_time() {
    let mut sim = five(0);
    sim.run_until(11.0);
    for name in ["n3", "n1"] {
        sim.stop_agent(name);
        sim.post_status(name, Unknown);
        sim.run_until(12.0);
    }
    let explained = ["n3", "n1"].map(|name| explained(&explain(&sim, name), ExplanationAction::Taint));
    assert_eq!(explained, [(ExplanationState::Waiting, Some(15.0)), (ExplanationState::Waiting, Some(25.0))]);
    sim.run_until(30.0);
    assert_eq!(sim.tainted_noexecute(), [(15.0, "n3".to_owned()), (25.0, "n1".to_owned())], "as explained");
}

/// The reason of the first zone.
fn zone_reason(sim: &Simulator) -> String {
    fleet(sim).zones.remove(0).reason
}

#[test]
fn a_zone_says_how_healthy_it_is_and_which_nodes_do_not_count() {
    let mut sim = five(0);
    sim.run_until(10.0);
    assert_eq!(zone_reason(&sim), "5 of 5 Ready; up to 0.1 nodes/s may be evicted.");
    sim.put_node(node("mine").zone("z").label("node.kubernetes.io/exclude-disruption", "").ready(Unknown));
    sim.run_until(20.0);
    let zone = fleet(&sim).zones.remove(0);
    assert_eq!((zone.nodes, zone.excluded, zone.excluded_nodes), (5, 1, vec!["mine".to_owned()]));
    assert_eq!(zone.reason, "5 of 5 Ready; up to 0.1 nodes/s may be evicted. Excluded from the count: mine.");
    sim.edit_node("mine", |node| drop(node.meta.labels.remove("node.kubernetes.io/exclude-disruption")));
    sim.run_until(30.0);
    assert_eq!((fleet(&sim).zones[0].nodes, fleet(&sim).zones[0].excluded), (6, 0));
}

#[test]
fn a_queue_says_about_how_long_it_takes() {
    let mut sim = Simulator::with(Policy { eviction_rate: 0.4, ..scenario_policy() });
    for i in 0..1000 {
        let name = format!("n{i}");
        if i < 399 { sim.add_unknown_node(&name, "z") } else { sim.add_ready_node(&name, "z") }
    }
    sim.start().run_until(1.0);
    let reason = zone_reason(&sim);
    assert!(reason.ends_with(" 398 queued, which takes about 17 min."), "{reason}");
}

#[test]
fn the_only_zone_has_no_other_zones() {
    let mut sim = five(5);
    sim.run_until(10.0);
    assert_eq!(
        zone_reason(&sim),
        "None of 5 nodes is Ready, and there is no other zone: no node is tainted NoExecute."
    );
    sim.add_unknown_node("far", "y");
    sim.run_until(20.0);
    assert!(zone_reason(&sim).contains("every other zone"), "{}", zone_reason(&sim));
}

#[test]
fn a_cordon_is_explained_with_its_owner_and_its_end() {
    let mut sim = five(0);
    let by = |owner: &str, end: Option<u64>| {
        crate::drain::intent::cordon_of(owner, "new disk", at(0).wall, end.map(|end| at(end).wall))
    };
    sim.edit_node("n0", |node| *node = crate::drain::intent::cordon(node, by("eva", Some(130))).unwrap());
    sim.run_until(10.0);
    let response = explain(&sim, "n0");
    let text = "The node is cordoned by eva (new disk), for 2 min 0 s more.";
    assert_eq!(reason(&response, ExplanationAction::Schedule), text);
    assert_eq!(explained(&response, ExplanationAction::Schedule), (ExplanationState::Refused, Some(130.0)));
    sim.edit_node("n0", |node| *node = crate::drain::intent::cordon(node, by("bob", None)).unwrap());
    let response = explain(&sim, "n0");
    let text = "The node has 2 cordons and takes new pods when none is left: by eva (new disk), for 2 min 0 s more; by bob \
                (new disk).";
    assert_eq!(reason(&response, ExplanationAction::Schedule), text);
    assert_eq!(explained(&response, ExplanationAction::Schedule), (ExplanationState::Refused, None));
}

#[test]
fn a_node_that_never_reported_is_explained_as_closed_to_pods() {
    let mut sim = five(0);
    sim.put_node(node("new").zone("z"));
    sim.run_until(1.0);
    let text = "The node gets no pods until its agent reports that it is Ready.";
    assert_eq!(reason(&explain(&sim, "new"), ExplanationAction::Schedule), text);
}

#[test]
fn an_interruption_is_explained_as_time_that_does_not_count() {
    let mut sim = five(0);
    sim.run_until(20.0).stop_agent("n0");
    sim.run_until(25.0).disconnect();
    sim.run_until(35.0).reconnect();
    sim.run_until(40.0);
    let text = "Last heartbeat 20.0 s ago, of which 10.0 s do not count because the controller was cut off; the node becomes \
                Unknown after 50.0 s of silence.";
    assert_eq!(reason(&explain(&sim, "n0"), ExplanationAction::MarkUnknown), text);
}

#[test]
fn a_zone_in_which_no_node_is_tainted_is_explained() {
    let mut sim = five(3);
    sim.run_until(20.0);
    let response = explain(&sim, "n0");
    assert_eq!(explained(&response, ExplanationAction::Taint), (ExplanationState::Paused, None));
    assert_eq!(
        reason(&response, ExplanationAction::Taint),
        "3 of 5 nodes are not Ready, which reaches the threshold of 55 %: in a zone of 50 nodes or fewer no node is tainted \
         NoExecute."
    );
    let zone = response.zone.unwrap();
    assert_eq!((zone.state(), zone.rate, zone.health_percent), (ZoneState::PartialDisruption, 0.0, 40.0));
    assert_eq!(zone.next_taint_at, None);
}

#[test]
fn a_large_zone_in_partial_disruption_is_explained_as_slowed() {
    let mut sim = Simulator::new();
    for i in 0..60 {
        let name = format!("n{i:02}");
        if i < 40 { sim.add_unknown_node(&name, "z") } else { sim.add_ready_node(&name, "z") }
    }
    sim.start().run_until(1.0);
    let response = explain(&sim, "n02");
    assert_eq!(
        (explained(&response, ExplanationAction::Taint), response.queue_position),
        ((ExplanationState::Slowed, Some(200.0)), 2)
    );
}

#[test]
fn full_disruption_is_explained_for_nodes_and_pods() {
    let mut sim = five(5);
    sim.put_pod(pod("p").on("n0").tolerates(for_unreachable(300)));
    sim.run_until(10.0);
    assert_eq!(fleet(&sim).state(), FleetState::FullDisruption);
    let response = explain(&sim, "n0");
    assert_eq!(explained(&response, ExplanationAction::Taint), (ExplanationState::Paused, None));
    assert!(
        reason(&response, ExplanationAction::Taint).contains("All nodes of the only zone have failed"),
        "{}",
        reason(&response, ExplanationAction::Taint)
    );
    let p = &response.pods[0];
    assert_eq!((p.decision(), p.earliest_eviction.as_ref()), (EvictionDecision::Keep, None));
    assert!(
        p.reason.contains("tolerates node.kubernetes.io/unreachable:NoExecute for 5 min 0 s"),
        "{}",
        p.reason
    );
}

#[test]
fn a_hold_is_explained_with_the_time_left_and_the_nodes_seen() {
    let mut sim = Simulator::with(Policy { hold: Duration::from_secs(50), ..scenario_policy() });
    sim.add_unknown_node("a", "");
    sim.add_ready_node("b", "");
    sim.add_ready_node("c", "");
    sim.put_pod(pod("p").on("a").tolerates(for_unreachable(30)));
    sim.start().run_until(12.0);
    let fleet_answer = fleet(&sim);
    let hold = fleet_answer.hold.clone().unwrap();
    assert_eq!((hold.seen_nodes, hold.nodes, hold.remaining.unwrap().seconds), (2, 3, 38));
    assert_eq!(fleet_answer.state(), FleetState::Holding);
    assert_eq!(fleet_answer.zones[0].next_taint_at.as_ref().map(seconds), Some(50.0));
    assert!(hold.reason.contains("2 of 3 nodes gave a sign of life so far"), "{}", hold.reason);
    let response = explain(&sim, "a");
    assert_eq!(explained(&response, ExplanationAction::Taint), (ExplanationState::Paused, Some(50.0)));
    let p = &response.pods[0];
    assert_eq!(
        (p.decision(), p.earliest_eviction.as_ref().map(seconds)),
        (EvictionDecision::Evict, Some(80.0))
    );
    sim.run_until(100.0);
    assert_eq!((sim.tainted_noexecute()[0].0, sim.times("evict p")), (50.0, vec![80.0]), "as explained");
    assert_eq!(fleet(&sim).hold, None);
}

#[test]
fn each_pod_is_explained_by_its_taint_and_toleration() {
    let mut sim = five(1);
    sim.put_pod(pod("limited").on("n0").tolerates(for_unreachable(300)));
    sim.put_pod(pod("intolerant").on("n0"));
    sim.put_pod(
        pod("forever")
            .on("n0")
            .tolerates(muster_proto::taint::Toleration { toleration_seconds: None, ..for_unreachable(1) }),
    );
    sim.run_until(1.0);
    let response = explain(&sim, "n0");
    let of = |name: &str| response.pods.iter().find(|pod| pod.name == name).unwrap();
    let limited = of("limited");
    assert_eq!(
        (limited.decision(), limited.earliest_eviction.as_ref().map(seconds)),
        (EvictionDecision::Evict, Some(300.0))
    );
    assert_eq!(limited.taint.as_ref().unwrap().key, "node.kubernetes.io/unreachable");
    assert_eq!(limited.toleration.as_ref().unwrap().toleration_seconds, Some(300));
    assert_eq!(of("forever").decision(), EvictionDecision::Keep);
    assert_eq!(of("intolerant").decision(), EvictionDecision::Terminating, "it does not tolerate the taint");
}

#[test]
fn a_controller_that_is_not_active_says_so() {
    let mut sim = five(1);
    sim.run_until(1.0).disconnect();
    assert_eq!(fleet(&sim).state(), FleetState::Syncing);
    let now = sim.now();
    sim.reconciler.observe(crate::reconciler::Observation::Leading(false), now);
    assert_eq!(fleet(&sim).state(), FleetState::Standby);
    assert!(explain(&sim, "n0").summary.contains("decides nothing"), "{}", explain(&sim, "n0").summary);
    assert_eq!(explain::node::explain(&sim.reconciler, &"nobody".parse().unwrap(), now), None);
}

#[test]
fn a_node_that_never_reported_is_explained_from_its_creation() {
    let mut sim = five(0);
    sim.put_node(node("new"));
    sim.run_until(20.0);
    let response = explain(&sim, "new");
    assert_eq!(explained(&response, ExplanationAction::MarkUnknown), (ExplanationState::Waiting, Some(60.0)));
    assert_eq!(response.silence.as_ref().unwrap().seen_by(), SignOfLife::Created);
    assert_eq!(response.ready, "");
    let reason = "No heartbeat since the node was created 20.0 s ago; the node becomes Unknown after 1 min 0 s of silence.";
    assert_eq!(self::reason(&response, ExplanationAction::MarkUnknown), reason);

    // Now the record has a Ready that the controller wrote. The start-up grace is still the one that the node exceeded.
    sim.run_until(70.0);
    let response = explain(&sim, "new");
    let silence = response.silence.unwrap();
    assert_eq!((response.ready.as_str(), silence.grace.unwrap().seconds), ("Unknown", 60));
    assert_eq!(
        (silence.seen_by(), silence.deadline.as_ref().map(seconds)),
        (SignOfLife::Created, Some(60.0))
    );
    let reason = "No heartbeat since the node was created 1 min 10 s ago; the node is Unknown after 1 min 0 s of silence.";
    assert_eq!(self::reason(&response, ExplanationAction::MarkUnknown), reason);
}

#[test]
fn the_fleet_has_counts_of_nodes_and_pods() {
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
fn explained_pod(
    response: &pb::ExplainPodResponse,
    action: ExplanationAction,
) -> (ExplanationState, Option<f64>, String) {
    let explanation =
        response.explanations.iter().find(|explanation| explanation.action() == action).unwrap();
    (explanation.state(), explanation.earliest.as_ref().map(seconds), explanation.reason.clone())
}

#[test]
fn an_unschedulable_pod_is_explained_with_obstacles_and_next_try() {
    let mut sim = Simulator::new();
    sim.start();
    sim.put_node(node("a").allocatable("cpu=1 pods=9").ready(True));
    sim.put_node(node("b").allocatable("cpu=9 pods=9").cordoned().ready(True));
    sim.run_until(3.0);
    sim.put_pod(pod("p").requests("cpu=2").priority(7));
    let response = explain_pod(&sim, "p");
    let why = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable. The pod is tried again when \
               a node has changed so that it may fit.";
    assert_eq!(
        explained_pod(&response, ExplanationAction::Schedule),
        (ExplanationState::Waiting, Some(303.0), why.to_owned())
    );
    assert_eq!(response.summary, format!("p: {why}"));
    let obstacles: Vec<(&str, i64)> =
        response.obstacles.iter().map(|it| (it.reason.as_str(), it.nodes)).collect();
    assert_eq!(obstacles, [("Insufficient cpu", 1), ("node(s) were unschedulable", 1)]);
    let inputs = &response.explanations[0].inputs;
    for (name, value) in [("requests", "cpu=2"), ("priority", "7"), ("nodes", "2"), ("pendingPods", "1")] {
        assert_eq!(inputs[name], value, "{name}");
    }
    assert_eq!((response.node_name.as_str(), response.eviction), ("", None));

    sim.put_node(node("c").allocatable("cpu=9 pods=9").ready(True));
    sim.run_until(5.0);
    let response = explain_pod(&sim, "p");
    assert_eq!(
        explained_pod(&response, ExplanationAction::Schedule),
        (ExplanationState::Done, None, "The pod is bound to node c.".to_owned())
    );
    assert_eq!(
        (response.node_name.as_str(), response.eviction.unwrap().decision()),
        ("c", EvictionDecision::Keep)
    );
    assert_eq!(explain::pod::explain(&sim.reconciler, &key("nobody"), sim.now()), None);
}

#[test]
fn pods_of_a_deleted_node_are_explained_with_their_removal() {
    let mut sim = five(0);
    sim.put_pod(pod("p").on("n0"));
    sim.run_until(5.0).delete_node("n0");
    sim.run_until(9.0);
    let response = explain(&sim, "n0");
    assert_eq!(response.summary, "Node n0 does not exist; pods bound to it: 1.");
    assert_eq!(explained(&response, ExplanationAction::PodGc), (ExplanationState::Waiting, Some(45.0)));
    assert_eq!(response.pods[0].earliest_eviction.as_ref().map(seconds), Some(45.0));
    let explanation = explained_pod(&explain_pod(&sim, "p"), ExplanationAction::PodGc);
    assert_eq!((explanation.0, explanation.1), (ExplanationState::Waiting, Some(45.0)));
    let nobody = "nobody".parse().unwrap();
    assert_eq!(
        explain::node::explain(&sim.reconciler, &nobody, sim.now()),
        None,
        "no pod is bound to that name"
    );
}
