//! Durable writes of records per second, the latency and the cost of one, beside etcd and a bare log.
//!
//! `cargo bench -p muster-tests --bench records [-- SECONDS [IN_FLIGHT ...]]`; `.ci/tools etcd` installs what it
//! compares with
//!
//! The real store, a real etcd of one member and the bare log write to the same disk, one after the other for each
//! size and each number of writes in flight. Store and etcd are loaded by the same client over the same number of
//! connections, with messages that are encoded beforehand: etcd stores the encoded record under its name. The client
//! has one thread. It shares the processors with the servers, so all rates are lower than with a client elsewhere.
//!
//! A second store runs below strace at the end, only to count its syncs.

#![allow(clippy::disallowed_methods, reason = "a benchmark is where clocks belong")]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_proto::pb;
use muster_tests::etcd::{self, Etcd, PutRequest};
use muster_tests::fixtures::{node, status_of};
use muster_tests::load::bare_log::bare_log;
use muster_tests::load::calls::Calls;
use muster_tests::load::raw_client::{NUMBER, NumberedMessage, connect};
use muster_tests::load::{Agents, Heartbeat, Throughput, name};
use muster_tests::store_process::{StoreLaunch, StoreProcess};
use muster_tests::tools::tool;
use muster_tests::usage::Usage;
use tonic::transport::Channel;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const CREATE: &str = "/muster.v1.NodeService/CreateNode";
const UPDATE_STATUS: &str = "/muster.v1.NodeService/UpdateNodeStatus";
const COMMITS: &str = "muster_store_commits_total";
/// To the store and to etcd each.
const CONNECTIONS: usize = 8;
const IN_FLIGHT: [usize; 3] = [64, 256, 1024];
/// The sizes of a record's status, in bytes.
const SMALL: usize = 512;
const TYPICAL: usize = 2048;
const LARGE: usize = 16 * 1024;
const WARM_UP: Duration = Duration::from_secs(1);
/// How long syncs are counted, for each number of writes in flight.
const COUNT_SYNCS: Duration = Duration::from_secs(2);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    let seconds = numbers.next().unwrap_or(4);
    let chosen: Vec<usize> = numbers.collect();
    let in_flight = if chosen.is_empty() { IN_FLIGHT.to_vec() } else { chosen };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the data");
    println!(
        "durable writes of records, {seconds} s each; store and etcd over {CONNECTIONS} connections each"
    );
    println!(
        "CPU of the server for each write, bytes to the disk for each byte of a record: the server's, everybody's"
    );
    let bench = Bench::start(directory.path(), Duration::from_secs(seconds as u64)).await;
    for in_flight in in_flight.iter().copied() {
        println!("\n{in_flight} in flight");
        for size in [SMALL, TYPICAL, LARGE] {
            bench.update(size, in_flight).await;
        }
        bench.create(in_flight).await;
    }
    drop(bench);
    println!("\nsyncs of a store below strace, statuses of {} by calls", kilobytes(TYPICAL));
    for in_flight in in_flight {
        count_syncs(directory.path(), in_flight).await;
    }
}

/// The rates that a rate of the store is compared with.
#[derive(Clone, Copy)]
struct Others {
    etcd: f64,
    log: f64,
}

/// The servers under load.
struct Bench {
    directory: PathBuf,
    lasts: Duration,
    store: StoreProcess,
    channels: Vec<Channel>,
    agents: Agents,
    etcd: Etcd,
    etcd_channels: Vec<Channel>,
}

impl Bench {
    async fn start(directory: &Path, lasts: Duration) -> Bench {
        let store = StoreLaunch::on(&directory.join("store")).start();
        let channels = connect(&store.url(), CONNECTIONS).await;
        let agents = registered(&channels).await;
        let etcd = Etcd::start(&directory.join("etcd")).await;
        let etcd_channels = connect(&etcd.url(), CONNECTIONS).await;
        Bench { directory: directory.to_owned(), lasts, store, channels, agents, etcd, etcd_channels }
    }

    /// Statuses of existing nodes: by calls, and those of the typical size also over heartbeat streams.
    async fn update(&self, size: usize, in_flight: usize) {
        let others = Others {
            etcd: self.put("etcd, put", &puts(in_flight, size), size, in_flight).await,
            log: self.append(size, in_flight).await,
        };
        let before = self.store_usage();
        let calls = Calls { channels: &self.channels, method: UPDATE_STATUS };
        let rate = calls.measure(&updates(in_flight, size), in_flight, WARM_UP, self.lasts).await;
        self.print("status by calls", size, rate, &[], before, others);
        if size != TYPICAL {
            return;
        }
        let status = Heartbeat::status(size);
        let before = self.store_usage();
        let rate = self.agents.send(0..in_flight, &status, WARM_UP, self.lasts).await;
        self.print("status by streams", size, rate, &[], before, others);
        // Half of the agents send statuses, the others renew.
        let half = in_flight / 2;
        let before = self.store_usage();
        let (rate, renewals) = tokio::join!(
            self.agents.send(0..half, &status, WARM_UP, self.lasts),
            self.agents.send(half..in_flight, &Heartbeat::Renewal, WARM_UP, self.lasts),
        );
        self.print("beside renewals", size, rate, &[renewals], before, others);
        println!("  {:<18} {:>7} {renewals}", "the renewals", "");
    }

    /// Nodes that do not exist yet.
    async fn create(&self, in_flight: usize) {
        let new = record(&format!("new-{NUMBER}"), "new", TYPICAL);
        let put = NumberedMessage::of(&PutRequest::of(&format!("new-{NUMBER}"), &new));
        let others = Others {
            etcd: self.put("etcd, new keys", &[put], TYPICAL, in_flight).await,
            log: self.append(TYPICAL, in_flight).await,
        };
        let create = NumberedMessage::of(&pb::CreateNodeRequest { node: Some(new) });
        let before = self.store_usage();
        let calls = Calls { channels: &self.channels, method: CREATE };
        let rate = calls.measure(&[create], in_flight, WARM_UP, self.lasts).await;
        self.print("create", TYPICAL, rate, &[], before, others);
    }

    /// Writes to etcd; returns the rate.
    async fn put(&self, what: &str, puts: &[NumberedMessage], size: usize, in_flight: usize) -> f64 {
        let usage = || Usage::of(self.etcd.pid(), &self.directory);
        let before = usage();
        let calls = Calls { channels: &self.etcd_channels, method: etcd::PUT };
        let rate = calls.measure(puts, in_flight, WARM_UP, self.lasts).await;
        let cost = cost(&before, &usage(), rate.acknowledged, rate.acknowledged, size);
        println!("  {what:<18} {:>7} {rate}  {cost}", kilobytes(size));
        rate.per_second
    }

    /// Writes to a bare log; returns the rate.
    async fn append(&self, size: usize, in_flight: usize) -> f64 {
        let log = bare_log(&self.directory.join("bare.log"), in_flight, size, WARM_UP, self.lasts).await;
        println!("  {:<18} {:>7} {log}", "bare log", kilobytes(size));
        log.per_second
    }

    /// The store's usage and its number of commits.
    fn store_usage(&self) -> (Usage, f64) {
        (Usage::of(self.store.pid(), &self.directory), self.store.metric(COMMITS))
    }

    /// Prints a result of the store. `beside` are writes that it made in the same time, which are not of records.
    fn print(
        &self,
        what: &str,
        size: usize,
        rate: Throughput,
        beside: &[Throughput],
        (before, commits): (Usage, f64),
        others: Others,
    ) {
        let (after, commits_after) = self.store_usage();
        let all = rate.acknowledged + beside.iter().map(|beside| beside.acknowledged).sum::<u64>();
        let failed = self.store.metric("muster_store_checkpoints_failed_total");
        assert_eq!(failed, 0.0, "a checkpoint failed; the store's log:\n{}", self.store.log());
        println!(
            "  {what:<18} {:>7} {rate}  {}  {:>4.0} writes a commit  {:.2} × etcd  {:.2} × log",
            kilobytes(size),
            cost(&before, &after, all, rate.acknowledged, size),
            all as f64 / (commits_after - commits),
            rate.per_second / others.etcd,
            rate.per_second / others.log,
        );
    }
}

/// CPU time for each write, and bytes on the disk for each byte of the records.
fn cost(before: &Usage, after: &Usage, writes: u64, records: u64, size: usize) -> String {
    let record_bytes = (records * size as u64) as f64;
    format!(
        "{:>5.0} µs CPU  {:>5.1} and {:>5.1} bytes",
        (after.cpu_micros - before.cpu_micros) / writes as f64,
        (after.own_bytes - before.own_bytes) / record_bytes,
        (after.disk_bytes - before.disk_bytes) / record_bytes,
    )
}

fn kilobytes(size: usize) -> String {
    format!("{} KiB", size as f64 / 1024.0)
}

/// A node with a status of that size. The message is part of the status.
fn record(name: &str, message: &str, size: usize) -> pb::Node {
    pb::Node { status: Some(status_of(size, message)), ..node(name) }
}

/// A status for each of the agents' nodes.
fn updates(in_flight: usize, size: usize) -> Vec<NumberedMessage> {
    let update = |index| pb::UpdateNodeStatusRequest { node: Some(record(&name(index), NUMBER, size)) };
    (0..in_flight).map(|index| NumberedMessage::of(&update(index))).collect()
}

/// The same for etcd.
fn puts(in_flight: usize, size: usize) -> Vec<NumberedMessage> {
    let put = |index| PutRequest::of(&name(index), &record(&name(index), NUMBER, size));
    (0..in_flight).map(|index| NumberedMessage::of(&put(index))).collect()
}

/// The agents, one for each write in flight.
async fn registered(channels: &[Channel]) -> Agents {
    let mut agents = Agents::over(channels.to_vec());
    agents.register(IN_FLIGHT.into_iter().max().unwrap_or(0)).await;
    agents
}

/// How often a store syncs its files for each commit.
///
/// strace stops the store at these calls only, but that and its own work slow the store down: of this run, only the
/// count is of use. Writes with `O_DSYNC` would not be seen.
async fn count_syncs(directory: &Path, in_flight: usize) {
    let log = directory.join(format!("{in_flight}.strace"));
    // As a grandchild (-D) it leaves the child's process id to the store.
    let mut wrapper: Vec<OsString> =
        vec![tool("strace").into(), "-D".into(), "-f".into(), "--seccomp-bpf".into()];
    wrapper.extend([
        "-e".into(),
        "trace=fdatasync,fsync,sync_file_range".into(),
        "-o".into(),
        log.clone().into(),
    ]);
    let store = StoreLaunch::on(&directory.join(format!("{in_flight}-traced"))).within(wrapper).start();
    let channels = connect(&store.url(), CONNECTIONS).await;
    // Creates the nodes.
    let _agents = registered(&channels).await;
    let calls = |name: &str| {
        let lines = fs::read_to_string(&log).unwrap_or_default();
        // A call that another thread's line interrupts has two lines.
        let is_call = |line: &&str| line.contains(&format!("{name}(")) && !line.contains("resumed");
        lines.lines().filter(is_call).count() as f64
    };
    let count = || (["fdatasync", "fsync", "sync_file_range"].map(calls), store.metric(COMMITS));
    let (before, commits) = count();
    let load = Calls { channels: &channels, method: UPDATE_STATUS };
    load.measure(&updates(in_flight, TYPICAL), in_flight, Duration::ZERO, COUNT_SYNCS).await;
    let (after, commits_after) = count();
    let commits = commits_after - commits;
    let [fdatasync, fsync, range] = [0, 1, 2].map(|call| (after[call] - before[call]) / commits);
    println!(
        "{in_flight:>6} in flight  {commits:>6} commits  for each {fdatasync:.2} fdatasync, {fsync:.2} fsync, \
         {range:.2} sync_file_range"
    );
}
