use muster_proto::lease::LeaseSpec;
use muster_proto::record::Record;

use super::maintenance::MAX_COMPACTED_CHANGES;
use super::*;
use crate::rules::Refusal;

fn keep_nothing() -> Policy {
    let retention = Retention { min_age_millis: 0, min_changes: 0 };
    Policy { defaults: Defaults::default(), retention, event_ttl_millis: 0 }
}

/// A lease with this holder and number of transitions.
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
fn a_record_carries_the_traceparent_of_its_last_write() {
    let (memory, policy) = (Memory::default(), keep_nothing());
    let mut indexes = Indexes::rebuild(&memory, 0);
    let mut draft = Draft::new(&memory, &mut indexes, &policy, Timestamp::UNIX_EPOCH);
    let write = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for traceparent in [write, ""] {
        draft.begin_request(traceparent.to_owned());
        let expected = Some(traceparent.to_owned()).filter(|text| !text.is_empty());
        assert_eq!(draft.put(lease("a", 1)).unwrap().meta.traceparent, expected);
        let stored: Lease = draft.get("kube-system", "ctl").unwrap().unwrap();
        assert_eq!(stored.meta.traceparent, expected);
    }
    draft.begin_request(write.to_owned());
    let deleted = draft.remove(lease("a", 1)).unwrap();
    assert_eq!(deleted.meta.traceparent.as_deref(), Some(write), "the last content of a deleted record too");
}

#[test]
fn a_fence_is_checked_against_the_batch_so_far() {
    let memory = Memory::default();
    let mut indexes = Indexes::rebuild(&memory, 0);
    let policy = keep_nothing();
    let mut draft = Draft::new(&memory, &mut indexes, &policy, Timestamp::UNIX_EPOCH);
    let fence: Fence = "kube-system/ctl;transitions=3;holder=a".parse().unwrap();
    let found = |draft: &Draft<'_>| match draft.check_fence(&fence) {
        Ok(()) => "holds".to_owned(),
        Err(DraftError::Refused(Refusal::Fenced { found: Some((holder, _)), .. })) => holder,
        Err(DraftError::Refused(Refusal::Fenced { found: None, .. })) => "missing".to_owned(),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(found(&draft), "missing");
    draft.put(lease("a", 3)).unwrap();
    assert_eq!(found(&draft), "holds");
    // Another holder acquires the lease in the same commit: later writes of the first holder are refused.
    let taken = draft.put(lease("b", 4)).unwrap();
    assert_eq!(found(&draft), "b");
    assert_eq!(taken.meta().resource_version, 2);
    draft.remove(taken).unwrap();
    assert_eq!(found(&draft), "missing");
}

#[test]
fn compaction_keeps_up_with_the_changes_of_a_commit() {
    const ADDED: usize = 5 * MAX_COMPACTED_CHANGES;
    let mut memory = Memory::default();
    let record = Bytes::from(pb::Node::default().encode_to_vec());
    let old = |revision: Revision| StoredChange {
        kind: Kind::Node,
        namespace: String::new(),
        name: "a".to_owned(),
        record: record.clone(),
        deleted: false,
        previous: revision - 1,
        at_millis: 0,
        traceparent: String::new(),
        lease_id: 0,
    };
    let head = 2 * ADDED as u64;
    let changes = (1..=head).map(|revision| (revision, old(revision))).collect();
    memory.apply_commit(&Commit { head, changes, ..Default::default() });
    let (mut indexes, policy) = (Indexes::rebuild(&memory, 0), keep_nothing());
    let mut draft = Draft::new(&memory, &mut indexes, &policy, Timestamp::UNIX_EPOCH);
    for transitions in 0..ADDED {
        draft.put(lease("a", transitions as i32)).unwrap();
    }
    draft.maintain(|_| Ok(None)).unwrap();
    assert_eq!(draft.finish().commit.compaction.unwrap().entries, ADDED);
}
