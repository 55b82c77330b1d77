//! The scenarios of the specification, by number.

use super::*;

/// One node, about which the cloud answers like that.
fn one(settings: Settings, ready: Option<ConditionStatus>, exists: Result<Answer, Failure>) -> Harness {
    let mut harness = Harness::new(settings);
    harness.machines.insert("a", Machine { exists, ..machine() });
    harness.put(match ready {
        Some(ready) => node("a").ready(ready),
        None => node("a"),
    });
    harness
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
        let mut harness = one(unlimited(), ready, exists);
        harness.run_until(5);
        assert_eq!(harness.has("a"), is_kept, "{shown}");
        let events: &[&str] = if is_kept { &[] } else { &["DeletingNode a"] };
        assert_eq!(harness.events, events, "{shown}");
    }
}

#[test]
fn s156_by_default_the_third_answer_in_a_row_is_believed() {
    let mut harness = one(Settings::default(), Some(Unknown), gone());
    harness.run_until(9);
    assert_eq!((harness.has("a"), harness.done.len()), (true, 2));
    let reason = "The cloud answered 2 of 3 times in a row that the machine does not exist; the node is deleted after 3."
        .to_owned();
    assert_eq!(harness.explain("a"), [(ExplanationAction::DeleteNode, ExplanationState::Waiting, reason)]);
    let explanation =
        harness.cloud.explain(harness.world.node("a").unwrap(), harness.hold_until, harness.now).remove(0);
    assert_eq!(explanation.earliest, Some(at(10).mono));
    harness.run_until(10);
    assert_eq!((harness.has("a"), harness.events.as_slice()), (false, &["DeletingNode a".to_owned()][..]));
}

#[test]
fn s156_an_answer_of_another_kind_restarts_the_count() {
    for between in [Ok(Answer::Cloud(true)), error()] {
        let mut harness = one(Settings::default(), Some(Unknown), gone());
        harness.run_until(9);
        harness.machines.insert("a", Machine { exists: between, ..machine() });
        harness.run_until(14);
        harness.machines.insert("a", Machine { exists: gone(), ..machine() });
        harness.run_until(24);
        assert!(harness.has("a"));
        harness.run_until(25);
        assert!(!harness.has("a"));
    }
}

#[test]
fn s156_a_failed_deletion_is_reported_and_retried() {
    let mut harness = one(unlimited(), Some(Unknown), gone());
    harness.refusal = Some(Failure::Later("busy".to_owned()));
    harness.run_until(1);
    assert_eq!(harness.events, ["DeletingNode a", "DeletingNodeFailed a"]);
    harness.refusal = None;
    harness.run_until(5);
    assert!(!harness.has("a"));
}

#[test]
fn s157_a_machine_that_is_shut_down_is_tainted_until_its_node_is_ready() {
    for (shutdown, is_tainted) in [
        (Ok(Answer::Cloud(true)), true),
        (Ok(Answer::Cloud(false)), false),
        (error(), false),
        (Err(Failure::Refused("unimplemented".to_owned())), false),
    ] {
        let mut harness = Harness::new(Settings::default());
        harness.machines.insert("a", Machine { shutdown: shutdown.clone(), ..machine() });
        harness.put(node("a").ready(Unknown).taint("mine=1:NoSchedule"));
        harness.run_until(5);
        let off = "mine=1:NoSchedule node.cloudprovider.kubernetes.io/shutdown:NoSchedule";
        let taints = if is_tainted { off } else { "mine=1:NoSchedule" };
        assert_eq!(harness.taints("a"), taints, "{shutdown:?}");

        harness.machines.insert("a", machine());
        harness.run_until(20);
        assert_eq!(harness.taints("a"), taints, "the cloud's answer is not enough to remove the taint");
        harness.ready("a", True);
        harness.settle();
        assert_eq!(harness.taints("a"), "mine=1:NoSchedule");
    }
}

#[test]
fn s157_the_taint_has_the_time_it_was_added_and_a_reason_to_stay() {
    let mut harness = Harness::new(Settings::default());
    harness.machines.insert("a", Machine { shutdown: Ok(Answer::Cloud(true)), ..machine() });
    harness.put(node("a").ready(Unknown));
    harness.run_until(1);
    let version = harness.version;
    let taint = &harness.world.node("a").unwrap().spec.taints[0];
    assert_eq!(taint.time_added, Some(at(0).wall));
    harness.run_until(60);
    assert_eq!(harness.version, version, "it is written once");
    let exists = "The cloud answers that the machine exists and is switched off.".to_owned();
    let stays = "The taint of a machine that is switched off stays until the node is Ready.".to_owned();
    assert_eq!(
        harness.explain("a"),
        [
            (ExplanationAction::DeleteNode, ExplanationState::None, exists),
            (ExplanationAction::Untaint, ExplanationState::Waiting, stays)
        ]
    );
}

#[test]
fn s157_a_taint_from_before_a_restart_is_removed_when_the_node_is_ready() {
    let mut harness = Harness::new(Settings::default());
    harness.put(node("a").ready(True).taint("node.cloudprovider.kubernetes.io/shutdown:NoSchedule"));
    harness.settle();
    assert_eq!((harness.taints("a").as_str(), harness.done.len()), ("", 0));
}

#[test]
fn s158_a_look_up_by_name_that_finds_nothing_means_no_machine() {
    for (exists, is_kept) in [(Err(Failure::Gone), false), (error(), true)] {
        let mut harness = one(unlimited(), Some(Unknown), exists.clone());
        assert_eq!(harness.world.node("a").unwrap().spec.provider_id, "");
        harness.run_until(5);
        assert_eq!(harness.has("a"), is_kept, "{exists:?}");
    }
}
