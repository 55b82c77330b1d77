//! What a node's fall leaves in the plans, and how it reads as a trace.

use muster_proto::condition::ConditionStatus::{False, True};
use muster_proto::taint::TaintEffect::NoExecute;
use muster_proto::taint::Toleration;

use crate::fixtures::simulator::Stage;
use crate::fixtures::{PodSample, at_ms, key, pod};
use crate::node_lifecycle::liveness::Sign;
use crate::node_lifecycle::zone_state::ZoneKey;
use crate::trace_event::Note;

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

fn tolerating(name: &str, node: &str, seconds: i64) -> PodSample {
    let toleration = Toleration::exists(UNREACHABLE, NoExecute).for_seconds(seconds);
    pod(name).on(node).running(True).tolerates(toleration)
}

/// Two nodes that live.
fn two(name: &str) -> Stage {
    let mut stage = Stage::new();
    stage.start().living(name, "z");
    stage.living("other", "z");
    stage
}

/// The notes about a node, with the seconds at which they were written.
fn notes(stage: &Stage, name: &str) -> Vec<(f64, Note)> {
    let about = |note: &Note| match note {
        Note::DeadlinePassed { node, .. }
        | Note::TaintQueued { node, .. }
        | Note::TokenTaken { node, .. }
        | Note::GivenUp { node, .. }
        | Note::TolerationOver { node, .. }
        | Note::Recovered { node }
        | Note::Gone { node } => node.as_str() == name,
    };
    let found = stage.notes.iter().filter(|(_, note)| about(note));
    found.map(|(at, note)| (*at as f64 / 1000.0, note.clone())).collect()
}

#[test]
fn a_fall_is_noted_step_by_step() {
    let mut stage = two("a");
    stage.put_pod(tolerating("p", "a", 7));
    stage.run_until(20.0).kill("a");
    stage.run_until(100.0).notes.retain(|(at, _)| *at > 0);
    let node: muster_proto::name::Name = "a".parse().unwrap();
    let zone = ZoneKey { zone: "z".to_owned(), ..ZoneKey::default() };
    let taint = format!("{UNREACHABLE}:NoExecute");
    let (heard_at, silent_at) = (at_ms(20_000).mono, 70.001);
    let tainted_at = stage.given_up()[0].0;
    let since = at_ms((tainted_at * 1000.0) as u64).mono;
    assert_eq!(
        notes(&stage, "a"),
        [
            (silent_at, Note::DeadlinePassed { node: node.clone(), heard_at, heard_by: Some(Sign::Lease) }),
            (tainted_at, Note::TaintQueued { node: node.clone(), zone: zone.clone() }),
            (tainted_at, Note::TokenTaken { node: node.clone(), zone }),
            (tainted_at, Note::GivenUp { node: node.clone(), taint: taint.clone() }),
            (
                tainted_at + 7.0,
                Note::TolerationOver {
                    pod: key("p"),
                    node: node.clone(),
                    taint,
                    since,
                    over: since + std::time::Duration::from_secs(7)
                }
            ),
        ]
    );

    stage.notes.clear();
    stage.revive("a");
    assert_eq!(notes(&stage, "a"), [(100.0, Note::Recovered { node: node.clone() })]);
    stage.notes.clear();
    stage.delete_node("a");
    assert_eq!(notes(&stage, "a"), [(100.0, Note::Gone { node })]);
}

#[test]
fn a_node_that_is_heard_before_its_record_was_written_has_recovered_too() {
    let mut stage = two("a");
    stage.fail("its grace has passed", 1000);
    stage.run_until(20.0).kill("a");
    stage.run_until(75.0).notes.clear();
    assert_eq!(stage.ready("a"), True);
    stage.revive("a");
    assert_eq!(notes(&stage, "a"), [(75.0, Note::Recovered { node: "a".parse().unwrap() })]);
}

#[test]
fn an_eviction_that_failed_is_not_noted_again() {
    let mut stage = two("a");
    stage.put_pod(tolerating("p", "a", 1));
    stage.fail("a NoExecute taint", 2);
    stage.run_until(20.0).kill("a");
    stage.run_until(100.0);
    assert!(stage.is_leaving("p"));
    let over = notes(&stage, "a").into_iter().filter(|(_, note)| matches!(note, Note::TolerationOver { .. }));
    assert_eq!(over.count(), 1);
}

#[test]
fn a_node_that_says_itself_that_it_is_ill_has_no_story_of_silence() {
    let mut stage = two("ill");
    stage.agent("ill", |agent| agent.ready = False);
    stage.run_until(100.0);
    assert!(notes(&stage, "ill").iter().all(|(_, note)| !matches!(note, Note::DeadlinePassed { .. })));
}
