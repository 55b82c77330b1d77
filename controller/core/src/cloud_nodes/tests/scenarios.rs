//! The scenarios of the specification, by number.

use super::*;

/// A fleet of one, whose cloud answers like that.
fn one(settings: Settings, ready: Option<ConditionStatus>, exists: Result<Answer, Failure>) -> Fleet {
    let mut fleet = Fleet::new(settings);
    fleet.machines.insert("a", Machine { exists, ..machine() });
    fleet.put(match ready {
        Some(ready) => node("a").ready(ready),
        None => node("a"),
    });
    fleet
}

#[test]
fn s156_a_node_without_a_machine_is_deleted_unless_it_is_ready() {
    for (ready, exists, is_kept) in [
        (Some(Unknown), gone(), false),
        (Some(False), gone(), false),
        (None, gone(), false),
        (Some(Unknown), error(), true),
        (Some(Unknown), Err(Failure::Refused("no".to_owned())), true),
        (Some(Unknown), Err(Failure::Unknown("no".to_owned())), true),
        (Some(Unknown), Ok(Answer::Cloud(true)), true),
        (Some(True), gone(), true),
    ] {
        let shown = format!("{ready:?} {exists:?}");
        let mut fleet = one(credulous(), ready, exists);
        fleet.run_until(5);
        assert_eq!(fleet.has("a"), is_kept, "{shown}");
        let told: &[&str] = if is_kept { &[] } else { &["DeletingNode a"] };
        assert_eq!(fleet.told, told, "{shown}");
    }
}

#[test]
fn s156_by_default_the_third_answer_in_a_row_is_believed() {
    let mut fleet = one(Settings::default(), Some(Unknown), gone());
    fleet.run_until(9);
    assert_eq!((fleet.has("a"), fleet.done.len()), (true, 2));
    let reason = "The cloud answered 2 of 3 times in a row that the machine does not exist; the node is deleted after 3."
        .to_owned();
    assert_eq!(fleet.explain("a"), [(ExplanationAction::DeleteNode, ExplanationState::Waiting, reason)]);
    let explanation =
        fleet.cloud.explain(fleet.world.node("a").unwrap(), fleet.hold_until, fleet.now).remove(0);
    assert_eq!(explanation.earliest, Some(at(10).mono));
    fleet.run_until(10);
    assert_eq!((fleet.has("a"), fleet.told.as_slice()), (false, &["DeletingNode a".to_owned()][..]));
}

#[test]
fn s156_an_answer_of_another_kind_begins_the_count_anew() {
    for between in [Ok(Answer::Cloud(true)), error()] {
        let mut fleet = one(Settings::default(), Some(Unknown), gone());
        fleet.run_until(9);
        fleet.machines.insert("a", Machine { exists: between, ..machine() });
        fleet.run_until(14);
        fleet.machines.insert("a", Machine { exists: gone(), ..machine() });
        fleet.run_until(24);
        assert!(fleet.has("a"));
        fleet.run_until(25);
        assert!(!fleet.has("a"));
    }
}

#[test]
fn s156_a_deletion_that_fails_is_told_and_tried_again() {
    let mut fleet = one(credulous(), Some(Unknown), gone());
    fleet.refusal = Some(Failure::Later("busy".to_owned()));
    fleet.run_until(1);
    assert_eq!(fleet.told, ["DeletingNode a", "DeletingNodeFailed a"]);
    fleet.refusal = None;
    fleet.run_until(5);
    assert!(!fleet.has("a"));
}

#[test]
fn s157_a_machine_that_is_off_is_marked_until_its_node_is_ready() {
    for (shutdown, is_marked) in [
        (Ok(Answer::Cloud(true)), true),
        (Ok(Answer::Cloud(false)), false),
        (error(), false),
        (Err(Failure::Refused("unimplemented".to_owned())), false),
    ] {
        let mut fleet = Fleet::new(Settings::default());
        fleet.machines.insert("a", Machine { shutdown: shutdown.clone(), ..machine() });
        fleet.put(node("a").ready(Unknown).taint("mine=1:NoSchedule"));
        fleet.run_until(5);
        let off = "mine=1:NoSchedule node.cloudprovider.kubernetes.io/shutdown:NoSchedule";
        let marked = if is_marked { off } else { "mine=1:NoSchedule" };
        assert_eq!(fleet.taints("a"), marked, "{shutdown:?}");

        fleet.machines.insert("a", machine());
        fleet.run_until(20);
        assert_eq!(fleet.taints("a"), marked, "the cloud's word is not enough to take it off");
        fleet.ready("a", True);
        fleet.settle();
        assert_eq!(fleet.taints("a"), "mine=1:NoSchedule");
    }
}

#[test]
fn s157_the_mark_says_when_it_was_made_and_why_it_stays() {
    let mut fleet = Fleet::new(Settings::default());
    fleet.machines.insert("a", Machine { shutdown: Ok(Answer::Cloud(true)), ..machine() });
    fleet.put(node("a").ready(Unknown));
    fleet.run_until(1);
    let version = fleet.version;
    let taint = &fleet.world.node("a").unwrap().spec.taints[0];
    assert_eq!(taint.time_added, Some(at(0).wall));
    fleet.run_until(60);
    assert_eq!(fleet.version, version, "it is written once");
    let exists = "The cloud answers that the machine exists and is switched off.".to_owned();
    let stays = "The taint of a machine that is switched off stays until the node is Ready.".to_owned();
    assert_eq!(
        fleet.explain("a"),
        [
            (ExplanationAction::DeleteNode, ExplanationState::None, exists),
            (ExplanationAction::Untaint, ExplanationState::Waiting, stays)
        ]
    );
}

#[test]
fn s157_a_mark_from_before_a_restart_goes_when_the_node_is_ready() {
    let mut fleet = Fleet::new(Settings::default());
    fleet.put(node("a").ready(True).taint("node.cloudprovider.kubernetes.io/shutdown:NoSchedule"));
    fleet.settle();
    assert_eq!((fleet.taints("a").as_str(), fleet.done.len()), ("", 0));
}

#[test]
fn s158_a_look_up_by_name_that_finds_nothing_means_no_machine() {
    for (exists, is_kept) in [(Err(Failure::Gone), false), (error(), true)] {
        let mut fleet = one(credulous(), Some(Unknown), exists.clone());
        assert_eq!(fleet.world.node("a").unwrap().spec.provider_id, "");
        fleet.run_until(5);
        assert_eq!(fleet.has("a"), is_kept, "{exists:?}");
    }
}
