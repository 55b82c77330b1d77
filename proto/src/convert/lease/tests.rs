use proptest::prelude::*;

use super::*;
use crate::convert::testing::{any_metadata, any_time, at, complaints, named, stored};

fn lease(spec: pb::LeaseSpec) -> pb::Lease {
    pb::Lease { metadata: named("kube-node-lease", "a"), spec: Some(spec) }
}

#[test]
fn s017_a_duration_is_more_than_nothing() {
    for (seconds, expected) in [
        (None, ""),
        (Some(1), ""),
        (Some(0), "spec.leaseDurationSeconds: must be more than 0"),
        (Some(-1), "spec.leaseDurationSeconds: must be more than 0"),
    ] {
        let spec = pb::LeaseSpec { lease_duration_seconds: seconds, ..Default::default() };
        assert_eq!(complaints::<Lease>(lease(spec)), expected);
    }
}

#[test]
fn times_and_transitions_are_checked() {
    let spec = pb::LeaseSpec {
        acquire_time: at(0, -1),
        renew_time: at(i64::MIN, 0),
        lease_transitions: -1,
        ..Default::default()
    };
    assert_eq!(
        complaints::<Lease>(lease(spec)),
        "spec.leaseTransitions: must not be negative; \
         spec.acquireTime: must have nanos from 0 to 999999999; \
         spec.renewTime: must lie between the years -9999 and 9999"
    );
}

#[test]
fn a_lease_without_a_spec_has_no_holder() {
    let lease = stored::<Lease>(pb::Lease { metadata: named("x", "leader"), spec: None });
    assert_eq!(lease.spec, LeaseSpec::default());
}

proptest! {
    #[test]
    fn a_lease_comes_back_as_it_was_stored(
        metadata in any_metadata("kube-node-lease"),
        holder_identity in ".{0,8}",
        lease_duration_seconds in proptest::option::of(1..i32::MAX),
        acquire_time in any_time(),
        renew_time in any_time(),
        (lease_transitions, status_digest, status_age_millis) in (0..i32::MAX, any::<u64>(), any::<u32>()),
    ) {
        let spec = Some(pb::LeaseSpec {
            holder_identity, lease_duration_seconds, acquire_time, renew_time, lease_transitions,
            status_digest, status_age_millis,
        });
        let given = pb::Lease { metadata, spec };
        prop_assert_eq!(pb::Lease::from(stored::<Lease>(given.clone())), given);
    }
}
