//! Decoders of stored records: they do not panic, and what they accept is the same
//! after it was written and read again.

use bytes::Bytes;
use muster_mutation::{bytes, cases};
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_store_core::history::{StoredChange, StoredRenewal};
use muster_store_core::partial_decode;
use proptest::prelude::*;
use prost::Message;

fn record() -> Vec<u8> {
    let metadata = pb::Metadata { name: "web".into(), namespace: "default".into(), ..Default::default() };
    let spec = pb::PodSpec { node_name: "a".into(), ..Default::default() };
    pb::Pod { metadata: Some(metadata), spec: Some(spec), status: None }.encode_to_vec()
}

fn change() -> Vec<u8> {
    let change = StoredChange {
        kind: Kind::Pod,
        namespace: "default".into(),
        name: "web".into(),
        record: record().into(),
        deleted: false,
        previous: 3,
        previous_record: Some(Bytes::from_static(b"before")),
        at_millis: 5,
        traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into(),
        lease_id: 9,
    };
    let mut encoded = Vec::new();
    change.encode(true, &mut encoded);
    encoded
}

fn pack() -> Vec<u8> {
    let renewal = StoredRenewal { lease_id: 1, status_age_millis: 2, status_digest: 3, at_micros: 4 };
    let mut encoded = Vec::new();
    StoredRenewal::encode_pack(&[renewal; 3], &mut encoded);
    encoded
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn single_fields_of_records(record in bytes(vec![record()])) {
        partial_decode::metadata(&record);
        partial_decode::pod_node(&record);
        partial_decode::mirror_node(&record);
        partial_decode::event_host(&record);
        for kind in Kind::ALL {
            let fields = partial_decode::fields(kind, &record);
            prop_assert_eq!(fields.len(), partial_decode::selectable(kind).len());
        }
    }

    #[test]
    fn stored_changes(encoded in bytes(vec![change()])) {
        if let Ok(decoded) = StoredChange::decode(&encoded) {
            let mut again = Vec::new();
            decoded.encode(true, &mut again);
            prop_assert_eq!(StoredChange::decode(&again), Ok(decoded));
        }
    }

    #[test]
    fn packs_of_renewals(encoded in bytes(vec![pack()])) {
        if let Ok(decoded) = StoredRenewal::decode_pack(1, &encoded) {
            let mut again = Vec::new();
            StoredRenewal::encode_pack(&decoded, &mut again);
            prop_assert_eq!(again, encoded);
        }
    }
}
