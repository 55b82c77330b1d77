use muster_proto::condition::{ConditionStatus, types};
use muster_proto::event::{Event, EventType, ObjectReference};
use muster_proto::lease::LeaseSpec;
use muster_proto::pod::{Pod, PodCondition};
use muster_proto::record::Record;
use muster_proto::wellknown::annotation;

use super::maintenance::MAX_COMPACTED_CHANGES;
use super::*;
use crate::limits::{EVENTS, EVENTS_OF_NODE};
use crate::rules::Refusal;

fn keep_nothing() -> Policy {
    let retention = Retention { min_age_millis: 0, min_changes: 0, max_bytes: u64::MAX };
    Policy { defaults: Defaults::default(), retention, event_ttl_millis: 0, event_limit: EVENTS }
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

/// What was stored, decoded.
fn read<R: Record>(stored: &Stored) -> R {
    let record = R::try_from(R::Pb::decode(&*stored.record).unwrap()).unwrap();
    assert_eq!(record.meta().resource_version, stored.version);
    record
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
        assert_eq!(read::<Lease>(&draft.put(lease("a", 1)).unwrap()).meta.traceparent, expected);
        let stored: Lease = draft.get("kube-system", "ctl").unwrap().unwrap();
        assert_eq!(stored.meta.traceparent, expected);
    }
    draft.begin_request(write.to_owned());
    let deleted: Lease = read(&draft.remove(lease("a", 1)).unwrap());
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
    assert_eq!(taken.version, 2);
    draft.remove(read::<Lease>(&taken)).unwrap();
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
        previous_record: None,
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
    draft.maintain().unwrap();
    assert_eq!(draft.finish().commit.compaction.unwrap().entries, ADDED);
}

fn node_with_uid(name: &str, uid: &str) -> Node {
    let metadata = pb::Metadata { name: name.to_owned(), uid: uid.to_owned(), ..Default::default() };
    Node::try_from(pb::Node { metadata: Some(metadata), ..Default::default() }).unwrap()
}

/// A pod with these owners (kind, name, uid).
fn pod_of(owners: &[(&str, &str, &str)]) -> Pod {
    let owner = |(kind, name, uid): &(&str, &str, &str)| pb::OwnerReference {
        api_version: "v1".to_owned(),
        kind: (*kind).to_owned(),
        name: (*name).to_owned(),
        uid: (*uid).to_owned(),
        ..Default::default()
    };
    let metadata = pb::Metadata {
        name: "p".to_owned(),
        namespace: "default".to_owned(),
        owner_references: owners.iter().map(owner).collect(),
        ..Default::default()
    };
    let container = pb::Container { name: "c".to_owned(), image: "i".to_owned(), ..Default::default() };
    let spec = pb::PodSpec { containers: vec![container], ..Default::default() };
    Pod::try_from(pb::Pod { metadata: Some(metadata), spec: Some(spec), status: None }).unwrap()
}

#[test]
fn a_dependent_is_deleted_only_when_all_its_owners_are_gone() {
    const A: &str = "98df94d9-d9d8-4e3e-a5ee-59b87da79b7a";
    const B: &str = "11111111-d9d8-4e3e-a5ee-59b87da79b7a";
    let (a, b, set) = (("Node", "a", A), ("Node", "b", B), ("ReplicaSet", "web", "7"));
    for (owners, after_a, after_both) in [
        (vec![], "kept", "kept"),
        (vec![set], "kept", "kept"),
        (vec![a], "deleted", "deleted"),
        (vec![a, b], "kept", "deleted"),
        // Nobody can tell whether an owner of a kind that the store does not hold is gone.
        (vec![a, set], "kept", "kept"),
        (vec![set, a], "kept", "kept"),
        (vec![a, set, b], "kept", "kept"),
    ] {
        let (mut memory, policy) = (Memory::default(), keep_nothing());
        let mut indexes = Indexes::rebuild(&memory, 0);
        let mut draft = Draft::new(&memory, &mut indexes, &policy, Timestamp::UNIX_EPOCH);
        let nodes = [("a", A), ("b", B)].map(|(name, uid)| draft.put(node_with_uid(name, uid)).unwrap());
        draft.put(pod_of(&owners)).unwrap();
        let commit = draft.finish().commit;
        memory.apply_commit(&commit);
        for (gone, expected) in nodes.into_iter().zip([after_a, after_both]) {
            let mut draft = Draft::new(&memory, &mut indexes, &policy, Timestamp::UNIX_EPOCH);
            draft.remove(read::<Node>(&gone)).unwrap();
            let found: Option<Pod> = draft.get("default", "p").unwrap();
            let outcome = if found.is_some() { "kept" } else { "deleted" };
            assert_eq!(outcome, expected, "{owners:?}");
            let batch = draft.finish();
            assert_eq!(batch.orphans, [], "{owners:?}");
            memory.apply_commit(&batch.commit);
        }
        // What a start finds without its owner is judged in the same way.
        let mut indexes = Indexes::rebuild(&memory, 0);
        let orphans = indexes.orphans(&memory);
        let mut draft = Draft::new(&memory, &mut indexes, &policy, Timestamp::UNIX_EPOCH);
        for (kind, key) in orphans {
            draft.delete_orphan(kind, &key).unwrap();
        }
        let found: Option<Pod> = draft.get("default", "p").unwrap();
        assert_eq!(if found.is_some() { "kept" } else { "deleted" }, after_both, "{owners:?} after a start");
    }
}

#[test]
fn a_dependent_is_deleted_when_it_gives_up_its_last_owner_that_may_exist() {
    let (memory, policy) = (Memory::default(), keep_nothing());
    let mut indexes = Indexes::rebuild(&memory, 0);
    let mut draft = Draft::new(&memory, &mut indexes, &policy, Timestamp::UNIX_EPOCH);
    let (gone, set) = (("Node", "a", "98df94d9-d9d8-4e3e-a5ee-59b87da79b7a"), ("ReplicaSet", "web", "7"));
    let key = NamespacedName::new("default", "p");
    for (owners, exists) in [(vec![gone, set], true), (vec![gone], false)] {
        draft.put(pod_of(&owners)).unwrap();
        draft.delete_orphan(Kind::Pod, &key).unwrap();
        assert_eq!(draft.get::<Pod>("default", "p").unwrap().is_some(), exists, "{owners:?}");
    }
}

/// A draft on nothing, handed to `test`.
fn in_draft(policy: &Policy, test: impl FnOnce(&mut Draft<'_>)) -> Batch {
    let memory = Memory::default();
    let mut indexes = Indexes::rebuild(&memory, policy.event_ttl_millis);
    let mut draft = Draft::new(&memory, &mut indexes, policy, Timestamp::UNIX_EPOCH);
    test(&mut draft);
    draft.maintain().unwrap();
    draft.finish()
}

/// The numbered event of a node, which last happened at that second.
fn event(host: &str, number: i64) -> Event {
    let name = format!("{}.{number}", if host.is_empty() { "nobody" } else { host }).parse().unwrap();
    let involved = ObjectReference { kind: Kind::Node, namespace: None, name, uid: None };
    let mut event = Event::about(involved, EventType::Normal, "Test", "", "test");
    event.last_timestamp = Some(Timestamp::from_second(number).unwrap());
    event.source_host = host.to_owned();
    event
}

fn deleted(batch: &Batch) -> Vec<&str> {
    batch
        .commit
        .changes
        .iter()
        .filter(|(_, change)| change.deleted)
        .map(|(_, change)| &*change.name)
        .collect()
}

#[test]
fn events_give_way_oldest_first() {
    let event_limit = Amount { records: 3, bytes: usize::MAX };
    let policy = Policy { event_ttl_millis: 1_000_000, event_limit, ..keep_nothing() };
    let batch = in_draft(&policy, |draft| {
        for number in [5, 1, 4, 2, 3] {
            draft.put(event("a", number)).unwrap();
        }
    });
    assert_eq!(deleted(&batch), ["a.1", "a.2"], "in the commit that exceeds the limit");
    assert_eq!(batch.dropped_events, 2);

    let bytes =
        batch.commit.changes.iter().filter(|(_, change)| !change.deleted).map(|(_, c)| c.record.len());
    let event_limit = Amount { records: usize::MAX, bytes: bytes.sum::<usize>() - 1 };
    let policy = Policy { event_limit, ..policy };
    let batch = in_draft(&policy, |draft| {
        for number in [5, 1, 4, 2, 3] {
            draft.put(event("a", number)).unwrap();
        }
    });
    assert_eq!(deleted(&batch), ["a.1"]);
}

#[test]
fn the_events_of_one_node_do_not_displace_those_of_others() {
    let policy = Policy { event_ttl_millis: i64::from(i32::MAX), ..keep_nothing() };
    let batch = in_draft(&policy, |draft| {
        draft.put(event("quiet", 1)).unwrap();
        draft.put(event("", 1)).unwrap();
        for number in 0..EVENTS_OF_NODE.records as i64 + 2 {
            draft.put(event("loud", 2 + number)).unwrap();
        }
    });
    assert_eq!(deleted(&batch), ["loud.2", "loud.3"]);
    assert_eq!(batch.dropped_events, 2);
}

#[test]
fn a_kind_has_its_own_largest_record() {
    let node = |bytes: usize| {
        let mut node: Node = named("n").try_into().unwrap();
        node.meta.annotations.insert("a".to_owned(), "x".repeat(bytes));
        node
    };
    in_draft(&keep_nothing(), |draft| {
        let mut large = lease("a", 1);
        large.meta.annotations.insert("a".to_owned(), "x".repeat(64 * 1024));
        let refused = draft.put(large).unwrap_err();
        assert!(matches!(refused, DraftError::TooLarge { limit: 65_536, .. }), "{refused}");
        draft.put(node(1_400_000)).unwrap();
        let refused = draft.put(node(1_500_000)).unwrap_err();
        assert!(matches!(refused, DraftError::TooLarge { limit: 1_500_000, .. }), "{refused}");
    });
}

fn named(name: &str) -> pb::Node {
    let metadata = pb::Metadata { name: name.to_owned(), ..Default::default() };
    pb::Node { metadata: Some(metadata), ..Default::default() }
}

/// A pod of `default` with this label.
fn pod(name: &str, app: &str) -> Pod {
    let metadata = pb::Metadata {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        labels: [("app".to_owned(), app.to_owned())].into_iter().collect(),
        ..Default::default()
    };
    let container = pb::Container { name: "c".to_owned(), image: "i".to_owned(), ..Default::default() };
    let spec = pb::PodSpec { containers: vec![container], ..Default::default() };
    pb::Pod { metadata: Some(metadata), spec: Some(spec), ..Default::default() }.try_into().unwrap()
}

/// A budget of `default` for the pods with this label.
fn budget(min_available: &str, app: &str) -> DisruptionBudget {
    let metadata =
        pb::Metadata { name: "b".to_owned(), namespace: "default".to_owned(), ..Default::default() };
    let selector = pb::LabelSelector {
        match_labels: [("app".to_owned(), app.to_owned())].into_iter().collect(),
        ..Default::default()
    };
    let spec = pb::DisruptionBudgetSpec {
        selector: Some(selector),
        min_available: min_available.to_owned(),
        ..Default::default()
    };
    pb::DisruptionBudget { metadata: Some(metadata), spec: Some(spec), status: None }.try_into().unwrap()
}

#[test]
fn every_revision_of_a_budget_shows_the_status_of_its_spec() {
    let batch = in_draft(&keep_nothing(), |draft| {
        for (name, app) in [("p", "web"), ("q", "web"), ("r", "db")] {
            draft.put(pod(name, app)).unwrap();
        }
        for (min_available, app, expected) in
            [("1", "web", (2, 1)), ("50%", "db", (1, 1)), ("2", "db", (1, 2))]
        {
            let written: DisruptionBudget = read(&draft.put(budget(min_available, app)).unwrap());
            draft.update_budget_statuses().unwrap();
            let status = (written.status.expected_pods, written.status.desired_healthy);
            assert_eq!(status, expected, "{min_available} of {app}");
        }
    });
    let budgets = batch.commit.changes.iter().filter(|(_, change)| change.kind == Kind::DisruptionBudget);
    assert_eq!(budgets.count(), 3, "one revision each");
}

/// A Ready pod of `default` with the label app=web.
fn ready_pod(name: &str) -> Pod {
    let mut ready = pod(name, "web");
    ready.status.set_condition(PodCondition {
        kind: types::READY.to_owned(),
        status: ConditionStatus::True,
        reason: String::new(),
        message: String::new(),
        last_probe_time: None,
        last_transition_time: None,
    });
    ready
}

fn mirror_pod(name: &str) -> Pod {
    let mut mirror = ready_pod(name);
    mirror.meta.annotations.insert(annotation::MIRROR.to_owned(), "hash".to_owned());
    mirror
}

fn expected_and_healthy(budget: &DisruptionBudget) -> (i32, i32) {
    (budget.status.expected_pods, budget.status.current_healthy)
}

#[test]
fn mirror_pods_count_in_no_budget() {
    let (mut memory, policy) = (Memory::default(), keep_nothing());
    let mut indexes = Indexes::rebuild(&memory, 0);
    let mut draft = Draft::new(&memory, &mut indexes, &policy, Timestamp::UNIX_EPOCH);
    draft.put(mirror_pod("before")).unwrap();
    draft.put(ready_pod("a")).unwrap();
    let written = draft.put(budget("1", "web")).unwrap();
    assert_eq!(expected_and_healthy(&read(&written)), (1, 1), "of the pods that were there");
    let after = draft.put(mirror_pod("after")).unwrap();
    draft.put(ready_pod("b")).unwrap();
    assert_eq!(expected_and_healthy(&draft.budgets("default").unwrap()[0]), (2, 2), "of later pods");
    draft.remove(read::<Pod>(&after)).unwrap();
    assert_eq!(expected_and_healthy(&draft.budgets("default").unwrap()[0]), (2, 2), "of deleted pods");
    let commit = draft.finish().commit;
    memory.apply_commit(&commit);
    let rebuilt = Indexes::rebuild(&memory, 0);
    let counts = rebuilt.counts(&NamespacedName::new("default", "b")).unwrap();
    assert_eq!((counts.expected, counts.healthy), (2, 2), "after a start");
}

#[test]
fn an_eviction_sees_a_budget_without_what_an_earlier_release_counted() {
    let (mut memory, policy) = (Memory::default(), keep_nothing());
    let mut indexes = Indexes::rebuild(&memory, 0);
    let mut draft = Draft::new(&memory, &mut indexes, &policy, Timestamp::UNIX_EPOCH);
    draft.put(ready_pod("a")).unwrap();
    draft.put(ready_pod("b")).unwrap();
    draft.put(budget("1", "web")).unwrap();
    let mut commit = draft.finish().commit;
    // As if `b` had been counted as a mirror pod: the record is replaced behind the budget's back.
    for (_, change) in
        commit.changes.iter_mut().filter(|(_, change)| change.name == "b" && change.kind == Kind::Pod)
    {
        change.record = pb::Pod::from(mirror_pod("b")).encode_to_vec().into();
    }
    memory.apply_commit(&commit);
    let mut indexes = Indexes::rebuild(&memory, 0);
    let mut draft = Draft::new(&memory, &mut indexes, &policy, Timestamp::UNIX_EPOCH);
    let stored: DisruptionBudget = draft.get("default", "b").unwrap().unwrap();
    assert_eq!(expected_and_healthy(&stored), (2, 2));
    let seen = &draft.budgets("default").unwrap()[0];
    assert_eq!((expected_and_healthy(seen), seen.status.disruptions_allowed), ((1, 1), 0));
}
