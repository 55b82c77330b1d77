//! How long after its last renewal a node becomes Unknown.
//!
//! `cargo bench -p muster-tests --bench detection`: the real store and controller with a grace of 5 s. Twenty nodes
//! renew their leases at different times and then stop one after the other. The time is measured from the
//! acknowledgement of the last renewal to the watch event. Fails if it is not between 5.0 and 5.2 s for every node.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the machine's clock")]
#![allow(clippy::unwrap_used, reason = "a benchmark says what broke by panicking")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use muster_proto::pb;
use muster_tests::controller_process::ControllerProcess;
use muster_tests::fixtures::{NodeBuilder, held, lease, node};
use muster_tests::fleet::ready;
use muster_tests::store_process::StoreLaunch;
use muster_tests::{Api, WatchQuery};

const NODES: usize = 20;
const GRACE: Duration = Duration::from_secs(5);
/// The time between the last renewals of two nodes: no two nodes have the same deadline.
const STAGGER: Duration = Duration::from_millis(97);
/// How much later than the grace a node may become Unknown.
const SLACK: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> ExitCode {
    let directory = tempfile::tempdir().unwrap();
    let store = StoreLaunch::on(directory.path()).start();
    let api = store.api();
    let names: Vec<String> = (0..NODES).map(|i| format!("n{i:02}")).collect();
    for name in &names {
        api.create(node(name).ready("True")).await.unwrap();
        api.create(held(lease(name), name, 5)).await.unwrap();
    }
    let flags = ["--node-monitor-grace-period=5s", "--node-monitor-period=1s", "--leader-elect=false"];
    let _controller = ControllerProcess::start(&store.url(), &flags);
    let mut last = BTreeMap::new();
    for _ in 0..3 {
        for name in &names {
            renew(&api, name).await;
            last.insert(name.clone(), Instant::now());
            tokio::time::sleep(STAGGER).await;
        }
    }
    let mut delays = follow(&api, last).await;
    delays.sort();
    let (first, middle, worst) = (delays[0], delays[NODES / 2], delays[NODES - 1]);
    println!(
        "{NODES} nodes, grace {GRACE:?}: first {first:.3?}, median {middle:.3?}, last {worst:.3?} after the last renewal"
    );
    if first < GRACE || worst > GRACE + SLACK {
        println!("not within {GRACE:?} and {:?}", GRACE + SLACK);
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn renew(api: &Api, name: &str) {
    api.renew(&format!("kube-node-lease/{name}"), name).await.unwrap();
}

/// The time since its last renewal when each node became Unknown.
async fn follow(api: &Api, last: BTreeMap<String, Instant>) -> Vec<Duration> {
    let mut watch = api.watch::<pb::Node>(WatchQuery::default()).await.unwrap();
    let mut delays = BTreeMap::new();
    while delays.len() < NODES {
        let seen = watch.next().await;
        let name = &seen.record.metadata.as_ref().unwrap().name;
        if ready(&seen.record) == "Unknown" {
            delays.entry(name.clone()).or_insert_with(|| last[name].elapsed());
        }
    }
    delays.into_values().collect()
}
