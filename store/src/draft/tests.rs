use muster_proto::lease::LeaseSpec;
use muster_proto::record::Record;

use super::*;
use crate::rules::Refusal;

/// A lease held by that, at that transition.
fn lease(holder: &str, transitions: i32) -> Lease {
    let metadata =
        pb::Metadata { name: "ctl".to_owned(), namespace: "kube-system".to_owned(), ..Default::default() };
    let wire = pb::Lease { metadata: Some(metadata), spec: None };
    let spec = LeaseSpec {
        holder_identity: holder.to_owned(),
        lease_transitions: transitions,
        ..LeaseSpec::default()
    };
    Lease { spec, ..Lease::try_from(wire).unwrap() }
}

#[test]
fn a_fence_is_judged_by_what_the_batch_has_done_so_far() {
    let memory = Memory::default();
    let mut indexes = Indexes::rebuild(&memory, 0);
    let policy = Policy {
        defaults: Defaults::default(),
        retention: Retention { min_age_millis: 0, min_changes: 0 },
        event_ttl_millis: 0,
    };
    let mut draft = Draft::new(&memory, &mut indexes, &policy, Timestamp::UNIX_EPOCH);
    let fence: Fence = "kube-system/ctl;transitions=3;holder=a".parse().unwrap();
    let found = |draft: &Draft<'_>| match draft.check_fence(&fence) {
        Ok(()) => "holds".to_owned(),
        Err(StoreError::Refused(Refusal::Fenced { found: Some((holder, _)), .. })) => holder,
        Err(StoreError::Refused(Refusal::Fenced { found: None, .. })) => "gone".to_owned(),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(found(&draft), "gone");
    draft.put(lease("a", 3)).unwrap();
    assert_eq!(found(&draft), "holds");
    // Another takes over in the same commit: whatever of the first comes behind it is refused.
    let taken = draft.put(lease("b", 4)).unwrap();
    assert_eq!(found(&draft), "b");
    assert_eq!(taken.meta().resource_version, 2);
    draft.remove(taken).unwrap();
    assert_eq!(found(&draft), "gone");
}
