//! The record files that both checkpoints refer to: each record is written once, and what is outdated goes.

use std::collections::BTreeSet;

use xxhash_rust::xxh3::xxh3_64;

use super::super::entry::{Location, RecordEntry, record_key};
use super::super::manifest::{FileBlocks, Manifest, file_names};
use super::super::record_file::{self, RecordFiles};
use super::super::sled_files::SledFiles;
use super::*;

const SLOTS: [&str; 2] = ["checkpoint-a", "checkpoint-b"];

fn record_files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let is_parity = |path: &Path| path.extension().is_some_and(|extension| extension == "parity");
    let mut found = files(&directory.join(record_file::DIRECTORY));
    found.retain(|(path, _)| !is_parity(path));
    found
}

fn record_bytes(directory: &Path) -> usize {
    record_files(directory).iter().map(|(_, content)| content.len()).sum()
}

fn load(directory: &Path) -> Result<(Revision, Fingerprint), String> {
    let ledger = EmbeddedLedger::open(directory, CACHE).map_err(|error| error.to_string())?;
    let memory = ledger.load(&mut |_| ()).map_err(|error| error.to_string())?;
    Ok((memory.head(), memory.fingerprint()))
}

fn manifests(directory: &Path, store: StoreId) -> Vec<Manifest> {
    let read = |slot| Manifest::read(&RealDisk, &directory.join(slot), store).unwrap();
    SLOTS.into_iter().filter_map(read).collect()
}

#[test]
fn a_new_record_is_written_once_for_both_checkpoints() {
    const RECORD: usize = 10_000;
    let directory = tempfile::tempdir().unwrap();
    let mut writer = TestWriter::open(directory.path());
    for round in 0..8 {
        for number in 0..20 {
            writer.commit(&[put(&format!("n{round}-{number}"), RECORD)]).unwrap();
        }
        writer.checkpoint().unwrap();
    }
    // Without a change in between, nothing is written.
    writer.checkpoint().unwrap();
    let (written, records) = (record_bytes(directory.path()), 8 * 20 * RECORD);
    assert!(written < records * 11 / 10, "{written} bytes for records of {records}");
    let (state, store) = (writer.state(), writer.ledger.store_id());
    drop(writer);
    assert_eq!(load(directory.path()), Ok(state));
    for slot in SLOTS {
        // Each of them holds everything.
        fs::rename(directory.path().join(slot), directory.path().join("away")).unwrap();
        assert_eq!(manifests(directory.path(), store).len(), 1);
        assert_eq!(load(directory.path()), Ok(state), "without {slot}");
        fs::rename(directory.path().join("away"), directory.path().join(slot)).unwrap();
    }
}

#[test]
fn outdated_record_files_are_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = TestWriter::open(directory.path());
    let mut random = Random::seeded(21);
    let names: Vec<String> = (0..40).map(|number| format!("n{number}")).collect();
    for name in &names {
        writer.commit(&[put(name, 20_000)]).unwrap();
    }
    let content = 40 * 20_000;
    for round in 0..60 {
        for _ in 0..15 {
            writer.commit(&[put(&names[random.below(40) as usize], 20_000)]).unwrap();
        }
        writer.checkpoint().unwrap();
        // One checkpoint may be behind the other, and has that much more.
        let written = record_bytes(directory.path());
        assert!(written < 6 * content, "round {round}: {written} bytes for records of {content}");
    }
    let store = writer.ledger.store_id();
    let known: BTreeSet<String> = manifests(directory.path(), store)
        .iter()
        .flat_map(|manifest| manifest.records.values())
        .flat_map(|file| [file.blocks.name.clone(), file.parity.name.clone()])
        .collect();
    let found: BTreeSet<String> = files(&directory.path().join(record_file::DIRECTORY))
        .iter()
        .map(|(path, _)| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(found, known);
    let deletions: Vec<_> = names.iter().map(|name| delete(name)).collect();
    writer.commit(&deletions).unwrap();
    writer.checkpoint().unwrap();
    writer.checkpoint().unwrap();
    assert_eq!(files(&directory.path().join(record_file::DIRECTORY)).len(), 0);
    let state = writer.state();
    drop(writer);
    assert_eq!(load(directory.path()), Ok(state));
}

#[test]
fn short_record_files_are_put_together() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = TestWriter::open(directory.path());
    for number in 0..60 {
        writer.commit(&[put(&format!("n{number}"), 100)]).unwrap();
        writer.checkpoint().unwrap();
        let files = record_files(directory.path()).len();
        assert!(files < 40, "{files} files after {number} checkpoints");
    }
    let state = writer.state();
    drop(writer);
    assert_eq!(load(directory.path()), Ok(state));
}

#[test]
fn a_record_file_that_is_found_damaged_is_replaced_from_memory() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = TestWriter::keeping(EmbeddedLedger::open(directory.path(), CACHE).unwrap(), 0);
    for number in 0..20 {
        writer.commit(&[put(&format!("n{number}"), 3_000)]).unwrap();
    }
    writer.checkpoint().unwrap();
    writer.checkpoint().unwrap();
    let (path, mut content) = record_files(directory.path()).remove(0);
    content[5_000] ^= 1;
    fs::write(&path, content).unwrap();
    let metrics = BackgroundMetrics::default();
    assert_eq!(writer.ledger.scrub(&metrics), Some(false));
    writer.commit(&[put("another", 100)]).unwrap();
    writer.checkpoint().unwrap();
    assert_eq!(writer.ledger.scrub(&metrics), Some(false), "the older checkpoint still refers to the file");
    writer.checkpoint().unwrap();
    assert_eq!(writer.ledger.scrub(&metrics), Some(true));
    assert!(!path.exists());
    let state = writer.state();
    drop(writer);
    assert_eq!(load(directory.path()), Ok(state));
}

#[test]
fn a_damaged_block_that_both_checkpoints_need_is_rebuilt() {
    let directory = tempfile::tempdir().unwrap();
    // Without history, so that the record file is the only one that has the records.
    let mut writer = TestWriter::keeping(EmbeddedLedger::open(directory.path(), CACHE).unwrap(), 0);
    for number in 0..200 {
        writer.commit(&[put(&format!("n{number}"), 50_000)]).unwrap();
    }
    writer.checkpoint().unwrap();
    writer.commit(&[put("another", 100)]).unwrap();
    writer.checkpoint().unwrap();
    writer.ledger.trim().unwrap();
    let state = writer.state();
    drop(writer);
    let (path, content) =
        record_files(directory.path()).into_iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let damaged = |places: &[usize]| {
        let mut damaged = content.clone();
        places.iter().for_each(|place| damaged[*place] ^= 1);
        fs::write(&path, damaged).unwrap();
    };
    for place in [0, 70_000, content.len() / 2, content.len() - 1] {
        damaged(&[place]);
        assert!(!inspect(directory.path(), CACHE).unwrap().damaged.is_empty(), "byte {place}");
        assert_eq!(load(directory.path()), Ok(state), "byte {place}");
    }
    damaged(&[70_000, 140_000]);
    let message = load(directory.path()).unwrap_err();
    let said = format!("{} is damaged at byte 65536", path.display());
    assert!(message.contains(&said), "{message}");
    // Nothing was changed by trying, and one damage at a time is mended by the next checkpoints.
    damaged(&[70_000]);
    let writer = TestWriter::open(directory.path());
    assert!(writer.ledger.checkpoints().has_damaged());
    writer.checkpoint().unwrap();
    writer.checkpoint().unwrap();
    assert_eq!(writer.ledger.scrub(&BackgroundMetrics::default()), Some(true));
    drop(writer);
    assert_eq!(load(directory.path()), Ok(state));
}

/// Writes a checkpoint as format 5 had it: with a file of its own for the records.
fn write_as_format_5(slot: &Path, store: StoreId, memory: &Memory) {
    let manifest = Manifest::read(&RealDisk, slot, store).unwrap().unwrap();
    let records = RecordFiles::open(&RealDisk, slot, &manifest).unwrap();
    fs::remove_file(slot.join(manifest::FILE)).unwrap();
    let (sled, mut own) = (SledFiles::open(slot, CACHE).unwrap(), Vec::new());
    for kind in Kind::ALL {
        for (name, _) in memory.scan(kind, std::ops::Bound::Unbounded) {
            let key = record_key(kind, name);
            let entry = RecordEntry::decode(&sled.get(&key).unwrap().unwrap()).unwrap();
            let location = Location { file: 0, offset: own.len() as u64 };
            own.extend_from_slice(&records.read(&entry).unwrap());
            sled.insert(&key, &RecordEntry { location, ..entry }.encode()[..40]).unwrap();
        }
    }
    sled.close().unwrap();
    fs::write(slot.join(record_file::OWN_FILE), own).unwrap();
    let names = file_names(&RealDisk, slot).unwrap();
    let files = names.iter().map(|name| FileBlocks::of(&RealDisk, slot, name).unwrap()).collect();
    Manifest { files, records: Default::default(), ..manifest }.write(&RealDisk, slot, store).unwrap();
}

#[test]
fn a_directory_of_format_5_is_read_and_its_checkpoints_are_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let tag = directory.path().join("MUSTER_FORMAT");
    let mut random = Random::seeded(23);
    // Without history, so that nothing but the checkpoints has the older records.
    let mut writer = TestWriter::keeping(EmbeddedLedger::open(directory.path(), CACHE).unwrap(), 0);
    for _ in 0..3 {
        for _ in 0..60 {
            writer.commit(&steps(&mut random, 20, 15_000)).unwrap();
        }
        writer.checkpoint().unwrap();
        writer.ledger.trim().unwrap();
    }
    // Both checkpoints at the same revision.
    writer.checkpoint().unwrap();
    let (state, store) = (writer.state(), writer.ledger.store_id());
    for slot in SLOTS {
        write_as_format_5(&directory.path().join(slot), store, &writer.memory.read().unwrap());
    }
    drop(writer);
    fs::remove_dir_all(directory.path().join(record_file::DIRECTORY)).unwrap();
    let checksum = xxh3_64(format!("muster-store 5 {store}").as_bytes());
    fs::write(&tag, format!("muster-store 5 {store} {checksum:016x}\n")).unwrap();
    assert!(inspect(directory.path(), CACHE).unwrap().damaged.is_empty());
    assert!(fs::read_to_string(&tag).unwrap().starts_with("muster-store 5"), "a check changes nothing");
    let mut writer = TestWriter::open(directory.path());
    assert_eq!(writer.state(), state);
    assert!(fs::read_to_string(&tag).unwrap().starts_with("muster-store 6"));
    for _ in 0..2 {
        writer.commit(&[put("new", 100)]).unwrap();
        writer.checkpoint().unwrap();
        let state = writer.state();
        drop(writer);
        assert_eq!(load(directory.path()), Ok(state));
        writer = TestWriter::open(directory.path());
    }
    assert!(manifests(directory.path(), store).iter().all(|manifest| !manifest.has_own_records()));
    assert!(SLOTS.iter().all(|slot| !directory.path().join(slot).join(record_file::OWN_FILE).exists()));
}
