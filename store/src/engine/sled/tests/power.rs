//! What is left when the power fails.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, MutexGuard};

use super::*;

type Model = BTreeMap<Vec<u8>, Bytes>;

const BLOCK: usize = 4096;

/// Power fails before every so manieth sync: how often does not depend on what sled writes.
const CUT_EVERY: usize = 9;

/// A disk that loses power: what was not synced is dropped, or reaches the
/// platter in part and in any order.
struct Platter {
    directory: PathBuf,
    /// The log as of the last sync.
    log: Vec<u8>,
    /// Files beside the log, as they were synced.
    beside: BTreeMap<OsString, Vec<u8>>,
    random: u64,
    syncs: usize,
    acknowledged: Model,
    under_way: Model,
    images: Vec<Image>,
}

/// What the platter held when the power failed.
struct Image {
    directory: tempfile::TempDir,
    acknowledged: Model,
    /// The transaction that may have made it or not, on top of what was acknowledged.
    under_way: Model,
}

impl Platter {
    fn new(directory: &Path, seed: u64) -> Self {
        Self {
            directory: directory.to_owned(),
            log: fs::read(disk::log_of(directory)).unwrap(),
            beside: BTreeMap::new(),
            random: seed,
            syncs: 0,
            acknowledged: Model::new(),
            under_way: Model::new(),
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
        let written = fs::read(disk::log_of(&self.directory)).unwrap();
        let image = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(&self.directory).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() && entry.path() != disk::log_of(&self.directory) {
                fs::copy(entry.path(), image.path().join(entry.file_name())).unwrap();
            }
        }
        fs::create_dir(image.path().join("blobs")).unwrap();
        for (name, bytes) in &self.beside {
            fs::write(image.path().join("blobs").join(name), bytes).unwrap();
        }
        let file = File::create(disk::log_of(image.path())).unwrap();
        file.write_all_at(&self.log, 0).unwrap();
        let share = self.random(5);
        for (index, block) in written.chunks(BLOCK).enumerate() {
            let start = index * BLOCK;
            let on_platter = self.log.get(start..start + block.len());
            if on_platter != Some(block) && self.random(4) < share {
                file.write_all_at(block, start as u64).unwrap();
            }
        }
        let (acknowledged, under_way) = (self.acknowledged.clone(), self.under_way.clone());
        self.images.push(Image { directory: image, acknowledged, under_way });
    }
}

struct Shared(Arc<Mutex<Platter>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap()
    }
}

impl Disk for Shared {
    fn sync_log(&self) -> io::Result<()> {
        let mut platter = self.lock();
        platter.syncs += 1;
        if platter.syncs.is_multiple_of(CUT_EVERY) {
            platter.cut();
        }
        platter.log = fs::read(disk::log_of(&platter.directory))?;
        Ok(())
    }

    fn sync_files(&self, _: &Path, files: &[PathBuf]) -> io::Result<()> {
        let mut platter = self.lock();
        for file in files {
            if let Ok(bytes) = fs::read(file) {
                platter.beside.insert(file.file_name().unwrap_or_default().to_owned(), bytes);
            }
        }
        Ok(())
    }
}

/// What a run writes.
#[derive(Clone, Copy, PartialEq)]
enum Values {
    Short,
    /// Records of 6 to 60 KiB and one of 1.5 MB, among packs of renewals.
    Long,
}

/// The transaction of a round, made of what the dice say.
fn round(number: u64, values: Values, platter: &mut Platter) -> Transaction {
    let mut puts = Model::new();
    let mut deletes = Vec::new();
    let (count, keys, least, spread) = match values {
        Values::Short => (24, 200, 50, 1500),
        Values::Long => (5, 40, 6 * 1024, 54 * 1024),
    };
    for i in 0..count {
        let key = format!("key-{:03}", platter.random(keys));
        let length = least + platter.random(spread);
        puts.insert(key.into_bytes(), value(number * 100 + i, length as usize));
    }
    if values == Values::Long {
        if platter.random(6) == 0 {
            puts.insert(b"key-of-all".to_vec(), value(number, 1_500_000));
        }
        let pack = |number: u64| format!("pack-{number:08}").into_bytes();
        for i in 0..platter.random(6) {
            let renewals = 1 + platter.random(2048);
            puts.insert(pack(number * 8 + i), value(number, renewals as usize * 24));
        }
        let old = pack(number.saturating_sub(6) * 8);
        deletes.extend(platter.acknowledged.range(pack(0)..old).map(|(key, _)| key.clone()));
    }
    Transaction { puts: puts.into_iter().collect(), deletes, ..Default::default() }
}

/// Writes batches until enough has been through several of sled's segments, and
/// cuts the power around some of the syncs.
fn run_on_platter(seed: u64, values: Values, acknowledge_before_sync: bool) -> Vec<Image> {
    let directory = tempfile::tempdir().unwrap();
    format::check_or_create(directory.path()).unwrap();
    let db = open_db(directory.path(), 1 << 20).unwrap();
    let platter = Arc::new(Mutex::new(Platter::new(directory.path(), seed)));
    let disk = Box::new(Shared(Arc::clone(&platter)));
    let engine = SledEngine::with_disk(directory.path(), 1 << 20, db, disk);
    let platter = Shared(platter);
    for number in 0..(if values == Values::Long { 80 } else { 160 }) {
        let mut batch = round(number, values, &mut platter.lock());
        // The number too is there with the rest of its batch or not at all.
        batch.puts.push((b"round".to_vec(), Bytes::copy_from_slice(&number.to_be_bytes())));
        let mut model = platter.lock().acknowledged.clone();
        batch.deletes.iter().for_each(|key| drop(model.remove(key)));
        model.extend(batch.puts.iter().cloned());
        platter.lock().under_way = model.clone();
        if acknowledge_before_sync {
            platter.lock().acknowledged = model.clone();
        }
        engine.transact(&batch).unwrap();
        platter.lock().acknowledged = model;
        assert_eq!(blobs_in(directory.path()), 0, "seed {seed:#x}, round {number}: beside the log");
    }
    std::mem::take(&mut platter.lock().images)
}

impl Image {
    /// Everything acknowledged is in it, and of the batch that was under way all
    /// or nothing.
    fn holds(&self) -> bool {
        let Ok(engine) = reopen(self.directory.path()) else { return false };
        let Ok(stored) = engine.range(b"", b"\xff", usize::MAX, usize::MAX) else { return false };
        let stored: Model = stored.into_iter().collect();
        stored == self.acknowledged || stored == self.under_way
    }
}

#[test]
fn power_loss_takes_nothing_that_was_acknowledged() {
    for (seed, values) in [
        (0x5eed_0001, Values::Short),
        (0x5eed_0002, Values::Short),
        (0x5eed_0003, Values::Long),
        (0x5eed_0004, Values::Long),
    ] {
        let images = run_on_platter(seed, values, false);
        assert!(images.len() >= 8, "{} cuts", images.len());
        for (number, image) in images.iter().enumerate() {
            assert!(image.holds(), "seed {seed:#x}, cut {number}");
            // It can be lived in: what is written now is there the next time.
            let engine = reopen(image.directory.path()).unwrap();
            let puts = vec![(b"after".to_vec(), Bytes::from_static(b"the cut"))];
            engine.transact(&Transaction { puts, ..Default::default() }).unwrap();
            drop(engine);
            let engine = reopen(image.directory.path()).unwrap();
            assert_eq!(engine.get(b"after").unwrap().unwrap(), "the cut", "seed {seed:#x}, cut {number}");
        }
    }
}

#[test]
fn the_model_of_power_loss_notices_an_early_acknowledgement() {
    let images = run_on_platter(0x5eed_0001, Values::Short, true);
    // Had it been acknowledged, the transaction under way would be promised too.
    let lost = images.iter().filter(|image| !image.holds()).count();
    assert!(lost > 0, "acknowledging before the sync must lose something in {} cuts", images.len());
}
