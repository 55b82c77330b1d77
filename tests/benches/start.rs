//! How long a large store takes to start after kill -9, and its memory before and after.
//!
//! `cargo bench -p muster-tests --bench start`
//!
//! The real store gets 100,000 nodes with a status of 1.5 KiB, a lease for each of them, and 28,000 changes of
//! statuses. It is killed and started several times; the files are in the page cache then. The time is measured from
//! the start of the process until it is ready, and to the first answered read. The slowest start and the largest memory
//! count. The benchmark fails above its limits.

#![allow(clippy::disallowed_methods, reason = "a benchmark is where clocks belong")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use muster_proto::pb;
use muster_tests::fixtures::{held, lease, node, status_of};
use muster_tests::load::calls::Calls;
use muster_tests::load::raw_client::{NUMBER, NumberedMessage, connect, digits};
use muster_tests::store_process::{StoreLaunch, StoreProcess};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const NODES: usize = 100_000;
const CHANGES: usize = 28_000;
const STATUS_BYTES: usize = 1536;
const CONNECTIONS: usize = 8;
const IN_FLIGHT: usize = 1024;
const STARTS: usize = 3;
const READY: Duration = Duration::from_secs(2);
/// Of the memory that the store had before it was killed.
const MEMORY: f64 = 1.2;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the data");
    let launch = StoreLaunch::on(directory.path());
    let mut store = launch.start();
    let began = Instant::now();
    fill(&store).await;
    let revision = store.api().revision().await;
    let before = mebibytes(&store);
    println!(
        "{NODES} nodes, {NODES} leases, revision {revision}, written in {:.0?}: {before:.0} MiB resident",
        began.elapsed()
    );
    let (mut slowest, mut largest) = (Duration::ZERO, 0.0_f64);
    for _ in 0..STARTS {
        store.kill();
        let started = Instant::now();
        store = launch.spawn();
        store.wait_ready();
        let ready = started.elapsed();
        let last = format!("node-{}", digits(NODES as u64 - 1));
        store.api().get::<pb::Node>(&last).await.expect("the last node is there");
        let answered = started.elapsed();
        assert_eq!(store.api().revision().await, revision, "no write was lost");
        let after = mebibytes(&store);
        println!(
            "ready after {ready:.2?}, first answer after {answered:.2?}; {after:.0} MiB resident, {:.2} × as before",
            after / before
        );
        slowest = slowest.max(ready);
        largest = largest.max(after / before);
    }
    println!("limits: ready after {READY:?}, {MEMORY} × the memory");
    if slowest <= READY && largest <= MEMORY { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Creates the nodes and leases, then changes statuses.
async fn fill(store: &StoreProcess) {
    let channels = connect(&store.url(), CONNECTIONS).await;
    let name = format!("node-{NUMBER}");
    let with_status =
        |message: &str| pb::Node { status: Some(status_of(STATUS_BYTES, message)), ..node(&name) };
    let create = pb::CreateNodeRequest { node: Some(with_status("created")) };
    let claim = pb::CreateLeaseRequest { lease: Some(held(lease(&name), &name, 40)) };
    let change = pb::UpdateNodeStatusRequest { node: Some(with_status("changed")) };
    for (method, message, count) in [
        ("/muster.v1.NodeService/CreateNode", NumberedMessage::of(&create), NODES),
        ("/muster.v1.LeaseService/CreateLease", NumberedMessage::of(&claim), NODES),
        ("/muster.v1.NodeService/UpdateNodeStatus", NumberedMessage::of(&change), CHANGES),
    ] {
        Calls { channels: &channels, method }.send(&message, count, IN_FLIGHT).await;
    }
}

fn mebibytes(store: &StoreProcess) -> f64 {
    store.resident() as f64 / f64::from(1 << 20)
}
