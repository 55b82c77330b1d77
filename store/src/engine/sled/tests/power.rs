//! What is left when the power fails.

use std::ffi::OsString;
use std::ops::Range;
use std::sync::{Arc, MutexGuard};

use super::*;

type Model = BTreeMap<Vec<u8>, Bytes>;

const BLOCK: usize = 4096;

/// A disk that loses power: what was not synced is dropped, or reaches the
/// platter in part and in any order.
struct Platter {
    directory: PathBuf,
    /// The log and the journal, each as of its last sync.
    synced: BTreeMap<PathBuf, Vec<u8>>,
    /// Blobs beside the log, as they were synced.
    beside: BTreeMap<OsString, Vec<u8>>,
    random: u64,
    cut_every: usize,
    syncs: usize,
    /// The most bytes of the log that changed between two syncs.
    widest: usize,
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
    fn new(directory: &Path, seed: u64, cut_every: usize) -> Self {
        Self {
            directory: directory.to_owned(),
            synced: [disk::log_of(directory), journal_of(directory)]
                .map(|file| (file.clone(), fs::read(file).unwrap()))
                .into(),
            beside: BTreeMap::new(),
            random: seed,
            cut_every,
            syncs: 0,
            widest: 0,
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
        let image = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(&self.directory).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() && !self.synced.contains_key(&entry.path()) {
                fs::copy(entry.path(), image.path().join(entry.file_name())).unwrap();
            }
        }
        fs::create_dir(image.path().join("blobs")).unwrap();
        for (name, bytes) in &self.beside {
            fs::write(image.path().join("blobs").join(name), bytes).unwrap();
        }
        let share = self.random(5);
        for (path, synced) in self.synced.clone() {
            let written = fs::read(&path).unwrap();
            let file = File::create(image.path().join(path.file_name().unwrap())).unwrap();
            file.write_all_at(&synced, 0).unwrap();
            for (start, block) in changed(&synced, &written) {
                if self.random(4) < share {
                    file.write_all_at(block, start as u64).unwrap();
                }
            }
        }
        let (acknowledged, under_way) = (self.acknowledged.clone(), self.under_way.clone());
        self.images.push(Image { directory: image, acknowledged, under_way });
    }

    /// All that is in a file reaches the platter, unless the power fails before.
    fn sync(&mut self, path: PathBuf) -> io::Result<()> {
        self.syncs += 1;
        if self.syncs.is_multiple_of(self.cut_every) {
            self.cut();
        }
        let written = fs::read(&path)?;
        if path == disk::log_of(&self.directory) {
            let bytes = changed(&self.synced[&path], &written).map(|(_, block)| block.len()).sum();
            self.widest = self.widest.max(bytes);
        }
        self.synced.insert(path, written);
        Ok(())
    }
}

/// The blocks of a file that are not what they were, and where they begin.
fn changed<'a>(before: &'a [u8], now: &'a [u8]) -> impl Iterator<Item = (usize, &'a [u8])> {
    let blocks = now.chunks(BLOCK).enumerate().map(|(index, block)| (index * BLOCK, block));
    blocks.filter(|(start, block)| before.get(*start..start + block.len()) != Some(block))
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
        let log = disk::log_of(&platter.directory);
        platter.sync(log)
    }

    fn sync_journal(&self) -> io::Result<()> {
        let mut platter = self.lock();
        let journal = journal_of(&platter.directory);
        platter.sync(journal)
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
#[derive(Clone, Copy, Debug, PartialEq)]
enum Values {
    Short,
    /// A few renewals at a time, and an end to the oldest: many transactions between two syncs of the log.
    Few,
    /// Records of 6 to 60 KiB and one of 500 KB, among packs of renewals.
    Long,
    /// As many as a fleet has: new ones at the end of history, then leases among them that
    /// are rewritten in place, then the oldest is deleted.
    Many,
}

impl Values {
    fn rounds(self) -> u64 {
        match self {
            Values::Short => 160,
            Values::Few => 1200,
            Values::Long => 40,
            Values::Many => 32,
        }
    }

    /// Power fails before every so manieth sync: how often does not depend on what sled
    /// writes, and primes meet every step of a transaction.
    fn cut_every(self) -> usize {
        match self {
            Values::Short => 11,
            Values::Few => 23,
            Values::Long => 61,
            Values::Many => 29,
        }
    }
}

/// The transaction of a round, made of what the dice say.
fn round(number: u64, values: Values, platter: &mut Platter) -> Transaction {
    match values {
        Values::Short => {
            Transaction { puts: anywhere(number, 24, 200, 50..1550, platter), ..Default::default() }
        }
        Values::Few => few(number, platter),
        Values::Long => long(number, platter),
        Values::Many => many(number, platter),
    }
}

/// New values of some of the keys there are.
fn anywhere(number: u64, count: u64, keys: u64, lengths: Range<u64>, platter: &mut Platter) -> Vec<Pair> {
    let mut puts = Model::new();
    for i in 0..count {
        let key = format!("key-{:03}", platter.random(keys));
        let length = lengths.start + platter.random(lengths.end - lengths.start);
        puts.insert(key.into_bytes(), value(number * 100 + i, length as usize));
    }
    puts.into_iter().collect()
}

fn few(number: u64, platter: &mut Platter) -> Transaction {
    let pack = |number: u64| format!("pack-{number:08}").into_bytes();
    let renewals = 1 + platter.random(64);
    let puts = vec![(pack(number), value(number, renewals as usize * 24))];
    let mut deletes = Vec::new();
    if number.is_multiple_of(16) {
        let old = pack(number.saturating_sub(100));
        deletes.extend(platter.acknowledged.range(pack(0)..old).map(|(key, _)| key.clone()));
    }
    Transaction { puts, deletes, ..Default::default() }
}

fn long(number: u64, platter: &mut Platter) -> Transaction {
    let mut puts = anywhere(number, 5, 40, 6 * 1024..60 * 1024, platter);
    if platter.random(6) == 0 {
        puts.push((b"key-of-all".to_vec(), value(number, 500_000)));
    }
    let pack = |number: u64| format!("pack-{number:08}").into_bytes();
    for i in 0..platter.random(6) {
        let renewals = 1 + platter.random(2048);
        puts.push((pack(number * 8 + i), value(number, renewals as usize * 24)));
    }
    let old = pack(number.saturating_sub(6) * 8);
    let deletes = platter.acknowledged.range(pack(0)..old).map(|(key, _)| key.clone()).collect();
    Transaction { puts, deletes, ..Default::default() }
}

fn many(number: u64, platter: &mut Platter) -> Transaction {
    const AT_ONCE: u64 = 300;
    let change = |number: u64| format!("v-{number:08}").into_bytes();
    let is_lease = |number: &u64| number.is_multiple_of(2);
    let mut transaction = Transaction::default();
    match number % 4 {
        0 | 1 => transaction.puts.extend((number * AT_ONCE..(number + 1) * AT_ONCE).map(|i| {
            let length = if is_lease(&i) { 300 } else { 2000 + platter.random(3000) };
            (change(i), value(i, length as usize))
        })),
        2 => {
            let step = 2 * (1 + platter.random(8));
            let leases = (0..number * AT_ONCE).step_by(step as usize).filter(is_lease);
            let existing = leases.filter(|i| platter.acknowledged.contains_key(&change(*i)));
            transaction.puts.extend(existing.map(|i| (change(i), value(number * 100_000 + i, 300))));
        }
        _ => {
            let old = change(number.saturating_sub(12) * AT_ONCE);
            transaction
                .deletes
                .extend(platter.acknowledged.range(change(0)..old).map(|(key, _)| key.clone()));
        }
    }
    transaction
}

/// Writes batches until enough has been through several of sled's segments, and
/// cuts the power before some of the syncs.
fn run_on_platter(seed: u64, values: Values, acknowledge_before_sync: bool) -> Vec<Image> {
    let directory = tempfile::tempdir().unwrap();
    format::check_or_create(directory.path()).unwrap();
    let db = open_db(directory.path(), 1 << 20).unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    let platter = Arc::new(Mutex::new(Platter::new(directory.path(), seed, values.cut_every())));
    let disk = Box::new(Shared(Arc::clone(&platter)));
    let engine = SledEngine::with_disk(directory.path(), 1 << 20, db, journal, disk);
    let platter = Shared(platter);
    for number in 0..values.rounds() {
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
    let widest = platter.lock().widest;
    assert!(widest < SEGMENT, "seed {seed:#x}, {values:?}: {widest} bytes between two syncs");
    let journal = fs::metadata(journal_of(directory.path())).unwrap().len();
    assert!(values != Values::Few || journal < WINDOW as u64, "the journal grew to {journal} bytes");
    std::mem::take(&mut platter.lock().images)
}

impl Image {
    /// Power fails again and again while the files are opened: what each time leaves.
    fn cut_while_opening(&self) -> Vec<Image> {
        let directory = self.directory.path();
        let platter = Arc::new(Mutex::new(Platter::new(directory, 0x5eed_0009, 3)));
        platter.lock().unwrap().acknowledged = self.acknowledged.clone();
        platter.lock().unwrap().under_way = self.under_way.clone();
        let db = open_db(directory, 1 << 20).unwrap();
        let journal = Journal::open(directory).unwrap();
        let disk = Box::new(Shared(Arc::clone(&platter)));
        let engine = SledEngine::with_disk(directory, 1 << 20, db, journal, disk);
        engine.sync().unwrap();
        engine.replay_journal(engine.exclusive().as_ref().unwrap()).unwrap();
        std::mem::take(&mut platter.lock().unwrap().images)
    }

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
        (0x5eed_0007, Values::Few),
        (0x5eed_0008, Values::Few),
        (0x5eed_0003, Values::Long),
        (0x5eed_0004, Values::Long),
        (0x5eed_0005, Values::Many),
        (0x5eed_0006, Values::Many),
    ] {
        let images = run_on_platter(seed, values, false);
        assert!(images.len() >= 8, "{} cuts", images.len());
        for (number, image) in images.iter().enumerate() {
            if number % 16 == 0 {
                for (again, cut) in image.cut_while_opening().iter().enumerate() {
                    assert!(cut.holds(), "seed {seed:#x}, cut {number}, and while opening, {again}");
                }
            }
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
