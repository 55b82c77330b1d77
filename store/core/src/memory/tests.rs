use super::*;
use crate::history::Compaction;

const KEEP_NOTHING: Retention = Retention { min_age_millis: 0, min_changes: 0, max_bytes: u64::MAX };

fn node_bytes(name: &str, version: u64) -> Bytes {
    let metadata = pb::Metadata { name: name.into(), resource_version: version, ..Default::default() };
    pb::Node { metadata: Some(metadata), ..Default::default() }.encode_to_vec().into()
}

fn change(name: &str, revision: u64, previous: u64, deleted: bool) -> (Revision, StoredChange) {
    let change = StoredChange {
        kind: Kind::Node,
        namespace: String::new(),
        name: name.into(),
        record: node_bytes(name, revision),
        deleted,
        previous,
        previous_record: None,
        at_millis: revision as i64 * 1000,
        traceparent: String::new(),
        lease_id: 0,
    };
    (revision, change)
}

fn commit(memory: &mut Memory, changes: Vec<(Revision, StoredChange)>) {
    let base = memory.head();
    let head = changes.iter().map(|(revision, _)| *revision).max().unwrap_or(base);
    memory.apply_commit(&Commit { base, head, changes, ..Default::default() });
}

fn names_at(memory: &Memory, at: Revision) -> Vec<(String, Revision)> {
    memory
        .scan_at(Kind::Node, Bound::Unbounded, at)
        .map(|(key, found)| {
            let revision = match found {
                RecordVersion::Current(current) => current.revision,
                RecordVersion::InLedger { revision, .. } => revision,
            };
            (key.name().to_owned(), revision)
        })
        .collect()
}

/// a is written at 1, 3 and 6; b is written at 2, deleted at 4, written at 5.
fn memory() -> Memory {
    let mut memory = Memory::default();
    commit(&mut memory, vec![change("a", 1, 0, false), change("b", 2, 0, false)]);
    commit(&mut memory, vec![change("a", 3, 1, false), change("b", 4, 2, true)]);
    commit(&mut memory, vec![change("b", 5, 0, false), change("a", 6, 3, false)]);
    memory
}

fn entries(entries: usize) -> CompactionLimit {
    CompactionLimit { entries, bytes: usize::MAX }
}

#[test]
fn records_can_be_read_at_every_revision_of_history() {
    let memory = memory();
    let at = |revision| names_at(&memory, revision);
    let pairs = |list: &[(&str, u64)]| list.iter().map(|(n, r)| (n.to_string(), *r)).collect::<Vec<_>>();
    assert_eq!(at(0), []);
    assert_eq!(at(1), pairs(&[("a", 1)]));
    assert_eq!(at(2), pairs(&[("a", 1), ("b", 2)]));
    assert_eq!(at(3), pairs(&[("a", 3), ("b", 2)]));
    assert_eq!(at(4), pairs(&[("a", 3)]));
    assert_eq!(at(5), pairs(&[("a", 3), ("b", 5)]));
    assert_eq!(at(6), pairs(&[("a", 6), ("b", 5)]));
}

#[test]
fn compaction_deletes_only_versions_that_no_kept_revision_needs() {
    let mut memory = memory();
    assert_eq!(memory.compactable(Retention { min_changes: 6, ..KEEP_NOTHING }, i64::MAX, entries(99)), None);
    let young = Retention { min_age_millis: 1000, ..KEEP_NOTHING };
    assert_eq!(memory.compactable(young, 1999, entries(99)), None);
    assert_eq!(memory.compactable_at(young), Some(2000));
    let four = memory.compactable(KEEP_NOTHING, i64::MAX, entries(4)).unwrap();
    assert_eq!(four, Compaction { up_to: 4, entries: 4, obsolete: vec![1, 2, 4] });
    let head = memory.head();
    memory.apply_commit(&Commit { base: head, head, compaction: Some(four), ..Default::default() });
    assert_eq!(memory.compacted(), 4);
    let at = |memory: &Memory, revision| names_at(memory, revision);
    assert_eq!(at(&memory, 4), [("a".to_owned(), 3)]);
    assert_eq!(at(&memory, 6), [("a".to_owned(), 6), ("b".to_owned(), 5)]);
    let rest = memory.compactable(KEEP_NOTHING, i64::MAX, entries(99)).unwrap();
    assert_eq!(rest, Compaction { up_to: 6, entries: 2, obsolete: vec![3] });
}

#[test]
fn compaction_stops_at_its_limit_of_bytes() {
    let mut memory = Memory::default();
    let long = |revision, deleted| {
        let (_, change) = change("a", revision, revision - 1, deleted);
        (revision, StoredChange { record: vec![0; 1000].into(), ..change })
    };
    commit(&mut memory, (1..=5).map(|revision| long(revision, revision == 5)).collect());
    // The first change replaces no record; the last deletes the record it replaces and its own.
    for (bytes, expected) in [(1, 2), (1000, 2), (1001, 3), (3000, 4), (3001, 5), (usize::MAX, 5)] {
        let some =
            memory.compactable(KEEP_NOTHING, i64::MAX, CompactionLimit { entries: 99, bytes }).unwrap();
        assert_eq!(some.entries, expected, "{bytes} bytes");
    }
}

#[test]
fn nothing_is_left_of_a_deleted_record_after_compaction() {
    let mut memory = Memory::default();
    commit(&mut memory, vec![change("a", 1, 0, false), change("a", 2, 1, true)]);
    let all = memory.compactable(KEEP_NOTHING, i64::MAX, entries(99)).unwrap();
    assert_eq!(all.entries, 2);
    memory.apply_commit(&Commit { base: 2, head: 2, compaction: Some(all), ..Default::default() });
    assert!(memory.records[&Kind::Node].is_empty());
}

#[test]
fn pods_are_indexed_by_their_node_while_history_holds_them() {
    let pod = |revision, node: &str, deleted| {
        let spec = pb::PodSpec { node_name: node.into(), ..Default::default() };
        let record = pb::Pod { spec: Some(spec), ..Default::default() }.encode_to_vec().into();
        let (_, change) = change("p", revision, 0, deleted);
        (revision, StoredChange { kind: Kind::Pod, namespace: "default".into(), record, ..change })
    };
    let mut memory = Memory::default();
    let on = |memory: &Memory, node: &str, at: Revision| {
        let keys = memory.pods_on_node(node, Bound::Unbounded);
        keys.filter_map(|key| memory.version_at(Kind::Pod, key, at)).count()
    };
    commit(&mut memory, vec![pod(1, "", false)]);
    assert_eq!(on(&memory, "n1", 1), 0);
    commit(&mut memory, vec![pod(2, "n1", false)]);
    commit(&mut memory, vec![pod(3, "n1", false)]);
    let keys: Vec<_> = memory.pods_on_node("n1", Bound::Unbounded).map(NamespacedName::to_string).collect();
    assert_eq!(keys, ["default/p"]);
    assert_eq!(memory.pods_on_node("n1", Bound::Excluded(&NamespacedName::new("default", "p"))).count(), 0);
    // Deleted and created again: each revision of it can be read.
    commit(&mut memory, vec![pod(4, "n1", true), pod(5, "n1", false), pod(6, "n1", true)]);
    commit(&mut memory, vec![pod(7, "n2", false)]);
    let counts: Vec<_> = (2..=6).map(|at| on(&memory, "n1", at)).collect();
    assert_eq!(counts, [1, 1, 0, 1, 0]);
    assert_eq!(on(&memory, "n2", 7), 1);
    for (number, left) in [(5, 1), (1, 0)] {
        let some = memory.compactable(KEEP_NOTHING, i64::MAX, entries(number));
        memory.apply_commit(&Commit { base: 7, head: 7, compaction: some, ..Default::default() });
        assert_eq!(memory.pods_on_node("n1", Bound::Unbounded).count(), left, "after {number} more");
    }
    assert!(memory.nodes_of_deleted_pods.is_empty());
    assert_eq!(on(&memory, "n2", 7), 1);
}

/// The same memory, loaded from the records at `checkpoint`, the history up to it and the changes after it.
fn loaded(changes: &[(Revision, StoredChange)], checkpoint: Revision, compacted: Revision) -> Memory {
    let mut original = Memory::default();
    commit(&mut original, changes.iter().filter(|(at, _)| *at <= checkpoint).cloned().collect());
    let mut memory = Memory::at(checkpoint, compacted);
    for (key, current) in original.scan(Kind::Node, Bound::Unbounded) {
        memory.load_record(Kind::Node, key.clone(), current.revision, 0, current.record.clone());
    }
    assert_eq!(memory.fingerprint(), original.fingerprint());
    for (revision, change) in changes {
        if *revision > checkpoint {
            memory.load_change(*revision, change.clone());
            memory.finish_loading(*revision, compacted);
        } else if *revision > compacted {
            memory.load_past_change(*revision, change);
        }
    }
    memory
}

#[test]
fn what_is_loaded_is_what_was_committed_wherever_the_checkpoint_lies() {
    let changes = [
        change("a", 1, 0, false),
        change("b", 2, 0, false),
        change("a", 3, 1, false),
        change("b", 4, 2, true),
        change("b", 5, 0, false),
        change("a", 6, 3, false),
    ];
    let whole = memory();
    for checkpoint in 0..=6 {
        for compacted in 0..=checkpoint {
            let loaded = loaded(&changes, checkpoint, compacted);
            assert_eq!(loaded.fingerprint(), whole.fingerprint(), "checkpoint {checkpoint}");
            for at in compacted..=6 {
                assert_eq!(
                    names_at(&loaded, at),
                    names_at(&whole, at),
                    "checkpoint {checkpoint}, compacted {compacted}, at {at}"
                );
            }
            assert_eq!(loaded.history.len() as u64, 6 - compacted);
        }
    }
}

#[test]
fn history_above_its_limit_of_bytes_is_compacted_though_young() {
    let mut memory = Memory::default();
    let long = |revision: Revision| {
        let (_, change) = change("a", revision, revision - 1, false);
        (revision, StoredChange { record: vec![0; 1000].into(), ..change })
    };
    commit(&mut memory, (1..=5).map(long).collect());
    // The first change replaces no record. Each entry counts 256 bytes beside its record.
    let keep = |max_bytes| Retention { min_age_millis: 1_000_000, min_changes: 10, max_bytes };
    for (max_bytes, expected) in [(5_280, 0), (5_279, 1), (5_024, 1), (5_023, 2), (1_256, 4), (0, 5)] {
        let some = memory.compactable(keep(max_bytes), 6000, entries(99));
        assert_eq!(some.map_or(0, |some| some.entries), expected, "{max_bytes} bytes");
        let due = memory.compactable_at(keep(max_bytes)).is_some_and(|due| due <= 6000);
        assert_eq!(due, expected > 0, "{max_bytes} bytes");
    }
    let some = memory.compactable(keep(2_512), 6000, entries(99)).unwrap();
    memory.apply_commit(&Commit { base: 5, head: 5, compaction: Some(some), ..Default::default() });
    assert_eq!(memory.compactable(keep(2_512), 6000, entries(99)), None);
    assert_eq!(memory.compactable_at(keep(2_512)), None, "what is left is below the limit");
}

#[test]
fn a_change_stamped_by_a_clock_that_ran_ahead_does_not_stop_compaction() {
    let keep = Retention { min_age_millis: 1000, ..KEEP_NOTHING };
    let at = |revision, at_millis| {
        let (_, change) = change("a", revision, revision - 1, false);
        (revision, StoredChange { at_millis, ..change })
    };
    let mut memory = Memory::default();
    // The clock ran ahead for the second and third change.
    let times = [1_000, 9_000_000, 8_000_000, 2_000, 2_000, 3_000];
    commit(&mut memory, (1..).zip(times).map(|(revision, time)| at(revision, time)).collect());
    for (now, expected) in [(1_999, 0), (2_000, 1), (2_999, 1), (3_000, 5), (3_999, 5), (4_000, 6)] {
        let some = memory.compactable(keep, now, entries(99));
        assert_eq!(some.map_or(0, |some| some.entries), expected, "at {now}");
    }
    for (number, due) in [(0, Some(2_000)), (1, Some(3_000)), (3, Some(3_000)), (1, Some(4_000)), (1, None)] {
        let some = memory.compactable(KEEP_NOTHING, i64::MAX, entries(number));
        memory.apply_commit(&Commit { base: 6, head: 6, compaction: some, ..Default::default() });
        assert_eq!(memory.compactable_at(keep), due, "after {number} more");
    }
    assert!(memory.history.times.is_empty());
}
