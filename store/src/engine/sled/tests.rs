use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use super::*;
use crate::engine::conformance;

#[test]
fn the_sled_engine_conforms() {
    let directories = Mutex::new(Vec::new());
    conformance::check(&|| {
        let directory = tempfile::tempdir().unwrap();
        let engine = SledEngine::open(directory.path(), 1 << 20).unwrap();
        directories.lock().unwrap().push(directory);
        Box::new(engine)
    });
}

#[test]
fn a_second_opener_is_told_that_the_directory_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let _first = SledEngine::open(directory.path(), 1 << 20).unwrap();
    match SledEngine::open(directory.path(), 1 << 20) {
        Err(error @ OpenError::InUse(_)) => assert!(error.to_string().contains("in use by another process")),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("two engines on one directory"),
    }
}

/// A disk that loses power: what was not synced is dropped, or reaches the
/// platter in part and in any order.
struct Platter {
    directory: PathBuf,
    /// The file as of the last sync.
    synced: Vec<u8>,
    random: u64,
    acknowledged: Model,
    images: Vec<(tempfile::TempDir, Model)>,
}

type Model = BTreeMap<String, String>;

const BLOCK: usize = 4096;

impl Platter {
    fn new(directory: &Path, seed: u64) -> Self {
        Self {
            directory: directory.to_owned(),
            synced: fs::read(directory.join("db")).unwrap(),
            random: seed,
            acknowledged: Model::new(),
            images: Vec::new(),
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        // xorshift: the same seed gives the same run.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// Power fails in this moment: some blocks that were written since the last
    /// sync are on the platter, the others are not.
    fn cut(&mut self) {
        let written = fs::read(self.directory.join("db")).unwrap();
        let image = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(&self.directory).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), image.path().join(entry.file_name())).unwrap();
            }
        }
        let file = File::create(image.path().join("db")).unwrap();
        file.write_all_at(&self.synced, 0).unwrap();
        let share = self.random(5);
        for (index, block) in written.chunks(BLOCK).enumerate() {
            let start = index * BLOCK;
            let on_platter = self.synced.get(start..start + block.len());
            if on_platter != Some(block) && self.random(4) < share {
                file.write_all_at(block, start as u64).unwrap();
            }
        }
        let acknowledged = self.acknowledged.clone();
        self.images.push((image, acknowledged));
    }

    fn sync(&mut self) {
        self.synced = fs::read(self.directory.join("db")).unwrap();
    }
}

/// Writes batches until enough has been through several of sled's segments, and
/// cuts the power around some of the syncs.
fn run_on_platter(seed: u64, acknowledge_before_sync: bool) -> Vec<(tempfile::TempDir, Model)> {
    let directory = tempfile::tempdir().unwrap();
    format::check_or_create(directory.path()).unwrap();
    let db = open_db(directory.path(), 1 << 20).unwrap();
    let platter = Arc::new(Mutex::new(Platter::new(directory.path(), seed)));
    let sync = {
        let platter = Arc::clone(&platter);
        Box::new(move || {
            let mut platter = platter.lock().unwrap();
            if platter.random(8) == 0 {
                platter.cut();
            }
            platter.sync();
            Ok(())
        })
    };
    let engine = SledEngine::with_sync(directory.path(), 1 << 20, db, sync);
    for round in 0..160u64 {
        let mut batch = Transaction::default();
        let mut model = platter.lock().unwrap().acknowledged.clone();
        for _ in 0..24 {
            let (key, length) = {
                let mut platter = platter.lock().unwrap();
                (format!("key-{:03}", platter.random(200)), 50 + platter.random(1500) as usize)
            };
            let value = format!("{round}:{}", "x".repeat(length));
            batch.puts.retain(|(k, _)| k != key.as_bytes());
            batch.puts.push((key.clone().into_bytes(), value.clone().into()));
            model.insert(key, value);
        }
        // One key tells which batch was the last: a batch is there whole or not at all.
        batch.puts.push((b"round".to_vec(), round.to_string().into()));
        model.insert("round".into(), round.to_string());
        if acknowledge_before_sync {
            platter.lock().unwrap().acknowledged = model.clone();
        }
        engine.transact(&batch).unwrap();
        platter.lock().unwrap().acknowledged = model;
    }
    std::mem::take(&mut platter.lock().unwrap().images)
}

/// Opens a directory that was closed a moment ago: sled's own threads let go of its
/// lock a little after the last handle is dropped.
fn reopen(directory: &Path) -> Result<SledEngine, OpenError> {
    loop {
        match SledEngine::open(directory, 1 << 20) {
            Err(OpenError::InUse(_)) => std::thread::yield_now(),
            opened => return opened,
        }
    }
}

/// Everything acknowledged is in the image, and of the batch that was under way
/// all or nothing.
fn image_holds(image: &Path, acknowledged: &Model) -> bool {
    let Ok(engine) = reopen(image) else { return false };
    let Ok(stored) = engine.range(b"", b"\xff", usize::MAX) else { return false };
    let stored: Model = stored
        .into_iter()
        .map(|(key, value)| (String::from_utf8(key).unwrap(), String::from_utf8(value.to_vec()).unwrap()))
        .collect();
    let last = |model: &Model| model.get("round").map_or(-1, |round| round.parse::<i64>().unwrap());
    let under_way = last(acknowledged) + 1;
    let of_batch = |value: &String, round: i64| value.starts_with(&format!("{round}:"));
    let torn = stored.values().any(|value| of_batch(value, under_way)) != (last(&stored) == under_way);
    let kept = acknowledged.iter().all(|(key, value)| {
        stored.get(key).is_some_and(|found| found == value || last(&stored) == under_way)
    });
    kept && !torn && last(&stored) >= last(acknowledged)
}

#[test]
fn power_loss_takes_nothing_that_was_acknowledged() {
    for seed in [0x5eed_0001, 0x5eed_0002, 0x5eed_0003] {
        let images = run_on_platter(seed, false);
        assert!(images.len() >= 8, "{} cuts", images.len());
        for (number, (image, acknowledged)) in images.iter().enumerate() {
            assert!(image_holds(image.path(), acknowledged), "seed {seed:#x}, cut {number}");
            // It can be lived in: what is written now is there the next time.
            let engine = reopen(image.path()).unwrap();
            let puts = vec![(b"after".to_vec(), Bytes::from_static(b"the cut"))];
            engine.transact(&Transaction { puts, ..Default::default() }).unwrap();
            drop(engine);
            let engine = reopen(image.path()).unwrap();
            assert_eq!(engine.get(b"after").unwrap().unwrap(), "the cut", "seed {seed:#x}, cut {number}");
        }
    }
}

#[test]
fn the_model_of_power_loss_notices_an_early_acknowledgement() {
    let images = run_on_platter(0x5eed_0001, true);
    let lost = images.iter().filter(|(image, promised)| !image_holds(image.path(), promised)).count();
    assert!(lost > 0, "acknowledging before the sync must lose something in {} cuts", images.len());
}
