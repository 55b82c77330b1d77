//! A cloud that answers wrongly.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::explain::cloud::DeletionLimitReport;

const HOUR: u64 = 60 * 60;

#[test]
fn a_cloud_that_knows_no_machine_deletes_ten_nodes_an_hour() {
    let mut harness = Harness::new(Settings::default());
    let names: Vec<String> = (0..30).map(|i| format!("n{i:02}")).collect();
    for name in &names {
        harness.put(node(name).ready(Unknown));
    }
    harness.run_until(60);
    assert_eq!(harness.world.node_count(), 20);
    let count =
        |harness: &Harness, reason: &str| harness.events.iter().filter(|it| it.starts_with(reason)).count();
    assert_eq!((count(&harness, "DeletingNode"), count(&harness, "DeletionHeldBack")), (10, 20));
    let expected = DeletionLimitReport {
        confirmations: 3,
        limit: 10,
        period: Duration::from_secs(HOUR),
        used: 10,
        held_back: 20,
    };
    assert_eq!(harness.cloud.deletion_limit(harness.now), expected);
    let explanation =
        harness.cloud.explain(harness.world.node("n29").unwrap(), harness.hold_until, harness.now).remove(0);
    assert_eq!(
        (explanation.state, explanation.reason.as_str(), explanation.earliest),
        (
            ExplanationState::Paused,
            "The machine does not exist, but no more than 10 may be deleted within 1h \
             (--cloud-delete-limit, --cloud-delete-period).",
            // When the first of the ten, deleted on its third answer, is an hour ago.
            Some(at(10 + HOUR).mono),
        )
    );
    harness.run_until(HOUR);
    assert_eq!(
        (harness.world.node_count(), count(&harness, "DeletionHeldBack")),
        (20, 20),
        "one event for each"
    );
    harness.run_until(HOUR + 60);
    assert_eq!(harness.world.node_count(), 10);
}

#[test]
fn nodes_whose_machines_come_back_no_longer_wait_for_the_limit() {
    let mut harness = Harness::new(Settings { delete_limit: 0, ..unlimited() });
    harness.put(node("a").ready(Unknown));
    harness.run_until(1);
    assert_eq!(
        (harness.events.join(",").as_str(), harness.cloud.deletion_limit(harness.now).held_back),
        ("DeletionHeldBack a", 1)
    );
    let reason =
        "The machine does not exist, but none may be deleted (--cloud-delete-limit is 0).".to_owned();
    assert_eq!(harness.explain("a"), [(ExplanationAction::DeleteNode, ExplanationState::Paused, reason)]);
    harness.machines.insert("a", machine());
    harness.run_until(5);
    assert_eq!(harness.cloud.deletion_limit(harness.now).held_back, 0);
    harness.machines.clear();
    harness.run_until(10);
    harness.ready("a", True);
    assert_eq!(harness.cloud.deletion_limit(harness.now).held_back, 0);
}

#[test]
fn a_deletion_with_an_unknown_outcome_counts() {
    let mut harness = Harness::new(Settings { delete_limit: 1, ..unlimited() });
    harness.refusal = Some(Failure::Unknown("no answer".to_owned()));
    harness.put(node("a").ready(Unknown));
    harness.put(node("b").ready(Unknown));
    harness.run_until(60);
    let deletions = harness.done.iter().filter(|done| done.starts_with("delete"));
    assert_eq!((deletions.count(), harness.cloud.deletion_limit(harness.now).held_back), (1, 2));
}

fn deletions(harness: &Harness) -> usize {
    harness.done.iter().filter(|done| done.starts_with("delete")).count()
}

#[test]
fn a_fail_over_does_not_reset_the_limit() {
    let mut harness = Harness::new(Settings { delete_limit: 2, ..unlimited() });
    for name in ["a", "b", "c", "d", "e"] {
        harness.put(node(name).ready(Unknown));
    }
    for minutes in 1..60 {
        harness.run_until(minutes * 60);
        harness.fail_over();
    }
    harness.run_until(HOUR - 1);
    let report = harness.cloud.deletion_limit(harness.now);
    assert_eq!((deletions(&harness), report.used, report.held_back), (2, 2, 3));
    let explanation =
        harness.cloud.explain(harness.world.node("e").unwrap(), harness.hold_until, harness.now).remove(0);
    let earliest = explanation.earliest.unwrap();
    assert_eq!(explanation.state, ExplanationState::Paused);
    assert!(at(HOUR).mono <= earliest && earliest <= at(HOUR + 14).mono, "{earliest:?}");
    harness.run_until(HOUR + 60);
    assert_eq!(deletions(&harness), 4);
}

#[test]
fn nobody_is_deleted_before_it_is_written_down_and_what_did_not_happen_is_forgotten() {
    let mut harness = Harness::new(Settings { delete_limit: 1, ..unlimited() });
    harness.refusal = Some(Failure::Conflict);
    harness.put(node("a").ready(Unknown));
    let asked = harness.decide().actions.remove(0);
    harness.answer(&asked, gone());
    let note = harness.decide().actions.remove(0);
    assert!(matches!(note.action, Action::WriteLease(_)));
    assert_eq!(harness.cloud.deletion_limit(harness.now).used, 1, "it counts from now on");
    harness.answer(&note, Err(Failure::Unknown("no answer".to_owned())));
    assert_eq!((harness.decide().actions.len(), deletions(&harness)), (0, 0), "it may not be written down");
    assert_eq!(harness.explain("a")[0].1, ExplanationState::Waiting);
    // It is read again, written down, and then the deletion comes to nothing, again and again.
    harness.run_until(60);
    assert!(deletions(&harness) > 5, "what did not happen does not use up the allowance");
    harness.fail_over();
    harness.refusal = None;
    harness.run_until(120);
    let report = harness.cloud.deletion_limit(harness.now);
    assert_eq!(
        (harness.has("a"), report.used, report.held_back),
        (true, 1, 1),
        "a new leader cannot know that the last one did not happen"
    );
}

#[test]
fn a_node_that_turns_ready_while_its_deletion_is_recorded_is_kept() {
    for (is_recorded, fails_again) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut harness = Harness::new(Settings { delete_limit: 1, ..unlimited() });
        harness.put(node("a").ready(Unknown));
        let asked = harness.decide().actions.remove(0);
        harness.answer(&asked, gone());
        let record = harness.decide().actions.remove(0);
        let recorded = harness.perform(&record);
        if is_recorded {
            harness.answer(&record, recorded.clone());
        }
        harness.ready("a", True);
        if fails_again {
            harness.ready("a", Unknown);
        }
        if !is_recorded {
            harness.answer(&record, recorded);
        }
        harness.machines.insert("a", machine());
        harness.run_until(10);
        let used = harness.cloud.deletion_limit(harness.now).used;
        assert_eq!((harness.has("a"), used), (true, 0), "recorded {is_recorded}, failed again {fails_again}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A node is observed in that state, with another uid if it was gone.
    Put {
        node: usize,
        ready: bool,
    },
    Remove {
        node: usize,
    },
    /// An action in flight gets that outcome.
    Answer {
        which: usize,
        answer: u8,
    },
    Pass {
        millis: u64,
    },
    /// A new leader takes over; the actions in flight are dropped.
    FailOver,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..5usize, proptest::bool::weighted(0.3)).prop_map(|(node, ready)| Step::Put { node, ready }),
        1 => (0..5usize).prop_map(|node| Step::Remove { node }),
        8 => (0..3usize, 0..12u8).prop_map(|(which, answer)| Step::Answer { which, answer }),
        3 => (0..8_000u64).prop_map(|millis| Step::Pass { millis }),
        1 => Just(Step::FailOver),
    ]
}

/// Mostly wrong answers, and every kind of failure of a deletion.
fn answer(draw: u8) -> Result<Answer, Failure> {
    match draw {
        0..=7 => Ok(Answer::Cloud(false)),
        8 => Ok(Answer::Cloud(true)),
        9 => Err(Failure::Gone),
        10 => Err(Failure::Later("later".to_owned())),
        _ => Err(Failure::Unknown("unknown".to_owned())),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn wrong_answers_delete_no_ready_node_and_never_more_than_the_limit_or_too_early(
        confirmations in 1..4u32,
        limit in 0..3u32,
        period in 1..40u64,
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
        let settings = Settings {
            period: PERIOD,
            confirmations: NonZeroU32::new(confirmations).unwrap(),
            delete_limit: limit,
            delete_period: Duration::from_secs(period),
        };
        let mut harness = Harness::new(settings);
        let mut now_ms = 0;
        let mut in_flight: Vec<PlannedAction> = Vec::new();
        let mut deletions: Vec<Mono> = Vec::new();
        // The same by the time they were recorded, including those with an unknown outcome.
        let mut recorded: Vec<Mono> = Vec::new();
        // When the answers in a row came that a machine does not exist.
        let mut missing_answers: BTreeMap<Uid, Vec<Mono>> = BTreeMap::new();
        // When the cloud was last asked about a node since it stopped being Ready.
        let mut asked: BTreeMap<Uid, Mono> = BTreeMap::new();
        let mut comings = 0;
        for step in steps {
            match step {
                Step::Put { node: index, ready } => {
                    let name = NAMES[index];
                    comings += usize::from(!harness.has(name));
                    let identity = harness.world.node(name).map_or_else(
                        || crate::fixtures::uid(&format!("{name}{comings}")),
                        |node| node.meta.uid.unwrap(),
                    );
                    let status = if ready { True } else { Unknown };
                    if ready {
                        missing_answers.remove(&identity);
                        asked.remove(&identity);
                    }
                    harness.put(node(name).ready(status).with(|node| node.meta.uid = Some(identity)));
                }
                Step::Remove { node } => harness.remove(&NAMES[node].parse().unwrap()),
                Step::Pass { millis } => {
                    now_ms += millis;
                    harness.now = crate::fixtures::at_ms(now_ms);
                }
                Step::FailOver => {
                    // A deletion in flight may still happen.
                    deletions.clone_from(&recorded);
                    in_flight.clear();
                    missing_answers.clear();
                    asked.clear();
                    harness.fail_over();
                }
                Step::Answer { which, answer: draw } if which < in_flight.len() => {
                    let planned = in_flight.remove(which);
                    let Subject::Node(name, uid) = &planned.subject else { unreachable!() };
                    let result = answer(draw);
                    if let Action::AskCloud { question: CloudQuestion::Exists, .. } = planned.action {
                        match &result {
                            Ok(Answer::Cloud(false)) | Err(Failure::Gone) => missing_answers.entry(*uid).or_default().push(harness.now.mono),
                            _ => drop(missing_answers.remove(uid)),
                        }
                    }
                    if matches!(planned.action, Action::DeleteNode { .. }) && matches!(result, Ok(_) | Err(Failure::Unknown(_))) {
                        deletions.push(harness.now.mono);
                        let is_same = harness.world.node(name.as_str()).is_some_and(|node| node.meta.uid == Some(*uid));
                        if is_same && result.is_ok() {
                            harness.remove(&name.clone());
                        }
                    } else if matches!(planned.action, Action::DeleteNode { .. }) {
                        recorded.pop();
                    }
                    harness.answer(&planned, result);
                }
                Step::Answer { .. } => {}
            }
            let mut actions = VecDeque::from(harness.decide().actions);
            while let Some(planned) = actions.pop_front() {
                let Subject::Node(name, uid) = &planned.subject else {
                    let result = harness.perform_on_lease(&planned.action);
                    harness.answer(&planned, result);
                    actions.extend(harness.decide().actions);
                    continue;
                };
                let node = harness.world.node(name.as_str()).expect("no action is planned for a node that is gone");
                prop_assert_eq!(node.meta.uid, Some(*uid));
                prop_assert!(!in_flight.iter().any(|other| other.subject == planned.subject));
                if let Action::AskCloud { question: CloudQuestion::Exists, .. } = planned.action {
                    let before = asked.insert(*uid, harness.now.mono);
                    prop_assert!(before.is_none_or(|before| harness.now.mono - before >= PERIOD), "asked too often");
                }
                if matches!(planned.action, Action::DeleteNode { .. }) {
                    prop_assert!(!node.is_ready(), "{} is Ready", name);
                    let answers = missing_answers.get(uid).map_or(&[][..], Vec::as_slice);
                    prop_assert!(answers.len() >= confirmations as usize, "{} answers", answers.len());
                    let recent = deletions.iter().filter(|done| **done + settings.delete_period > harness.now.mono);
                    let others = in_flight.iter().filter(|other| matches!(other.action, Action::DeleteNode { .. }));
                    prop_assert!(recent.count() + others.count() < limit as usize, "one too many");
                    recorded.push(harness.now.mono);
                }
                in_flight.push(planned);
            }
            prop_assert!(in_flight.len() <= 2, "at most one action of each kind");
            let report = harness.cloud.deletion_limit(harness.now);
            prop_assert!(report.used <= limit as usize);
            let held = harness.cloud.checks.nodes.values().filter(|check| check.is_limited).count();
            prop_assert_eq!(report.held_back, held);
        }
    }
}
