//! A cloud that lies.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::explain::cloud::BrakeReport;

const HOUR: u64 = 60 * 60;

#[test]
fn a_cloud_that_denies_every_machine_costs_ten_nodes_an_hour() {
    let mut fleet = Fleet::new(Settings::default());
    let names: Vec<String> = (0..30).map(|i| format!("n{i:02}")).collect();
    for name in &names {
        fleet.put(node(name).ready(Unknown));
    }
    fleet.run_until(60);
    assert_eq!(fleet.world.node_count(), 20);
    let told = |fleet: &Fleet, reason: &str| fleet.told.iter().filter(|it| it.starts_with(reason)).count();
    assert_eq!((told(&fleet, "DeletingNode"), told(&fleet, "DeletionHeldBack")), (10, 20));
    let held = BrakeReport {
        confirmations: 3,
        limit: 10,
        period: Duration::from_secs(HOUR),
        used: 10,
        held_back: 20,
    };
    assert_eq!(fleet.cloud.brake(fleet.now), held);
    let explanation =
        fleet.cloud.explain(fleet.world.node("n29").unwrap(), fleet.hold_until, fleet.now).remove(0);
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
    fleet.run_until(HOUR);
    assert_eq!(
        (fleet.world.node_count(), told(&fleet, "DeletionHeldBack")),
        (20, 20),
        "each is told of once"
    );
    fleet.run_until(HOUR + 60);
    assert_eq!(fleet.world.node_count(), 10);
}

#[test]
fn machines_that_come_back_are_no_longer_held_back() {
    let mut fleet = Fleet::new(Settings { delete_limit: 0, ..credulous() });
    fleet.put(node("a").ready(Unknown));
    fleet.run_until(1);
    assert_eq!(
        (fleet.told.join(",").as_str(), fleet.cloud.brake(fleet.now).held_back),
        ("DeletionHeldBack a", 1)
    );
    let reason =
        "The machine does not exist, but none may be deleted (--cloud-delete-limit is 0).".to_owned();
    assert_eq!(fleet.explain("a"), [(ExplanationAction::DeleteNode, ExplanationState::Paused, reason)]);
    fleet.machines.insert("a", machine());
    fleet.run_until(5);
    assert_eq!(fleet.cloud.brake(fleet.now).held_back, 0);
    fleet.machines.clear();
    fleet.run_until(10);
    fleet.ready("a", True);
    assert_eq!(fleet.cloud.brake(fleet.now).held_back, 0);
}

#[test]
fn a_deletion_nobody_knows_the_end_of_counts() {
    let mut fleet = Fleet::new(Settings { delete_limit: 1, ..credulous() });
    fleet.refusal = Some(Failure::Unknown("no answer".to_owned()));
    fleet.put(node("a").ready(Unknown));
    fleet.put(node("b").ready(Unknown));
    fleet.run_until(60);
    let deletions = fleet.done.iter().filter(|done| done.starts_with("delete"));
    assert_eq!((deletions.count(), fleet.cloud.brake(fleet.now).held_back), (1, 2));
}

fn deletions(fleet: &Fleet) -> usize {
    fleet.done.iter().filter(|done| done.starts_with("delete")).count()
}

#[test]
fn a_controller_that_takes_over_has_no_fresh_allowance() {
    let mut fleet = Fleet::new(Settings { delete_limit: 2, ..credulous() });
    for name in ["a", "b", "c", "d", "e"] {
        fleet.put(node(name).ready(Unknown));
    }
    for minutes in 1..60 {
        fleet.run_until(minutes * 60);
        fleet.take_over();
    }
    fleet.run_until(HOUR - 1);
    let report = fleet.cloud.brake(fleet.now);
    assert_eq!((deletions(&fleet), report.used, report.held_back), (2, 2, 3));
    let explanation =
        fleet.cloud.explain(fleet.world.node("e").unwrap(), fleet.hold_until, fleet.now).remove(0);
    let earliest = explanation.earliest.unwrap();
    assert_eq!(explanation.state, ExplanationState::Paused);
    assert!(at(HOUR).mono <= earliest && earliest <= at(HOUR + 14).mono, "{earliest:?}");
    fleet.run_until(HOUR + 60);
    assert_eq!(deletions(&fleet), 4);
}

#[test]
fn nobody_is_deleted_before_it_is_written_down_and_what_did_not_happen_is_forgotten() {
    let mut fleet = Fleet::new(Settings { delete_limit: 1, ..credulous() });
    fleet.refusal = Some(Failure::Conflict);
    fleet.put(node("a").ready(Unknown));
    let asked = fleet.decide().actions.remove(0);
    fleet.answer(&asked, gone());
    let note = fleet.decide().actions.remove(0);
    assert!(matches!(note.action, Action::WriteLease(_)));
    assert_eq!(fleet.cloud.brake(fleet.now).used, 1, "it counts from now on");
    fleet.answer(&note, Err(Failure::Unknown("no answer".to_owned())));
    assert_eq!((fleet.decide().actions.len(), deletions(&fleet)), (0, 0), "it may not be written down");
    assert_eq!(fleet.explain("a")[0].1, ExplanationState::Waiting);
    // It is read again, written down, and then the deletion comes to nothing, again and again.
    fleet.run_until(60);
    assert!(deletions(&fleet) > 5, "what did not happen does not use up the allowance");
    fleet.take_over();
    fleet.refusal = None;
    fleet.run_until(120);
    let report = fleet.cloud.brake(fleet.now);
    assert_eq!(
        (fleet.has("a"), report.used, report.held_back),
        (true, 1, 1),
        "who takes over cannot know that"
    );
}

#[test]
fn a_node_that_turns_ready_while_its_deletion_is_written_down_is_kept() {
    for (is_written, falls_again) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut fleet = Fleet::new(Settings { delete_limit: 1, ..credulous() });
        fleet.put(node("a").ready(Unknown));
        let asked = fleet.decide().actions.remove(0);
        fleet.answer(&asked, gone());
        let note = fleet.decide().actions.remove(0);
        let noted = fleet.perform(&note);
        if is_written {
            fleet.answer(&note, noted.clone());
        }
        fleet.ready("a", True);
        if falls_again {
            fleet.ready("a", Unknown);
        }
        if !is_written {
            fleet.answer(&note, noted);
        }
        fleet.machines.insert("a", machine());
        fleet.run_until(10);
        let used = fleet.cloud.brake(fleet.now).used;
        assert_eq!((fleet.has("a"), used), (true, 0), "written {is_written}, fell again {falls_again}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A node is seen in that state; its bearer is another one if it was gone.
    Put {
        who: usize,
        ready: bool,
    },
    Remove {
        who: usize,
    },
    /// What is under way comes to that.
    Answer {
        which: usize,
        answer: u8,
    },
    Pass {
        millis: u64,
    },
    /// Another controller takes over; what was under way is let go.
    TakeOver,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..5usize, proptest::bool::weighted(0.3)).prop_map(|(who, ready)| Step::Put { who, ready }),
        1 => (0..5usize).prop_map(|who| Step::Remove { who }),
        8 => (0..3usize, 0..12u8).prop_map(|(which, answer)| Step::Answer { which, answer }),
        3 => (0..8_000u64).prop_map(|millis| Step::Pass { millis }),
        1 => Just(Step::TakeOver),
    ]
}

/// Mostly lies, and all that can go wrong with a deletion.
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
    fn no_lie_deletes_a_ready_node_or_more_than_the_limit_or_too_early(
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
        let mut fleet = Fleet::new(settings);
        let mut now_ms = 0;
        let mut under_way: Vec<PlannedAction> = Vec::new();
        let mut deletions: Vec<Mono> = Vec::new();
        // The same, by when they were written down, with those of which nobody knows whether they happened.
        let mut noted: Vec<Mono> = Vec::new();
        // When the answers in a row came that a node has no machine.
        let mut denials: BTreeMap<Uid, Vec<Mono>> = BTreeMap::new();
        // When a node was last asked about since it stopped being Ready.
        let mut asked: BTreeMap<Uid, Mono> = BTreeMap::new();
        let mut comings = 0;
        for step in steps {
            match step {
                Step::Put { who, ready } => {
                    let name = NAMES[who];
                    comings += usize::from(!fleet.has(name));
                    let identity = fleet.world.node(name).map_or_else(
                        || crate::fixtures::uid(&format!("{name}{comings}")),
                        |node| node.meta.uid.unwrap(),
                    );
                    let status = if ready { True } else { Unknown };
                    if ready {
                        denials.remove(&identity);
                        asked.remove(&identity);
                    }
                    fleet.put(node(name).ready(status).with(|node| node.meta.uid = Some(identity)));
                }
                Step::Remove { who } => fleet.remove(&NAMES[who].parse().unwrap()),
                Step::Pass { millis } => {
                    now_ms += millis;
                    fleet.now = crate::fixtures::at_ms(now_ms);
                }
                Step::TakeOver => {
                    // One that is under way may happen yet.
                    deletions.clone_from(&noted);
                    under_way.clear();
                    denials.clear();
                    asked.clear();
                    fleet.take_over();
                }
                Step::Answer { which, answer: draw } if which < under_way.len() => {
                    let proposal = under_way.remove(which);
                    let Subject::Node(name, uid) = &proposal.subject else { unreachable!() };
                    let result = answer(draw);
                    if let Action::AskCloud { question: CloudQuestion::Exists, .. } = proposal.action {
                        match &result {
                            Ok(Answer::Cloud(false)) | Err(Failure::Gone) => denials.entry(*uid).or_default().push(fleet.now.mono),
                            _ => drop(denials.remove(uid)),
                        }
                    }
                    if matches!(proposal.action, Action::DeleteNode { .. }) && matches!(result, Ok(_) | Err(Failure::Unknown(_))) {
                        deletions.push(fleet.now.mono);
                        let is_same = fleet.world.node(name.as_str()).is_some_and(|node| node.meta.uid == Some(*uid));
                        if is_same && result.is_ok() {
                            fleet.remove(&name.clone());
                        }
                    } else if matches!(proposal.action, Action::DeleteNode { .. }) {
                        noted.pop();
                    }
                    fleet.answer(&proposal, result);
                }
                Step::Answer { .. } => {}
            }
            let mut actions = VecDeque::from(fleet.decide().actions);
            while let Some(proposal) = actions.pop_front() {
                let Subject::Node(name, uid) = &proposal.subject else {
                    let result = fleet.remember(&proposal.action);
                    fleet.answer(&proposal, result);
                    actions.extend(fleet.decide().actions);
                    continue;
                };
                let node = fleet.world.node(name.as_str()).expect("nothing is proposed for a node that is gone");
                prop_assert_eq!(node.meta.uid, Some(*uid));
                prop_assert!(!under_way.iter().any(|other| other.subject == proposal.subject));
                if let Action::AskCloud { question: CloudQuestion::Exists, .. } = proposal.action {
                    let before = asked.insert(*uid, fleet.now.mono);
                    prop_assert!(before.is_none_or(|before| fleet.now.mono - before >= PERIOD), "asked too often");
                }
                if matches!(proposal.action, Action::DeleteNode { .. }) {
                    prop_assert!(!node.is_ready(), "{} is Ready", name);
                    let answers = denials.get(uid).map_or(&[][..], Vec::as_slice);
                    prop_assert!(answers.len() >= confirmations as usize, "{} answers", answers.len());
                    let recent = deletions.iter().filter(|done| **done + settings.delete_period > fleet.now.mono);
                    let others = under_way.iter().filter(|other| matches!(other.action, Action::DeleteNode { .. }));
                    prop_assert!(recent.count() + others.count() < limit as usize, "one too many");
                    noted.push(fleet.now.mono);
                }
                under_way.push(proposal);
            }
            prop_assert!(under_way.len() <= 2, "one after the other");
            let report = fleet.cloud.brake(fleet.now);
            prop_assert!(report.used <= limit as usize);
            let held = fleet.cloud.suspects.nodes.values().filter(|suspect| suspect.is_held_back).count();
            prop_assert_eq!(report.held_back, held);
        }
    }
}
