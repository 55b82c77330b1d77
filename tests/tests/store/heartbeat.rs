//! The heartbeat stream, lease renewals, the deletion of leases, and the expiry of events.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::time::Duration;

use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_rpc::clock::SystemClock;
use muster_tests::api::HeartbeatStream;
use muster_tests::fixtures::*;
use muster_tests::{Api, ListQuery, Resource, TIMEOUT, TestStore, WatchQuery, eventually, now_seconds};
use tonic::{Code, Status};

fn hello(node: &pb::Node, incarnation: &str) -> Message {
    Message::Hello(pb::HeartbeatHello {
        node_name: node.name().to_owned(),
        node_uid: node.uid().to_owned(),
        incarnation: incarnation.to_owned(),
        lease_duration: None,
    })
}

fn hello_with_lease(node: &pb::Node, incarnation: &str, seconds: i64) -> Message {
    let Message::Hello(hello) = hello(node, incarnation) else { unreachable!() };
    let lease_duration = Some(prost_types::Duration { seconds, nanos: 0 });
    Message::Hello(pb::HeartbeatHello { lease_duration, ..hello })
}

fn renewal(status_digest: u64) -> Message {
    Message::Renewal(pb::HeartbeatRenewal { status_digest, status_age_millis: 1_500 })
}

fn status(node: pb::Node) -> Message {
    Message::Status(pb::HeartbeatStatus { status: node.status, resource_version: 0 })
}

/// A stream on which the agent of that node has sent its hello.
async fn stream_after_hello(api: &Api, node: &pb::Node, incarnation: &str) -> HeartbeatStream {
    let mut stream = api.heartbeat().await;
    stream.send(hello(node, incarnation)).await.unwrap();
    stream
}

/// The stream of another incarnation, which says hello until it gets the lease.
async fn taken_over(api: &Api, node: &pb::Node, incarnation: &str) -> HeartbeatStream {
    eventually(TIMEOUT, "the lease is taken over", || async {
        let mut stream = api.heartbeat().await;
        match stream.send(hello(node, incarnation)).await {
            Ok(_) => Some(stream),
            Err(status) => {
                assert_eq!(status.code(), Code::Aborted, "{status:?}");
                None
            }
        }
    })
    .await
}

async fn lease_of(api: &Api, node: &str) -> pb::Lease {
    api.get(&format!("kube-node-lease/{node}")).await.unwrap()
}

fn spec(lease: &pb::Lease) -> &pb::LeaseSpec {
    lease.spec.as_ref().unwrap()
}

#[tokio::test]
async fn each_renewal_gets_a_higher_version_and_the_lease_shows_the_newest_one() {
    let store = TestStore::start().await;
    let api = store.api();
    let node = api.create(node("a")).await.unwrap();
    let mut stream = api.heartbeat().await;

    let welcome = stream.send(hello(&node, "i1")).await.unwrap();
    let created = lease_of(&api, "a").await;
    assert_eq!(welcome.resource_version, created.version());
    assert_eq!(
        (spec(&created).holder_identity.as_str(), spec(&created).lease_duration_seconds),
        ("a", Some(40))
    );
    let owner = &created.metadata.as_ref().unwrap().owner_references[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()), ("Node", "a", node.uid()));
    let next = welcome.next_renewal.unwrap();
    assert!((9..=10).contains(&next.seconds), "a quarter of the lease, or a little less: {next:?}");

    let mut last = welcome.resource_version;
    for digest in 1..=20 {
        let answer = stream.send(renewal(digest)).await.unwrap();
        assert!(answer.resource_version > last, "{} after {last}", answer.resource_version);
        last = answer.resource_version;
        let lease = lease_of(&api, "a").await;
        assert_eq!((lease.version(), spec(&lease).status_digest), (last, digest));
        assert_eq!(spec(&lease).status_age_millis, 1_500);
        assert_eq!(spec(&lease).renew_time, answer.renew_time, "by the store's clock");
    }
    assert_eq!(api.revision().await, last, "each renewal takes one version");
    for _ in 0..2 {
        // A renewal by call does not change the agent's status digest.
        last = api.renew("a", "a").await.unwrap().resource_version;
        let lease = lease_of(&api, "a").await;
        assert_eq!((lease.version(), spec(&lease).status_digest), (last, 20));
        assert_eq!(spec(&lease).status_age_millis, 1_500);
    }
    assert_eq!(spec(&lease_of(&api, "a").await).acquire_time, spec(&created).acquire_time);

    let reported = stream.send(status(node.clone().ready("True"))).await.unwrap();
    let stored = api.get::<pb::Node>("a").await.unwrap();
    assert_eq!(
        (stored.version(), stored.status.as_ref()),
        (reported.resource_version, node.clone().ready("True").status.as_ref())
    );
    assert_eq!(stored.spec, node.spec, "only the status");
    let again = stream.send(status(node.ready("True"))).await.unwrap();
    assert_eq!(again.resource_version, reported.resource_version, "an unchanged status is not written");
    assert_eq!(api.revision().await, reported.resource_version);
}

#[tokio::test]
async fn a_second_agent_is_refused_while_the_first_renews() {
    let store = TestStore::start().await;
    let api = store.api();
    let node = api.create(node("a")).await.unwrap();
    let mut first = stream_after_hello(&api, &node, "first").await;

    let mut second = api.heartbeat().await;
    let error = api.expect_error(second.send(hello(&node, "second"))).await;
    error.is(Code::Aborted, "CONFLICT");
    error
        .mentions("Lease kube-node-lease/a")
        .mentions("incarnation first")
        .mentions("stop it and wait")
        .mentions("another name");
    first.send(renewal(1)).await.unwrap();

    // The same incarnation may connect again, even before its old stream is known to be dead.
    let head = api.revision().await;
    let mut again = api.heartbeat().await;
    let welcome = again.send(hello(&node, "first")).await.unwrap();
    assert_eq!(welcome.resource_version, head, "it already holds the lease: nothing is written");
    again.send(renewal(2)).await.unwrap();
    assert_eq!(spec(&lease_of(&api, "a").await).status_digest, 2);
}

#[tokio::test]
async fn only_the_newest_stream_of_an_incarnation_is_acknowledged() {
    let store = TestStore::start().await;
    let api = store.api();
    let node = api.create(node("a")).await.unwrap();
    let mut older = stream_after_hello(&api, &node, "i").await;
    older.send(renewal(1)).await.unwrap();
    let mut newer = stream_after_hello(&api, &node, "i").await;

    // The older stream ends by itself, and nothing that its agent still sends is acknowledged or written.
    let error = older.end().await;
    error.is(Code::Aborted, "STREAM_REPLACED").mentions("same agent incarnation").mentions("cloned machine");
    newer.send(renewal(2)).await.unwrap();
    let mut older = stream_after_hello(&api, &node, "i").await;
    api.expect_error(newer.send(renewal(3))).await.is(Code::Aborted, "STREAM_REPLACED");
    older.send(renewal(4)).await.unwrap();
    let mut newer = stream_after_hello(&api, &node, "i").await;
    let reported = older.send(status(node.clone().ready("True")));
    api.expect_error(reported).await.is(Code::Aborted, "STREAM_REPLACED");
    assert_eq!(api.get::<pb::Node>("a").await.unwrap(), node);

    // Streams of other nodes are not affected, and neither are renewals by call.
    let other = api.create(muster_tests::fixtures::node("b")).await.unwrap();
    let mut others = stream_after_hello(&api, &other, "i").await;
    others.send(renewal(5)).await.unwrap();
    api.renew("a", "a").await.unwrap();
    newer.send(renewal(6)).await.unwrap();
    assert_eq!(spec(&lease_of(&api, "a").await).status_digest, 6);
}

#[tokio::test]
async fn streams_of_one_incarnation_that_replace_each_other_again_and_again_are_counted() {
    let store = TestStore::start().await;
    let api = store.api();
    let node = api.create(node("a")).await.unwrap();
    // A long lease, so that a slow machine does not stretch the takeovers over more than one duration.
    let mut current = api.heartbeat().await;
    current.send(hello_with_lease(&node, "i", 3600)).await.unwrap();
    for takeover in 1..=6 {
        let mut clone = api.heartbeat().await;
        clone.send(hello_with_lease(&node, "i", 3600)).await.unwrap();
        clone.send(renewal(takeover)).await.unwrap();
        current.end().await.is(Code::Aborted, "STREAM_REPLACED");
        current = clone;
        assert_eq!(store.contested_heartbeats(), takeover.saturating_sub(3), "after {takeover} takeovers");
    }

    // An agent that ends its stream before it opens the next one takes nothing over.
    for _ in 0..6 {
        drop(current);
        eventually(TIMEOUT, "the store has closed the stream", || async {
            (store.heartbeat_streams() == 0).then_some(())
        })
        .await;
        current = api.heartbeat().await;
        current.send(hello_with_lease(&node, "i", 3600)).await.unwrap();
    }
    assert_eq!(store.contested_heartbeats(), 3);
}

#[tokio::test]
async fn the_time_in_which_the_store_was_down_does_not_count_against_a_lease() {
    const LEASE: i64 = 3;
    let store = TestStore::start().await;
    let api = store.api();
    let node = api.create(node("a")).await.unwrap();
    let mut first = api.heartbeat().await;
    first.send(hello_with_lease(&node, "first", LEASE)).await.unwrap();
    let renewed = first.send(renewal(1)).await.unwrap().renew_time.unwrap().seconds;
    drop((first, api));
    let stopped = store.stop().await;
    eventually(TIMEOUT, "the lease's duration has passed", || async {
        (now_seconds() > renewed + LEASE).then_some(())
    })
    .await;

    // A second agent with the node's name comes first. The holder must have the whole duration to come back.
    let clock = SystemClock::shared();
    let starting = clock.mono();
    let store = stopped.start().await;
    let api = store.api();
    let mut second = taken_over(&api, &node, "second").await;
    let waited = clock.mono() - starting;
    assert!(waited >= Duration::from_secs(LEASE as u64), "the lease was taken over after {waited:?}");
    second.send(renewal(2)).await.unwrap();
}

#[tokio::test]
async fn a_stream_without_a_hello_ends_after_a_while() {
    let store = TestStore::start().await;
    let api = store.api();
    let node = api.create(node("a")).await.unwrap();
    let mut agent = stream_after_hello(&api, &node, "i").await;
    let mut silent = api.heartbeat().await;
    let error = silent.end().await;
    error.is(Code::DeadlineExceeded, "NO_HELLO").mentions("no hello").mentions("first message");
    // The time limit is for the hello only.
    agent.send(renewal(1)).await.unwrap();
}

#[tokio::test]
async fn a_second_agent_takes_the_lease_after_it_expired() {
    let store = TestStore::start().await;
    let api = store.api();
    let node = api.create(node("a")).await.unwrap();
    let mut first = api.heartbeat().await;
    first.send(hello_with_lease(&node, "first", 1)).await.unwrap();
    first.send(renewal(1)).await.unwrap();

    let mut taken = taken_over(&api, &node, "second").await;
    let lease = lease_of(&api, "a").await;
    assert_eq!((spec(&lease).lease_transitions, spec(&lease).status_digest), (1, 0));
    taken.send(renewal(7)).await.unwrap();

    let error = api.expect_error(first.send(renewal(8))).await;
    error.is(Code::Aborted, "CLAIM_LOST").mentions("send a new hello");
    assert_eq!(spec(&lease_of(&api, "a").await).status_digest, 7);
}

#[tokio::test]
async fn a_stream_must_start_with_a_hello_of_the_current_node() {
    let store = TestStore::start().await;
    let api = store.api();
    let old = api.create(node("a")).await.unwrap();
    api.delete::<pb::Node>("a").await.unwrap();
    let a = api.create(node("a")).await.unwrap();

    let send = |message: Message| {
        let api = api.clone();
        async move { api.heartbeat().await.send(message).await }
    };
    api.expect_error(send(renewal(1))).await.is_invalid(&["hello"]).mentions("first");
    api.expect_error(send(status(a.clone()))).await.is_invalid(&["hello"]);
    api.expect_error(send(hello(&old, "i"))).await.is(Code::Aborted, "UID_MISMATCH");
    api.expect_error(send(hello(&node("b").with(|b| a.uid().clone_into(&mut b.uid)), "i")))
        .await
        .is(Code::NotFound, "NOT_FOUND");
    api.expect_error(send(hello(&a, ""))).await.is_invalid(&["hello.incarnation"]);
    api.expect_error(send(hello(&node("A"), "i"))).await.is_invalid(&["hello.nodeName", "hello.nodeUid"]);
    let Message::Hello(short) = hello(&a, "i") else { unreachable!() };
    for seconds in [0, -5, 4_000] {
        let lease_duration = Some(prost_types::Duration { seconds, nanos: 0 });
        let bad = Message::Hello(pb::HeartbeatHello { lease_duration, ..short.clone() });
        api.expect_error(send(bad)).await.is_invalid(&["hello.leaseDuration"]);
    }

    let mut stream = stream_after_hello(&api, &a, "i").await;
    api.expect_error(stream.send(hello(&a, "i"))).await.is_invalid(&["hello"]).mentions("already");
    let mut stream = stream_after_hello(&api, &a, "i").await;
    let bad = a.clone().capacity("cpu", "lots");
    let error = api.expect_error(stream.send(status(bad))).await;
    error.is(Code::InvalidArgument, "INVALID");
    assert_eq!(error.fields, ["status.capacity[\"cpu\"]"]);
    let mut stream = stream_after_hello(&api, &a, "i").await;
    let nothing = Message::Status(pb::HeartbeatStatus::default());
    api.expect_error(stream.send(nothing)).await.is_invalid(&["status"]).mentions("is required");
    // A message that is too large is not decoded, and the error says so.
    let mut stream = stream_after_hello(&api, &a, "i").await;
    let huge = a.clone().status(|status| status.phase = "x".repeat(3_000_000));
    api.expect_error(stream.send(status(huge)))
        .await
        .is(Code::InvalidArgument, "TOO_LARGE")
        .mentions("found 30");
}

#[tokio::test]
async fn a_status_for_a_node_that_was_deleted_and_created_again_is_refused() {
    let store = TestStore::start().await;
    let api = store.api();
    let old = api.create(node("a")).await.unwrap();
    let mut stream = stream_after_hello(&api, &old, "i").await;
    api.delete::<pb::Node>("a").await.unwrap();
    let new = api.create(node("a")).await.unwrap();
    let error = api.expect_error(stream.send(status(old.ready("True")))).await;
    error.is(Code::Aborted, "UID_MISMATCH");
    assert_eq!(api.get::<pb::Node>("a").await.unwrap(), new);
}

#[tokio::test]
async fn a_status_does_not_overwrite_a_newer_status_of_another_writer() {
    let store = TestStore::start().await;
    let api = store.api();
    let seen = api.create(node("a")).await.unwrap();
    let at = |version, node: pb::Node| {
        Message::Status(pb::HeartbeatStatus { status: node.status, resource_version: version })
    };
    let mut stream = stream_after_hello(&api, &seen, "i").await;
    let written = api.update_status(seen.clone().capacity("example.com/gpu", "4")).await.unwrap();
    let error = api.expect_error(stream.send(at(seen.version(), seen.clone().ready("True")))).await;
    error.is(Code::Aborted, "CONFLICT");
    assert_eq!(api.get::<pb::Node>("a").await.unwrap(), written);

    let mut stream = stream_after_hello(&api, &seen, "i").await;
    let answer = stream.send(at(written.version(), written.ready("True"))).await.unwrap();
    let read = api.get::<pb::Node>("a").await.unwrap();
    assert_eq!(read.version(), answer.resource_version);
    assert!(read.status.unwrap().capacity.contains_key("example.com/gpu"));
}

#[tokio::test]
async fn only_the_holder_can_renew_a_lease() {
    let store = TestStore::start().await;
    let api = store.api();
    let error = api.expect_error(api.renew("kube-system/leader", "me")).await;
    error.is(Code::NotFound, "NOT_FOUND");
    assert_eq!(error.resource, "Lease kube-system/leader");

    let created = api.create(held(lease("leader").in_namespace("kube-system"), "me", 15)).await.unwrap();
    let error = api.expect_error(api.renew("kube-system/leader", "you")).await;
    error.is(Code::Aborted, "CONFLICT").mentions("\"me\"").mentions("\"you\"");
    api.expect_error(api.renew("kube-system/leader", "")).await.is(Code::Aborted, "CONFLICT");
    let renewed = api.renew("kube-system/leader", "me").await.unwrap();
    assert_eq!(renewed.resource_version, created.version() + 1);
    let read = api.get::<pb::Lease>("kube-system/leader").await.unwrap();
    assert_eq!((read.version(), spec(&read).renew_time), (renewed.resource_version, renewed.renew_time));

    // A renewal is a new version: an update based on an older version fails.
    api.expect_error(api.update(held(created, "you", 15))).await.is(Code::Aborted, "CONFLICT");
    let taken = api.update(held(read, "you", 15)).await.unwrap();
    assert_eq!(spec(&taken).renew_time, renewed.renew_time, "an update based on the renewal keeps its time");
    api.expect_error(api.renew("kube-system/leader", "me")).await.is(Code::Aborted, "CONFLICT");
    api.renew("kube-system/leader", "you").await.unwrap();
}

#[tokio::test]
async fn renewing_a_lease_without_a_holder_acquires_it() {
    let store = TestStore::start().await;
    let api = store.api();
    api.create(lease("a")).await.unwrap();
    // An empty namespace means `kube-node-lease`.
    let renewed = api.renew("a", "agent").await.unwrap();
    let taken = lease_of(&api, "a").await;
    assert_eq!(taken.version(), renewed.resource_version);
    assert_eq!(spec(&taken).holder_identity, "agent");
    assert_eq!(
        (spec(&taken).acquire_time, spec(&taken).renew_time),
        (renewed.renew_time, renewed.renew_time)
    );
    api.expect_error(api.renew("a", "other")).await.is(Code::Aborted, "CONFLICT");
    api.renew("a", "agent").await.unwrap();
}

#[tokio::test]
async fn lists_and_watches_of_leases_show_renewals() {
    let store = TestStore::start().await;
    let api = store.api();
    let (a, b) = (api.create(node("a")).await.unwrap(), api.create(node("b")).await.unwrap());
    let (mut first, mut second) =
        (stream_after_hello(&api, &a, "i").await, stream_after_hello(&api, &b, "i").await);
    let v = api.revision().await;
    let from = WatchQuery { version: v, ..Default::default() };
    let mut watch = api.watch::<pb::Lease>(from.clone()).await.unwrap();
    let one_only = WatchQuery { fields: "metadata.name=b", ..from.clone() };
    let mut one = api.watch::<pb::Lease>(one_only).await.unwrap();

    for digest in [1, 2] {
        first.send(renewal(digest)).await.unwrap();
        second.send(renewal(10 * digest)).await.unwrap();
    }
    let expected: Vec<_> =
        (1..).zip(["a", "b", "a", "b"]).map(|(i, name)| format!("MODIFIED {name} {}", v + i)).collect();
    let received = watch.take(4).await;
    assert_eq!(received.iter().map(muster_tests::ReceivedEvent::summary).collect::<Vec<_>>(), expected);
    let digests: Vec<_> = received.iter().map(|seen| spec(&seen.record).status_digest).collect();
    assert_eq!(digests, [1, 10, 2, 20], "each with the digest of its renewal");
    assert_eq!(one.summaries(2).await, [expected[1].clone(), expected[3].clone()]);
    assert_eq!(api.watch::<pb::Lease>(from).await.unwrap().summaries(4).await, expected, "and from history");

    let page = api
        .list::<pb::Lease>(ListQuery { namespace: "kube-node-lease", ..Default::default() })
        .await
        .unwrap();
    assert_eq!(page.version, v + 4);
    let listed: Vec<_> =
        page.records.iter().map(|lease| (lease.version(), spec(lease).status_digest)).collect();
    assert_eq!(listed, [(v + 3, 2), (v + 4, 20)]);
}

#[tokio::test]
async fn a_restart_keeps_the_newest_renewals() {
    let store = TestStore::start().await;
    let api = store.api();
    let a = api.create(node("a")).await.unwrap();
    let mut stream = stream_after_hello(&api, &a, "i").await;
    let v = api.revision().await;
    for digest in 1..=5 {
        stream.send(renewal(digest)).await.unwrap();
    }
    drop(stream);
    let before = lease_of(&api, "a").await;
    let page = api.list::<pb::Lease>(ListQuery::default()).await.unwrap();
    drop(api);

    let store = store.restart().await;
    let api = store.api();
    assert_eq!(lease_of(&api, "a").await, before);
    assert_eq!(api.list::<pb::Lease>(ListQuery::default()).await.unwrap(), page);
    // Of the renewals before a restart, a watch sends only the newest of each lease.
    let mut watch = api.watch::<pb::Lease>(WatchQuery { version: v, ..Default::default() }).await.unwrap();
    assert_eq!(watch.summaries(1).await, [format!("MODIFIED a {}", v + 5)]);

    let mut stream = api.heartbeat().await;
    let welcome = stream.send(hello(&a, "i")).await.unwrap();
    assert_eq!(welcome.resource_version, v + 5, "it still holds its lease");
    let renewed = stream.send(renewal(6)).await.unwrap();
    assert_eq!(renewed.resource_version, v + 6);
    assert_eq!(watch.summaries(1).await, [format!("MODIFIED a {}", v + 6)]);
    let error = api.expect_error(async { api.heartbeat().await.send(hello(&a, "other")).await }).await;
    error.is(Code::Aborted, "CONFLICT");
}

#[tokio::test]
async fn a_heartbeat_stream_ends_with_an_error_when_the_store_stops() {
    let store = TestStore::start().await;
    let api = store.api();
    let a = api.create(node("a")).await.unwrap();
    let mut stream = stream_after_hello(&api, &a, "i").await;
    drop(api);
    let stopped = store.stop();
    let last_answer = async {
        loop {
            if let Err(status) = stream.send(renewal(1)).await {
                break status;
            }
        }
    };
    let (_, status): (_, Status) = tokio::join!(stopped, last_answer);
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
}

#[tokio::test]
async fn deleting_a_node_deletes_its_lease_and_keeps_leases_without_an_owner() {
    let store = TestStore::start().await;
    let api = store.api();
    let a = api.create(node("a")).await.unwrap();
    let mut stream = stream_after_hello(&api, &a, "i").await;
    api.create(held(lease("loose"), "loose", 40)).await.unwrap();
    let mirror =
        pod("mirror").on("a").annotation("kubernetes.io/config.mirror", "x").owned_by("Node", "a", a.uid());
    api.create(mirror).await.unwrap();
    api.create(pod("stays").on("a")).await.unwrap();
    api.create(lease("loud").owned_by("Node", "a", &a.uid().to_uppercase())).await.unwrap();
    let mut watch = api
        .watch::<pb::Lease>(WatchQuery { version: api.revision().await, ..Default::default() })
        .await
        .unwrap();

    api.delete::<pb::Node>("a").await.unwrap();
    eventually(TIMEOUT, "the lease is deleted", || async {
        api.get::<pb::Lease>("kube-node-lease/a").await.err()
    })
    .await;
    eventually(TIMEOUT, "the mirror pod is deleted", || async {
        api.get::<pb::Pod>("default/mirror").await.err()
    })
    .await;
    eventually(TIMEOUT, "the lease whose owner is written in capitals is deleted", || async {
        api.get::<pb::Lease>("kube-node-lease/loud").await.err()
    })
    .await;
    assert!(watch.summaries(1).await[0].starts_with("DELETED a "));
    assert_eq!(lease_of(&api, "loose").await.name(), "loose");
    api.get::<pb::Pod>("default/stays").await.unwrap();
    let error = Box::pin(stream.send(renewal(1))).await.unwrap_err();
    assert_eq!(error.code(), Code::Aborted, "its agent gets an error: {error:?}");

    // Also a lease whose owner never existed, or was replaced by another node of that name.
    let b = api.create(node("b")).await.unwrap();
    api.create(lease("b").owned_by("Node", "b", b.uid())).await.unwrap();
    api.create(lease("stale").owned_by("Node", "b", a.uid())).await.unwrap();
    eventually(TIMEOUT, "the orphan is deleted", || async {
        api.get::<pb::Lease>("kube-node-lease/stale").await.err()
    })
    .await;
    assert_eq!(lease_of(&api, "b").await.name(), "b");
}

#[tokio::test]
async fn a_pod_with_an_owner_of_another_kind_stays_when_its_node_is_deleted() {
    let store = TestStore::start().await;
    let api = store.api();
    let a = api.create(node("a")).await.unwrap();
    let owned = pod("owned").on("a").owned_by("Node", "a", a.uid());
    let shared = pod("shared").on("a").owned_by("Node", "a", a.uid());
    let shared = shared.with(|metadata| metadata.owner_references[0].controller = false);
    let shared = shared.owned_by("ReplicaSet", "web", "7");
    api.create(owned).await.unwrap();
    let shared = api.create(shared).await.unwrap();
    api.delete::<pb::Node>("a").await.unwrap();
    let error = api.expect_error(api.get::<pb::Pod>("default/owned")).await;
    error.is(Code::NotFound, "NOT_FOUND");
    assert_eq!(api.get::<pb::Pod>("default/shared").await.unwrap(), shared);
    drop(api);

    // A start deletes what has lost its owner. It does so before it answers the first write.
    let store = store.restart().await;
    let api = store.api();
    api.create(node("b")).await.unwrap();
    assert_eq!(api.get::<pb::Pod>("default/shared").await.unwrap(), shared);
}

#[tokio::test]
async fn a_repeated_event_increases_its_count() {
    let store = TestStore::start().await;
    let api = store.api();
    let mut watch = api.watch::<pb::Event>(WatchQuery::default()).await.unwrap();
    let first = api.record(event("a", "NodeNotReady", "a is not ready")).await.unwrap();
    assert_eq!((first.count, first.namespace(), first.r#type.as_str()), (1, "default", "Normal"));
    assert_eq!(first.first_timestamp, first.last_timestamp);
    let second = api.record(event("a", "NodeNotReady", "a is not ready")).await.unwrap();
    assert_eq!((second.count, second.name(), second.uid()), (2, first.name(), first.uid()));
    assert_eq!(second.first_timestamp, first.first_timestamp);
    let other = api.record(event("a", "NodeNotReady", "for another reason")).await.unwrap();
    assert_eq!(other.count, 1);
    let expected = [
        format!("ADDED {} {}", first.name(), first.version()),
        format!("MODIFIED {} {}", first.name(), second.version()),
        format!("ADDED {} {}", other.name(), other.version()),
    ];
    assert_eq!(watch.summaries(3).await, expected);

    let fields = "involvedObject.name=a,reason=NodeNotReady";
    let page = api.list::<pb::Event>(ListQuery { fields, ..Default::default() }).await.unwrap();
    assert_eq!(page.records.len(), 2);
    let none = ListQuery { fields: "involvedObject.name=b", ..Default::default() };
    assert!(api.list::<pb::Event>(none).await.unwrap().records.is_empty());
    api.expect_error(api.record(event("a", "", ""))).await.is_invalid(&["reason"]);
    api.expect_error(api.record(event("A", "R", ""))).await.is_invalid(&["involvedObject.name"]);
}

#[tokio::test]
async fn an_event_is_removed_when_it_was_not_repeated_for_its_retention_time() {
    let store = TestStore::with_flags(&["--event-ttl=300ms"]).await;
    let api = store.api();
    let mut watch = api.watch::<pb::Event>(WatchQuery::default()).await.unwrap();
    let recorded = api.record(event("a", "Starting", "a starts")).await.unwrap();
    assert_eq!(watch.summaries(1).await, [format!("ADDED {} {}", recorded.name(), recorded.version())]);
    let gone = watch.next().await;
    assert_eq!((gone.kind.as_str(), gone.record.name()), ("DELETED", recorded.name()));
    assert_eq!(gone.record.version(), recorded.version() + 1);
    assert!(api.list::<pb::Event>(ListQuery::default()).await.unwrap().records.is_empty());

    // Also an event that the store finds at its start.
    api.record(event("b", "Starting", "b starts")).await.unwrap();
    drop((api, watch));
    let store = store.restart().await;
    let api = store.api();
    eventually(TIMEOUT, "the event is removed", || async {
        let page = api.list::<pb::Event>(ListQuery::default()).await.unwrap();
        page.records.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_page_of_leases_at_an_older_version_shows_the_newest_renewals() {
    let store = TestStore::start().await;
    let api = store.api();
    let (a, b) = (api.create(node("a")).await.unwrap(), api.create(node("b")).await.unwrap());
    let (_first, mut second) =
        (stream_after_hello(&api, &a, "i").await, stream_after_hello(&api, &b, "i").await);
    second.send(renewal(1)).await.unwrap();
    let page = api.list::<pb::Lease>(ListQuery { page_size: 1, ..Default::default() }).await.unwrap();
    second.send(renewal(2)).await.unwrap();
    let next = ListQuery { page_size: 1, page_token: page.next, ..Default::default() };
    let next = api.list::<pb::Lease>(next).await.unwrap();
    assert_eq!(next.version, page.version);
    assert_eq!(next.records, [lease_of(&api, "b").await], "a lease always shows its newest renewal");
}
