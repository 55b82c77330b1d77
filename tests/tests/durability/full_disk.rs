//! A full disk and failing writes: writes fail with a clear error, reads keep working, and the store recovers without
//! a restart.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;

use muster_grpc::event_service_client::EventServiceClient;
use muster_grpc::node_service_client::NodeServiceClient;
use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_tests::disk::SmallDisk;
use muster_tests::store_process::write_log::{Writer, WriterKind, check_all, node, read_all};
use muster_tests::store_process::{SeededRandom, StoreLaunch, StoreProcess};
use muster_tests::{TIMEOUT, eventually, now_seconds};
use rustix::process::{Resource, Rlimit, prlimit};
use tokio::task::block_in_place;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt;

async fn create(channel: &Channel, name: &str) -> Result<u64, Status> {
    let request = pb::CreateNodeRequest { node: Some(node(name, "probe")) };
    let created = NodeServiceClient::new(channel.clone()).create_node(request).await?;
    Ok(created.into_inner().node.unwrap().metadata.unwrap().resource_version)
}

/// Checks code, reason and message of the error.
fn assert_storage_unavailable(status: &Status) {
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let details = status.get_error_details();
    assert_eq!(
        details.error_info().map(|info| info.reason.as_str()),
        Some("STORAGE_UNAVAILABLE"),
        "{status:?}"
    );
    assert!(details.retry_info().is_some(), "{status:?}");
}

const WRITABLE: &str = "muster_store_writable";

/// Retries a write until the store accepts it again, without a restart.
async fn writable_again(channel: &Channel, name: &str) -> u64 {
    let deadline = std::time::Instant::now() + muster_tests::store_process::TIMEOUT;
    loop {
        match create(channel, name).await {
            Ok(version) => return version,
            Err(status) => assert_storage_unavailable(&status),
        }
        assert!(std::time::Instant::now() < deadline, "writes are still refused");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Deletes a node that the writers do not know.
async fn remove(channel: &Channel, name: &str) -> u64 {
    let request = pb::DeleteNodeRequest { name: name.into(), preconditions: None };
    let gone = NodeServiceClient::new(channel.clone()).delete_node(request).await.unwrap();
    gone.into_inner().node.unwrap().metadata.unwrap().resource_version
}

fn writers() -> Vec<Writer> {
    let mut random = SeededRandom::seeded();
    let kinds = [WriterKind::Nodes, WriterKind::Pods, WriterKind::Leases];
    kinds.map(|kind| Writer::new(&format!("{kind:?}").to_lowercase(), kind, random.fork())).into()
}

async fn write(writers: &mut [Writer], channel: &Channel, times: usize) {
    for writer in writers {
        writer.write(channel.clone(), times).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_a_full_disk_writes_fail_reads_work_and_the_store_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let disk = SmallDisk::of(48, directory.path());
    disk.ready().await;
    let store = block_in_place(|| disk.launch().start());
    let channel = store.channel();
    let mut writers = writers();
    write(&mut writers, &channel, 100).await;
    let before = read_all(&channel).await.unwrap();
    assert_eq!(store.metric(WRITABLE), 1.0);

    disk.fill(0);
    for round in 0..20 {
        let refused = create(&channel, &format!("probe-{round}")).await.unwrap_err();
        assert_storage_unavailable(&refused);
        assert!(refused.message().starts_with("the disk is full"), "{refused:?}");
        if round == 0 {
            println!("full disk: {}", refused.message());
        }
    }
    assert_eq!(read_all(&channel).await.unwrap(), before, "reads work and show the acknowledged writes");
    assert_eq!(store.metric(WRITABLE), 0.0);
    // Requests that wait at the same time are refused together, so there may be fewer failures than refusals.
    assert!(store.metric("muster_store_commits_failed_total") >= 1.0);

    disk.relieve();
    let version = writable_again(&channel, "probe").await;
    assert!(version > before.1, "{version} after {}", before.1);
    assert_eq!(store.metric(WRITABLE), 1.0);
    remove(&channel, "probe").await;
    write(&mut writers, &channel, 100).await;
    check_all(&mut writers, &channel).await;

    // Kill the store on a full disk. It starts again and serves reads, but no writes.
    disk.fill(0);
    assert_storage_unavailable(&create(&channel, "probe").await.unwrap_err());
    block_in_place(|| store.kill());
    let store = block_in_place(|| disk.launch().start());
    let channel = store.channel();
    check_all(&mut writers, &channel).await;
    assert_storage_unavailable(&create(&channel, "probe").await.unwrap_err());
    disk.relieve();
    writable_again(&channel, "probe").await;
    remove(&channel, "probe").await;
    write(&mut writers, &channel, 20).await;
    block_in_place(|| store.kill());
    let store = block_in_place(|| disk.launch().start());
    check_all(&mut writers, &store.channel()).await;
}

/// Sets the maximum file size of the store's process.
fn limit_files(store: &StoreProcess, bytes: Option<u64>) {
    prlimit(Some(store.pid()), Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
}

/// How much of the journal's newest segment is written.
fn journal_length(data: &Path) -> u64 {
    let segments = fs::read_dir(data.join("journal")).unwrap().map(|entry| entry.unwrap().path());
    let newest =
        segments.filter(|path| path.extension().is_some_and(|extension| extension == "journal")).max();
    let content = fs::read(newest.unwrap()).unwrap();
    content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

/// Creates nodes until five writes failed; returns the created nodes and the newest version.
async fn write_against_the_limit(channel: &Channel, round: usize, mut last: u64) -> (Vec<String>, u64) {
    let (mut taken, mut refused) = (Vec::new(), 0);
    for attempt in 0..5_000 {
        let name = format!("probe-{round}-{attempt}");
        match create(channel, &name).await {
            Ok(version) => {
                assert!(version > last, "{version} after {last}");
                last = version;
                taken.push(name);
            }
            Err(status) => {
                assert_storage_unavailable(&status);
                if refused == 0 {
                    println!("round {round}, after {attempt} writes: {}", status.message());
                }
                refused += 1;
            }
        }
        if refused == 5 {
            return (taken, last);
        }
    }
    panic!("no write failed");
}

fn hello(node: &pb::Node, incarnation: &str, seconds: i64) -> Message {
    let metadata = node.metadata.clone().unwrap();
    Message::Hello(pb::HeartbeatHello {
        node_name: metadata.name,
        node_uid: metadata.uid,
        incarnation: incarnation.to_owned(),
        lease_duration: Some(prost_types::Duration { seconds, nanos: 0 }),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_time_in_which_the_disk_refused_writes_does_not_count_against_a_lease() {
    const LEASE: i64 = 3;
    let directory = tempfile::tempdir().unwrap();
    let launch = StoreLaunch::on(&directory.path().join("data"));
    let store = block_in_place(|| launch.within(["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"]).start());
    let (api, channel) = (store.api(), store.channel());
    let agent = api.create(node("a", "agent")).await.unwrap();
    let mut first = api.heartbeat().await;
    first.send(hello(&agent, "first", LEASE)).await.unwrap();
    let renewal = Message::Renewal(pb::HeartbeatRenewal::default());
    let renewed = first.send(renewal).await.unwrap().renew_time.unwrap().seconds;

    limit_files(&store, Some(4096));
    write_against_the_limit(&channel, 0, 0).await;
    eventually(TIMEOUT, "the lease's duration has passed", || async {
        (now_seconds() > renewed + LEASE).then_some(())
    })
    .await;
    let mendable = std::time::Instant::now();
    limit_files(&store, None);
    // A second agent with the node's name says hello all the time, so that it is in the first batch that succeeds.
    eventually(TIMEOUT, "the lease is taken over", || async {
        match api.heartbeat().await.send(hello(&agent, "second", LEASE)).await {
            Ok(_) => Some(()),
            Err(status) => {
                assert!(matches!(status.code(), Code::Aborted | Code::Unavailable), "{status:?}");
                None
            }
        }
    })
    .await;
    let waited = mendable.elapsed();
    assert!(waited >= std::time::Duration::from_secs(LEASE as u64), "it was taken over after {waited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_partly_failed_write_is_rolled_back_and_the_store_continues() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    // Without the trap, SIGXFSZ kills a process that exceeds the limit.
    let launch = StoreLaunch::on(&data).within(["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"]);
    let mut store = block_in_place(|| launch.start());
    let mut channel = store.channel();
    let mut writers = writers();
    write(&mut writers, &channel, 50).await;
    let mut last = check_all(&mut writers, &channel).await;

    for round in 0..6 {
        // The limit is hit at once, or after some writes.
        limit_files(&store, Some(if round % 2 == 0 { 4096 } else { journal_length(&data) + 20_000 }));
        let taken;
        (taken, last) = write_against_the_limit(&channel, round, last).await;
        assert!(store.is_running());
        assert!(store.metric("muster_store_commits_failed_total") >= 1.0);
        if round % 2 == 0 {
            // In the other rounds the store's own probe may be small enough.
            assert_eq!(store.metric(WRITABLE), 0.0);
        }
        let (found, head) = read_all(&channel).await.unwrap();
        assert!(head >= last && found.len() >= taken.len(), "reads work");

        if round < 3 {
            limit_files(&store, None);
            let version = writable_again(&channel, "probe").await;
            assert!(version > last, "{version} after {last}");
            assert_eq!(store.metric(WRITABLE), 1.0);
            for probe in taken.iter().map(String::as_str).chain(["probe"]) {
                remove(&channel, probe).await;
            }
            write(&mut writers, &channel, 20).await;
            // No failed write has left a record.
            last = check_all(&mut writers, &channel).await;
        }
        block_in_place(|| store.kill());
        store = block_in_place(|| launch.start());
        channel = store.channel();
        if round >= 3 {
            // Killed while writes failed: failed writes may be present, acknowledged ones must be.
            let (found, _) = read_all(&channel).await.unwrap();
            let probes: Vec<&str> = found
                .keys()
                .map(|(_, name)| name.as_str())
                .filter(|name| name.starts_with("probe"))
                .collect();
            assert!(taken.iter().all(|name| probes.contains(&name.as_str())), "{taken:?}, found {probes:?}");
            println!("round {round}: {} taken, {} found after the kill", taken.len(), probes.len());
            for probe in probes {
                last = remove(&channel, probe).await;
            }
        }
        let head = check_all(&mut writers, &channel).await;
        assert!(head >= last, "{head} after {last}");
        write(&mut writers, &channel, 20).await;
        last = check_all(&mut writers, &channel).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_disk_that_one_caller_filled_heals_when_its_events_expire() {
    let directory = tempfile::tempdir().unwrap();
    let disk = SmallDisk::of(64, directory.path());
    disk.ready().await;
    let launch = disk.launch().flag("--event-ttl", "8s").flag("--history-min-age", "0s");
    let launch = launch.flag("--history-min-changes", "100");
    let store = block_in_place(|| launch.start());
    let channel = store.channel();
    let mut writers = writers();
    write(&mut writers, &channel, 20).await;
    // Other files leave the reserve and two segments of the journal: with them freed, there is space for checkpoints too.
    disk.fill(34 << 20);
    let mut events = EventServiceClient::new(channel.clone());
    let mut refused = None;
    for number in 0..200_000 {
        let mut event = muster_tests::fixtures::event("n", "Flood", &format!("{number} {}", "x".repeat(900)));
        event.metadata.get_or_insert_default().namespace = "default".to_owned();
        if let Err(status) = events.record_event(pb::RecordEventRequest { event: Some(event) }).await {
            refused = Some(status);
            break;
        }
    }
    let refused = refused.expect("the disk is full in the end");
    assert_storage_unavailable(&refused);
    assert_eq!(store.metric(WRITABLE), 0.0);
    // Nobody deletes anything, and the other files stay.
    let version = writable_again(&channel, "probe").await;
    assert!(version > 0);
    remove(&channel, "probe").await;
    write(&mut writers, &channel, 20).await;
    check_all(&mut writers, &channel).await;
    block_in_place(|| store.kill());
    let store = block_in_place(|| disk.launch().start());
    check_all(&mut writers, &store.channel()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn records_can_be_deleted_on_a_full_disk() {
    let directory = tempfile::tempdir().unwrap();
    let disk = SmallDisk::of(48, directory.path());
    disk.ready().await;
    let store = block_in_place(|| disk.launch().start());
    let channel = store.channel();
    for name in ["one", "two"] {
        create(&channel, name).await.unwrap();
    }
    disk.fill(0);
    assert_storage_unavailable(&create(&channel, "three").await.unwrap_err());
    remove(&channel, "one").await;
    assert_storage_unavailable(&create(&channel, "three").await.unwrap_err());
    remove(&channel, "two").await;
    let (found, _) = read_all(&channel).await.unwrap();
    assert!(found.is_empty(), "{found:?}");
    disk.relieve();
    writable_again(&channel, "three").await;
}
