//! Damaged files: each damage is harmless, or refused with the file's name and healed by putting the bytes back.

use super::*;
use crate::backup::first_revision;

/// One change of one file.
#[derive(Debug, Clone)]
enum Damage {
    Flip { bit: u64 },
    Zero { sector: u64 },
    Swap { one: u64, other: u64 },
    Truncate { length: u64 },
    Empty,
    Remove,
}

const SECTOR: usize = 512;

impl Damage {
    fn any(random: &mut Random, length: u64) -> Self {
        let sectors = length.div_ceil(SECTOR as u64);
        match random.below(20) {
            0..12 => Damage::Flip { bit: random.below(8 * length) },
            12..15 => Damage::Zero { sector: random.below(sectors) },
            15..17 => Damage::Swap { one: random.below(sectors), other: random.below(sectors) },
            17..19 => Damage::Truncate { length: random.below(length) },
            _ if random.below(2) == 0 => Damage::Empty,
            _ => Damage::Remove,
        }
    }

    /// `None` if it changes nothing.
    fn apply(&self, content: &[u8]) -> Option<Vec<u8>> {
        let mut damaged = content.to_vec();
        let sector = |index: u64| {
            let from = index as usize * SECTOR;
            from..(from + SECTOR).min(content.len())
        };
        match self {
            Damage::Flip { bit } => damaged[*bit as usize / 8] ^= 1 << (bit % 8),
            Damage::Zero { sector: index } => damaged[sector(*index)].fill(0),
            Damage::Swap { one, other } => {
                let (one, other) = (sector(*one), sector(*other));
                if one.len() != other.len() {
                    return None;
                }
                damaged[one.clone()].copy_from_slice(&content[other.clone()]);
                damaged[other].copy_from_slice(&content[one]);
            }
            Damage::Truncate { length } => damaged.truncate(*length as usize),
            Damage::Empty => damaged.clear(),
            Damage::Remove => return None,
        }
        (damaged != content).then_some(damaged)
    }
}

/// Where a damage most likely matters: most of a preallocated segment is zeros that were never written.
fn written_length(path: &Path, content: &[u8]) -> u64 {
    let used = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    if path.extension().is_some_and(|extension| extension == "journal") {
        (used + 64).min(content.len()) as u64
    } else {
        content.len() as u64
    }
}

/// A store with two checkpoints and a journal behind them; returns its state.
fn used_store(directory: &Path, seed: u64, rounds: u64, bytes: u64) -> (Revision, Fingerprint) {
    let mut random = Random::seeded(seed);
    let mut writer = TestWriter::keeping(EmbeddedLedger::open(directory, CACHE).unwrap(), 50);
    for round in 0..rounds {
        writer.commit(&steps(&mut random, 20, bytes)).unwrap();
        if round == rounds / 3 || round == 2 * rounds / 3 {
            writer.checkpoint().unwrap();
            writer.ledger.trim().unwrap();
        }
    }
    writer.state()
}

fn load(directory: &Path) -> Result<(Revision, Fingerprint), String> {
    let ledger = EmbeddedLedger::open(directory, CACHE).map_err(|error| error.to_string())?;
    let memory = ledger.load(&mut |_| ()).map_err(|error| error.to_string())?;
    Ok((memory.head(), memory.fingerprint()))
}

/// How many damages are tried; more with MUSTER_DAMAGES.
fn tries(default: u64) -> u64 {
    std::env::var("MUSTER_DAMAGES").ok().and_then(|tries| tries.parse().ok()).unwrap_or(default)
}

fn try_damages(seed: u64, rounds: u64, bytes: u64, tries: u64) {
    let directory = tempfile::tempdir().unwrap();
    let state = used_store(directory.path(), seed, rounds, bytes);
    let files = files(directory.path());
    let mut random = Random::seeded(seed);
    let (mut harmless, mut refused) = (0, 0);
    for number in 0..tries {
        let (path, content) = &files[random.below(files.len() as u64) as usize];
        if content.is_empty() {
            continue;
        }
        let damage = Damage::any(&mut random, written_length(path, content));
        match damage.apply(content) {
            Some(damaged) => fs::write(path, damaged).unwrap(),
            None if matches!(damage, Damage::Remove) => fs::remove_file(path).unwrap(),
            None => continue,
        }
        let what = format!("seed {seed}, number {number}: {damage:?} of {}", path.display());
        match load(directory.path()) {
            Ok(loaded) => {
                assert_eq!(loaded, state, "{what} lost something silently");
                harmless += 1;
            }
            Err(message) => {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                let parent = path.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
                assert!(message.contains(&name) || message.contains(&parent), "{what}: {message}");
                assert!(!message.contains("panicked"), "{what}: {message}");
                let found = inspect(directory.path(), CACHE);
                assert!(found.is_err() || !found.unwrap().damaged.is_empty(), "{what}: check finds nothing");
                refused += 1;
            }
        }
        // Nothing else was changed: with the bytes back, the store is as before.
        fs::write(path, content).unwrap();
        for (other, content) in &files {
            let now = fs::read(other).unwrap();
            let grown = other.extension().is_some_and(|extension| extension == "journal");
            assert!(
                now == *content || grown || other.ends_with("ACKNOWLEDGED"),
                "{what} changed {}",
                other.display()
            );
            if now != *content {
                fs::write(other, content).unwrap();
            }
        }
        assert_eq!(load(directory.path()), Ok(state), "{what}, and put back");
    }
    println!("{harmless} harmless, {refused} refused");
    assert!(refused > 0 || tries < 20, "no damage was found");
}

#[test]
fn every_damage_of_a_small_store_is_harmless_or_refused() {
    try_damages(1, 60, 2_000, tries(300));
}

#[test]
fn every_damage_of_a_larger_store_is_harmless_or_refused() {
    try_damages(2, 60, 60_000, tries(60));
}

#[test]
fn what_can_be_proven_of_a_damaged_store_is_repaired_into_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut random = Random::seeded(3);
    let mut writer = TestWriter::open(&data);
    let mut states = Vec::new();
    for round in 0..30 {
        writer.commit(&steps(&mut random, 5, 500)).unwrap();
        states.push(writer.state());
        if round == 10 {
            writer.checkpoint().unwrap();
        }
    }
    drop(writer);
    let (journal, content) =
        files(&data).into_iter().find(|(path, _)| path.extension().is_some_and(|e| e == "journal")).unwrap();
    let mut damaged = content.clone();
    let used = written_length(&journal, &content) as usize;
    damaged[used * 9 / 10] ^= 1;
    fs::write(&journal, damaged).unwrap();
    assert!(load(&data).is_err());
    let found = salvage(&data, CACHE).unwrap();
    assert!(!found.damaged.is_empty());
    let state = (found.memory.head(), found.memory.fingerprint());
    assert!(states[10..].contains(&state), "a state that was committed, after the checkpoint");
    let new = directory.path().join("new");
    let next = first_revision(found.newest, 0).unwrap();
    EmbeddedLedger::import(&new, found.store, found.memory.without_history(next), CACHE).unwrap();
    let (head, fingerprint) = load(&new).unwrap();
    assert_eq!(fingerprint, state.1);
    assert!(head > states.last().unwrap().0, "revisions are not used again");
}

#[test]
fn a_hash_that_is_not_checked_would_be_missed() {
    // The tests above must be able to fail: with the manifest's fingerprint replaced, the loss of one record is found
    // only by comparing fingerprints.
    let directory = tempfile::tempdir().unwrap();
    let mut writer = TestWriter::open(directory.path());
    writer.commit(&[put("a", 1), put("b", 1)]).unwrap();
    writer.checkpoint().unwrap();
    let store = writer.ledger.store_id();
    drop(writer);
    let slot = directory.path().join("checkpoint-a");
    let manifest = manifest::Manifest::read(&RealDisk, &slot, store).unwrap().unwrap();
    let other = manifest::Manifest { fingerprint: Fingerprint::default(), ..manifest };
    fs::remove_file(slot.join(manifest::FILE)).unwrap();
    other.write(&RealDisk, &slot, store).unwrap();
    let mut checkpoints = Checkpoints::open(Arc::new(RealDisk), directory.path(), store, CACHE).unwrap().0;
    let journal = Journal::open(Arc::new(RealDisk), &directory.path().join(JOURNAL), store, false).unwrap();
    let (_, head, unusable) = checkpoints.load(&journal, 0).unwrap();
    assert_eq!(head, Head::EMPTY, "the checkpoint is not used, the journal has everything");
    assert!(unusable[0].reason.contains("they hold 2 of 0 records of kind Node"), "{}", unusable[0].reason);
}
