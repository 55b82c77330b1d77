use std::time::Duration;

use muster_proto::pb;
use muster_tests::agent_process::fault_proxy::{FaultProxy, Renewal};
use muster_tests::agent_process::{AgentHost, AgentProcess, lease_where, renewed_at};
use muster_tests::fixtures::*;
use muster_tests::store_process::{StoreProcess, TIMEOUT};
use muster_tests::{Resource, eventually};

use super::{World, lease, micros, renewals, renewed_since, settled};

#[tokio::test(flavor = "multi_thread")]
async fn s044_an_agent_with_nothing_to_say_renews_its_lease_and_posts_no_status() {
    let (_world, store, agent) = World::unhurried().await;
    let api = store.api();
    let node = settled(&api, &agent).await;
    let mut follow = renewals(&api).await;
    // A lease of 40 s is renewed every 10 s, or a tenth sooner where the store wishes it so.
    let mut times = Vec::new();
    while times.len() < 3 {
        times.push(renewed_at(&follow.next().await.record).unwrap());
    }
    let pauses: Vec<i64> = times.windows(2).map(|pair| micros(pair[1]) - micros(pair[0])).collect();
    assert!(pauses.iter().sum::<i64>() >= 2 * 8_000_000, "more often than asked: {pauses:?}");
    assert!(pauses.iter().all(|pause| (1..40_000_000).contains(pause)), "it ran out: {pauses:?}");
    let after = api.get::<pb::Node>("n1").await.unwrap();
    assert_eq!(after.version(), node.version(), "the status was posted: {after:?}");
    let lease = lease(&api).await.spec.unwrap();
    assert_eq!((lease.holder_identity.as_str(), lease.lease_duration_seconds), ("n1", Some(40)));
    assert_ne!(lease.status_digest, 0, "renewals tell which status they stand for");
}

#[tokio::test(flavor = "multi_thread")]
async fn s050_a_deleted_lease_is_created_again_for_the_same_node() {
    let (_world, store, _agent) = World::new().await;
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
async fn s051_a_lease_that_somebody_edits_is_renewed_all_the_same() {
    let (_world, store, agent) = World::unhurried().await;
    let api = store.api();
    for round in 0..2 {
        // An edit that the agent was quicker than is made again, as administrators do.
        let edited = eventually(TIMEOUT, "the edit", || async {
            api.update(lease(&api).await.label("round", &round.to_string())).await.ok()
        })
        .await;
        let after = renewed_since(&api, &edited).await;
        assert_eq!(after.uid(), edited.uid());
    }
    assert!(!agent.log().contains("the heartbeat stream was lost"), "{}", agent.log());
}

/// A store behind a faults that lets the first renewals fail, and an agent that goes through it. Its rounds take half a
/// minute, so that one cannot be taken for the next.
async fn behind_a_gate(failures: usize) -> (World, StoreProcess, FaultProxy, AgentProcess) {
    let world = World { directory: tempfile::tempdir().unwrap(), host: AgentHost::new(), port: 0 };
    let store = world.store();
    let faults = FaultProxy::to(&store.url()).await;
    faults.fail_renewals(failures);
    let launch = world.host.agent("n1", faults.url()).flag("node-lease-duration-seconds", "120");
    // An answer may take as long as a turn of the status: the faults's refusals are to be the only failures.
    let agent = launch.flag("node-status-update-frequency", "20s").start();
    (world, store, faults, agent)
}

/// All renewals up to the first that comes through.
async fn taken(faults: &FaultProxy) -> Vec<Renewal> {
    eventually(TIMEOUT, "a renewal comes through", || async {
        let renewals = faults.renewals();
        renewals.iter().any(|renewal| !renewal.is_failed).then_some(renewals)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn s052_a_lease_is_renewed_in_the_round_in_which_four_calls_fail() {
    let (_world, store, faults, _agent) = behind_a_gate(4).await;
    let taken = taken(&faults).await;
    let refused: Vec<bool> = taken.iter().map(|renewal| renewal.is_failed).collect();
    assert_eq!(refused, [true, true, true, true, false]);
    assert!(taken[4].at - taken[0].at < Duration::from_secs(30), "{taken:?}");
    let renewed = |lease: &pb::Lease| lease.spec.as_ref().unwrap().status_digest != 0;
    lease_where(&store.api(), "n1", "it was renewed", renewed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s052_the_fifth_failure_is_left_to_the_next_round() {
    let (_world, store, faults, _agent) = behind_a_gate(5).await;
    let taken = taken(&faults).await;
    let refused: Vec<bool> = taken.iter().map(|renewal| renewal.is_failed).collect();
    assert_eq!(refused, [true, true, true, true, true, false]);
    let pauses: Vec<Duration> = taken.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    let within = pauses[..4].iter().sum::<Duration>();
    assert!(pauses[4] >= Duration::from_secs(15), "the round takes 30 s: {pauses:?}");
    assert!(within < pauses[4], "five tries without a pause, then one: {pauses:?}");
    let renewed = |lease: &pb::Lease| lease.spec.as_ref().unwrap().status_digest != 0;
    lease_where(&store.api(), "n1", "it was renewed", renewed).await;
}
