//! Parsers and conversions of input from outside: whatever it is, they do not panic, and what they accept is the same
//! after it was written and read again.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::str::FromStr;

use muster_mutation::{bytes, cases, texts};
use muster_proto::budget::DisruptionBudget;
use muster_proto::certificate_request::CertificateRequest;
use muster_proto::cidr::Cidr;
use muster_proto::event::Event;
use muster_proto::fence::Fence;
use muster_proto::join_token::{JoinToken, SecretToken};
use muster_proto::lease::Lease;
use muster_proto::name::{Name, Namespace, Uid};
use muster_proto::node::Node;
use muster_proto::percent::IntOrPercent;
use muster_proto::pod::Pod;
use muster_proto::priority_class::PriorityClass;
use muster_proto::quantity::Quantity;
use muster_proto::record::Record;
use muster_proto::revocation::{Revocation, Serial};
use muster_proto::selector::{FieldSelector, LabelSelector};
use muster_proto::taint::Taint;
use muster_proto::{duration, pb};
use proptest::prelude::*;
use prost::Message;

/// What is accepted can be written and read again.
fn check_text<T: FromStr<Err: Display> + Display + PartialEq + Debug>(text: &str) {
    match text.parse::<T>() {
        Ok(parsed) => {
            let written = parsed.to_string();
            let again = written.parse::<T>().map_err(|error| error.to_string());
            assert_eq!(again.as_ref(), Ok(&parsed), "{text:?} was written as {written:?}");
        }
        // An error is for people.
        Err(error) => assert!(!error.to_string().is_empty(), "{text:?}"),
    }
}

/// A record that is accepted is the same after it was encoded and decoded.
fn check_record<R: Record>(bytes: &[u8]) {
    let Ok(wire) = R::Pb::decode(bytes) else { return };
    match R::try_from(wire) {
        Ok(record) => {
            let stored: R::Pb = record.clone().into();
            let decoded = R::Pb::decode(&*stored.encode_to_vec()).unwrap();
            assert_eq!(R::try_from(decoded), Ok(record));
        }
        Err(invalid) => assert!(!invalid.violations.is_empty()),
    }
}

fn metadata() -> pb::Metadata {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    pb::Metadata {
        name: "a".into(),
        namespace: "default".into(),
        uid: "8c2fd0a5-63b8-4a1f-9d0c-2f5e7f1b0a11".into(),
        resource_version: 7,
        labels: HashMap::from([pair("app", "web"), pair("kubernetes.io/os", "linux")]).into_iter().collect(),
        annotations: HashMap::from([pair("example.com/x", "y")]).into_iter().collect(),
        creation_timestamp: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 1 }),
        owner_references: vec![pb::OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: "a".into(),
            uid: "8c2fd0a5-63b8-4a1f-9d0c-2f5e7f1b0a11".into(),
            controller: true,
            block_owner_deletion: false,
        }],
        ..Default::default()
    }
}

fn records() -> Vec<Vec<u8>> {
    let node = pb::Node {
        metadata: Some(pb::Metadata { namespace: String::new(), ..metadata() }),
        spec: Some(pb::NodeSpec {
            pod_cidr: "10.0.1.0/24".into(),
            pod_cidrs: vec!["10.0.1.0/24".into()],
            taints: vec![pb::Taint { key: "gpu".into(), effect: "NoSchedule".into(), ..Default::default() }],
            ..Default::default()
        }),
        status: Some(pb::NodeStatus {
            capacity: HashMap::from([("cpu".to_owned(), "4".to_owned())]).into_iter().collect(),
            conditions: vec![pb::NodeCondition {
                r#type: "Ready".into(),
                status: "True".into(),
                ..Default::default()
            }],
            ..Default::default()
        }),
    };
    let pod = pb::Pod {
        metadata: Some(metadata()),
        spec: Some(pb::PodSpec {
            node_name: "a".into(),
            containers: vec![pb::Container {
                name: "main".into(),
                image: "none".into(),
                command: vec!["sleep".into()],
                ..Default::default()
            }],
            ..Default::default()
        }),
        status: None,
    };
    let lease = pb::Lease {
        metadata: Some(pb::Metadata { namespace: "kube-node-lease".into(), ..metadata() }),
        spec: Some(pb::LeaseSpec {
            holder_identity: "a".into(),
            lease_duration_seconds: Some(40),
            ..Default::default()
        }),
    };
    let own = |name: &str| Some(pb::Metadata { name: name.into(), namespace: String::new(), ..metadata() });
    let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let time = Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 1 });
    let token = pb::JoinToken {
        metadata: own("8000000000"),
        spec: Some(pb::JoinTokenSpec {
            secret_sha256: digest.into(),
            expire_time: time,
            max_uses: 3,
            node_name: "a".into(),
            ..Default::default()
        }),
        status: None,
    };
    let request = pb::CertificateRequest {
        metadata: own("csr-1"),
        spec: Some(pb::CertificateRequestSpec {
            node_name: "a".into(),
            request: "PEM".into(),
            public_key_sha256: digest.into(),
            ..Default::default()
        }),
        status: Some(pb::CertificateRequestStatus {
            state: "Issued".into(),
            certificate: "PEM".into(),
            serial: "3a07".into(),
            not_after: time,
            ..Default::default()
        }),
    };
    let revocation = pb::Revocation {
        metadata: own("node-a"),
        spec: Some(pb::RevocationSpec { node_name: "a".into(), ..Default::default() }),
        status: None,
    };
    let class = pb::PriorityClass {
        metadata: own("high"),
        value: 1000,
        description: "for what people wait for".into(),
        preemption_policy: "Never".into(),
        ..Default::default()
    };
    let mut records = vec![node.encode_to_vec(), pod.encode_to_vec(), lease.encode_to_vec()];
    records.extend([
        token.encode_to_vec(),
        request.encode_to_vec(),
        revocation.encode_to_vec(),
        class.encode_to_vec(),
    ]);
    records
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn quantities(text in texts(&["1", "100m", "1.5Gi", "-0.25", "1e3", "12E", "1.000000001", "9223372036854775807"])) {
        check_text::<Quantity>(&text);
    }

    #[test]
    fn label_selectors(text in texts(&[
        "app=web", "app==web,tier!=db", "env in (a,b),!old", "x notin (a)", "kubernetes.io/os", "",
    ])) {
        check_text::<LabelSelector>(&text);
    }

    #[test]
    fn field_selectors(text in texts(&["metadata.name=a", "spec.nodeName=a,metadata.namespace!=b", ""])) {
        const FIELDS: [&str; 3] = ["metadata.name", "metadata.namespace", "spec.nodeName"];
        if let Ok(parsed) = FieldSelector::parse(&text, &FIELDS) {
            prop_assert_eq!(FieldSelector::parse(&parsed.to_string(), &FIELDS), Ok(parsed));
        }
    }

    #[test]
    fn address_blocks(text in texts(&["10.0.0.0/8", "192.168.1.0/24", "fd00::/48", "0.0.0.0/0", "::1/128"])) {
        check_text::<Cidr>(&text);
    }

    #[test]
    fn fences(text in texts(&["kube-system/ctl;transitions=3;holder=a", "x/y;transitions=0;holder=a;holder=b"])) {
        check_text::<Fence>(&text);
    }

    #[test]
    fn taints(text in texts(&["gpu=yes:NoSchedule", "a:NoExecute", "example.com/a=:PreferNoSchedule"])) {
        check_text::<Taint>(&text);
    }

    #[test]
    fn amounts_and_percentages(text in texts(&["1", "50%", "0", "2147483647", "100%"])) {
        check_text::<IntOrPercent>(&text);
    }

    #[test]
    fn names(text in texts(&["a", "node-1.example.com", "default", "8c2fd0a5-63b8-4a1f-9d0c-2f5e7f1b0a11"])) {
        check_text::<Name>(&text);
        check_text::<Namespace>(&text);
        check_text::<Uid>(&text);
    }

    #[test]
    fn serial_numbers(text in texts(&["3a07f1", "3A:07:F1", "00:01", "7f2d95a1c0ffee7f2d95a1c0ffee7f2d95a1c0ff"])) {
        check_text::<Serial>(&text);
    }

    #[test]
    fn join_tokens(text in texts(&["8000000000.00000000000000000000000000000abc"])) {
        if let Ok(token) = text.parse::<SecretToken>() {
            prop_assert_eq!(token.reveal(), text);
        }
    }

    #[test]
    fn durations(text in texts(&["0", "40s", "1m30s", "1.5h", "100ms", "2h45m", "1d"])) {
        if let Err(error) = duration::parse(&text) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn records_of_requests(encoded in bytes(records())) {
        check_record::<Node>(&encoded);
        check_record::<Pod>(&encoded);
        check_record::<Lease>(&encoded);
        check_record::<DisruptionBudget>(&encoded);
        check_record::<Event>(&encoded);
        check_record::<JoinToken>(&encoded);
        check_record::<CertificateRequest>(&encoded);
        check_record::<Revocation>(&encoded);
        check_record::<PriorityClass>(&encoded);
    }
}
