//! Kills of the store: no acknowledged write is lost. Also: directories that a store refuses to start on.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use muster_grpc::node_service_client::NodeServiceClient;
use muster_proto::backoff::Backoff;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::record::Record;
use muster_proto::watch_event::WatchEvent;
use muster_store_client::{ClientError, StoreClient, StoreEndpoints, WatchOptions};
use muster_tests::store_process::watch_log::{self, WatchLog, WatchedChange, check_watch_log};
use muster_tests::store_process::write_log::{
    self, AckCounter, Kind, RecordState, WriteLog, Writer, WriterKind, check_all,
};
use muster_tests::store_process::{SeededRandom, StoreLaunch, StoreProcess, free_port, until};
use rustix::process::Signal;
use tokio::task::{JoinHandle, JoinSet, block_in_place};
use tonic::Status;

const ROUNDS: usize = 60;

/// Writers that write to a store.
pub(super) struct ActiveWriters {
    tasks: JoinSet<(Writer, Status)>,
    acks: AckCounter,
}

impl ActiveWriters {
    pub(super) fn with(writers: Vec<Writer>, store: &StoreProcess) -> ActiveWriters {
        let acks = AckCounter::default();
        let mut tasks = JoinSet::new();
        for mut writer in writers {
            let (channel, acks) = (store.channel(), Arc::clone(&acks));
            tasks.spawn(async move {
                let interrupted = writer.write_on(channel, &acks).await;
                (writer, interrupted)
            });
        }
        ActiveWriters { tasks, acks }
    }

    pub(super) async fn acknowledged(&self, count: u64) {
        until("writes are acknowledged", || self.acks.load(Ordering::Relaxed) >= count).await;
    }

    /// The writers sorted by name, after the store has stopped answering.
    pub(super) async fn interrupted(self) -> (Vec<Writer>, Vec<Status>) {
        let mut all = self.tasks.join_all().await;
        all.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        all.into_iter().unzip()
    }
}

/// Watches nodes with the client that controller and agent use.
async fn follow_with_client(urls: String, synced: Arc<AtomicBool>, log: WatchLog) {
    let client = StoreClient::connect(StoreEndpoints::new(urls.split(','))).unwrap();
    let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(50));
    let mut events = client.watch::<Node>(WatchOptions { backoff, ..WatchOptions::default() });
    while let Some(event) = events.next().await {
        let (event_type, name, seen) = match event {
            WatchEvent::Applied { record } => {
                let wire: pb::Node = record.clone().into();
                ("APPLIED", record.meta().name.to_string(), write_log::node_state(&wire))
            }
            WatchEvent::Gone { key, revision, .. } => {
                ("DELETED", key.name.to_string(), RecordState { version: revision, value: String::new() })
            }
            WatchEvent::Synced { .. } => {
                synced.store(true, Ordering::Relaxed);
                continue;
            }
            WatchEvent::Lost(_) => continue,
        };
        log.lock().unwrap().push(WatchedChange {
            key: (Kind::Node, name),
            event_type: event_type.into(),
            seen,
        });
    }
}

/// The client does not distinguish ADDED from MODIFIED: adds the type of each event.
fn with_event_types(mut log: Vec<WatchedChange>) -> Vec<WatchedChange> {
    let mut present = BTreeSet::new();
    for received in &mut log {
        if received.event_type == "DELETED" {
            present.remove(&received.key);
        } else {
            received.event_type =
                if present.insert(received.key.clone()) { "ADDED" } else { "MODIFIED" }.into();
        }
    }
    log
}

/// Watchers that resume after each kill of the store.
pub(super) struct Watchers {
    nodes: WatchLog,
    nodes_by_client: WatchLog,
    pods: WatchLog,
    leases: WatchLog,
    tasks: Vec<JoinHandle<()>>,
}

impl Watchers {
    /// Returns when all watchers will receive every later write.
    async fn follow(store: &StoreProcess) -> Watchers {
        Watchers::follow_at(store.url(), store).await
    }

    /// The same at several stores, separated by commas, of which this one leads.
    pub(super) async fn follow_at(url: String, store: &StoreProcess) -> Watchers {
        // From version 0 a watch would send the current records instead of all changes.
        let mut nodes = NodeServiceClient::new(store.channel());
        let node = Some(write_log::node("first", ""));
        nodes.create_node(pb::CreateNodeRequest { node }).await.unwrap();
        let first = pb::DeleteNodeRequest { name: "first".into(), preconditions: None };
        let gone = nodes.delete_node(first).await.unwrap().into_inner().node.unwrap();
        let after = gone.metadata.unwrap().resource_version;

        let (logs, synced) = (<[WatchLog; 4]>::default(), Arc::new(AtomicBool::new(false)));
        let [nodes, nodes_by_client, pods, leases] = logs;
        let tasks = vec![
            tokio::spawn(watch_log::follow_nodes(url.clone(), after, Arc::clone(&nodes))),
            tokio::spawn(follow_with_client(url.clone(), Arc::clone(&synced), Arc::clone(&nodes_by_client))),
            tokio::spawn(watch_log::follow_pods(url.clone(), after, Arc::clone(&pods))),
            tokio::spawn(watch_log::follow_leases(url, after, Arc::clone(&leases))),
        ];
        until("the client has listed", || synced.load(Ordering::Relaxed)).await;
        Watchers { nodes, nodes_by_client, pods, leases, tasks }
    }

    /// Compares the received events with the acknowledged writes.
    pub(super) async fn check(&self, writers: &[Writer], store: &StoreProcess) -> String {
        let logs: Vec<&WriteLog> = writers.iter().map(|writer| &writer.log).collect();
        let (found, head) = write_log::read_all(&store.channel()).await.unwrap();
        let leases = || {
            let present = found.iter().filter(|((kind, _), _)| *kind == Kind::Lease);
            present.map(|(key, seen)| (key.clone(), seen.clone())).collect()
        };
        let newest = |kind| logs.iter().map(|log| log.newest(kind)).max().unwrap_or(0);
        let (node, pod) = (newest(Kind::Node), newest(Kind::Pod));
        let last = |log: &WatchLog| log.lock().unwrap().last().map_or(0, |received| received.seen.version);
        until("the watchers catch up", || {
            assert!(self.tasks.iter().all(|task| !task.is_finished()), "a watcher has stopped");
            last(&self.nodes) >= node
                && last(&self.nodes_by_client) >= node
                && last(&self.pods) >= pod
                && watch_log::fold(&self.leases.lock().unwrap()) == leases()
        })
        .await;
        let received = |log: &WatchLog| log.lock().unwrap().clone();
        let nodes = check_watch_log(Kind::Node, &received(&self.nodes), &logs);
        let by_client =
            check_watch_log(Kind::Node, &with_event_types(received(&self.nodes_by_client)), &logs);
        assert_eq!(nodes, by_client);
        let pods = check_watch_log(Kind::Pod, &received(&self.pods), &logs);
        let leases = received(&self.leases).len();
        format!(
            "watchers received {nodes} changes of nodes and {pods} of pods, each once and in order, and {leases} of leases; version {head}"
        )
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Checks that the writes acknowledged since then have unique versions above `head`.
pub(super) fn check_versions(writers: &[Writer], since: &[usize], head: u64) {
    let mut taken = BTreeSet::new();
    for (writer, since) in writers.iter().zip(since) {
        for version in writer.log.changes()[*since..].iter().filter_map(|(_, change)| change.version) {
            assert!(version > head, "{version} was acknowledged by a store that was at {head} already");
            assert!(taken.insert(version), "{version} was used twice");
        }
    }
}

pub(super) fn counts(writers: &[Writer]) -> Vec<usize> {
    writers.iter().map(|writer| writer.log.changes().len()).collect()
}

/// Agents that register, renew some 17,000 times in all and are deleted. From then on the log of renewals is so long
/// that the store folds its oldest part into the leases at every commit, so kills also hit that code.
async fn crowd_of_agents(store: &StoreProcess, random: &mut SeededRandom) -> Vec<Writer> {
    let mut tasks = JoinSet::new();
    for agent in 0..90 {
        let mut writer = Writer::new(&format!("crowd-{agent}"), WriterKind::Heartbeats, random.fork());
        let channel = store.channel();
        tasks.spawn(async move {
            writer.write(channel, 2).await.unwrap();
            writer
        });
    }
    tasks.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sigkill_loses_no_acknowledged_write_and_watchers_see_no_gap() {
    let mut random = SeededRandom::seeded();
    let directory = tempfile::tempdir().unwrap();
    let launch = StoreLaunch::on(&directory.path().join("data")).at(free_port());
    let mut writers = Writer::fleet(&mut random);
    let (mut watchers, mut crowd) = (None, Vec::new());
    let (mut early, mut slowest_start) = (0, Duration::ZERO);
    let began = Instant::now();

    for round in 0..ROUNDS {
        // Also kill the store while it starts.
        if round % 4 == 0 {
            let store = launch.spawn();
            tokio::time::sleep(Duration::from_millis(random.below(60))).await;
            block_in_place(|| store.kill());
            early += 1;
        }
        let starting = Instant::now();
        let store = block_in_place(|| launch.start());
        slowest_start = slowest_start.max(starting.elapsed());
        let head = check_all(&mut writers, &store.channel()).await;
        if watchers.is_none() {
            watchers = Some(Watchers::follow(&store).await);
            for writer in &mut writers {
                writer.write(store.channel(), 3).await.unwrap();
            }
            crowd = crowd_of_agents(&store, &mut random).await;
        }
        let since = counts(&writers);
        let busy = ActiveWriters::with(writers, &store);
        busy.acknowledged(1 + random.below(400)).await;
        // Kill at a random time, not right after an acknowledgement.
        tokio::time::sleep(Duration::from_micros(random.below(5_000))).await;
        block_in_place(|| store.kill());
        (writers, _) = busy.interrupted().await;
        check_versions(&writers, &since, head);
    }
    let store = block_in_place(|| launch.start());
    check_all(&mut writers, &store.channel()).await;
    for writer in &mut writers {
        writer.write(store.channel(), 3).await.unwrap();
    }
    writers.extend(crowd);
    check_all(&mut writers, &store.channel()).await;
    let received = watchers.unwrap().check(&writers, &store).await;

    let happened: u64 = writers.iter().map(|writer| writer.log.unanswered_outcomes.0).sum();
    let not: u64 = writers.iter().map(|writer| writer.log.unanswered_outcomes.1).sum();
    let changes: usize = counts(&writers).iter().sum();
    let renewals: u64 = writers.iter().map(|writer| writer.log.renewals).sum();
    println!(
        "{ROUNDS} kills and {early} during a start in {:.1} s: {changes} changes, {renewals} of them renewals, all as \
         acknowledged; of {} without an answer {happened} were committed; slowest start {} ms; {received}",
        began.elapsed().as_secs_f64(),
        happened + not,
        slowest_start.as_millis(),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_shutdown_loses_no_acknowledged_write_and_answers_waiting_calls() {
    let mut random = SeededRandom::seeded();
    let directory = tempfile::tempdir().unwrap();
    let launch = StoreLaunch::on(directory.path()).at(free_port());
    let mut writers = Writer::fleet(&mut random);
    let mut slowest = Duration::ZERO;
    for _ in 0..5 {
        let mut store = block_in_place(|| launch.start());
        let head = check_all(&mut writers, &store.channel()).await;
        let since = counts(&writers);
        let busy = ActiveWriters::with(writers, &store);
        busy.acknowledged(1 + random.below(300)).await;
        let stopping = Instant::now();
        store.signal(Signal::TERM);
        let status = block_in_place(|| store.wait());
        slowest = slowest.max(stopping.elapsed());
        assert_eq!(status.code(), Some(0), "{}", store.log());
        assert!(store.log().contains("muster-store has stopped"), "{}", store.log());
        let interruptions;
        (writers, interruptions) = busy.interrupted().await;
        for interruption in interruptions {
            // This includes calls on a connection that was closed before they were sent.
            let error = ClientError::from(interruption);
            assert!(matches!(error, ClientError::Unavailable(_)), "{error:?}");
        }
        check_versions(&writers, &since, head);
    }
    let store = block_in_place(|| launch.start());
    check_all(&mut writers, &store.channel()).await;
    println!("5 stops, the slowest took {} ms", slowest.as_millis());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_store_on_the_same_directory_is_refused_and_the_first_keeps_working() {
    let directory = tempfile::tempdir().unwrap();
    let launch = StoreLaunch::on(directory.path());
    let mut store = block_in_place(|| launch.start());
    let mut writer = Writer::new("writer", WriterKind::Nodes, SeededRandom::seeded());
    writer.write(store.channel(), 5).await.unwrap();
    let (status, log) = block_in_place(|| launch.run_to_exit());
    assert!(!status.success());
    let expected = format!("{} is in use by another process", directory.path().display());
    assert!(log.contains(&expected), "{log}");
    assert!(store.is_running());
    writer.write(store.channel(), 5).await.unwrap();
    block_in_place(|| store.kill());
    let store = block_in_place(|| launch.start());
    check_all(&mut [writer], &store.channel()).await;
}

/// Every file below a directory with its content.
fn content(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap())
        .flat_map(|entry| match entry.file_type().unwrap().is_dir() {
            true => content(&entry.path()),
            false => vec![(entry.path().display().to_string(), fs::read(entry.path()).unwrap())],
        })
        .collect();
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_or_damaged_directory_is_refused_by_name_and_not_changed() {
    let ours = tempfile::tempdir().unwrap();
    let store = block_in_place(|| StoreLaunch::on(ours.path()).start());
    let mut writer = Writer::new("writer", WriterKind::Nodes, SeededRandom::seeded());
    writer.write(store.channel(), 5).await.unwrap();
    block_in_place(|| store.kill());
    let tag = ours.path().join("MUSTER_FORMAT");
    let whole = fs::read(&tag).unwrap();

    for (tag_content, expected) in [
        (Some(&b"muster-store 99\n"[..]), "has format 99"),
        (Some(b"muster-st"), "the format tag is damaged"),
        (Some(b""), "the format tag is damaged"),
        (Some(b"\x00\xff\n"), "the format tag is damaged"),
        (None, "holds files but no MUSTER_FORMAT"),
    ] {
        match tag_content {
            Some(content) => fs::write(&tag, content).unwrap(),
            None => fs::remove_file(&tag).unwrap(),
        }
        let before = content(ours.path());
        let (status, log) = block_in_place(|| StoreLaunch::on(ours.path()).run_to_exit());
        assert!(!status.success(), "{expected}");
        let named = if tag_content.is_some() { &tag } else { ours.path() };
        assert!(log.contains(expected) && log.contains(&named.display().to_string()), "{log}");
        assert_eq!(content(ours.path()), before, "{expected}: something was changed");
    }
    fs::write(&tag, whole).unwrap();
    let store = block_in_place(|| StoreLaunch::on(ours.path()).start());
    check_all(&mut [writer], &store.channel()).await;

    let foreign = tempfile::tempdir().unwrap();
    fs::write(foreign.path().join("thesis.txt"), "irreplaceable").unwrap();
    let (status, log) = block_in_place(|| StoreLaunch::on(foreign.path()).run_to_exit());
    assert!(!status.success());
    assert!(log.contains("is not a Muster data directory"), "{log}");
    let left = content(foreign.path());
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].1, b"irreplaceable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_during_the_initialization_of_the_directory_is_harmless() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("MUSTER_FORMAT.new"), "muster-s").unwrap();
    let store = block_in_place(|| StoreLaunch::on(directory.path()).start());
    let mut writer = Writer::new("writer", WriterKind::Nodes, SeededRandom::seeded());
    writer.write(store.channel(), 1).await.unwrap();
}
