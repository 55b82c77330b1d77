//! Fencing: a former leader that has not noticed its replacement cannot write any more.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::fmt::Debug;
use std::future::Future;

use muster_grpc::node_service_client::NodeServiceClient;
use muster_proto::budget::DisruptionBudget;
use muster_proto::event::Event;
use muster_proto::fence::{FENCE_KEY, Fence};
use muster_proto::key::Key;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::record::Record;
use muster_store_client::{ClientError, DeleteOptions, EvictOptions, Preconditions, StoreClient};
use muster_tests::fixtures::*;
use muster_tests::{Api, RpcError, TestStore, in_time};
use tonic::{Code, Request};

/// The lease that leaders hold.
const LEASE: (&str, &str) = ("kube-system", "ctl");

fn checked<R: Record>(record: R::Pb) -> R {
    R::try_from(record).unwrap()
}

fn key(name: &str) -> Key {
    Key::namespaced("default".parse().unwrap(), name.parse().unwrap())
}

fn node_key(name: &str) -> Key {
    Key::node(name.parse().unwrap())
}

/// Makes `holder` the holder of the lease, with that number of transitions.
async fn elect(client: &StoreClient, holder: &str, transitions: i32) -> Lease {
    let key = Key::namespaced(LEASE.0.parse().unwrap(), LEASE.1.parse().unwrap());
    let held = client.get::<Lease>(&key).await;
    let mut wanted = match held {
        Ok(lease) => lease,
        Err(_) => checked(lease(LEASE.1).in_namespace(LEASE.0)),
    };
    wanted.spec.holder_identity = holder.to_owned();
    wanted.spec.lease_transitions = transitions;
    client.update(wanted).await.unwrap()
}

fn fence(holder: &str, transitions: i32) -> Fence {
    Fence::new(LEASE.0.parse().unwrap(), LEASE.1.parse().unwrap(), holder, transitions).unwrap()
}

/// Checks that a write fails with FENCED and does not change the store's revision.
async fn is_fenced<T: Debug>(api: &Api, what: &str, write: impl Future<Output = Result<T, ClientError>>) {
    let before = api.revision().await;
    match write.await {
        Err(ClientError::Fenced(message)) => {
            assert!(message.contains("Lease kube-system/ctl is held by \"b\""), "{what}: {message}");
        }
        other => panic!("{what} was not fenced: {other:?}"),
    }
    assert_eq!(api.revision().await, before, "{what} changed the store's revision");
}

#[tokio::test]
async fn no_write_of_a_former_leader_takes_effect() {
    let store = TestStore::start().await;
    let (api, client) = (store.api(), store.client());
    let node: Node = client.create(checked(node("n"))).await.unwrap();
    let bound: Pod = client.create(checked(pod("bound").on("n"))).await.unwrap();
    let pending: Pod = client.create(checked(pod("pending"))).await.unwrap();
    let budget: DisruptionBudget = client.create(checked(budget("b", ("app", "web"), "1"))).await.unwrap();
    let other: Lease = client.create(checked(lease("n"))).await.unwrap();
    elect(&client, "a", 0).await;
    let leader = client.with_fence(Some(&fence("a", 0)));
    elect(&client, "b", 1).await;

    let mut changed = node.clone();
    changed.spec.unschedulable = true;
    changed.meta.labels.insert("changed".to_owned(), "yes".to_owned());
    let new_node: Node = checked(muster_tests::fixtures::node("new"));
    let new_budget: DisruptionBudget = checked(muster_tests::fixtures::budget("new", ("app", "web"), "1"));
    let mut changed_budget = budget.clone();
    changed_budget.meta.labels.insert("changed".to_owned(), "yes".to_owned());
    let mut changed_pod = bound.clone();
    changed_pod.meta.labels.insert("changed".to_owned(), "yes".to_owned());
    let mut changed_lease = other.clone();
    changed_lease.spec.holder_identity = "a".to_owned();
    let happened: Event = checked(event("n", "Happened", "what").in_namespace("default"));
    let (lease_key, dry_run) = (Key::of(&other), EvictOptions { dry_run: true, ..EvictOptions::default() });
    let unconditionally = DeleteOptions::default();

    is_fenced(&api, "CreateNode", leader.create(new_node)).await;
    is_fenced(&api, "UpdateNode", leader.update(changed.clone())).await;
    is_fenced(&api, "UpdateNode without a change", leader.update(node.clone())).await;
    is_fenced(&api, "UpdateNodeStatus", leader.update_status(changed)).await;
    is_fenced(&api, "DeleteNode", leader.delete::<Node>(&node_key("n"), unconditionally)).await;
    is_fenced(&api, "CreatePod", leader.create(checked::<Pod>(pod("new")))).await;
    is_fenced(&api, "UpdatePod", leader.update(changed_pod.clone())).await;
    is_fenced(&api, "UpdatePodStatus", leader.update_status(changed_pod)).await;
    let still = Preconditions::default();
    is_fenced(&api, "BindPod", leader.bind(&key("pending"), &"n".parse().unwrap(), still)).await;
    is_fenced(&api, "EvictPod", leader.evict(&key("bound"), EvictOptions::default())).await;
    is_fenced(&api, "EvictPod without effect", leader.evict(&key("bound"), dry_run)).await;
    is_fenced(&api, "DeletePod", leader.delete::<Pod>(&key("bound"), unconditionally)).await;
    is_fenced(&api, "CreateDisruptionBudget", leader.create(new_budget)).await;
    is_fenced(&api, "UpdateDisruptionBudget", leader.update(changed_budget)).await;
    is_fenced(&api, "DeleteDisruptionBudget", leader.delete::<DisruptionBudget>(&key("b"), unconditionally))
        .await;
    is_fenced(&api, "CreateLease", leader.create(checked::<Lease>(lease("new")))).await;
    is_fenced(&api, "UpdateLease", leader.update(changed_lease)).await;
    is_fenced(&api, "RenewLease of a lease without a holder", leader.renew(&lease_key, "x")).await;
    client.renew(&lease_key, "x").await.unwrap();
    is_fenced(&api, "RenewLease", leader.renew(&lease_key, "x")).await;
    is_fenced(&api, "DeleteLease", leader.delete::<Lease>(&lease_key, unconditionally)).await;
    is_fenced(&api, "RecordEvent", leader.record_event(happened)).await;

    assert_eq!(leader.get::<Node>(&node_key("n")).await.unwrap(), node, "reads are not fenced");
    assert_eq!(client.get::<Pod>(&key("bound")).await.unwrap(), bound);
    assert_eq!(client.get::<Pod>(&key("pending")).await.unwrap(), pending);
    assert_eq!(client.get::<DisruptionBudget>(&key("b")).await.unwrap(), budget);
}

#[tokio::test]
async fn the_leader_can_write_until_it_loses_the_lease() {
    let store = TestStore::start().await;
    let client = store.client();
    client.create(checked::<Node>(node("n"))).await.unwrap();
    let leader = client.with_fence(Some(&fence("a", 3)));
    let touch = async |client: &StoreClient, value: &str| {
        let mut node: Node = client.get(&node_key("n")).await.unwrap();
        node.meta.labels.insert("changed".to_owned(), value.to_owned());
        client.update(node).await.map(|node| node.meta.labels["changed"].clone())
    };
    let refused = async |what: &str| match touch(&leader, "late").await {
        Err(ClientError::Fenced(message)) => message,
        other => panic!("{what}: {other:?}"),
    };
    assert!(refused("no lease").await.contains("does not exist"));
    elect(&client, "a", 3).await;
    assert_eq!(touch(&leader, "1").await.unwrap(), "1");
    // A renewal changes the lease's version, but not its holder.
    let lease = Key::namespaced(LEASE.0.parse().unwrap(), LEASE.1.parse().unwrap());
    client.renew(&lease, "a").await.unwrap();
    assert_eq!(touch(&leader, "2").await.unwrap(), "2");
    elect(&client, "a", 5).await;
    assert!(
        refused("a later term")
            .await
            .contains("is held by \"a\" at transition 5; the write is refused: it was fenced for holder \"a\" at transition 3")
    );
    elect(&client, "", 3).await;
    assert!(refused("released").await.contains("has no holder"));
    elect(&client, "a", 3).await;
    client.delete::<Lease>(&lease, DeleteOptions::default()).await.unwrap();
    assert!(refused("deleted").await.contains("does not exist"));
    assert_eq!(touch(&client, "3").await.unwrap(), "3", "a write without a fence is not fenced");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_write_of_the_old_leader_is_committed_after_the_new_one_has_the_lease() {
    let store = TestStore::start().await;
    let client = store.client();
    elect(&client, "a", 0).await;
    let leader = client.with_fence(Some(&fence("a", 0)));
    let mut writers = Vec::new();
    for i in 0..8 {
        let name = format!("n{i}");
        client.create(checked::<Node>(node(&name))).await.unwrap();
        let leader = leader.clone();
        writers.push(tokio::spawn(async move {
            let mut last = 0;
            for round in 0u64.. {
                let written =
                    leader.update(checked::<Node>(node(&name).label("round", &round.to_string()))).await;
                match written {
                    Ok(node) => last = node.meta.resource_version,
                    Err(ClientError::Fenced(_)) => return last,
                    Err(error) => panic!("{error}"),
                }
            }
            last
        }));
    }
    // The writers are running: some of their writes are decided shortly before or after the election below.
    in_time("some writes of the old leader", async {
        while client.get::<Node>(&node_key("n7")).await.unwrap().meta.labels.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let taken = elect(&client, "b", 1).await.meta.resource_version;
    for writer in writers {
        let last = in_time("the end of a writer", writer).await.unwrap();
        assert!(last < taken, "written at {last}, and the lease was taken at {taken}");
    }
}

/// `UpdateNode` with these raw fence headers.
async fn update_with(api: &Api, fences: &[&[u8]]) -> RpcError {
    let mut request = Request::new(pb::UpdateNodeRequest { node: Some(node("n").cordoned()) });
    for fence in fences {
        let value = tonic::metadata::AsciiMetadataValue::try_from(*fence).unwrap();
        request.metadata_mut().append(FENCE_KEY, value);
    }
    let mut nodes = NodeServiceClient::new(api.channel());
    api.expect_error(async { nodes.update_node(request).await }).await
}

#[tokio::test]
async fn a_malformed_fence_is_refused_and_the_error_names_the_header() {
    let store = TestStore::start().await;
    let api = store.api();
    api.create(node("n")).await.unwrap();
    for (text, says) in [
        ("nonsense", "must read namespace/name;transitions=N;holder=TEXT"),
        ("kube-system/ctl;transitions=x;holder=a", "counts no transitions"),
        ("kube-system/CTL;transitions=1;holder=a", "names no lease"),
        ("kube-system/ctl;transitions=1;holder=", "names no holder"),
    ] {
        update_with(&api, &[text.as_bytes()]).await.is_invalid(&[FENCE_KEY]).mentions(says);
    }
    update_with(&api, &[b"\xff"]).await.is_invalid(&[FENCE_KEY]);
    let good = b"kube-system/ctl;transitions=1;holder=a".as_slice();
    update_with(&api, &[good, good]).await.is_invalid(&[FENCE_KEY]).mentions("must be given once");
    let error = update_with(&api, &[good]).await;
    error.is(Code::Aborted, "FENCED");
    assert_eq!(
        (error.resource.as_str(), &error.violations[..]),
        ("Lease kube-system/ctl", &["FENCE".to_owned()][..])
    );
}

#[tokio::test]
async fn a_fence_reveals_nothing_about_a_lease_that_the_caller_may_not_read() {
    let store = TestStore::secure().await;
    let (admin, agent) = (store.api(), store.api_as_node("n"));
    admin.create(node("n")).await.unwrap();
    admin.create(lease(LEASE.1).in_namespace(LEASE.0)).await.unwrap();
    let error = update_with(&agent, &[b"kube-system/ctl;transitions=0;holder=x"]).await;
    error.is_denied().mentions("node:n may not get Lease kube-system/ctl");
}
