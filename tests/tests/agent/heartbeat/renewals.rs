use std::time::Duration;

use muster_proto::pb;
use muster_tests::agent_process::fault_proxy::{FaultProxy, Renewal};
use muster_tests::agent_process::{AgentHost, AgentProcess, lease_where, renewed_at};
use muster_tests::fixtures::*;
use muster_tests::store_process::{StoreProcess, TIMEOUT};
use muster_tests::{Resource, eventually};

use super::{StoreAndHost, lease, micros, renewals, renewed_since, settled};

#[tokio::test(flavor = "multi_thread")]
async fn s044_an_idle_agent_renews_its_lease_and_posts_no_status() {
    let (_setup, store, agent) = StoreAndHost::with_long_timeouts().await;
    let api = store.api();
    let node = settled(&api, &agent).await;
    let mut follow = renewals(&api).await;
    // A lease of 40 s is renewed every 10 s, or up to a tenth earlier when the store asks for it.
    let mut times = Vec::new();
    while times.len() < 3 {
        times.push(renewed_at(&follow.next().await.record).unwrap());
    }
    let pauses: Vec<i64> = times.windows(2).map(|pair| micros(pair[1]) - micros(pair[0])).collect();
    assert!(pauses.iter().sum::<i64>() >= 2 * 8_000_000, "more often than requested: {pauses:?}");
    assert!(pauses.iter().all(|pause| (1..40_000_000).contains(pause)), "the lease expired: {pauses:?}");
    let after = api.get::<pb::Node>("n1").await.unwrap();
    assert_eq!(after.version(), node.version(), "the status was posted: {after:?}");
    let lease = lease(&api).await.spec.unwrap();
    assert_eq!((lease.holder_identity.as_str(), lease.lease_duration_seconds), ("n1", Some(40)));
    assert_ne!(lease.status_digest, 0, "renewals carry the digest of the status");
}

#[tokio::test(flavor = "multi_thread")]
async fn s050_a_deleted_lease_is_created_again_for_the_same_node() {
    let (_setup, store, _agent) = StoreAndHost::new().await;
    let api = store.api();
    let node = api.get::<pb::Node>("n1").await.unwrap();
    let old = lease(&api).await;
    api.delete::<pb::Lease>("kube-node-lease/n1").await.unwrap();
    let new = lease_where(&api, "n1", "it is new", |lease| lease.uid() != old.uid()).await;
    let owners = &new.metadata.as_ref().unwrap().owner_references;
    assert_eq!(owners.iter().map(|owner| owner.uid.as_str()).collect::<Vec<_>>(), [node.uid()]);
    renewed_since(&api, &new).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s051_a_lease_that_another_writer_changed_is_renewed() {
    let (_setup, store, agent) = StoreAndHost::with_long_timeouts().await;
    let api = store.api();
    for round in 0..2 {
        // An edit that conflicts with a renewal is repeated.
        let edited = eventually(TIMEOUT, "the edit", || async {
            api.update(lease(&api).await.label("round", &round.to_string())).await.ok()
        })
        .await;
        let after = renewed_since(&api, &edited).await;
        assert_eq!(after.uid(), edited.uid());
    }
    assert!(!agent.log().contains("the heartbeat stream was lost"), "{}", agent.log());
}

/// A store, an agent, and between them a proxy that fails the first renewals. A renewal round takes half a minute, so
/// that two rounds can be distinguished.
async fn with_failing_renewals(failures: usize) -> (StoreAndHost, StoreProcess, FaultProxy, AgentProcess) {
    let setup = StoreAndHost { directory: tempfile::tempdir().unwrap(), host: AgentHost::new(), port: 0 };
    let store = setup.store();
    let faults = FaultProxy::to(&store.url()).await;
    faults.fail_renewals(failures);
    let launch = setup.host.agent("n1", faults.url()).flag("node-lease-duration-seconds", "120");
    // The status frequency is also the timeout of calls: a long one makes the injected errors the only failures.
    let agent = launch.flag("node-status-update-frequency", "20s").start();
    (setup, store, faults, agent)
}

/// All renewals up to the first that is forwarded.
async fn taken(faults: &FaultProxy) -> Vec<Renewal> {
    eventually(TIMEOUT, "a renewal is forwarded", || async {
        let renewals = faults.renewals();
        renewals.iter().any(|renewal| !renewal.is_failed).then_some(renewals)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn s052_four_failed_renewals_are_retried_in_the_same_round() {
    let (_setup, store, faults, _agent) = with_failing_renewals(4).await;
    let taken = taken(&faults).await;
    let refused: Vec<bool> = taken.iter().map(|renewal| renewal.is_failed).collect();
    assert_eq!(refused, [true, true, true, true, false]);
    assert!(taken[4].at - taken[0].at < Duration::from_secs(30), "{taken:?}");
    let renewed = |lease: &pb::Lease| lease.spec.as_ref().unwrap().status_digest != 0;
    lease_where(&store.api(), "n1", "it was renewed", renewed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s052_after_five_failed_renewals_the_next_round_retries() {
    let (_setup, store, faults, _agent) = with_failing_renewals(5).await;
    let taken = taken(&faults).await;
    let refused: Vec<bool> = taken.iter().map(|renewal| renewal.is_failed).collect();
    assert_eq!(refused, [true, true, true, true, true, false]);
    let pauses: Vec<Duration> = taken.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    let within = pauses[..4].iter().sum::<Duration>();
    assert!(pauses[4] >= Duration::from_secs(15), "a round takes 30 s: {pauses:?}");
    assert!(within < pauses[4], "five attempts without a pause, then a pause: {pauses:?}");
    let renewed = |lease: &pb::Lease| lease.spec.as_ref().unwrap().status_digest != 0;
    lease_where(&store.api(), "n1", "it was renewed", renewed).await;
}
