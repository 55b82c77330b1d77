//! The log of decisions of whole scenarios, on virtual time.

use std::collections::BTreeSet;

use muster_proto::condition::ConditionStatus::True;
use muster_proto::taint::TaintEffect::NoExecute;
use muster_proto::taint::Toleration;

use super::takeover::Seed;
use super::*;
use crate::fixtures::simulator::{Simulator, scenario_policy};
use crate::fixtures::{at, key, node, pod};
use crate::plan::{Action, Failure, Outcome, Plan, Subject};
use crate::policy::Policy;
use crate::world::World;

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Three zones of three nodes each, with a pod on each node of the first.
fn three_zones() -> Simulator {
    let mut sim = Simulator::with(Policy { eviction_rate: 0.1, ..scenario_policy() });
    sim.start();
    for zone in ["a", "b", "c"] {
        for number in 1..=3 {
            sim.add_ready_node(&format!("{zone}{number}"), zone);
        }
    }
    for number in 1..=3 {
        let toleration = Toleration::exists(UNREACHABLE, NoExecute).for_seconds(7);
        let name = format!("a{number}");
        sim.put_pod(pod(&format!("p{number}")).on(&name).running(True).tolerates(toleration));
    }
    sim
}

/// The decisions about a node and its pods, as `rule:state:result`.
fn chain(decisions: &[Decision], node: &str) -> Vec<String> {
    let of_node = |decision: &&Decision| decision.node.as_ref().is_some_and(|name| name.as_str() == node);
    let text = |decision: &Decision| {
        let result = decision.outcome.as_ref().map(|outcome| format!("{:?}", outcome.result));
        format!("{} {}", decision.cause.rule.id(), result.unwrap_or_else(|| format!("{:?}", decision.state)))
    };
    decisions.iter().filter(of_node).map(text).collect()
}

/// The rules of a decision and of those that it follows from, back to the first one.
fn rules_to(sim: &Simulator, decision: &Decision) -> Vec<&'static str> {
    let by_id = |id: u64| sim.decisions.iter().find(|decision| decision.id == id);
    let chain = std::iter::successors(Some(decision), |decision| by_id(decision.follows));
    chain.map(|decision| decision.cause.rule.id()).collect()
}

fn check_order(sim: &Simulator) {
    for (index, decision) in sim.decisions.iter().enumerate() {
        assert_eq!(decision.id, index as u64 + 1, "the numbers have no gap");
        assert!(decision.follows < decision.id, "a cause comes before what follows from it: {decision:?}");
    }
}

#[test]
fn s250_each_change_of_a_zone_that_fails_is_in_the_log_after_its_cause() {
    let mut sim = three_zones();
    sim.run_until(60.0);
    let before = sim.decisions.len();
    (1..=3).for_each(|number| sim.stop_agent(&format!("a{number}")));
    sim.run_until(200.0);
    for number in 1..=3 {
        sim.start_agent(&format!("a{number}"));
    }
    sim.run_until(260.0);
    for number in 1..=3 {
        let decisions = chain(&sim.decisions[before..], &format!("a{number}"));
        let place = |text: &str| decisions.iter().position(|it| it == text);
        let order = [
            "grace-period-passed Written",
            "condition-taints Written",
            "health-taint Written",
            "toleration-time Waiting",
            "toleration-over Written",
            "node-ready Observed",
            "health-taint-removed Written",
        ];
        let places: Vec<Option<usize>> = order.iter().map(|text| place(text)).collect();
        assert!(places.iter().all(Option::is_some), "{places:?} of {decisions:#?}");
        assert!(places.is_sorted(), "{places:?} of {decisions:#?}");
        assert!(place("pod-not-ready Written").is_some(), "{decisions:#?}");
        assert!(place("heartbeat-gap Observed").is_some(), "the silence is a gap: {decisions:#?}");
    }
    let recorded = &sim.decisions[before..];
    let waits = |decision: &&Decision| decision.cause.rule == Rule::ZoneEvictionRate;
    assert_eq!(recorded.iter().filter(waits).count(), 2, "the second and the third node wait for a token");
    // Every decision about the zone leads back to a node that fell silent.
    for evicted in recorded.iter().filter(|decision| decision.cause.rule == Rule::TolerationOver) {
        let rules = rules_to(&sim, evicted);
        assert_eq!(rules.first_chunk(), Some(&["toleration-over", "toleration-time", "health-taint"]));
        assert_eq!(rules.last(), Some(&"grace-period-passed"), "{rules:?}");
    }
    let zone =
        recorded.iter().find(|decision| decision.cause.rule == Rule::ZoneState).expect("the zone failed");
    assert_eq!(rules_to(&sim, zone).last(), Some(&"grace-period-passed"), "a node fell silent");
    let share =
        zone.cause.inputs.iter().find(|input| input.name == "unhealthyShare").expect("it is an input");
    assert_eq!((share.value.as_str(), share.threshold.as_str()), ("1.00", "0.55"));
}

#[test]
fn the_numbers_of_a_log_have_no_gap_and_causes_come_first() {
    let mut sim = three_zones();
    sim.run_until(60.0);
    (1..=3).for_each(|number| sim.stop_agent(&format!("a{number}")));
    sim.run_until(400.0);
    check_order(&sim);
    assert!(sim.decisions.len() > 20, "{}", sim.decisions.len());
}

#[test]
fn s251_an_action_that_failed_does_not_appear_as_done_and_is_recorded_once() {
    let mut sim = three_zones();
    sim.run_until(60.0);
    sim.failures.push(("its grace has passed", 3));
    sim.stop_agent("a1");
    sim.run_until(150.0);
    let marks =
        chain(&sim.decisions, "a1").into_iter().filter(|text| text.starts_with("grace-period-passed"));
    let marks: Vec<String> = marks.collect();
    assert_eq!(
        marks,
        ["grace-period-passed Failed", "grace-period-passed Written"],
        "three attempts failed alike"
    );
    let failed =
        sim.decisions.iter().find(|decision| decision.cause.rule == Rule::GracePeriodPassed).unwrap();
    let outcome = failed.outcome.as_ref().unwrap();
    assert_eq!((outcome.revision, outcome.reason.as_str()), (0, "the test lets it fail"));
    check_order(&sim);
}

#[test]
fn s252_a_new_leader_continues_the_log_and_adds_what_the_one_before_could_not_record() {
    let mut sim = three_zones();
    sim.run_until(60.0);
    (1..=3).for_each(|number| sim.stop_agent(&format!("a{number}")));
    sim.run_until(125.0);
    // The leader is killed between its newest writes and their records.
    let is_late = |decision: &Decision| {
        matches!(decision.cause.rule, Rule::HealthTaint | Rule::TolerationOver | Rule::ZoneEvictionRate)
    };
    let cut = sim.decisions.iter().position(is_late).expect("a node was tainted");
    let (kept, unrecorded) = (sim.decisions[..cut].to_vec(), sim.decisions[cut..].to_vec());
    let wrote = |decisions: &[Decision], rule: Rule| -> BTreeSet<DecisionSubject> {
        let written = |decision: &&Decision| {
            decision.cause.rule == rule
                && decision.outcome.as_ref().is_some_and(|outcome| outcome.result == DecisionResult::Written)
        };
        decisions.iter().filter(written).map(|decision| decision.subject.clone()).collect()
    };
    let (tainted, evicted) =
        (wrote(&unrecorded, Rule::HealthTaint), wrote(&unrecorded, Rule::TolerationOver));
    assert!(!tainted.is_empty() && !evicted.is_empty(), "{unrecorded:#?}");
    sim.decisions = kept;
    sim.restart();
    sim.run_until(126.0);
    check_order(&sim);
    let added = &sim.decisions[cut..];
    assert!(wrote(added, Rule::HealthTaint).is_superset(&tainted), "{added:#?}");
    assert!(wrote(added, Rule::TolerationOver).is_superset(&evicted), "{added:#?}");
    let found = |decision: &&Decision| {
        decision.outcome.as_ref().is_some_and(|outcome| outcome.reason.starts_with("found in the store"))
    };
    let marks = added.iter().filter(found).filter(|decision| decision.cause.rule == Rule::GracePeriodPassed);
    assert_eq!(marks.count(), 0, "what was recorded is not recorded again");
    let first = added.iter().find(found).expect("something was found");
    assert!(
        first.follows > 0 && first.follows <= cut as u64,
        "it follows from what the leader before recorded"
    );
}

#[test]
fn s252_each_kind_of_write_that_was_not_recorded_is_added() {
    let mut sim = three_zones();
    sim.run_until(60.0);
    (1..=3).for_each(|number| sim.stop_agent(&format!("a{number}")));
    sim.run_until(125.0);
    for rule in [
        Rule::GracePeriodPassed,
        Rule::ConditionTaints,
        Rule::HealthTaint,
        Rule::PodNotReady,
        Rule::TolerationOver,
    ] {
        let is_of_a1 = |decision: &Decision| decision.node.as_ref().is_some_and(|name| name.as_str() == "a1");
        let recorded = sim.decisions.iter().filter(|it| it.cause.rule != rule || !is_of_a1(it));
        let recorded: Vec<_> = recorded.map(|decision| decision.clone().into_pb("leader", 0)).collect();
        let found = takeover::found(&Seed::of(recorded), sim.reconciler.world());
        let rules: Vec<Rule> = found.iter().map(|found| found.cause.rule).collect();
        assert_eq!(rules, [rule]);
    }
    let all = sim.decisions.iter().map(|decision| decision.clone().into_pb("leader", 0)).collect();
    assert!(takeover::found(&Seed::of(all), sim.reconciler.world()).is_empty(), "nothing is added twice");
}

#[test]
fn s252_an_unchanged_reason_is_not_repeated_by_the_next_leader() {
    let mut sim = three_zones();
    sim.run_until(60.0);
    (1..=3).for_each(|number| sim.stop_agent(&format!("a{number}")));
    sim.run_until(90.0);
    let states = |sim: &Simulator| {
        sim.decisions.iter().filter(|decision| decision.cause.rule == Rule::ZoneState).count()
    };
    let before = states(&sim);
    assert!(before > 0);
    sim.restart();
    sim.run_until(91.0);
    assert_eq!(states(&sim), before, "no zone has another state than its record says");
    check_order(&sim);
}

#[test]
fn a_decision_made_before_the_log_is_known_waits_for_it() {
    let mut recorder = Recorder::default();
    let (world, now) = (World::new(), at(1));
    let subject = DecisionSubject::Node("n".parse().unwrap());
    let note = || causes::node_ready().observed(ControllerName::NodeLifecycle, subject.clone());
    recorder.note(note(), &world, now);
    assert_eq!(recorder.take(now).0, [], "its number is not known");
    let mut seed = Seed::default();
    seed.continue_after(41);
    recorder.seed(&seed, &world, now);
    let ids: Vec<(u64, u64)> = recorder.take(now).0.iter().map(|it| (it.id, it.follows)).collect();
    assert_eq!(ids, [(42, 0)]);
}

/// The action that marks a node Unknown.
fn mark(name: &str) -> (crate::plan::PlannedAction, Outcome) {
    let record = node(name).build();
    let subject = Subject::of_node(&record);
    let mut plan = Plan::default();
    let action = Action::UpdateNodeStatus(Box::new(record.clone()));
    let cause = Rule::GracePeriodPassed.because("silent");
    plan.act(ControllerName::NodeLifecycle, subject.clone(), action, "", [cause]);
    let result = Ok(crate::plan::Answer::Node(Box::new(record)));
    (plan.actions.remove(0), Outcome { controller: ControllerName::NodeLifecycle, subject, result })
}

fn seeded() -> Recorder {
    let mut recorder = Recorder::default();
    recorder.seed(&Seed::default(), &World::new(), at(0));
    recorder
}

#[test]
fn s253_a_fleet_that_fails_at_once_costs_a_bounded_number_of_records_that_say_so() {
    let (mut recorder, world) = (seeded(), World::new());
    const NODES: u64 = 100_000;
    for number in 0..NODES {
        let (planned, outcome) = mark(&format!("n{number}"));
        recorder.planned(&planned, &world, at(1));
        recorder.settle(&outcome, &Completion::default(), at(1));
    }
    let (single, sum_at) = recorder.take(at(1));
    assert_eq!(single.len(), 10_000);
    assert_eq!(sum_at, Some(at(2).mono));
    let (sums, _) = recorder.take(at(2));
    let [sum] = sums.as_slice() else { panic!("{sums:?}") };
    let aggregate = sum.aggregate.as_ref().expect("it stands for many");
    assert_eq!(aggregate.count, NODES - 10_000, "none is missing");
    assert_eq!(aggregate.names.len(), 10);
    assert_eq!((sum.id, sum.subject.clone()), (10_001, DecisionSubject::Fleet));
    assert_eq!(sum.outcome.as_ref().map(|it| it.result), Some(DecisionResult::Written));
    let held = recorder.take(at(3));
    assert_eq!(held, (Vec::new(), None), "it is said once");
}

#[test]
fn what_follows_from_an_action_in_flight_is_recorded_after_it() {
    let (mut recorder, world) = (seeded(), World::new());
    let (planned, outcome) = mark("n");
    recorder.planned(&planned, &world, at(1));
    let zone = DecisionSubject::Zone(ZoneKey::default());
    let note = Rule::ZoneState.because("it failed").observed(ControllerName::NodeLifecycle, zone);
    recorder.note(note.following(DecisionSubject::Node("n".parse().unwrap())), &world, at(1));
    assert_eq!(recorder.take(at(1)).0, [], "the node may still be written or not");
    recorder.settle(&outcome, &Completion { trace_id: "t".to_owned(), is_superseded: false }, at(2));
    let recorded = recorder.take(at(2)).0;
    let rules: Vec<(Rule, u64, u64)> = recorded.iter().map(|it| (it.cause.rule, it.id, it.follows)).collect();
    assert_eq!(rules, [(Rule::GracePeriodPassed, 1, 0), (Rule::ZoneState, 2, 1)]);
    assert_eq!(recorded[0].trace_id, "t");
    assert_eq!((recorded[0].at, recorded[0].outcome.as_ref().unwrap().at), (at(1).wall, at(2).wall));
}

#[test]
fn each_failure_has_its_result() {
    use DecisionResult::*;
    let later = || Failure::Later("busy".to_owned());
    for (failure, is_superseded, expected) in [
        (Failure::Conflict, false, Conflict),
        (Failure::Gone, false, Superseded),
        (Failure::Refused("no".to_owned()), false, Refused),
        (Failure::Budget { message: "budget".to_owned(), retry_after: None }, false, Refused),
        (later(), false, Failed),
        (later(), true, Superseded),
        (Failure::Unknown("lost".to_owned()), false, Unknown),
    ] {
        let (mut recorder, world) = (seeded(), World::new());
        let (planned, outcome) = mark("n");
        recorder.planned(&planned, &world, at(1));
        let outcome = Outcome { result: Err(failure), ..outcome };
        recorder.settle(&outcome, &Completion { trace_id: String::new(), is_superseded }, at(1));
        let recorded = recorder.take(at(1)).0;
        let result = recorded[0].outcome.as_ref().unwrap();
        assert_eq!((result.result, result.revision), (expected, 0), "{:?}", outcome.result);
    }
}

#[test]
fn a_gap_of_more_than_a_quarter_of_the_grace_is_recorded() {
    let mut sim = three_zones();
    sim.run_until(60.0);
    let gaps = |sim: &Simulator| {
        let gaps = sim.decisions.iter().filter(|decision| decision.cause.rule == Rule::HeartbeatGap);
        gaps.map(|gap| gap.cause.inputs[0].clone()).collect::<Vec<Input>>()
    };
    let before = gaps(&sim).len();
    sim.stop_agent("a1");
    sim.run_until(85.0).start_agent("a1");
    sim.run_until(100.0);
    let found = gaps(&sim).split_off(before);
    let [gap] = found.as_slice() else { panic!("{found:?}") };
    let length: f64 = gap.value.parse().unwrap();
    assert!((12.5..50.0).contains(&length), "{length}");
    assert_eq!((gap.name, gap.threshold.as_str(), gap.unit), ("gap", "12.5", "s"));
}

#[test]
fn an_explanation_names_the_decision_that_it_follows_from() {
    let mut sim = three_zones();
    sim.run_until(60.0);
    sim.stop_agent("a1");
    sim.run_until(130.0);
    let explained =
        crate::explain::node::explain(&sim.reconciler, &"a1".parse().unwrap(), sim.now()).unwrap();
    let by_id = |id: u64| sim.decisions.iter().find(|decision| decision.id == id);
    let taint = &explained.explanations[1];
    let decision = by_id(taint.decision_id).expect("it is recorded");
    assert_eq!(decision.subject, DecisionSubject::Node("a1".parse().unwrap()));
    let pod = by_id(explained.pods[0].decision_id).expect("it is recorded");
    assert_eq!(pod.subject, DecisionSubject::Pod(key("p1")));
}

#[test]
fn a_message_has_what_a_decision_has() {
    let mut sim = three_zones();
    sim.run_until(60.0);
    sim.stop_agent("a1");
    sim.run_until(150.0);
    for decision in sim.decisions {
        let message = decision.clone().into_pb("ctl", 3);
        assert_eq!((message.leader.as_str(), message.term), ("ctl", 3));
        assert_eq!(Rule::of_id(&message.rule), Some(decision.cause.rule));
        assert_eq!(message.inputs.len(), decision.cause.inputs.len());
        assert_eq!(message.outcome.is_some(), decision.outcome.is_some());
        let seed = Seed::of(vec![message]);
        assert_eq!(seed.last_id(), decision.id);
    }
}

#[test]
fn every_rule_has_its_section_and_every_section_a_rule() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/rules.md");
    let text = std::fs::read_to_string(path).expect("deploy/rules.md is there");
    let sections: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let documented: BTreeSet<&str> = sections.iter().copied().collect();
    assert_eq!(documented.len(), sections.len(), "no rule is documented twice");
    let rules: BTreeSet<&str> = Rule::ALL.iter().map(|rule| rule.id()).collect();
    assert_eq!(rules.len(), Rule::ALL.len(), "each rule has a name of its own");
    assert_eq!(documented, rules);
}
