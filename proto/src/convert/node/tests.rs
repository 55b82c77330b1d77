use proptest::prelude::*;

use super::*;
use crate::condition::{ConditionStatus, types};
use crate::convert::testing::{any_metadata, any_resources, any_time, at, complaints, map, named, stored};
use crate::node::AddressType;

fn with_spec(spec: pb::NodeSpec) -> pb::Node {
    pb::Node { metadata: named("", "a"), spec: Some(spec), status: None }
}

fn with_status(status: pb::NodeStatus) -> pb::Node {
    pb::Node { metadata: named("", "a"), spec: None, status: Some(status) }
}

fn taints(taints: &[(&str, &str, &str)]) -> String {
    let taints = taints.iter().map(|&(key, value, effect)| pb::Taint {
        key: key.into(),
        value: value.into(),
        effect: effect.into(),
        time_added: None,
    });
    complaints::<Node>(with_spec(pb::NodeSpec { taints: taints.collect(), ..Default::default() }))
}

#[test]
fn s006_taints_are_unique_by_key_and_effect() {
    assert_eq!(
        taints(&[("a", "1", "NoSchedule"), ("a", "2", "NoSchedule")]),
        "spec.taints[1]: must not have the key and effect of an earlier taint"
    );
    assert_eq!(taints(&[("a", "1", "NoSchedule"), ("a", "1", "NoExecute")]), "");
    // A taint with an invalid effect does not hide errors of the taints after it.
    assert_eq!(
        taints(&[("a", "", "x"), ("a", "", "NoExecute"), ("a", "", "NoExecute")]),
        "spec.taints[0].effect: must be NoSchedule, PreferNoSchedule or NoExecute; \
         spec.taints[2]: must not have the key and effect of an earlier taint"
    );
}

#[test]
fn s007_taints_have_a_key_a_value_and_an_effect() {
    let long = "v".repeat(64);
    for (key, value, effect, field) in [
        ("a", "", "", "spec.taints[0].effect"),
        ("a", "", "NoRun", "spec.taints[0].effect"),
        ("/x", "", "NoSchedule", "spec.taints[0].key"),
        ("a/b/c", "", "NoSchedule", "spec.taints[0].key"),
        ("", "", "NoSchedule", "spec.taints[0].key"),
        ("a", &long, "NoSchedule", "spec.taints[0].value"),
    ] {
        let found = taints(&[(key, value, effect)]);
        assert!(found.starts_with(&format!("{field}: ")) && !found.contains(';'), "{key}: {found}");
    }
}

fn cidrs(single: &str, list: &[&str]) -> Result<Vec<String>, String> {
    let pod_cidrs = list.iter().map(ToString::to_string).collect();
    let spec = pb::NodeSpec { pod_cidr: single.into(), pod_cidrs, ..Default::default() };
    let node = Node::try_from(with_spec(spec)).map_err(|invalid| invalid.to_string())?;
    let out = pb::NodeSpec::from(node.spec);
    assert_eq!(out.pod_cidr, out.pod_cidrs.first().cloned().unwrap_or_default());
    Ok(out.pod_cidrs)
}

#[test]
fn s011_a_node_has_one_network_of_each_family_at_most() {
    for list in [&["10.0.0.0/24", "fd00::/64"][..], &["fd00::/64", "10.0.0.0/24"], &["10.0.0.0/24"], &[]] {
        assert_eq!(cidrs("", list), Ok(list.iter().map(ToString::to_string).collect()));
    }
    for (list, expected) in [
        (
            &["10.0.0.0/24", "10.1.0.0/24"][..],
            "spec.podCidrs[1]: must be of the other IP family than the first",
        ),
        (
            &["10.0.0.0/24", "fd00::/64", "10.1.0.0/24"],
            "spec.podCidrs: must be two at most, one IPv4 and one IPv6",
        ),
        (
            &["x", "", "10.1.0.0/33"],
            "spec.podCidrs: must be two at most, one IPv4 and one IPv6; \
             spec.podCidrs[0]: must be an address and a prefix length, such as 10.0.0.0/24 or fd00::/64; \
             spec.podCidrs[1]: must be an address and a prefix length, such as 10.0.0.0/24 or fd00::/64; \
             spec.podCidrs[2]: must have a prefix length from 0 to 32 after '/'",
        ),
    ] {
        assert_eq!(cidrs("", list), Err(expected.into()), "{list:?}");
    }
}

#[test]
fn s012_the_single_network_overrules_a_list_that_does_not_start_with_it() {
    for (single, list, expected) in [
        ("10.9.0.0/24", &["10.1.0.0/24", "fd00::/64"][..], &["10.9.0.0/24"][..]),
        ("10.9.0.0/24", &["x", "y", "z"], &["10.9.0.0/24"]),
        ("10.9.0.0/24", &[], &["10.9.0.0/24"]),
        ("10.9.0.0/24", &["10.9.0.0/24", "fd00::/64"], &["10.9.0.0/24", "fd00::/64"]),
        ("10.9.0.7/24", &["10.9.0.0/24", "fd00::/64"], &["10.9.0.0/24", "fd00::/64"]),
    ] {
        assert_eq!(cidrs(single, list), Ok(expected.iter().map(ToString::to_string).collect()), "{single}");
    }
    assert!(cidrs("x", &["10.1.0.0/24"]).unwrap_err().starts_with("spec.podCidr: "));
    assert!(cidrs("x", &["x"]).unwrap_err().starts_with("spec.podCidrs[0]: "));
}

#[test]
fn everything_wrong_with_a_status_is_reported_at_once() {
    let address =
        |kind: &str, address: &str| pb::NodeAddress { r#type: kind.into(), address: address.into() };
    let condition = |kind: &str, status: &str, time| pb::NodeCondition {
        r#type: kind.into(),
        status: status.into(),
        last_heartbeat_time: time,
        last_transition_time: time,
        ..Default::default()
    };
    let status = pb::NodeStatus {
        addresses: vec![
            address("Hostname", "a"),
            address("IP", "10.0.0.1"),
            address("InternalIP", ""),
            address("InternalIP", "a"),
            address("Hostname", "a"),
        ],
        conditions: vec![condition("", "true", at(0, -1)), condition("OutOfDisk", "False", at(0, 0))],
        capacity: map(&[("cpu", "-1"), ("memory", "1GB"), ("pods", "1.5"), ("a b", "1"), ("swap", "0")]),
        allocatable: map(&[("cpu", "")]),
        node_info: Some(pb::NodeSystemInfo {
            swap: Some(pb::NodeSwapStatus { capacity: Some(-1) }),
            ..Default::default()
        }),
        daemon_endpoints: Some(pb::NodeDaemonEndpoints { agent_port: 65536, ..Default::default() }),
        ..Default::default()
    };
    let found = NodeStatus::try_from(status.clone()).unwrap_err();
    assert_eq!(Node::try_from(with_status(status)), Err(found.clone()));
    let fields: Vec<&str> = found.violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "status.daemonEndpoints.agentPort",
            "status.nodeInfo.swap.capacity",
            "status.addresses[1].type",
            "status.addresses[2].address",
            "status.addresses[4]",
            "status.conditions[0].type",
            "status.conditions[0].status",
            "status.conditions[0].lastHeartbeatTime",
            "status.conditions[0].lastTransitionTime",
            "status.capacity[\"a b\"]",
            "status.capacity[\"cpu\"]",
            "status.capacity[\"memory\"]",
            "status.capacity[\"pods\"]",
            "status.allocatable[\"cpu\"]",
        ]
    );
}

#[test]
fn a_full_status_is_kept_and_quantities_are_spelled_one_way() {
    let condition = pb::NodeCondition {
        r#type: "Ready".into(),
        status: "True".into(),
        reason: "KubeletReady".into(),
        message: "ready".into(),
        last_heartbeat_time: at(100, 0),
        last_transition_time: at(-100, 5),
    };
    let status = pb::NodeStatus {
        addresses: vec![pb::NodeAddress { r#type: "ExternalDNS".into(), address: "a.example".into() }],
        conditions: vec![condition],
        capacity: map(&[("cpu", "2000m"), ("memory", "1024Mi"), ("pods", "110")]),
        allocatable: map(&[("cpu", "1.5")]),
        node_info: Some(pb::NodeSystemInfo { boot_id: "b".into(), ..Default::default() }),
        images: vec![pb::ContainerImage { names: vec!["i".into()], size_bytes: 1 }],
        daemon_endpoints: Some(pb::NodeDaemonEndpoints {
            agent_port: 7443,
            agent_address: "127.0.0.1".to_owned(),
        }),
        volumes_in_use: vec!["v".into()],
        phase: "Running".into(),
    };
    let node = stored::<Node>(with_status(status.clone()));
    assert!(node.is_ready());
    assert_eq!(node.status.addresses[0].kind, AddressType::ExternalDns);
    assert_eq!(node.condition(types::READY).map(|ready| ready.status), Some(ConditionStatus::True));
    let expected = pb::NodeStatus {
        capacity: map(&[("cpu", "2"), ("memory", "1Gi"), ("pods", "110")]),
        allocatable: map(&[("cpu", "1500m")]),
        ..status
    };
    assert_eq!(pb::NodeStatus::from(node.status), expected);
}

#[test]
fn an_absent_and_an_empty_part_are_the_same() {
    let empty = pb::NodeStatus {
        node_info: Some(pb::NodeSystemInfo::default()),
        daemon_endpoints: Some(pb::NodeDaemonEndpoints::default()),
        ..Default::default()
    };
    let node = stored::<Node>(with_status(empty));
    assert_eq!(node, stored::<Node>(pb::Node { metadata: named("", "a"), ..Default::default() }));
    assert_eq!(pb::NodeStatus::from(node.status), pb::NodeStatus::default());
}

#[test]
fn roles_are_read_from_labels_sorted_and_without_duplicates() {
    let mut given = with_spec(pb::NodeSpec::default());
    given.metadata.as_mut().unwrap().labels = map(&[
        ("kubernetes.io/role", "storage"),
        ("node-role.kubernetes.io/worker", "whatever"),
        ("node-role.kubernetes.io/edge", ""),
        ("node-role.kubernetes.io/storage", ""),
        ("role", "none"),
    ]);
    assert_eq!(stored::<Node>(given).roles(), ["edge", "storage", "worker"]);
}

fn cordon(requested_by: &str, owner: &str) -> pb::NodeCordon {
    pb::NodeCordon {
        requested_by: requested_by.into(),
        reason: "disk".into(),
        requested_at: Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 0 }),
        owner: owner.into(),
        expires_at: None,
    }
}

fn held(time: prost_types::Timestamp, owner: &str) -> pb::NodeCordon {
    pb::NodeCordon { requested_at: Some(time), expires_at: Some(time), ..cordon("eva", owner) }
}

#[test]
fn a_record_with_one_cordon_is_read_and_has_both_fields_when_it_is_written() {
    let before = pb::NodeCordon { owner: String::new(), ..cordon("eva", "") };
    let spec = pb::NodeSpec { cordon: Some(before), unschedulable: true, ..Default::default() };
    let node = stored::<Node>(with_spec(spec));
    assert_eq!(node.spec.cordons.iter().map(|held| held.owner.as_str()).collect::<Vec<_>>(), ["eva"]);
    let written = pb::Node::from(node).spec.unwrap();
    assert_eq!((written.cordon, written.cordons), (Some(cordon("eva", "eva")), vec![cordon("eva", "eva")]));
}

#[test]
fn a_cordon_and_a_drain_say_what_is_wrong_with_them() {
    let spec = pb::NodeSpec {
        cordons: vec![pb::NodeCordon::default(), cordon("eva", "drain"), cordon("bob", "drain")],
        drain: Some(pb::NodeDrain {
            state: "Soon".into(),
            options: Some(pb::DrainOptions { grace_period_seconds: Some(-1), ..Default::default() }),
            ..Default::default()
        }),
        ..Default::default()
    };
    assert_eq!(
        complaints::<Node>(with_spec(spec)),
        [
            "spec.cordons[0].requestedAt: is required",
            "spec.cordons[2].owner: has a cordon already: there is one for each owner",
            "spec.drain.requestedAt: is required",
            "spec.drain.options.gracePeriodSeconds: must not be negative",
            "spec.drain.state: must be Draining, Complete or Failed",
        ]
        .join("; ")
    );
}

proptest! {
    #[test]
    fn a_node_comes_back_as_it_was_stored(
        metadata in any_metadata(""),
        v4 in proptest::option::of((any::<[u8; 4]>(), 0..=32u8)),
        v6 in proptest::option::of((any::<u128>(), 0..=128u8)),
        marks in prop::collection::btree_set(("[a-z]{1,2}", 0..3usize), 0..4),
        time in any_time(),
        capacity in any_resources(),
        (port, unschedulable) in (any::<u16>(), any::<bool>()),
        states in prop::collection::vec(0..3usize, 0..3),
    ) {
        let v4 = v4.map(|([a, b, c, d], bits)| format!("{a}.{b}.{c}.{d}/{bits}"));
        let v6 = v6.map(|(address, bits)| format!("{}/{bits}", std::net::Ipv6Addr::from(address)));
        let taints = marks.into_iter().map(|(key, effect)| pb::Taint {
            key,
            value: "v".into(),
            effect: ["NoSchedule", "PreferNoSchedule", "NoExecute"][effect].into(),
            time_added: time,
        });
        let spec = pb::NodeSpec {
            pod_cidr: String::new(),
            pod_cidrs: v4.into_iter().chain(v6).collect(),
            provider_id: "x://1".into(),
            unschedulable,
            taints: taints.collect(),
            cordon: time.map(|time| held(time, "eva")),
            cordons: time.into_iter().flat_map(|time| ["eva", "drain"].map(|owner| held(time, owner))).collect(),
            drain: time.map(|time| pb::NodeDrain {
                requested_at: Some(time),
                deadline: Some(time),
                options: Some(pb::DrainOptions { force: unschedulable, ..Default::default() }),
                state: "Draining".into(),
                ..Default::default()
            }),
        };
        let conditions = states.into_iter().map(|state| pb::NodeCondition {
            r#type: "Ready".into(),
            status: ["True", "False", "Unknown"][state].into(),
            last_heartbeat_time: time,
            ..Default::default()
        });
        let status = pb::NodeStatus {
            conditions: conditions.collect(),
            allocatable: capacity.clone(),
            capacity,
            daemon_endpoints: Some(pb::NodeDaemonEndpoints { agent_port: port.into(), ..Default::default() }),
            ..Default::default()
        };
        stored::<Node>(pb::Node { metadata, spec: Some(spec), status: Some(status) });
    }
}
