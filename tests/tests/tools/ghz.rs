//! The store under load from the real ghz: every config of `deploy/ghz`, with fewer calls than customers would use. The
//! report of ghz must match the store's metrics.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;

use muster_proto::pb;
use muster_tests::store_process::{StoreLaunch, StoreProcess};
use muster_tests::tools::{output_of, repository, tool};
use serde_json::{Value, json};

/// A config, and the changes and renewals that `total` calls of it cause.
struct Load {
    config: &'static str,
    total: u64,
    changes: RangeInclusive<u64>,
    renewals: u64,
}

const fn load(config: &'static str, total: u64, changes: u64, renewals: u64) -> Load {
    Load { config, total, changes: changes..=changes, renewals }
}

/// The workers of `heartbeat.json`, each with a node of its own.
const STREAMS: usize = 64;

/// All configs, in an order that works.
const LOADS: [Load; 7] = [
    load("create-node.json", 100, 100, 0),
    load("create-lease.json", 100, 100, 0),
    load("renew-lease.json", 5_000, 0, 5_000),
    // Each status differs from the one before.
    load("update-node-status.json", 2_000, 2_000, 0),
    load("get-node.json", 5_000, 0, 0),
    load("list-nodes.json", 500, 0, 0),
    // 20 renewals in each stream. The first stream of each node acquires its lease; not every worker gets a call.
    Load { config: "heartbeat.json", total: 200, changes: 1..=STREAMS as u64, renewals: 20 * 200 },
];

fn configs() -> PathBuf {
    repository().join("deploy/ghz")
}

/// The report of ghz for `total` calls of a config.
fn report(store: &StoreProcess, config: &str, total: u64, variables: &[(&str, &str)]) -> Value {
    let mut ghz = Command::new(tool("ghz"));
    ghz.arg("--config").arg(configs().join(config));
    ghz.args(["--total", &total.to_string(), "--format", "json"]).envs(variables.iter().copied());
    ghz.arg(store.url().trim_start_matches("http://"));
    serde_json::from_str(&output_of(&mut ghz)).unwrap()
}

/// The names and uids of the nodes, each separated by commas. There are none before the first config.
async fn nodes(store: &StoreProcess) -> (String, String) {
    let (mut names, mut uids) = (Vec::new(), Vec::new());
    for index in 0..STREAMS {
        let Ok(node) = store.api().get::<pb::Node>(&format!("load-{index}")).await else { break };
        let metadata = node.metadata.unwrap();
        names.push(metadata.name);
        uids.push(metadata.uid);
    }
    (names.join(","), uids.join(","))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_config_loads_the_store_without_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let store = StoreLaunch::on(directory.path()).start();
    let counted = || {
        let counter = |name: &str| store.metric(&format!("muster_store_{name}_total")) as u64;
        (counter("changes"), counter("renewals"))
    };
    for Load { config, total, changes, renewals } in LOADS {
        let (names, uids) = nodes(&store).await;
        let variables = [("NODES", names.as_str()), ("NODE_UIDS", uids.as_str())];
        let before = counted();
        let report = report(&store, config, total, &variables);
        println!("{config}: {total} calls, {:.0}/s", report["rps"].as_f64().unwrap_or_default());
        assert_eq!(report["count"], total, "{config}");
        assert_eq!(report["errorDistribution"], json!({}), "{config}");
        assert_eq!(report["statusCodeDistribution"], json!({"OK": total}), "{config}");
        assert_eq!(report["endReason"], "normal", "{config}");
        let after = counted();
        assert!(changes.contains(&(after.0 - before.0)), "{config}: {} changes", after.0 - before.0);
        assert_eq!(after.1 - before.1, renewals, "{config}");
    }
}

#[test]
fn failed_calls_are_in_the_report() {
    let directory = tempfile::tempdir().unwrap();
    let store = StoreLaunch::on(directory.path()).start();
    // The leases do not exist.
    let report = report(&store, "renew-lease.json", 50, &[]);
    assert_eq!(report["statusCodeDistribution"], json!({"NotFound": 50}));
    assert_ne!(report["errorDistribution"], json!({}));
}

#[test]
fn every_config_is_tested() {
    let files = std::fs::read_dir(configs()).unwrap().map(|entry| entry.unwrap().file_name());
    let files = files.map(|name| name.into_string().unwrap()).filter(|name| name.ends_with(".json"));
    let loaded = LOADS.iter().map(|load| load.config.to_owned());
    assert_eq!(files.collect::<BTreeSet<_>>(), loaded.collect::<BTreeSet<_>>());
}
