use muster_proto::pb;
use proptest::prelude::*;
use prost::Message;
use serde_json::json;

use super::*;

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(fields) = value else { panic!("not an object: {value}") };
    fields
}

fn read(kind: Kind, value: Value) -> (Value, Findings) {
    let (fields, findings) = from_object(kind, object(value)).expect("readable");
    (Value::Object(fields), findings)
}

/// Reads an object, makes a record of it, and writes that.
fn there_and_back<R: Record>(sent: &Value) -> Value {
    let (fields, findings) = from_object(R::KIND, object(sent.clone())).expect("readable");
    assert_eq!(findings, Findings::default(), "{sent}");
    let message = to_message::<R>(fields).expect("fields of the right types");
    Value::Object(to_object(R::KIND, &message.encode_to_vec()))
}

#[test]
fn an_object_survives_the_way_through_the_record_byte_for_byte() {
    use muster_proto::budget::DisruptionBudget;
    use muster_proto::event::Event;
    use muster_proto::lease::Lease;
    use muster_proto::node::Node;
    use muster_proto::pod::Pod;

    let node = json!({
        "metadata": {"name": "n", "uid": "5c6f8d63-73a2-44cb-9d5a-0a7a2a0e7b0e", "resourceVersion": "18446744073709551615",
            "creationTimestamp": "2026-11-18T01:24:13Z", "labels": {"b": "2", "a": "1"}, "annotations": {"x": ""}},
        "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "providerID": "x://1", "unschedulable": true,
            "taints": [{"key": "k", "effect": "NoExecute", "timeAdded": "2026-11-18T01:24:13Z"}]},
        "status": {"capacity": {"cpu": "4", "memory": "8Gi"},
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": null,
                "lastTransitionTime": "2026-11-18T01:24:13Z"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 7600}},
            "images": [{"names": ["a"], "sizeBytes": 9007199254740993i64}],
            "nodeInfo": {"machineID": "m", "systemUUID": "s", "bootID": "b", "kernelVersion": "", "osImage": "",
                "containerRuntimeVersion": "", "kubeletVersion": "v", "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": "amd64"}},
    });
    assert_eq!(there_and_back::<Node>(&node), node);

    let pod = json!({
        "metadata": {"name": "p", "namespace": "d", "deletionGracePeriodSeconds": 0,
            "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "u", "controller": true}]},
        "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 0, "hostNetwork": true,
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}},
                "lifecycle": {"preStop": {"exec": {"command": ["a", "b"]}}},
                "ports": [{"containerPort": 80, "hostIP": "1.2.3.4"}],
                "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}],
            "volumes": [{"name": "a", "secret": {"secretName": "s"}}, {"name": "b", "configMap": {"name": "c"}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "p"}}, {"name": "d", "emptyDir": {}}]},
        "status": {"phase": "Running", "podIP": "1.2.3.4", "podIPs": [{"ip": "1.2.3.4"}, {"ip": "::1"}], "hostIP": "4.3.2.1",
            "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": null}],
            "containerStatuses": [{"name": "c", "ready": true, "restartCount": 2, "image": "i", "imageID": "",
                "containerID": "x://1", "state": {"running": {"startedAt": "2026-11-18T01:24:13Z"}}, "lastState": {}}]},
    });
    assert_eq!(there_and_back::<Pod>(&pod), pod);

    let lease = json!({
        "metadata": {"name": "l", "namespace": "d"},
        "spec": {"holderIdentity": "h", "leaseDurationSeconds": 15, "leaseTransitions": 3,
            "acquireTime": "2026-11-18T01:24:13.000000Z", "renewTime": "2026-11-18T01:24:13.123456Z"},
    });
    assert_eq!(there_and_back::<Lease>(&lease), lease);

    let budget = json!({
        "metadata": {"name": "b", "namespace": "d"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"},
            "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1,
            "observedGeneration": 2, "disruptedPods": {"p": "2026-11-18T01:24:13Z"}},
    });
    assert_eq!(there_and_back::<DisruptionBudget>(&budget), budget);

    let event = json!({
        "metadata": {"name": "e", "namespace": "d"},
        "involvedObject": {"kind": "PodDisruptionBudget", "namespace": "d", "name": "b"},
        "type": "Normal", "reason": "R", "message": "m", "source": {"component": "c", "host": "h"}, "count": 3,
        "firstTimestamp": "2026-11-18T01:24:13Z", "lastTimestamp": null, "eventTime": null, "reportingInstance": "",
    });
    assert_eq!(there_and_back::<Event>(&event), event);
}

#[test]
fn what_is_not_kept_is_named_by_its_path_and_what_nobody_knows_as_well() {
    let pod = json!({
        "metadata": {"name": "p", "managedFields": [{}]},
        "spec": {"dnsPolicy": "ClusterFirst", "serviceAccount": "x", "schedulerName": "mine", "hostPID": false,
            "securityContext": {"fsGroup": 1},
            "containers": [{"name": "c", "livenessProbe": {"exec": {}}, "imagePullPolicy": "Always", "imge": "i"}],
            "podCidr": "x"},
    });
    let (fields, findings) = read(Kind::Pod, pod);
    let mut not_kept = findings.not_kept.clone();
    not_kept.sort();
    let expected = ["spec.containers[0].livenessProbe", "spec.schedulerName", "spec.securityContext.fsGroup"];
    assert_eq!(not_kept, expected);
    assert_eq!(findings.unknown.len(), 2, "{findings:?}");
    assert!(findings.unknown.contains(&"spec.containers[0].imge".to_owned()), "{findings:?}");
    assert!(findings.unknown.contains(&"spec.podCidr".to_owned()), "our own spelling is not Kubernetes'");
    assert_eq!(fields["spec"]["containers"], json!([{"name": "c"}]));
}

#[test]
fn a_value_of_the_wrong_type_is_named_by_its_path_in_kubernetes() {
    for (object_sent, expected) in [
        (json!({"spec": []}), "spec: must be an object"),
        (json!({"spec": {"podCIDRs": "x"}}), "spec.podCIDRs: "),
        (json!({"spec": {"unschedulable": "yes"}}), "spec.unschedulable: "),
        (
            json!({"status": {"daemonEndpoints": {"kubeletEndpoint": 7}}}),
            "status.daemonEndpoints.kubeletEndpoint: must be",
        ),
    ] {
        let refused = from_object(Kind::Node, object(object_sent))
            .and_then(|(fields, _)| to_message::<muster_proto::node::Node>(fields))
            .expect_err("it is refused");
        assert!(refused.to_string().starts_with(expected), "{refused}");
    }
    let budget = from_object(Kind::DisruptionBudget, object(json!({"spec": {"minAvailable": "1"}})));
    assert_eq!(
        budget.expect_err("a number as text").to_string(),
        "spec.minAvailable: must be a number, or a percentage such as \"20%\""
    );
}

#[test]
fn what_a_client_cannot_see_is_kept_when_it_sends_the_object_back() {
    let node = pb::Node {
        metadata: Some(pb::Metadata { name: "n".into(), traceparent: "t".into(), ..Default::default() }),
        spec: Some(pb::NodeSpec {
            taints: vec![pb::Taint {
                key: "k".into(),
                effect: "NoExecute".into(),
                time_added: Some(prost_types::Timestamp { seconds: 7, nanos: 123_456_789 }),
                ..Default::default()
            }],
            cordons: vec![pb::NodeCordon { owner: "o".into(), ..Default::default() }],
            ..Default::default()
        }),
        status: None,
    };
    let current = schema_fields(Kind::Node, &node.encode_to_vec());
    let shown = to_object(Kind::Node, &node.encode_to_vec());
    assert!(!Value::Object(shown.clone()).to_string().contains("cordon"), "{shown:?}");

    let (mut sent_back, _) = from_object(Kind::Node, shown.clone()).expect("readable");
    keep_unseen(Kind::Node, &mut sent_back, &current);
    let back = to_message::<muster_proto::node::Node>(sent_back).expect("a node");
    assert_eq!(back.spec, node.spec);

    // An object without spec: the client removed what it saw of it.
    let mut without = shown.clone();
    without.remove("spec");
    let (mut without, _) = from_object(Kind::Node, without).expect("readable");
    keep_unseen(Kind::Node, &mut without, &current);
    assert_eq!(without["spec"], json!({"cordons": [{"owner": "o"}]}));

    // A time that the client changed is the client's.
    let mut later = Value::Object(shown);
    later["spec"]["taints"][0]["timeAdded"] = json!("1970-01-01T00:00:08Z");
    let (mut later, _) = from_object(Kind::Node, object(later)).expect("readable");
    keep_unseen(Kind::Node, &mut later, &current);
    assert_eq!(later["spec"]["taints"][0]["timeAdded"], json!("1970-01-01T00:00:08Z"));
}

fn texts() -> impl Strategy<Value = String> {
    "[a-z]{1,6}"
}

fn nodes() -> impl Strategy<Value = pb::Node> {
    let taint =
        (texts(), texts(), proptest::option::of(0i64..4_000_000_000)).prop_map(|(key, value, seconds)| {
            let time_added = seconds.map(|seconds| prost_types::Timestamp { seconds, nanos: 0 });
            pb::Taint { key, value, effect: "NoSchedule".into(), time_added }
        });
    let labels = proptest::collection::btree_map(texts(), texts(), 0..4);
    (texts(), labels, any::<u64>(), proptest::collection::vec(taint, 0..4), any::<bool>()).prop_map(
        |(name, labels, resource_version, taints, unschedulable)| pb::Node {
            metadata: Some(pb::Metadata { name, labels, resource_version, ..Default::default() }),
            spec: Some(pb::NodeSpec { taints, unschedulable, ..Default::default() }),
            status: None,
        },
    )
}

proptest! {
    /// A record is written, read, and written again: the two texts are equal, and so are the records.
    #[test]
    fn writing_and_reading_change_nothing(node in nodes()) {
        let first = to_object(Kind::Node, &node.encode_to_vec());
        let (fields, findings) = from_object(Kind::Node, first.clone()).expect("readable");
        prop_assert_eq!(findings, Findings::default());
        let back = to_message::<muster_proto::node::Node>(fields).expect("a node");
        prop_assert_eq!(&back.spec, &node.spec);
        prop_assert_eq!(&back.metadata, &node.metadata);
        let second = to_object(Kind::Node, &back.encode_to_vec());
        prop_assert_eq!(Value::Object(second).to_string(), Value::Object(first).to_string());
    }

    /// Whatever a client sends, reading ends with an answer.
    #[test]
    fn reading_never_panics(text in "[{}\\[\\]a-z\":,0-9 ]{0,200}") {
        if let Ok(Value::Object(fields)) = serde_json::from_str(&text) {
            for kind in Kind::ALL {
                let _ = from_object(kind, fields.clone());
            }
        }
    }
}
