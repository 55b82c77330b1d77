use std::time::Duration;

use super::*;

const NODE_UID: &str = "98df94d9-d9d8-4e3e-a5ee-59b87da79b7a";

fn hello(incarnation: &str) -> Hello {
    Hello {
        node: "n1".parse().unwrap(),
        node_uid: NODE_UID.parse().unwrap(),
        incarnation: incarnation.into(),
        lease_duration: DEFAULT_DURATION,
    }
}

fn node(uid: &str) -> Node {
    let metadata = pb::Metadata { name: "n1".into(), uid: uid.into(), ..Default::default() };
    Node::try_from(pb::Node { metadata: Some(metadata), ..Default::default() }).unwrap()
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

/// Long before every test: the store takes renewals the whole time.
const ALWAYS: Timestamp = Timestamp::UNIX_EPOCH;

#[test]
fn the_first_agent_gets_a_lease_owned_by_its_node() {
    let lease = acquire_lease(&hello("i1"), Some(&node(NODE_UID)), None, at(0), ALWAYS).unwrap().unwrap();
    assert_eq!(lease.spec.holder_identity, "n1");
    assert_eq!(lease.meta.owner_references[0].uid, NODE_UID);
    assert_eq!(lease.meta.annotations[INCARNATION], "i1");
    assert_eq!(lease.meta.namespace.as_ref().unwrap().as_str(), NODE_LEASE_NAMESPACE);
}

#[test]
fn another_incarnation_acquires_the_lease_only_after_it_expires() {
    let node = node(NODE_UID);
    let lease = acquire_lease(&hello("i1"), Some(&node), None, at(0), ALWAYS).unwrap().unwrap();
    for (incarnation, seconds, expected) in [
        ("i1", 1, "held already"),
        ("i2", 1, "refused"),
        ("i2", 39, "refused"),
        ("i2", -39, "refused"),
        ("i2", -100, "taken over"),
        ("i2", 40, "taken over"),
        ("i1", 400, "held already"),
    ] {
        let outcome = match acquire_lease(&hello(incarnation), Some(&node), Some(&lease), at(seconds), ALWAYS)
        {
            Ok(None) => "held already",
            Ok(Some(taken)) => {
                assert_eq!(taken.meta.annotations[INCARNATION], incarnation);
                assert_eq!(taken.spec.lease_transitions, 1);
                assert_eq!(taken.spec.renew_time, Some(at(seconds)));
                "taken over"
            }
            Err(refusal) => {
                assert!(refusal.to_string().contains("incarnation i1"), "{refusal}");
                assert!(refusal.to_string().contains("another name"), "{refusal}");
                "refused"
            }
        };
        assert_eq!(outcome, expected, "{incarnation} after {seconds} s");
    }
}

#[test]
fn a_lease_does_not_expire_before_its_holder_could_renew_it_for_its_whole_duration() {
    let node = node(NODE_UID);
    let lease = acquire_lease(&hello("i1"), Some(&node), None, at(0), ALWAYS).unwrap().unwrap();
    // The lease lasts 40 s and was renewed at 0. Times are in seconds.
    for (renewable_since, now, expected) in [
        (-1000, 39, "renewed it less than 40 s ago: to replace that agent, stop it and wait 1 s"),
        (-1000, 40, "taken over"),
        (20, 39, "renewed it less than 40 s ago: to replace that agent, stop it and wait 21 s"),
        (20, 40, "could not renew it while the store was down or could not write"),
        (20, 59, "stop it and wait 1 s"),
        (20, 60, "taken over"),
        (3000, 3000, "stop it and wait 40 s"),
        (3000, 3039, "stop it and wait 1 s"),
        (3000, 3040, "taken over"),
    ] {
        let acquired = acquire_lease(&hello("i2"), Some(&node), Some(&lease), at(now), at(renewable_since));
        let outcome = match acquired {
            Ok(taken) => {
                assert_eq!(taken.unwrap().meta.annotations[INCARNATION], "i2");
                "taken over".to_owned()
            }
            Err(refusal) => refusal.to_string(),
        };
        assert!(outcome.contains(expected), "renewable since {renewable_since}, at {now}: {outcome}");
        let holder = acquire_lease(&hello("i1"), Some(&node), Some(&lease), at(now), at(renewable_since));
        assert_eq!(holder, Ok(None), "its holder keeps it at {now}");
    }
}

#[test]
fn a_lease_without_an_incarnation_is_acquired_at_once() {
    let node = node(NODE_UID);
    let mut lease = acquire_lease(&hello("i1"), Some(&node), None, at(0), ALWAYS).unwrap().unwrap();
    lease.meta.annotations.clear();
    let taken = acquire_lease(&hello("i2"), Some(&node), Some(&lease), at(1), ALWAYS).unwrap().unwrap();
    assert_eq!(taken.meta.annotations[INCARNATION], "i2");
}

#[test]
fn only_an_agent_with_the_nodes_uid_acquires_the_lease() {
    let missing = acquire_lease(&hello("i1"), None, None, at(0), ALWAYS);
    assert!(matches!(missing, Err(Refusal::NotFound { .. })));
    let other = node("11111111-d9d8-4e3e-a5ee-59b87da79b7a");
    let refused = acquire_lease(&hello("i1"), Some(&other), None, at(0), ALWAYS);
    assert!(matches!(refused, Err(Refusal::UidMismatch { .. })));
}

#[test]
fn a_malformed_hello_names_every_field() {
    let wire = pb::HeartbeatHello {
        node_name: "N".into(),
        node_uid: "x".into(),
        incarnation: String::new(),
        lease_duration: Some(prost_types::Duration { seconds: 0, nanos: 0 }),
    };
    let invalid = Hello::try_from(wire).unwrap_err();
    let fields: Vec<_> = invalid.violations.iter().map(|v| v.field.as_str()).collect();
    assert_eq!(fields, ["hello.nodeName", "hello.nodeUid", "hello.incarnation", "hello.leaseDuration"]);
}

#[test]
fn renewals_are_spread_over_a_tenth_of_the_interval() {
    let wanted: Vec<f64> = (0..100)
        .map(|i| Hello { node: format!("n{i}").parse().unwrap(), ..hello("i") }.next_renewal().as_secs_f64())
        .collect();
    assert!(wanted.iter().all(|seconds| (9.0..=10.0).contains(seconds)));
    assert!(wanted.iter().any(|s| *s < 9.3) && wanted.iter().any(|s| *s > 9.7));
}

#[test]
fn the_next_hello_of_the_holder_updates_duration_and_owner() {
    let node = node(NODE_UID);
    let lease = acquire_lease(&hello("i1"), Some(&node), None, at(0), ALWAYS).unwrap().unwrap();
    assert_eq!(
        acquire_lease(&hello("i1"), Some(&node), Some(&lease), at(1), ALWAYS).unwrap(),
        None,
        "nothing to update"
    );

    let longer = Hello { lease_duration: Duration::from_secs(80), ..hello("i1") };
    let refreshed = acquire_lease(&longer, Some(&node), Some(&lease), at(1), ALWAYS).unwrap().unwrap();
    assert_eq!(refreshed.spec.lease_duration_seconds, Some(80));
    assert_eq!(refreshed.spec.renew_time, lease.spec.renew_time, "a hello is not a renewal");
    assert_eq!(refreshed.spec.lease_transitions, lease.spec.lease_transitions, "the holder stays the same");

    let mut stripped = lease.clone();
    stripped.meta.owner_references.clear();
    let refreshed =
        acquire_lease(&hello("i1"), Some(&node), Some(&stripped), at(1), ALWAYS).unwrap().unwrap();
    assert_eq!(refreshed.meta.owner_references, lease.meta.owner_references);
}
