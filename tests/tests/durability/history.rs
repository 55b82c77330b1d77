//! What clients of three stores on three members of etcd see while these are killed, paused and cut off from each other:
//! every answer fits into one order of calls, and every watcher receives every write once and in order.
//!
//! `MUSTER_TEST_FAULT_ROUNDS` sets how many faults there are, `MUSTER_TEST_SEED` repeats their choice, `MUSTER_TEST_FAULT`
//! names a single one. What happens between two processes is not repeated by a seed, so a failure also prints the calls
//! that show it.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod clients;
mod cluster;
mod watchers;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use muster_tests::disk::SmallDisk;
use muster_tests::etcd::PROGRAMS;
use muster_tests::history::linearizability::{self, Verdict};
use muster_tests::history::register::{Call, Operation, Sighting, State, complete};
use muster_tests::history::shrink::shrink;
use muster_tests::history::watches::{self, Received, Write};
use muster_tests::store_process::SeededRandom;
use tokio::task::JoinSet;

use self::clients::{Client, Listing, Recorded, Shared};
use self::cluster::{COUNT, Cluster, Fault, PATIENCE};
use self::watchers::Watcher;

const ROUNDS: usize = 6;
const CLIENTS: usize = 6;
const RECORDS: usize = 4;
/// A fault lasts until so many calls were answered in spite of it, or for so long.
const ANSWERED: u64 = 250;
const LONGEST: Duration = Duration::from_secs(5);
/// Logs of watchers are checked as a whole, so not in every one of many rounds.
const WATCHES_EVERY: usize = 10;

/// What all rounds have shown so far.
#[derive(Default)]
struct Tally {
    writes: Vec<Write>,
    calls: usize,
    open: usize,
    undecided: usize,
    /// Rounds in which no call was answered during the fault.
    idle: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s240_s241_whatever_fails_answers_are_linearizable_and_watches_have_no_gap() {
    let mut random = SeededRandom::seeded();
    let directory = tempfile::tempdir().unwrap();
    let disk_path = directory.path().join("disk");
    std::fs::create_dir(&disk_path).unwrap();
    let disk = SmallDisk::freezable(400, &disk_path);
    disk.ready().await;
    let etcd = PROGRAMS[random.below(PROGRAMS.len() as u64) as usize];
    let mut cluster = Cluster::start(etcd, directory.path(), &disk, &disk_path).await;
    let (urls, shared) = (cluster.urls(), Shared::new());
    let mut operator = Client::new(CLIENTS, &urls, random.fork(), &shared);
    let mut tally = Tally::default();
    let first = first_version(&mut operator).await;
    let watchers: Vec<Watcher> =
        (0..COUNT).map(|store| Watcher::after(first, &urls, store, random.fork(), &shared)).collect();
    let faults = chosen_faults(&mut random);
    let began = Instant::now();
    for (round, fault) in faults.iter().enumerate() {
        let names: Arc<[String]> = (0..RECORDS).map(|record| format!("r{round}-{record}")).collect();
        let seen_before: Vec<usize> = watchers.iter().map(|watcher| watcher.received().len()).collect();
        let calls = Calls::begin(&names, &urls, &mut random, &shared);
        calls.answered(ANSWERED / 2, PATIENCE).await;

        let active = cluster.begin(*fault, &mut random, &disk).await;
        let during = calls.answered(ANSWERED, LONGEST).await;
        cluster.end(active);
        let recovers = calls.answered(ANSWERED / 2, PATIENCE).await;
        assert!(
            recovers > 0,
            "round {round}, {fault:?}: no call is answered after it; {:?}",
            cluster.exited()
        );

        let (mut log, listings) = calls.end().await;
        finish(&mut operator, &names).await;
        log.append(&mut operator.log);
        let writes = writes_of(&log);
        let newest = writes.iter().filter_map(|write| write.version).max().unwrap_or_default();
        caught_up(&watchers, newest).await;
        tally.calls += log.len();
        tally.idle += usize::from(during == 0);
        tally.open += writes.iter().filter(|write| write.version.is_none()).count();
        tally.writes.extend(writes);

        let seen: Vec<Vec<Received>> = watchers
            .iter()
            .zip(&seen_before)
            .map(|(watcher, before)| watcher.received()[*before..].to_vec())
            .collect();
        let context = format!("round {round}, {fault:?}");
        let sightings = watches::sightings(seen.iter().map(Vec::as_slice));
        tally.undecided += check_order_of_calls(&context, log, &sightings);
        check_lists(&context, &listings, &names, &seen[0]);
        if round % WATCHES_EVERY == WATCHES_EVERY - 1 || round + 1 == faults.len() {
            check_watches(&context, &watchers, &tally.writes);
        }
        println!("{context}: {during} calls were answered during it, {} writes so far", tally.writes.len());
    }
    assert_eq!(cluster.exited(), Vec::<String>::new(), "a store has ended by itself");
    println!(
        "{} faults with {etcd} in {:.0} s: {} calls, {} writes, {} of them without an answer; {} rounds without progress, {} \
         records undecided",
        faults.len(),
        began.elapsed().as_secs_f64(),
        tally.calls,
        tally.writes.len(),
        tally.open,
        tally.idle,
        tally.undecided,
    );
}

/// All faults in a random order, again and again.
fn chosen_faults(random: &mut SeededRandom) -> Vec<Fault> {
    let rounds = std::env::var("MUSTER_TEST_FAULT_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let only = std::env::var("MUSTER_TEST_FAULT").ok();
    let is_chosen = |fault: &Fault| only.as_ref().is_none_or(|only| *only == format!("{fault:?}"));
    let mut order: Vec<Fault> = Fault::ALL.into_iter().filter(is_chosen).collect();
    assert!(!order.is_empty(), "MUSTER_TEST_FAULT is one of {:?}", Fault::ALL);
    for index in (1..order.len()).rev() {
        order.swap(index, random.below(index as u64 + 1) as usize);
    }
    order.into_iter().cycle().take(rounds.unwrap_or(ROUNDS)).collect()
}

/// A version from which on watchers can follow: that of a record that is of no interest.
async fn first_version(operator: &mut Client) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        operator.create("first").await;
        operator.clear("first").await;
        let log = std::mem::take(&mut operator.log);
        if let Some(version) = log.iter().filter_map(|recorded| recorded.operation.version()).max() {
            return version;
        }
        assert!(Instant::now() < deadline, "the stores do not write: {log:?}");
    }
}

/// Clients that call.
struct Calls {
    clients: JoinSet<Client>,
    shared: Arc<Shared>,
}

impl Calls {
    fn begin(
        names: &Arc<[String]>,
        urls: &[String],
        random: &mut SeededRandom,
        shared: &Arc<Shared>,
    ) -> Calls {
        shared.stop.store(false, Ordering::Relaxed);
        let client = |number| Client::new(number, urls, random.fork(), shared).run(Arc::clone(names));
        Calls { clients: (0..CLIENTS).map(client).collect(), shared: Arc::clone(shared) }
    }

    /// Waits until so many more calls were answered, or for so long; returns how many were.
    async fn answered(&self, count: u64, longest: Duration) -> u64 {
        let answered = || self.shared.answered.load(Ordering::Relaxed);
        let (before, deadline) = (answered(), Instant::now() + longest);
        while answered() < before + count && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        answered() - before
    }

    /// All that the clients did, when their last calls have ended.
    async fn end(self) -> (Vec<Recorded>, Vec<Listing>) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let (mut log, mut listings) = (Vec::new(), Vec::new());
        for mut client in self.clients.join_all().await {
            log.append(&mut client.log);
            listings.append(&mut client.listings);
        }
        (log, listings)
    }
}

/// Reads all records once more at each store that serves, and deletes them.
async fn finish(operator: &mut Client, names: &[String]) {
    for store in 0..COUNT {
        operator.read_all_at(store, names).await;
    }
    let deadline = Instant::now() + PATIENCE;
    for name in names {
        while !operator.clear(name).await {
            assert!(Instant::now() < deadline, "{name} cannot be deleted: {:?}", operator.log.last());
        }
    }
}

/// Waits until all watchers have received all up to a version.
async fn caught_up(watchers: &[Watcher], version: u64) {
    let deadline = Instant::now() + PATIENCE;
    while watchers.iter().any(|watcher| watcher.position() < version) {
        let positions: Vec<u64> = watchers.iter().map(Watcher::position).collect();
        assert!(
            Instant::now() < deadline,
            "a gap: watchers are at {positions:?}, and {version} was acknowledged"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The writes that were done or may have been.
fn writes_of(log: &[Recorded]) -> Vec<Write> {
    let writes = log.iter().filter(|recorded| !recorded.operation.is_read_only());
    let writes = writes.filter(|recorded| recorded.operation.call != Call::Read);
    writes
        .map(|recorded| Write {
            name: recorded.name.clone(),
            value: recorded.operation.value(),
            version: recorded.operation.version(),
        })
        .collect()
}

/// Searches for an order of the calls on each record. Returns for how many the search was ended without a result.
fn check_order_of_calls(context: &str, log: Vec<Recorded>, sightings: &HashMap<u64, Sighting>) -> usize {
    let mut records: BTreeMap<String, Vec<Operation>> = BTreeMap::new();
    for Recorded { name, operation } in log {
        records.entry(name).or_default().push(operation);
    }
    let mut undecided = 0;
    for (name, operations) in records {
        let completed = complete(&operations, sightings);
        match linearizability::check(&completed, State::NEW) {
            Verdict::Linearizable => {}
            Verdict::Undecided => undecided += 1,
            Verdict::NotLinearizable => {
                let offence = shrink(&completed);
                let mut shown = String::new();
                for operation in &offence.operations {
                    writeln!(shown, "{operation}").unwrap();
                }
                let start = if offence.is_from_the_start { "" } else { "whatever it was before, " };
                panic!("{context}: {name}: {start}no order explains these answers:\n{shown}");
            }
        }
    }
    undecided
}

/// A list shows all records of one revision.
fn check_lists(context: &str, listings: &[Listing], names: &[String], log: &[Received]) {
    for Listing { version, records } in listings {
        // The names are of this round, so what is before it in the log has nothing of them.
        let mut expected = watches::records_at(log, *version);
        expected.retain(|name, _| names.contains(name));
        assert_eq!(
            *records, expected,
            "{context}: the list of version {version} is not what was written up to it"
        );
    }
}

fn check_watches(context: &str, watchers: &[Watcher], writes: &[Write]) {
    let logs: Vec<Vec<Received>> = watchers.iter().map(|watcher| watcher.received().clone()).collect();
    for (number, log) in logs.iter().enumerate() {
        if let Err(fault) = watches::check(log, writes) {
            panic!("{context}: watcher {number}: {fault}");
        }
    }
    for other in &logs[1..] {
        if let Err(fault) = watches::check_same(&logs[0], other) {
            panic!("{context}: {fault}");
        }
    }
}
