//! A cloud that lies.

use proptest::prelude::*;

use super::*;

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
            "Paused",
            "the machine does not exist, but no more than 10 may be deleted within 1h \
             (--cloud-delete-limit, --cloud-delete-period)",
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
    let reason = "the machine does not exist, but none may be deleted (--cloud-delete-limit is 0)".to_owned();
    assert_eq!(fleet.explain("a"), [("DeleteNode", "Paused", reason)]);
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
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..5usize, proptest::bool::weighted(0.3)).prop_map(|(who, ready)| Step::Put { who, ready }),
        1 => (0..5usize).prop_map(|who| Step::Remove { who }),
        8 => (0..3usize, 0..12u8).prop_map(|(which, answer)| Step::Answer { which, answer }),
        3 => (0..8_000u64).prop_map(|millis| Step::Pass { millis }),
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
        let mut under_way: Vec<Proposal> = Vec::new();
        let mut deletions: Vec<Mono> = Vec::new();
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
                        || crate::samples::uid(&format!("{name}{comings}")),
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
                    fleet.now = crate::samples::at_ms(now_ms);
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
                    }
                    fleet.answer(&proposal, result);
                }
                Step::Answer { .. } => {}
            }
            for proposal in fleet.decide().proposals {
                let Subject::Node(name, uid) = &proposal.subject else { unreachable!() };
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
