//! Helpers for the tests of conversions.

use std::collections::BTreeMap;

use proptest::prelude::*;
use prost::Message;

use crate::pb;
use crate::record::Record;

/// Metadata with a name and, unless empty, a namespace.
pub(super) fn named(namespace: &str, name: &str) -> Option<pb::Metadata> {
    Some(pb::Metadata { name: name.into(), namespace: namespace.into(), ..Default::default() })
}

pub(super) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

pub(super) fn at(seconds: i64, nanos: i32) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp { seconds, nanos })
}

/// All violations of a message; empty for a valid one.
pub(super) fn complaints<R: Record>(message: R::Pb) -> String {
    match R::try_from(message) {
        Ok(_) => String::new(),
        Err(invalid) => invalid.to_string(),
    }
}

/// The record of a valid message, after it was encoded and decoded.
pub(super) fn stored<R: Record>(message: R::Pb) -> R {
    let record = R::try_from(message).unwrap();
    let out: R::Pb = record.clone().into();
    let read = R::Pb::decode(&*out.encode_to_vec()).unwrap();
    assert_eq!(read, out);
    let again = R::try_from(read).unwrap();
    assert_eq!(again, record, "reading what was written gives another record");
    assert_eq!(Into::<R::Pb>::into(again), out, "writing it again gives another message");
    record
}

pub(super) fn any_time() -> impl Strategy<Value = Option<prost_types::Timestamp>> {
    let whole_range = -377_705_023_201..=253_402_207_200i64;
    proptest::option::of((whole_range, 0..=999_999_999i32))
        .prop_map(|time| time.map(|(seconds, nanos)| prost_types::Timestamp { seconds, nanos }))
}

pub(super) fn any_resources() -> impl Strategy<Value = BTreeMap<String, String>> {
    let name = prop::sample::select(vec!["cpu", "memory", "example.com/gpu"]).prop_map(str::to_owned);
    prop::collection::btree_map(name, "[0-9]{1,4}(\\.[0-9]{1,3})?(m|k|Ki|Mi|G|e3|e-3)?", 0..3)
}

pub(super) fn any_metadata(namespace: &'static str) -> impl Strategy<Value = Option<pb::Metadata>> {
    let owner = (any::<bool>(), any::<bool>());
    let parts = (
        "[a-z0-9]([-a-z0-9]{0,9}[a-z0-9])?(\\.[a-z0-9]{1,3})?",
        any::<Option<u128>>(),
        any::<u64>(),
        (any_time(), any_time(), any_time()),
        proptest::option::of(0..i64::MAX),
        prop::collection::btree_map("[a-z]{1,3}(\\.io/[A-Z]{1,3})?", "[a-z]{0,3}", 0..3),
        prop::collection::vec("[a-z]{1,3}/[a-z]", 0..3),
        proptest::option::of(owner),
    );
    parts.prop_map(move |(name, uid, resource_version, times, grace, labels, finalizers, owner)| {
        let owner = owner.map(|(controller, block_owner_deletion)| pb::OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: "a".into(),
            uid: "u".into(),
            controller,
            block_owner_deletion,
        });
        Some(pb::Metadata {
            name,
            namespace: namespace.into(),
            uid: uid.map(|uid| uuid::Uuid::from_u128(uid).to_string()).unwrap_or_default(),
            resource_version,
            generation: grace.unwrap_or_default(),
            creation_timestamp: times.0,
            deletion_timestamp: times.1.or(times.2),
            deletion_grace_period_seconds: grace,
            annotations: labels.clone(),
            labels,
            finalizers,
            owner_references: owner.into_iter().collect(),
            traceparent: uid.map(|uid| format!("00-{uid:032x}-01")).unwrap_or_default(),
        })
    })
}
