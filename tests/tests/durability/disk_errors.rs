//! Errors of the disk in a real store: strace lets single system calls fail with EIO. A store that cannot read its files
//! says so and leaves them as they are; what was acknowledged is never lost.
//!
//! `MUSTER_DISK_ERRORS=1000` tries more calls than the few of an ordinary run.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use muster_proto::pb;
use muster_tests::fixtures::status_of;
use muster_tests::store_process::write_log::{RecordKey, RecordState, node, read_all};
use muster_tests::store_process::{StoreLaunch, StoreProcess, run};
use muster_tests::tools::tool;
use tokio::task::block_in_place;
use tonic::Code;

/// How many calls are tried.
fn tries(default: u64) -> u64 {
    std::env::var("MUSTER_DISK_ERRORS").ok().and_then(|tries| tries.parse().ok()).unwrap_or(default)
}

/// Runs a program with EIO for the `when`th of these calls, counted in each of its threads.
fn failing(call: &str, when: u64) -> Vec<OsString> {
    let mut strace = strace();
    strace.extend(["-e".into(), format!("inject={call}:error=EIO:when={when}").into()]);
    strace.extend(["-e".into(), format!("trace={call}").into(), "-o".into(), "/dev/null".into()]);
    strace
}

/// As a grandchild (-D) it leaves the child's process id to the store.
fn strace() -> Vec<OsString> {
    vec![tool("strace").into(), "-D".into(), "-f".into(), "-qq".into(), "--seccomp-bpf".into()]
}

fn large_node(name: &str) -> pb::Node {
    pb::Node { status: Some(status_of(8 * 1024, name)), ..node(name, name) }
}

type Records = (BTreeMap<RecordKey, RecordState>, u64);

async fn create(store: &StoreProcess, names: impl Iterator<Item = String>) {
    let api = store.api();
    for name in names {
        api.create(large_node(&name)).await.unwrap();
    }
}

/// A data directory with a checkpoint and a journal behind it, and what it holds.
async fn used_directory(directory: &Path) -> (PathBuf, Records) {
    let (first, backup, data) = (directory.join("first"), directory.join("backup"), directory.join("data"));
    let store = block_in_place(|| StoreLaunch::on(&first).start());
    create(&store, (0..100).map(|number| format!("old-{number}"))).await;
    let url = store.url();
    let backed_up = run(&["backup".as_ref(), backup.as_ref(), "--store".as_ref(), OsStr::new(&url)]);
    assert!(backed_up.status.success(), "{backed_up:?}");
    let restored = run(&["restore".as_ref(), backup.as_ref(), "--data-dir".as_ref(), data.as_ref()]);
    assert!(restored.status.success(), "{restored:?}");
    let store = block_in_place(|| StoreLaunch::on(&data).start());
    create(&store, (0..40).map(|number| format!("new-{number}"))).await;
    let records = read_all(&store.channel()).await.unwrap();
    assert_eq!(records.0.len(), 140);
    block_in_place(|| store.kill());
    (data, records)
}

/// Which of these calls at a start read the data directory: their numbers in the thread that reads most of it. The first
/// ones are left out: calls are counted in each thread, and with those of the same numbers the dynamic loader would fail.
fn calls_on_data(call: &str, data: &Path, log: &Path) -> Vec<u64> {
    let mut counting = strace();
    // With the path of each file (-y).
    counting.extend(["-y".into(), "-e".into(), format!("trace={call}").into(), "-o".into(), log.into()]);
    drop(StoreLaunch::on(data).within(counting).start());
    let mut threads: BTreeMap<String, (u64, Vec<u64>)> = BTreeMap::new();
    let (data, call) = (format!("<{}/", data.display()), format!("{call}("));
    for line in fs::read_to_string(log).unwrap().lines().filter(|line| line.contains(&call)) {
        let thread = line.split_whitespace().next().unwrap_or_default();
        let (calls, on_data) = threads.entry(thread.to_owned()).or_default();
        *calls += 1;
        if line.contains(&data) {
            on_data.push(*calls);
        }
    }
    let elsewhere = threads.values().map(|(calls, on_data)| calls - on_data.len() as u64).max().unwrap_or(0);
    let most = threads.into_values().map(|(_, on_data)| on_data).max_by_key(Vec::len).unwrap_or_default();
    most.into_iter().filter(|call| *call > elsewhere).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_read_that_fails_at_the_start_destroys_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (data, records) = used_directory(directory.path()).await;
    let reads = block_in_place(|| calls_on_data("pread64", &data, &directory.path().join("strace")));
    assert!(reads.len() > 20, "the start reads its files: {reads:?}");
    let tries = tries(24).min(reads.len() as u64) as usize;
    let (mut harmless, mut refused) = (0, 0);
    for attempt in 0..tries {
        let when = reads[attempt * reads.len() / tries];
        let launch = StoreLaunch::on(&data).within(failing("pread64", when));
        let mut store = block_in_place(|| launch.spawn());
        if block_in_place(|| store.is_ready_or_exits()) {
            assert_eq!(read_all(&store.channel()).await.unwrap(), records, "read {when}: nothing is missing");
            harmless += 1;
            block_in_place(|| store.kill());
        } else {
            let log = store.log();
            // Not as damage: a second start would do.
            assert!(log.contains("os error 5") && !log.contains("damaged"), "read {when}: {log}");
            assert!(log.contains(data.to_str().unwrap()) && !log.contains("panicked"), "read {when}: {log}");
            refused += 1;
        }
        let store = block_in_place(|| StoreLaunch::on(&data).start());
        assert_eq!(read_all(&store.channel()).await.unwrap(), records, "after the failed read {when}");
        block_in_place(|| store.kill());
    }
    println!("{} reads: {tries} failed in turn, {harmless} harmless, {refused} refused", reads.len());
    assert!(refused > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_write_or_sync_that_fails_loses_nothing_that_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let mut failures = 0;
    for call in ["pwrite64", "fdatasync", "fallocate", "rename"] {
        for when in 1..=tries(4) {
            let data = directory.path().join(format!("{call}-{when}"));
            let launch = StoreLaunch::on(&data).within(failing(call, when));
            let mut store = block_in_place(|| launch.spawn());
            let mut acknowledged = Vec::new();
            if block_in_place(|| store.is_ready_or_exits()) {
                let api = store.api();
                for number in 0..12 {
                    let name = format!("n-{number}");
                    match api.create(large_node(&name)).await {
                        Ok(_) => acknowledged.push(name),
                        Err(status) => {
                            assert_eq!(status.code(), Code::Unavailable, "{call} {when}: {status:?}");
                            failures += 1;
                        }
                    }
                }
                assert!(store.is_running(), "{call} {when}");
                block_in_place(|| store.kill());
            } else {
                let log = store.log();
                assert!(log.contains("os error 5") && !log.contains("panicked"), "{call} {when}: {log}");
                failures += 1;
            }
            let store = block_in_place(|| StoreLaunch::on(&data).start());
            let (found, _) = read_all(&store.channel()).await.unwrap();
            for name in acknowledged {
                assert!(found.keys().any(|(_, found)| *found == name), "{call} {when} lost {name}");
            }
            block_in_place(|| store.kill());
        }
    }
    println!("{failures} failures were seen");
    assert!(failures > 0);
}
