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

fn policy() -> Policy {
    Policy {
        defaults: Defaults::default(),
        retention: Retention { min_age_millis: 0, min_changes: 0 },
        event_ttl_millis: 0,
    }
}

#[test]
fn a_record_names_the_trace_of_the_write_that_made_it() {
    let (memory, policy) = (Memory::default(), policy());
    let mut indexes = Indexes::rebuild(&memory, 0);
    let mut draft = Draft::new(&memory, &mut indexes, &policy, Timestamp::UNIX_EPOCH);
    let write = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for traceparent in [write, ""] {
        draft.begin(traceparent.to_owned());
        let expected = Some(traceparent.to_owned()).filter(|text| !text.is_empty());
        assert_eq!(draft.put(lease("a", 1)).unwrap().meta.traceparent, expected);
        let kept: Lease = draft.get("kube-system", "ctl").unwrap().unwrap();
        assert_eq!(kept.meta.traceparent, expected);
    }
    draft.begin(write.to_owned());
    let gone = draft.remove(lease("a", 1)).unwrap();
    assert_eq!(gone.meta.traceparent.as_deref(), Some(write), "its last content too");
}

#[test]
fn a_fence_is_judged_by_what_the_batch_has_done_so_far() {
    let (memory, policy) = (Memory::default(), policy());
    let mut indexes = Indexes::rebuild(&memory, 0);
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
