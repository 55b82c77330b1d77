use jiff::Timestamp;

use super::super::fixtures::*;
use super::super::{Outcome, create, update};
use super::*;

fn existing_lease() -> Lease {
    stored(create(None, lease("n1"), &at(0)))
}

fn renewed_by(holder: &str) -> Renewal<'_> {
    Renewal { holder, status: None }
}

#[test]
fn s017_a_lease_is_replaced_only_at_a_known_version() {
    let current = existing_lease();
    let mut wanted = lease("n1");
    wanted.spec.holder_identity = "n1".into();
    assert_eq!(invalid_fields(update(Some(&current), wanted.clone(), &at(1))), ["metadata.resourceVersion"]);

    wanted.meta.resource_version = 6;
    let stale = Refusal::Stale { key: RecordId::of(&wanted), expected: 6, found: 7 };
    assert_eq!(update(Some(&current), wanted.clone(), &at(1)), Err(stale));

    wanted.meta.resource_version = 7;
    let Ok(Outcome::Store(next)) = update(Some(&current), wanted, &at(1)) else { panic!() };
    assert_eq!(next.spec.holder_identity, "n1");
    assert_eq!(next.meta, current.meta);
}

#[test]
fn s017_an_update_of_a_missing_lease_creates_it() {
    for version in [0, 6] {
        let mut wanted = lease("n1");
        wanted.meta.resource_version = version;
        let created = create(None, lease("n1"), &at(0)).unwrap();
        assert_eq!(update(None, wanted, &at(0)), Ok(Outcome::Store(created)), "version {version}");
    }
}

#[test]
fn an_update_made_for_a_deleted_lease_does_not_create_a_new_one() {
    let mut wanted = lease("n1");
    wanted.meta.uid = Some(uid(2));
    let refusal = update(None, wanted, &at(0)).unwrap_err();
    assert_eq!(
        refusal,
        Refusal::UidMismatch { key: RecordId::of(&lease("n1")), expected: uid(2), found: None }
    );
    assert_eq!(
        refusal.to_string(),
        format!("Lease kube-node-lease/n1 does not exist, the request was made for uid {}", uid(2))
    );
}

#[test]
fn a_renewal_gets_the_stores_time_in_microseconds() {
    let mut current = existing_lease();
    current.spec.holder_identity = "n1".into();
    current.spec.status_digest = 5;
    let key = RecordId::of(&current);
    let mut cx = at(10);
    cx.now = Timestamp::from_nanosecond(after(10).as_nanosecond() + 1_234_567).unwrap();
    let stamped = Timestamp::from_nanosecond(after(10).as_nanosecond() + 1_234_000).unwrap();

    let mut expected = current.clone();
    expected.spec.renew_time = Some(stamped);
    assert_eq!(renew_lease(&key, Some(&current), renewed_by("n1"), &cx), Ok(expected.clone()));

    expected.spec.status_digest = 8;
    expected.spec.status_age_millis = 90;
    let with_status = Renewal { holder: "n1", status: Some((8, 90)) };
    assert_eq!(renew_lease(&key, Some(&current), with_status, &cx), Ok(expected));
}

#[test]
fn a_lease_is_renewed_by_its_holder_or_acquired_if_it_has_none() {
    let free = existing_lease();
    let key = RecordId::of(&free);
    let taken = renew_lease(&key, Some(&free), renewed_by("n1"), &at(5)).unwrap();
    assert_eq!(taken.spec.holder_identity, "n1");
    assert_eq!((taken.spec.acquire_time, taken.spec.renew_time), (Some(after(5)), Some(after(5))));

    let kept = renew_lease(&key, Some(&taken), renewed_by("n1"), &at(9)).unwrap();
    assert_eq!((kept.spec.acquire_time, kept.spec.renew_time), (Some(after(5)), Some(after(9))));

    let refusal = renew_lease(&key, Some(&taken), renewed_by("n2"), &at(9)).unwrap_err();
    assert_eq!(refusal.to_string(), "Lease kube-node-lease/n1 is held by \"n1\", not by \"n2\"");
    let refusal = renew_lease(&key, None, renewed_by("n1"), &at(9)).unwrap_err();
    assert_eq!(refusal, Refusal::NotFound { key });
}

#[test]
fn a_fence_is_valid_for_its_holder_and_transition_only() {
    let held_by = |holder: &str, transitions| {
        let mut lease = existing_lease();
        lease.spec.holder_identity = holder.to_owned();
        lease.spec.lease_transitions = transitions;
        lease
    };
    let fence: Fence = "kube-node-lease/n1;transitions=3;holder=a".parse().unwrap();
    assert_eq!(check_fence(&fence, Some(&held_by("a", 3))), Ok(()));
    for (lease, expected) in [
        (Some(held_by("b", 4)), "is held by \"b\" at transition 4"),
        (Some(held_by("b", 3)), "is held by \"b\" at transition 3"),
        (Some(held_by("a", 4)), "is held by \"a\" at transition 4"),
        (Some(held_by("a", 2)), "is held by \"a\" at transition 2"),
        (Some(held_by("", 3)), "has no holder at transition 3"),
        (None, "does not exist"),
    ] {
        let refusal = check_fence(&fence, lease.as_ref()).unwrap_err().to_string();
        let expected = format!(
            "Lease kube-node-lease/n1 {expected}; the write is refused: it was fenced for holder \"a\" at transition 3"
        );
        assert_eq!(refusal, expected);
    }
    let long = check_fence(&fence, Some(&held_by(&"x".repeat(100_000), 4))).unwrap_err().to_string();
    assert!(long.len() < 512, "it must fit into headers");
}
