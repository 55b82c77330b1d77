use super::*;
use crate::convert::testing::{at, complaints, map, named};
use crate::lease::Lease;
use crate::node::Node;
use crate::pod::Pod;

fn node(metadata: pb::Metadata) -> String {
    complaints::<Node>(pb::Node { metadata: Some(metadata), ..Default::default() })
}

#[test]
fn s001_an_address_is_a_name_and_nothing_is_invented() {
    let labels = map(&[("name", "my-first-k8s-node")]);
    let metadata = pb::Metadata { name: "10.240.79.157".into(), labels, ..Default::default() };
    let meta = Metadata::checked(Kind::Node, metadata).unwrap();
    assert_eq!(meta.name, "10.240.79.157");
    assert_eq!((meta.uid, meta.resource_version, meta.generation), (None, 0, 0));
}

#[test]
fn s002_names_are_dns_subdomains() {
    let longest = "a".repeat(253);
    for (name, valid) in [
        ("Node1", false),
        ("node_1", false),
        ("-a", false),
        ("a-", false),
        ("a..b", false),
        ("", false),
        (&*format!("{longest}a"), false),
        (&*longest, true),
        ("a.b-c.1", true),
    ] {
        let found = node(pb::Metadata { name: name.into(), ..Default::default() });
        assert_eq!(found.is_empty(), valid, "{name}: {found}");
        assert!(valid || found.starts_with("metadata.name: "), "{found}");
    }
    assert_eq!(complaints::<Node>(pb::Node::default()), "metadata.name: must not be empty");
}

#[test]
fn a_namespace_is_for_all_but_nodes() {
    assert_eq!(
        node(pb::Metadata { name: "a".into(), namespace: "x".into(), ..Default::default() }),
        "metadata.namespace: must be empty: a Node is in no namespace"
    );
    for (namespace, expected) in [
        ("x", ""),
        ("", "metadata.namespace: must not be empty"),
        ("a.b", "metadata.namespace: may hold only lower-case letters, digits and '-', not '.'"),
    ] {
        let lease = pb::Lease { metadata: named(namespace, "a"), spec: None };
        assert_eq!(complaints::<Lease>(lease), expected);
        let found = complaints::<Pod>(pb::Pod { metadata: named(namespace, "a"), ..Default::default() });
        assert_eq!(
            found.replace("spec.containers: must hold at least one container", "").trim_end_matches("; "),
            expected
        );
    }
}

#[test]
fn s008_labels_have_keys_and_values_of_bounded_length() {
    let prefix = vec!["a".repeat(63); 4].join(".")[..253].to_owned();
    let longest = format!("{prefix}/{}", "b".repeat(63));
    let long_value = "v".repeat(63);
    for (key, value, valid) in [
        (&*longest, "v", true),
        (&*format!("{prefix}/{}", "b".repeat(64)), "v", false),
        (&*format!("a{longest}"), "v", false),
        ("k", &*long_value, true),
        ("k", &*format!("{long_value}v"), false),
        ("k", "", true),
        ("/k", "", false),
        ("a/b/c", "", false),
    ] {
        let labels = map(&[(key, value)]);
        let found = node(pb::Metadata { name: "a".into(), labels, ..Default::default() });
        assert_eq!(found.is_empty(), valid, "{key}={value}: {found}");
        assert!(valid || found.starts_with("metadata.labels[\""), "{found}");
    }
}

#[test]
fn s009_annotations_share_one_budget_of_bytes() {
    for (bytes, expected) in [
        (262_143, ""),
        (262_144, "metadata.annotations: must be 262144 bytes or fewer in all, keys and values together"),
    ] {
        let annotations = map(&[("k", &"v".repeat(bytes))]);
        assert_eq!(node(pb::Metadata { name: "a".into(), annotations, ..Default::default() }), expected);
    }
}

#[test]
fn everything_wrong_with_metadata_is_reported_at_once() {
    let owner = |name: &str, controller| pb::OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: name.into(),
        uid: "not a UUID, and fine".into(),
        controller,
        block_owner_deletion: true,
    };
    let metadata = pb::Metadata {
        name: "A".into(),
        namespace: "x".into(),
        uid: "x".into(),
        generation: -1,
        creation_timestamp: at(0, -1),
        deletion_timestamp: at(i64::MAX, 0),
        deletion_grace_period_seconds: Some(-1),
        labels: map(&[("a b", "c")]),
        annotations: map(&[("/x", "")]),
        finalizers: vec!["f".into(), "example.com/f".into(), "no spaces".into()],
        owner_references: vec![owner("a", true), owner("", false), owner("b", true)],
        resource_version: 7,
        traceparent: String::new(),
    };
    let found = Metadata::checked(Kind::Node, metadata).unwrap_err();
    let fields: Vec<&str> = found.violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "metadata.namespace",
            "metadata.uid",
            "metadata.generation",
            "metadata.deletionGracePeriodSeconds",
            "metadata.labels[\"a b\"]",
            "metadata.annotations[\"/x\"]",
            "metadata.finalizers[2]",
            "metadata.creationTimestamp",
            "metadata.deletionTimestamp",
            "metadata.ownerReferences[1].name",
            "metadata.ownerReferences[2].controller",
        ]
    );
}
