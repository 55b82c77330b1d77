use std::fs;
use std::path::{Path, PathBuf};

use muster_store_core::fingerprint::Fingerprint;

use super::*;
use crate::ledger::conformance::{self, Step, TestWriter, delete, put};

mod damage;
mod faults;
mod record_files;

const CACHE: u64 = 1 << 20;

/// A generator of numbers that a seed repeats.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit.max(1)
    }
}

/// Some steps on a small set of names, so that records are written, replaced and deleted.
pub(super) fn steps(random: &mut Random, count: u64, bytes: u64) -> Vec<Step> {
    let step = |random: &mut Random| {
        let name = format!("n{}", random.below(40));
        match random.below(10) {
            0 => delete(&name),
            1 => Step::PutLease { name },
            2..5 => Step::Renew { name },
            _ => put(&name, random.below(bytes) as usize),
        }
    };
    (0..count).map(|_| step(random)).collect()
}

impl TestWriter<EmbeddedLedger> {
    pub(super) fn open(directory: &Path) -> Self {
        Self::on(EmbeddedLedger::open(directory, CACHE).unwrap())
    }

    pub(super) fn checkpoint(&self) -> Result<(), LedgerError> {
        let _ = self.ledger.memory.set(Arc::clone(&self.memory));
        self.ledger.checkpoint_now()
    }

    pub(super) fn state(&self) -> (Revision, Fingerprint) {
        let memory = self.memory.read().unwrap();
        (memory.head(), memory.fingerprint())
    }
}

#[test]
fn the_embedded_ledger_conforms() {
    let root = tempfile::tempdir().unwrap();
    let made = std::sync::atomic::AtomicUsize::new(0);
    conformance::check(
        &|| {
            let number = made.fetch_add(1, Ordering::Relaxed);
            EmbeddedLedger::open(&root.path().join(number.to_string()), CACHE).unwrap()
        },
        &|ledger| {
            let directory = ledger.directory.clone();
            drop(ledger);
            EmbeddedLedger::open(&directory, CACHE).unwrap()
        },
    );
}

#[test]
fn a_second_opener_learns_that_the_directory_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let first = EmbeddedLedger::open(directory.path(), CACHE).unwrap();
    match EmbeddedLedger::open(directory.path(), CACHE) {
        Err(error @ OpenError::InUse(_)) => assert!(error.to_string().contains("in use by another process")),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("two ledgers on one directory"),
    }
    drop(first);
    EmbeddedLedger::open(directory.path(), CACHE).unwrap();
}

#[test]
fn records_and_history_survive_checkpoints_trimming_and_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random::seeded(7);
    let mut writer = TestWriter::keeping(EmbeddedLedger::open(directory.path(), CACHE).unwrap(), 200);
    let mut history: std::collections::BTreeMap<Revision, Vec<(String, Bytes)>> = Default::default();
    for round in 0..120 {
        let some = random.below(30);
        writer.commit(&steps(&mut random, some, 9_000)).unwrap();
        history.insert(writer.head(), writer.nodes_at(writer.head()));
        match random.below(8) {
            0 | 1 => {
                writer.checkpoint().unwrap();
                writer.ledger.trim().unwrap();
            }
            2 => {
                let state = writer.state();
                drop(Arc::into_inner(writer.ledger).unwrap());
                let ledger = EmbeddedLedger::open(directory.path(), CACHE).unwrap();
                writer = TestWriter::keeping(ledger, 200);
                assert_eq!(writer.state(), state, "round {round}");
            }
            _ => {}
        }
        let compacted = writer.memory.read().unwrap().compacted();
        history.retain(|at, _| *at >= compacted);
        for (at, expected) in &history {
            assert_eq!(writer.nodes_at(*at), *expected, "round {round}, at {at}");
        }
    }
}

#[test]
fn a_checkpoint_from_memory_is_complete_while_commits_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = TestWriter::open(directory.path());
    let _ = writer.ledger.memory.set(Arc::clone(&writer.memory));
    let ledger = Arc::clone(&writer.ledger);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::seeded(11);
            while !done.load(Ordering::Relaxed) {
                writer.commit(&steps(&mut random, 5, 2_000)).unwrap();
            }
        });
        let written: Vec<_> = (0..20)
            .map(|_| {
                let written = ledger.checkpoint_now();
                // The next one is written from memory again.
                for slot in ["checkpoint-a", "checkpoint-b"] {
                    let _ = fs::remove_dir_all(directory.path().join(slot));
                }
                written
            })
            .collect();
        done.store(true, Ordering::Relaxed);
        written.into_iter().for_each(|written| written.unwrap());
    });
}

#[test]
fn segments_are_deleted_when_neither_history_nor_a_checkpoint_needs_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = TestWriter::keeping(EmbeddedLedger::open(directory.path(), CACHE).unwrap(), 0);
    let segments = || fs::read_dir(directory.path().join(JOURNAL)).unwrap().count() - 1;
    for round in 0..200 {
        writer.commit(&[put("a", 200_000 + round)]).unwrap();
    }
    assert!(segments() >= 4, "{}", segments());
    assert_eq!(writer.ledger.trim().unwrap(), 0, "there is no checkpoint yet");
    writer.checkpoint().unwrap();
    assert_eq!(writer.ledger.trim().unwrap(), 0, "with one checkpoint, its loss must be survived");
    writer.checkpoint().unwrap();
    writer.ledger.trim().unwrap();
    assert_eq!(segments(), 1);
    let state = writer.state();
    drop(Arc::into_inner(writer.ledger).unwrap());
    assert_eq!(TestWriter::open(directory.path()).state(), state);
}

/// All files below a directory, with their content.
pub(super) fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut below = vec![directory.to_owned()];
    while let Some(directory) = below.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                below.push(path);
            } else {
                found.push((path.clone(), fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}
