//! The steps that all kinds share, tested on nodes.

use super::super::fixtures::*;
use super::*;
use muster_proto::lease::Lease;
use muster_proto::node::Node;

fn existing_node() -> Node {
    stored(create(None, node("n1"), &at(0)))
}

#[test]
fn s001_a_created_record_gets_a_uid_and_creation_time_but_no_generation() {
    let mut wanted = node("10.240.79.157");
    wanted.meta.labels.insert("name".into(), "my-first-k8s-node".into());
    let labels = wanted.meta.labels.clone();
    // Fields that only the store writes are ignored.
    wanted.meta.uid = Some(uid(9));
    wanted.meta.resource_version = 4;
    wanted.meta.generation = 5;
    wanted.meta.creation_timestamp = Some(after(-99));
    wanted.meta.deletion_timestamp = Some(after(99));
    wanted.meta.deletion_grace_period_seconds = Some(3);

    let meta = create(None, wanted, &at(0)).unwrap().meta;
    assert_eq!(meta.uid, Some(uid(1)));
    assert_eq!(meta.creation_timestamp, Some("2026-01-01T00:00:00Z".parse().unwrap()));
    assert_eq!((meta.resource_version, meta.generation), (0, 0));
    assert_eq!((meta.deletion_timestamp, meta.deletion_grace_period_seconds), (None, None));
    assert_eq!(meta.labels, labels);
}

#[test]
fn s003_a_name_that_is_taken_cannot_be_created() {
    let refusal = create(Some(&existing_node()), node("n1"), &at(0)).unwrap_err();
    assert_eq!(refusal, Refusal::AlreadyExists { key: RecordId::of(&node("n1")) });
    assert_eq!(refusal.to_string(), "Node n1 already exists");
}

#[test]
fn s014_an_update_needs_the_resource_version_and_uid_it_was_made_for() {
    let current = existing_node();
    let key = RecordId::of(&current);
    let stale = Refusal::Stale { key: key.clone(), expected: 6, found: 7 };
    let other = Refusal::UidMismatch { key: key.clone(), expected: uid(2), found: Some(uid(1)) };
    for (version, given, expected) in [
        (7, None, Ok(())),
        (0, None, Ok(())),
        (0, Some(uid(1)), Ok(())),
        (6, None, Err(stale)),
        (7, Some(uid(2)), Err(other.clone())),
        (6, Some(uid(2)), Err(other)),
    ] {
        let mut wanted = node("n1");
        wanted.spec.taints.clone_from(&current.spec.taints);
        wanted.spec.unschedulable = true;
        wanted.meta.resource_version = version;
        wanted.meta.uid = given;
        let case = format!("version {version}, uid {given:?}");
        let result = update(Some(&current), wanted.clone(), &at(1));
        assert_eq!(result.map(|outcome| assert!(outcome.is_change())), expected, "{case}");
        wanted.status.phase = "changed".into();
        let result = update_status(Some(&current), wanted, &at(1));
        assert_eq!(result.map(|outcome| assert!(outcome.is_change())), expected, "status, {case}");
    }
}

#[test]
fn an_update_of_a_missing_node_does_not_create_it() {
    let missing = Refusal::NotFound { key: RecordId::of(&node("n1")) };
    assert_eq!(update(None, node("n1"), &at(0)), Err(missing.clone()));
    assert_eq!(update_status(None, node("n1"), &at(0)), Err(missing.clone()));
    let key = RecordId::of(&node("n1"));
    assert_eq!(delete::<Node>(&key, None, &Preconditions::default(), &at(0)), Err(missing));
}

#[test]
fn preconditions_come_before_validation() {
    let mut current = existing_node();
    current.spec.provider_id = "x://1".into();
    let mut wanted = node("n1");
    wanted.meta.resource_version = 3;
    let refusal = update(Some(&current), wanted, &at(1)).unwrap_err();
    assert!(matches!(refusal, Refusal::Stale { .. }), "{refusal}");
}

#[test]
fn s016_an_update_that_changes_nothing_is_not_stored() {
    let current = existing_node();
    for version in [0, 7] {
        let mut same = current.clone();
        same.meta.resource_version = version;
        same.meta.uid = None;
        same.meta.creation_timestamp = None;
        same.meta.traceparent = Some("of another write".into());
        assert_eq!(update(Some(&current), same.clone(), &at(9)), Ok(Outcome::Unchanged(current.clone())));
        assert_eq!(update_status(Some(&current), same, &at(9)), Ok(Outcome::Unchanged(current.clone())));
    }
    let mut other = current.clone();
    other.meta.labels.insert("a".into(), "b".into());
    assert!(matches!(update(Some(&current), other, &at(9)), Ok(Outcome::Store(_))));
}

#[test]
fn updates_do_not_change_fields_that_only_the_store_writes() {
    let mut current = existing_node();
    current.meta.finalizers = vec!["f".into()];
    let none = Preconditions::default();
    let current = delete(&RecordId::of(&current), Some(&current), &none, &at(1)).unwrap().into_record();
    let mut wanted = current.clone();
    wanted.meta.uid = None;
    wanted.meta.resource_version = 0;
    wanted.meta.generation = 12;
    wanted.meta.creation_timestamp = Some(after(50));
    wanted.meta.deletion_timestamp = None;
    wanted.meta.deletion_grace_period_seconds = None;
    wanted.meta.traceparent = Some("made up".into());
    wanted.meta.labels.insert("a".into(), "b".into());
    let updated = update(Some(&current), wanted.clone(), &at(2)).unwrap();
    let status_updated = update_status(Some(&current), wanted, &at(2)).unwrap();
    for outcome in [updated, status_updated] {
        let Outcome::Store(next) = outcome else { panic!("{outcome:?}") };
        let mut expected = current.meta.clone();
        expected.labels.insert("a".into(), "b".into());
        assert_eq!(next.meta, expected);
    }
}

#[test]
fn s023_a_deleted_record_is_removed_with_its_last_finalizer() {
    let mut current = existing_node();
    current.meta.finalizers = vec!["f".into(), "g".into()];
    let key = RecordId::of(&current);
    let none = Preconditions::default();

    let Ok(Outcome::Store(deleting)) = delete(&key, Some(&current), &none, &at(5)) else {
        panic!("a finalizer keeps the record")
    };
    assert_eq!(deleting.meta.deletion_timestamp, Some(after(5)));
    assert_eq!(deleting.meta.deletion_grace_period_seconds, Some(0));
    assert_eq!(delete(&key, Some(&deleting), &none, &at(6)), Ok(Outcome::Unchanged(deleting.clone())));

    let mut more = deleting.clone();
    more.meta.finalizers.extend(["h".into(), "i".into()]);
    let invalid_fields = invalid_fields(update(Some(&deleting), more, &at(7)));
    assert_eq!(invalid_fields, ["metadata.finalizers[2]", "metadata.finalizers[3]"]);

    let mut fewer = deleting.clone();
    fewer.meta.finalizers = vec!["g".into()];
    let Ok(Outcome::Store(fewer)) = update(Some(&deleting), fewer, &at(8)) else {
        panic!("one finalizer is left")
    };
    let mut last = fewer.clone();
    last.meta.finalizers.clear();
    assert_eq!(update(Some(&fewer), last.clone(), &at(9)), Ok(Outcome::Remove(last)));
}

#[test]
fn a_record_that_is_not_being_deleted_may_gain_and_lose_finalizers() {
    let current = existing_node();
    let mut wanted = current.clone();
    wanted.meta.finalizers = vec!["f".into()];
    let Ok(Outcome::Store(held)) = update(Some(&current), wanted, &at(1)) else { panic!() };
    let mut wanted = held.clone();
    wanted.meta.finalizers.clear();
    assert!(matches!(update(Some(&held), wanted, &at(2)), Ok(Outcome::Store(_))));
}

#[test]
fn without_finalizers_a_deletion_removes_at_once_if_its_preconditions_hold() {
    let current = existing_node();
    let key = RecordId::of(&current);
    let stale = Refusal::Stale { key: key.clone(), expected: 6, found: 7 };
    let other = Refusal::UidMismatch { key: key.clone(), expected: uid(2), found: Some(uid(1)) };
    for (uid, resource_version, expected) in [
        (None, None, Ok(Outcome::Remove(current.clone()))),
        (Some(uid(1)), Some(7), Ok(Outcome::Remove(current.clone()))),
        (None, Some(6), Err(stale)),
        (Some(uid(2)), Some(7), Err(other)),
    ] {
        let preconditions = Preconditions { uid, resource_version };
        assert_eq!(delete(&key, Some(&current), &preconditions, &at(1)), expected, "{preconditions:?}");
    }
}

#[test]
fn a_status_update_changes_neither_finalizers_nor_owners() {
    let mut current = existing_node();
    current.meta.finalizers = vec!["f".into()];
    current.meta.owner_references = vec![owned_by("Rack")];
    let mut wanted = current.clone();
    wanted.meta.finalizers.clear();
    wanted.meta.owner_references.clear();
    assert_eq!(update_status(Some(&current), wanted, &at(1)), Ok(Outcome::Unchanged(current)));
}

#[test]
fn a_lease_shares_the_deletion_rules() {
    let current: Lease = stored(create(None, lease("n1"), &at(0)));
    let key = RecordId::of(&current);
    assert_eq!(key.to_string(), "Lease kube-node-lease/n1");
    let outcome = delete(&key, Some(&current), &Preconditions::default(), &at(1));
    assert_eq!(outcome, Ok(Outcome::Remove(current)));
}
