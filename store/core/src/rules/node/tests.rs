use muster_proto::condition::{ConditionStatus, types};
use muster_proto::node::NodeCondition;

use super::super::fixtures::*;
use super::super::{Outcome, create, update, update_status};
use super::*;

fn ready() -> NodeCondition {
    NodeCondition {
        kind: types::READY.into(),
        status: ConditionStatus::True,
        reason: String::new(),
        message: String::new(),
        last_heartbeat_time: Some(t0()),
        last_transition_time: Some(t0()),
    }
}

#[test]
fn s004_a_new_node_is_tainted_not_ready_whatever_its_status_says() {
    let mut wanted = node("n1");
    wanted.status.conditions = vec![ready()];
    let created = create(None, wanted.clone(), &at(0)).unwrap();
    assert_eq!(created.spec.taints, [Taint::new(taint::NOT_READY, "", TaintEffect::NoSchedule)]);
    // The status that an agent registers with is kept.
    assert_eq!(created.status, wanted.status);
}

#[test]
fn s005_an_existing_not_ready_taint_is_kept_as_it_is() {
    let own = Taint::new(taint::NOT_READY, "x", TaintEffect::NoSchedule);
    let no_execute = Taint::new(taint::NOT_READY, "", TaintEffect::NoExecute);
    let no_schedule = Taint::new(taint::NOT_READY, "", TaintEffect::NoSchedule);
    for (given, expected) in [
        (vec![own.clone()], vec![own]),
        // Another effect is another taint.
        (vec![no_execute.clone()], vec![no_execute, no_schedule]),
    ] {
        let mut wanted = node("n1");
        wanted.spec.taints = given;
        assert_eq!(create(None, wanted, &at(0)).unwrap().spec.taints, expected);
    }
}

#[test]
fn s010_pod_cidrs_can_be_set_only_once() {
    let bare = stored(create(None, node("n1"), &at(0)));
    let with = |cidrs: &[&str]| {
        let mut node = bare.clone();
        node.spec.pod_cidrs = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
        node
    };
    let given = with(&["10.1.0.0/24"]);
    assert_eq!(update(Some(&bare), given.clone(), &at(1)), Ok(Outcome::Store(given.clone())));
    for other in [&["10.2.0.0/24"][..], &[], &["10.1.0.0/24", "fd00::/64"]] {
        assert_eq!(invalid_fields(update(Some(&given), with(other), &at(2))), ["spec.podCidrs"], "{other:?}");
    }
    assert!(update(Some(&given), given.clone(), &at(2)).is_ok());
}

#[test]
fn s013_the_provider_id_can_be_set_only_once() {
    let bare = stored(create(None, node("n1"), &at(0)));
    let with = |id: &str| {
        let mut node = bare.clone();
        node.spec.provider_id = id.into();
        node
    };
    let given = with("x://1");
    assert_eq!(update(Some(&bare), given.clone(), &at(1)), Ok(Outcome::Store(given.clone())));
    for other in ["x://2", ""] {
        assert_eq!(
            invalid_fields(update(Some(&given), with(other), &at(2))),
            ["spec.providerId"],
            "{other:?}"
        );
    }
}

#[test]
fn a_refusal_lists_all_violations() {
    let mut current = stored(create(None, node("n1"), &at(0)));
    current.spec.pod_cidrs = vec!["10.1.0.0/24".parse().unwrap()];
    current.spec.provider_id = "x://1".into();
    current.meta.finalizers = vec!["f".into()];
    current.meta.deletion_timestamp = Some(t0());
    let mut wanted = node("n1");
    wanted.meta.finalizers = vec!["g".into()];
    let result = update(Some(&current), wanted, &at(1));
    let text = result.as_ref().unwrap_err().to_string();
    assert_eq!(invalid_fields(result), ["metadata.finalizers[0]", "spec.podCidrs", "spec.providerId"]);
    assert_eq!(
        text,
        "Node n1 is not valid: metadata.finalizers[0]: cannot be added: the record is being deleted; \
         spec.podCidrs: cannot be changed or cleared once set; \
         spec.providerId: cannot be changed or cleared once set"
    );
}

#[test]
fn s015_spec_and_status_are_updated_separately() {
    let current = stored(create(None, node("n1"), &at(0)));

    let mut wanted = current.clone();
    wanted.spec.unschedulable = true;
    wanted.status.conditions = vec![ready()];
    let mut expected = current.clone();
    expected.spec.unschedulable = true;
    expected.spec.cordons = vec![Cordon::of_field(after(1))];
    assert_eq!(update(Some(&current), wanted, &at(1)), Ok(Outcome::Store(expected)));

    let mut wanted = current.clone();
    wanted.spec.unschedulable = true;
    wanted.spec.taints.clear();
    wanted.status.conditions = vec![ready()];
    wanted.meta.labels.insert("zone".into(), "a".into());
    wanted.meta.annotations.insert("note".into(), "b".into());
    let mut expected = current.clone();
    expected.status.conditions = vec![ready()];
    expected.meta.labels.insert("zone".into(), "a".into());
    expected.meta.annotations.insert("note".into(), "b".into());
    assert_eq!(update_status(Some(&current), wanted, &at(1)), Ok(Outcome::Store(expected)));
}

#[test]
fn s193_the_field_and_the_cordons_of_a_node_agree() {
    let by = |owner: &str| Cordon {
        owner: owner.into(),
        requested_by: owner.into(),
        ..Cordon::of_field(after(0))
    };
    let field = || Cordon::of_field(after(9));
    let old_field = || Cordon::of_field(after(0));
    // Each case: the field and the cordons before, the same as a client sends them, and what is stored.
    for (what, before, sent, expected) in [
        ("set by a client", (false, vec![]), (true, vec![]), vec![field()]),
        ("cleared by a client", (true, vec![old_field()]), (false, vec![old_field()]), vec![]),
        ("set again", (true, vec![old_field()]), (true, vec![old_field()]), vec![old_field()]),
        (
            "set again by a client that drops cordons",
            (true, vec![old_field()]),
            (true, vec![]),
            vec![old_field()],
        ),
        ("cleared beside another", (true, vec![by("eva")]), (false, vec![by("eva")]), vec![by("eva")]),
        (
            "cleared by a client that also holds one",
            (true, vec![by("eva"), old_field()]),
            (false, vec![by("eva"), old_field()]),
            vec![by("eva")],
        ),
        ("added by the controller", (false, vec![]), (true, vec![by("eva")]), vec![by("eva")]),
        ("added without the field", (false, vec![]), (false, vec![by("eva")]), vec![by("eva")]),
        ("one of two removed", (true, vec![by("eva"), by("bob")]), (true, vec![by("bob")]), vec![by("bob")]),
        ("the last removed", (true, vec![by("eva")]), (false, vec![]), vec![]),
        ("a record from before there were cordons", (true, vec![]), (true, vec![]), vec![field()]),
        ("such a record, cleared", (true, vec![]), (false, vec![]), vec![]),
    ] {
        let with = |(unschedulable, cordons): (bool, Vec<Cordon>)| NodeSpec {
            unschedulable,
            cordons,
            ..NodeSpec::default()
        };
        let (mut spec, old) = (with(sent), with(before));
        settle_cordons(&mut spec, &old, after(9));
        assert_eq!((spec.unschedulable, spec.cordons), (!expected.is_empty(), expected), "{what}");
    }
}

#[test]
fn a_node_that_is_created_cordoned_has_the_cordon_of_the_field() {
    let mut wanted = node("n1");
    wanted.spec.unschedulable = true;
    let created = create(None, wanted, &at(3)).unwrap();
    assert_eq!(created.spec.cordons, [Cordon::of_field(after(3))]);
}
