//! The renewals of one lease while another caller has far more writes in flight.
//!
//! These tests compare the order of answers, not times: `--bench renewal_under_load` measures the latency.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use muster_tests::api::HeartbeatStream;
use muster_tests::fixtures::node;
use muster_tests::load::flood::{Flood, FloodMessage};
use muster_tests::store_process::StoreLaunch;
use tokio::task::block_in_place;

/// More than are acknowledged in any test; a loop of renewals ends there.
const MOST_RENEWALS: usize = 1_000_000;

/// Renews until the flood is over. Returns how many renewals were acknowledged between the first answer to the flood
/// and the moment when `rest` of its writes were left: the store was busy with the flood for all of that time.
async fn renewals_during(flood: &Flood, stream: &mut HeartbeatStream, total: usize, rest: usize) -> usize {
    let mut meanwhile = 0;
    for _ in 0..MOST_RENEWALS {
        let has_begun = flood.answered() > 0;
        stream.renew_patiently().await.unwrap();
        if has_begun && flood.answered() + rest < total {
            meanwhile += 1;
        }
        if flood.is_over() {
            return meanwhile;
        }
    }
    panic!("the flood does not end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed_while_hundreds_of_large_statuses_wait() {
    const STATUSES: usize = 400;
    let directory = tempfile::tempdir().unwrap();
    // A slow disk may take longer for all statuses than a call without a deadline gets by default.
    let store = block_in_place(|| StoreLaunch::on(directory.path()).flag("--default-deadline", "0s").start());
    let api = store.api();
    let mut stream = api.agent("quiet").await;
    api.create(node("flooded")).await.unwrap();
    let flood = Flood::start(store.url(), FloodMessage::large_statuses("flooded"), STATUSES, STATUSES);
    let meanwhile = renewals_during(&flood, &mut stream, STATUSES, 100).await;
    let refused = flood.refused();
    assert_eq!(flood.stop().await, STATUSES, "every write of the flood is answered");
    println!("{meanwhile} renewals while 100 to {STATUSES} statuses waited; {refused} were refused");
    assert!(meanwhile >= 5, "{meanwhile} renewals were acknowledged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed_while_one_caller_records_events_without_pause() {
    const IN_FLIGHT: usize = 1024;
    const EVENTS: usize = 20_000;
    let directory = tempfile::tempdir().unwrap();
    let store = block_in_place(|| StoreLaunch::on(directory.path()).flag("--default-deadline", "0s").start());
    let api = store.api();
    let mut stream = api.agent("quiet").await;
    api.create(node("flooded")).await.unwrap();
    let flood = Flood::start(store.url(), FloodMessage::events("flooded"), IN_FLIGHT, EVENTS);
    let meanwhile = renewals_during(&flood, &mut stream, EVENTS, IN_FLIGHT).await;
    let refused = flood.refused();
    assert_eq!(flood.stop().await, EVENTS, "every write of the flood is answered");
    println!("{meanwhile} renewals beside {EVENTS} events; {refused} were refused");
    assert!(meanwhile >= 5, "{meanwhile} renewals were acknowledged");
}
