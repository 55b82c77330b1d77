//! Addresses: given, found, kept, or missing.

use std::net::IpAddr;

use super::addresses::{AddressError, addresses, needs_lookup, provided_node_ip};
use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn with(node_ip: &str, cloud: Cloud, name: &str) -> Settings {
    let (ips, _) = NodeIps::parse(node_ip).unwrap();
    let node = NodeConfig { ips, cloud, ..settings().node };
    Settings { name: name.parse().unwrap(), node, ..settings() }
}

fn network(default_route: &[&str]) -> Network {
    let local = ["127.0.0.1", "::1", "10.0.0.5", "10.0.0.6", "fd00::5", "169.254.1.1", "fe80::1"];
    Network {
        local: local.map(ip).to_vec(),
        default_route: default_route.iter().map(|text| ip(text)).collect(),
    }
}

fn shown(addresses: &[NodeAddress]) -> Vec<String> {
    addresses.iter().map(|address| format!("{}={}", address.kind, address.address)).collect()
}

#[test]
fn s054_addresses_are_the_operators_or_chosen_in_order() {
    for (node_ip, name, lookup, default_route, expected) in [
        (
            "10.0.0.5,fd00::5",
            "n1",
            &[][..],
            &[][..],
            &["InternalIP=10.0.0.5", "InternalIP=fd00::5", "Hostname=n1"][..],
        ),
        ("fd00::5,10.0.0.5", "n1", &[], &[], &["InternalIP=fd00::5", "InternalIP=10.0.0.5", "Hostname=n1"]),
        ("10.0.0.6", "n1", &["10.0.0.5"], &["10.0.0.5"], &["InternalIP=10.0.0.6", "Hostname=n1"]),
        // A name that is an address is one, whatever the resolver says.
        ("", "10.1.2.3", &["10.0.0.5"], &[], &["InternalIP=10.1.2.3", "Hostname=10.1.2.3"]),
        (
            "",
            "n1",
            &["127.0.0.1", "fd00::5", "10.0.0.6"],
            &["10.0.0.5"],
            &["InternalIP=10.0.0.6", "Hostname=n1"],
        ),
        ("", "n1", &["fd00::5"], &["10.0.0.5"], &["InternalIP=fd00::5", "Hostname=n1"]),
        ("::", "n1", &["10.0.0.6", "fd00::5"], &[], &["InternalIP=fd00::5", "Hostname=n1"]),
        ("0.0.0.0", "n1", &["fd00::5", "10.0.0.6"], &[], &["InternalIP=10.0.0.6", "Hostname=n1"]),
        // Of another machine: the resolver is out of date.
        ("", "n1", &["10.9.9.9"], &["10.0.0.5"], &["InternalIP=10.0.0.5", "Hostname=n1"]),
        ("::", "n1", &[], &["10.0.0.5", "fe80::1", "fd00::5"], &["InternalIP=fd00::5", "Hostname=n1"]),
        ("", "n1", &[], &["fe80::1", "fd00::5"], &["InternalIP=fd00::5", "Hostname=n1"]),
    ] {
        let lookup: Vec<IpAddr> = lookup.iter().map(|text| ip(text)).collect();
        let settings = with(node_ip, Cloud::None, name);
        let found = addresses(&[], &settings, Some(&network(default_route)), &lookup);
        assert_eq!(shown(&found.unwrap()), expected, "{node_ip:?} {name} {lookup:?}");
    }
}

#[test]
fn s054_an_address_that_cannot_be_used_is_named() {
    for (node_ip, expected) in [
        ("127.0.0.1", "is a loopback address"),
        ("224.0.0.1", "is a multicast address"),
        ("169.254.1.1", "is a link-local address"),
        ("fe80::1", "is a link-local address"),
        ("10.9.9.9", "is not on an interface of this machine"),
        ("10.0.0.5,fd00::6", "is not on an interface of this machine"),
    ] {
        let found = addresses(&[], &with(node_ip, Cloud::None, "n1"), Some(&network(&[])), &[]);
        let error = found.unwrap_err().to_string();
        assert!(error.starts_with("--node-ip: ") && error.ends_with(expected), "{node_ip}: {error}");
    }
    let settings = with("", Cloud::None, "n1");
    assert_eq!(addresses(&[], &settings, Some(&network(&[])), &[]), Err(AddressError::None));
    assert_eq!(addresses(&[], &settings, None, &[]), Err(AddressError::Unreadable));
}

#[test]
fn s054_addresses_that_cannot_be_read_stay_and_the_rest_is_updated() {
    let before = after(&NodeStatus::default(), &observed(), 100).status;
    let lost = Observed { network: Some(Network::default()), ..observed() };
    let computed = after(&before, &lost, 110);
    assert_eq!(shown(&computed.status.addresses), ["InternalIP=10.0.0.5", "Hostname=n1"]);
    assert_eq!(computed.problems.len(), 1);
    assert_eq!(condition(&computed.status, types::READY).last_heartbeat_time, Some(at(110)));
}

#[test]
fn addresses_set_by_a_cloud_are_kept() {
    let cloud = NodeAddress { kind: AddressType::ExternalIp, address: "203.0.113.9".to_owned() };
    for (node_ip, previous, expected, annotation) in [
        ("", &[][..], &["Hostname=n1"][..], None),
        ("", std::slice::from_ref(&cloud), &["ExternalIP=203.0.113.9"], None),
        ("10.0.0.5", &[], &["InternalIP=10.0.0.5", "Hostname=n1"], Some("10.0.0.5")),
        ("10.0.0.5", std::slice::from_ref(&cloud), &["ExternalIP=203.0.113.9"], Some("10.0.0.5")),
        (
            "10.0.0.5,fd00::5",
            &[],
            &["InternalIP=10.0.0.5", "InternalIP=fd00::5", "Hostname=n1"],
            Some("10.0.0.5,fd00::5"),
        ),
        ("::", &[], &["Hostname=n1"], None),
    ] {
        let settings = with(node_ip, Cloud::External, "n1");
        let found = addresses(previous, &settings, Some(&network(&["10.0.0.5"])), &[]).unwrap();
        assert_eq!(shown(&found), expected, "{node_ip:?} {previous:?}");
        assert_eq!(provided_node_ip(&settings.node).as_deref(), annotation, "{node_ip:?}");
    }
}

#[test]
fn the_annotation_for_the_cloud_is_removed_when_it_no_longer_applies() {
    let spec = NodeSpec::default();
    let others = ("other".to_owned(), "kept".to_owned());
    let stale = [(PROVIDED_NODE_IP.to_owned(), "10.0.0.9".to_owned()), others.clone()].into();
    let status = NodeStatus::default();
    let previous = Previous { status: &status, spec: &spec, annotations: &stale };
    for (cloud, expected) in [(Cloud::None, None), (Cloud::External, Some("10.0.0.5"))] {
        let settings = with("10.0.0.5", cloud, "n1");
        let computed = compute(previous, &settings, &observed(), &mut EmittedEvents::default(), at(0));
        assert_eq!(computed.annotations.get(PROVIDED_NODE_IP).map(String::as_str), expected);
        assert_eq!(computed.annotations.get("other"), Some(&others.1));
    }
}

#[test]
fn the_resolver_is_asked_only_where_its_answer_matters() {
    for (node_ip, cloud, name, expected) in [
        ("", Cloud::None, "n1", true),
        ("::", Cloud::None, "n1", true),
        ("10.0.0.5", Cloud::None, "n1", false),
        ("", Cloud::None, "10.1.2.3", false),
        ("", Cloud::External, "n1", false),
    ] {
        assert_eq!(needs_lookup(&with(node_ip, cloud, name)), expected, "{node_ip:?} {cloud:?} {name}");
    }
}
