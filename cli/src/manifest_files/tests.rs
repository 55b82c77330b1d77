use muster_manifest::{Manifest, ManifestError, read, schema};
use muster_proto::budget::DisruptionBudget;
use muster_proto::event::Event;
use muster_proto::lease::Lease;
use muster_proto::meta::Metadata;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::priority_class::PriorityClass;
use muster_proto::record::{Kind, Record};

use crate::connection::{ConnectionFlags, Namespaces};
use crate::print::document::{Language, document};
use crate::samples;

/// The example of the Kubernetes documentation on nodes.
const KUBERNETES_EXAMPLE: &str = r#"{
  "kind": "Node",
  "apiVersion": "v1",
  "metadata": {
    "name": "10.240.79.157",
    "labels": {
      "name": "my-first-k8s-node"
    }
  }
}"#;

fn namespaces(requested: Option<&str>) -> Namespaces {
    let flags = crate::connection::NamespaceFlags { namespace: requested.map(|name| name.parse().unwrap()) };
    crate::connection::resolve_without_file(&ConnectionFlags::default()).namespaces(&flags)
}

fn set_namespace(manifest: &mut Manifest, namespaces: &Namespaces) -> Result<(), ManifestError> {
    manifest.set_namespace(namespaces.requested.as_ref(), &namespaces.of(manifest.kind))
}

fn one(text: &str) -> Manifest {
    let mut manifests = read("test.yaml", text).unwrap();
    assert_eq!(manifests.len(), 1);
    manifests.remove(0)
}

fn refusal(text: &str) -> String {
    let checked = read("test.yaml", text).and_then(|mut manifests| {
        set_namespace(&mut manifests[0], &namespaces(None))?;
        manifests[0].key()?;
        match manifests[0].kind {
            Kind::Node => manifests[0].to_record::<Node>().map(drop),
            Kind::Pod => manifests[0].to_record::<Pod>().map(drop),
            Kind::DisruptionBudget => manifests[0].to_record::<DisruptionBudget>().map(drop),
            _ => Ok(()),
        }
    });
    checked.unwrap_err().to_string()
}

#[test]
fn the_kubernetes_example_works_unchanged() {
    let manifest = one(KUBERNETES_EXAMPLE);
    let node: Node = manifest.to_record().unwrap();
    assert_eq!(node.meta.name.as_str(), "10.240.79.157");
    assert_eq!(node.meta.labels["name"], "my-first-k8s-node");
    assert_eq!(manifest.key().unwrap().to_string(), "10.240.79.157");
}

/// Checks that a printed record is read back as the same record, with all its fields.
fn round_trips<R: Record>(record: &R) {
    let value = schema::to_json(record.clone());
    for language in [Language::Json, Language::Yaml] {
        let text = document(&value, language, true);
        let manifest = one(&text);
        assert_eq!(manifest.to_stored_record::<R>().unwrap(), *record, "{text}");
        // The JSON is compared too, because equal quantities may be written differently.
        assert_eq!(schema::to_json(manifest.to_stored_record::<R>().unwrap()), value, "{text}");

        let list = schema::list(vec![value.clone(), value.clone()]);
        let manifests = read("list", &document(&list, language, true)).unwrap();
        assert_eq!(manifests.len(), 2);
        for manifest in manifests {
            assert_eq!(manifest.to_stored_record::<R>().unwrap(), *record);
        }
    }
}

#[test]
fn records_of_every_kind_round_trip() {
    round_trips(&samples::node());
    round_trips(&samples::new_node());
    round_trips(&samples::pod());
    round_trips(&samples::lease());
    round_trips(&samples::budget());
    round_trips(&samples::event());
}

mod any {
    use super::*;
    use proptest::prelude::*;

    /// Strings that YAML or JSON might parse as something else.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<String>(),
            "[ \t\n#:,'\"|>*&!%@`{}\\[\\]-]{0,8}",
            prop::sample::select(vec![
                "",
                "~",
                "null",
                "Null",
                "true",
                "yes",
                "NO",
                "on",
                "off",
                "0x1F",
                "0o17",
                "017",
                "1e3",
                ".inf",
                ".nan",
                "-0",
                "1_000",
                "12:30:45",
                "2026-05-04",
                "2026-05-04T12:00:00Z",
                "- a",
                "a: b",
                "a #b",
                "<<",
                "=",
                "---",
                "...",
                "\u{feff}x",
                "\u{85}",
                "\u{2028}",
                "a\r\nb",
                "trailing ",
                " leading",
                "\ttab",
                "\u{0}",
                "\u{7f}",
                "%TAG",
                "!!str x",
            ])
            .prop_map(str::to_owned),
        ]
    }

    const MANIFESTS: [&str; 5] = [
        KUBERNETES_EXAMPLE,
        "kind: Pod\napiVersion: v1\nmetadata: {name: web, namespace: x}\nspec:\n  containers:\n  - {name: main, image: none}\n",
        "kind: Node\nmetadata:\n  name: a\n  labels: &l {a: b}\n  annotations: *l\n---\nkind: Node\nmetadata: {name: b}\n",
        "kind: List\napiVersion: v1\nitems:\n- kind: DisruptionBudget\n  metadata: {name: all}\n  spec: {minAvailable: 50%}\n",
        "kind: PriorityClass\napiVersion: scheduling.k8s.io/v1\nmetadata: {name: high}\nvalue: 1000\npreemptionPolicy: Never\n",
    ];

    proptest! {
        #![proptest_config(ProptestConfig { cases: muster_mutation::cases().cases / 4, ..muster_mutation::cases() })]

        #[test]
        fn any_file_is_a_manifest_or_refused(text in muster_mutation::texts(&MANIFESTS)) {
            for mut manifest in read("test.yaml", &text).unwrap_or_default() {
                // Each of these may refuse it.
                let _ = set_namespace(&mut manifest, &namespaces(None));
                let _ = manifest.key();
                match manifest.kind {
                    Kind::Node => drop(manifest.to_record::<Node>()),
                    Kind::Pod => drop(manifest.to_record::<Pod>()),
                    Kind::DisruptionBudget => drop(manifest.to_record::<DisruptionBudget>()),
                    Kind::PriorityClass => drop(manifest.to_record::<PriorityClass>()),
                    _ => {}
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_in_a_record_round_trips(
            annotation in text(), reason in text(), message in text(), key in "[a-z]([a-z0-9.-]{0,20}[a-z0-9])?",
            version in any::<u64>(), seconds in -377_705_023_201i64..=253_402_207_200, nanos in 0..1_000_000_000i32,
        ) {
            let mut node = samples::node();
            node.meta.annotations.insert(key, annotation);
            node.meta.resource_version = version;
            node.status.conditions[0].reason = reason;
            node.status.conditions[0].message = message;
            // RFC 3339 and the schema have no years before 0000.
            let time = jiff::Timestamp::new(seconds.max(-62_135_596_800), nanos).unwrap();
            node.status.conditions[0].last_heartbeat_time = Some(time);
            round_trips(&node);
        }

        #[test]
        fn any_file_is_read_or_refused_without_a_panic(given in any::<String>()) {
            let _ = read("file", &given);
        }
    }
}

#[test]
fn kubernetes_names_of_kinds_and_versions_are_accepted() {
    let lease: Lease = samples::lease();
    assert_eq!(lease.spec.lease_duration_seconds, Some(40));
    let budget: DisruptionBudget = samples::budget();
    assert_eq!(budget.meta.name.as_str(), "web");
    let class: PriorityClass = samples::priority_class();
    assert_eq!((class.value, class.description.as_str()), (1000, "for what people wait for"));
    let event: Event = samples::event();
    assert_eq!(event.count, 3);
}

#[test]
fn every_problem_is_reported_with_its_location() {
    for (text, expected) in [
        ("", "test.yaml: has no record"),
        ("# nothing", "test.yaml: has no record"),
        ("- a\n", "test.yaml: is not a record"),
        ("a: [", "test.yaml: is neither YAML nor JSON"),
        ("metadata: {name: a}", "test.yaml: has no kind"),
        ("kind: Machine\napiVersion: v1", "test.yaml: has the unknown kind Machine"),
        ("kind: Node", "test.yaml: Node has no apiVersion: expected v1"),
        ("kind: Lease\napiVersion: v2", "Lease has apiVersion v2: expected v1 or coordination.k8s.io/v1"),
        ("kind: List\napiVersion: v1", "test.yaml: is a List without items"),
        ("kind: Node\napiVersion: v1", "test.yaml (Node): has no metadata.name"),
        (
            "kind: Node\napiVersion: v1\nmetadata: {name: A}",
            "test.yaml (Node A): metadata.name: may hold only",
        ),
        (
            "kind: Node\napiVersion: v1\nmetadata: {name: a}\nspce: {}",
            "test.yaml (Node): unknown field spce (known fields:",
        ),
        (
            "kind: Node\napiVersion: v1\nmetadata: {name: a}\nspec: {unschedulable: yes}",
            "test.yaml (Node a): spec.unschedulable: invalid type: string \"yes\", expected a boolean",
        ),
        (
            "kind: Node\napiVersion: v1\nmetadata: {name: a, labels: {gpu: 1}}",
            "test.yaml (Node a): metadata.labels.gpu: invalid type: integer `1`, expected a string",
        ),
        (
            "kind: Node\napiVersion: v1\nmetadata: {name: a}\nspec: {taints: [{key: x, effect: NoRun}]}",
            "spec.taints[0].effect: must be NoSchedule, PreferNoSchedule or NoExecute",
        ),
        (
            "kind: Node\napiVersion: v1\nmetadata: {name: a}\nspec: {taints: [{key: x, effect: NoSchedule, timeAdded: soon}]}",
            "spec.taints[0].timeAdded: invalid",
        ),
        (
            "kind: Pod\napiVersion: v1\nmetadata: {name: a}\nspec: {containers: {name: x}}",
            "test.yaml (Pod a): spec.containers: invalid type: map, expected a list",
        ),
        (
            "kind: Node\napiVersion: v1\nmetadata: {name: a}\n---\nkind: Nod\napiVersion: v1",
            "test.yaml, document 2: has the unknown kind Nod",
        ),
    ] {
        let refused = refusal(text);
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn a_record_without_a_namespace_gets_the_requested_or_default_one() {
    let pod = |namespace: &str| {
        format!(
            "kind: Pod\napiVersion: v1\nmetadata: {{name: a{namespace}}}\nspec: {{containers: [{{name: x}}]}}"
        )
    };
    for (written, requested, expected) in [
        ("", None, Ok("default/a")),
        ("", Some("shop"), Ok("shop/a")),
        (", namespace: shop", None, Ok("shop/a")),
        (", namespace: shop", Some("shop"), Ok("shop/a")),
        (", namespace: shop", Some("other"), Err("has the namespace shop, but --namespace is other")),
    ] {
        let mut manifest = one(&pod(written));
        let key = set_namespace(&mut manifest, &namespaces(requested)).and_then(|()| manifest.key());
        match expected {
            Ok(expected) => assert_eq!(key.unwrap().to_string(), expected),
            Err(message) => {
                let refused = key.unwrap_err().to_string();
                assert!(refused.contains(message), "{refused}");
            }
        }
    }
    let mut node = one(KUBERNETES_EXAMPLE);
    set_namespace(&mut node, &namespaces(Some("shop"))).unwrap();
    assert_eq!(node.key().unwrap().namespace, None, "nodes have no namespace");
}

#[test]
fn merging_changes_the_fields_that_the_manifest_names() {
    let current = samples::node();
    let patch = one(
        "kind: Node\napiVersion: v1\nmetadata: {name: worker-1, labels: {new: x, topology.kubernetes.io/zone: null}}\n\
         spec: {unschedulable: false, taints: []}\nstatus: {phase: Lost}",
    );
    let wanted: Node = patch.merged_into(&current).unwrap();
    assert_eq!(wanted.meta.labels.get("new").map(String::as_str), Some("x"));
    assert!(!wanted.meta.labels.contains_key("topology.kubernetes.io/zone"));
    assert_eq!(wanted.meta.labels["topology.kubernetes.io/region"], "eu", "other fields stay");
    assert!(!wanted.spec.unschedulable && wanted.spec.taints.is_empty());
    assert_eq!(wanted.spec.provider_id, current.spec.provider_id);
    assert_eq!(wanted.status, current.status, "the status is not changed");
    assert_eq!(wanted.meta.resource_version, 4711, "the version that was read");
}

#[test]
fn the_version_of_a_manifest_is_used_only_if_something_changes() {
    let traceparent = |digit: &str| Some(format!("00-{}-{}-01", digit.repeat(32), digit.repeat(16)));
    let older =
        Node { meta: Metadata { traceparent: traceparent("a"), ..samples::node().meta }, ..samples::node() };
    let mut newer = older.clone();
    newer.meta.resource_version = 5000;
    newer.meta.traceparent = traceparent("b");
    newer.status.conditions.clear();
    let printed = document(&schema::to_json(older), Language::Yaml, true);
    assert!(printed.contains("traceparent: 00-aaa"), "{printed}");
    let unchanged: Node = one(&printed).merged_into(&newer).unwrap();
    assert_eq!(unchanged.meta.resource_version, 5000);
    newer.spec.unschedulable = false;
    let edited: Node = one(&printed).merged_into(&newer).unwrap();
    assert_eq!(edited.meta.resource_version, 4711, "so the store will refuse it");
}

#[test]
fn a_new_record_has_none_of_the_fields_that_only_the_store_writes() {
    let mut printed = samples::node();
    printed.meta.traceparent = Some(format!("00-{}-{}-01", "a".repeat(32), "a".repeat(16)));
    let printed = document(&schema::to_json(printed), Language::Yaml, true);
    let node: Node = one(&printed).to_record().unwrap();
    assert_eq!((node.meta.uid, node.meta.resource_version, node.meta.creation_timestamp), (None, 0, None));
    assert_eq!(node.meta.traceparent, None);
    assert_eq!(node.status, samples::node().status, "an administrator may set a status");
}

#[test]
fn signed_numbers_are_numbers_and_versions_are_texts() {
    let pod = schema::to_json(samples::pod());
    assert_eq!(pod["metadata"]["resourceVersion"], "4712");
    assert_eq!(pod["metadata"]["generation"], 1);
    assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 45);
    assert_eq!(pod["spec"]["tolerations"][1]["tolerationSeconds"], 300);
    let node = schema::to_json(samples::node());
    assert_eq!(node["spec"]["drain"]["options"]["gracePeriodSeconds"], 30);
    assert_eq!(node["status"]["images"][0]["sizeBytes"], 9_007_199_254_740_993_i64, "no digit is lost");
    assert_eq!(node["metadata"]["creationTimestamp"], "2026-05-01T10:00:00Z");
    assert_eq!(node["status"]["capacity"]["cpu"], "4", "quantities are texts");
}
