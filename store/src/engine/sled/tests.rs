use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use super::value_pieces::piece_key;
use super::*;
use crate::engine::conformance;

mod power;

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

#[test]
fn records_whose_files_are_gone_are_not_taken_for_a_new_store() {
    let one = |key: &[u8]| {
        let puts = vec![(key.to_vec(), Bytes::from_static(b"v"))];
        Transaction { puts, ..Default::default() }
    };
    let (log, journal) = (disk::log_of as fn(&Path) -> PathBuf, journal_of as fn(&Path) -> PathBuf);
    let remove: fn(PathBuf) = |file| fs::remove_file(file).unwrap();
    let empty: fn(PathBuf) = |file| fs::write(file, "").unwrap();
    for (committed, file, lose, said) in [
        (true, log, remove, "its files are gone: put them back"),
        (
            true,
            log,
            empty,
            "the journal goes on with transaction 2, the rest ends with 0: put back the files",
        ),
        (true, journal, remove, "its files are gone: put them back"),
        (false, log, remove, ""),
        (false, journal, remove, ""),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let engine = SledEngine::open(directory.path(), 1 << 20).unwrap();
        if committed {
            engine.transact(&one(b"k")).unwrap();
        }
        drop(engine);
        let engine = reopen(directory.path()).unwrap();
        if committed {
            engine.transact(&one(b"l")).unwrap();
        }
        drop(engine);
        for entry in fs::read_dir(directory.path()).unwrap().map(Result::unwrap) {
            // What sled remembers of its log lies beside it.
            if entry.file_name().to_string_lossy().starts_with("snap.") {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        lose(file(directory.path()));
        match reopen(directory.path()) {
            Ok(engine) => {
                assert!(!committed, "a store that had records came up without them");
                engine.transact(&one(b"k")).unwrap();
            }
            Err(error) => {
                assert!(committed, "{error}");
                assert!(error.to_string().contains(said), "{error}");
            }
        }
    }
}

/// A disk one of whose syncs fails.
struct Failing {
    directory: PathBuf,
    files: Files,
    /// How many succeed before.
    left: AtomicUsize,
    /// What the one that fails leaves behind: what it was to sync, or only what was synced before.
    loses: bool,
    synced: Mutex<BTreeMap<PathBuf, Vec<u8>>>,
}

impl Failing {
    fn pass(&self, path: &Path, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut synced = self.synced.lock().unwrap();
        if self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            sync()?;
            synced.insert(path.to_owned(), fs::read(path)?);
            return Ok(());
        }
        if self.loses {
            let mut before = synced.get(path).cloned().unwrap_or_default();
            before.resize(fs::metadata(path)?.len() as usize, 0);
            fs::OpenOptions::new().write(true).open(path)?.write_all_at(&before, 0)?;
        }
        Err(io::Error::other("this one failed"))
    }
}

impl Disk for Failing {
    fn sync_log(&self) -> io::Result<()> {
        self.pass(&disk::log_of(&self.directory), || self.files.sync_log())
    }

    fn sync_journal(&self) -> io::Result<()> {
        self.pass(&journal_of(&self.directory), || self.files.sync_journal())
    }

    fn sync_files(&self, directory: &Path, files: &[PathBuf]) -> io::Result<()> {
        self.files.sync_files(directory, files)
    }
}

/// A new engine, one of whose syncs fails.
fn failing(directory: &Path, sync: usize, loses: bool) -> SledEngine {
    format::check_or_create(directory).unwrap();
    let db = open_db(directory, 1 << 20).unwrap();
    let journal = Journal::open(directory).unwrap();
    let synced =
        [disk::log_of(directory), journal_of(directory)].map(|file| (file.clone(), fs::read(file).unwrap()));
    let disk = Box::new(Failing {
        directory: directory.to_owned(),
        files: Files::open(directory).unwrap(),
        left: AtomicUsize::new(sync),
        loses,
        synced: Mutex::new(synced.into()),
    });
    SledEngine::with_disk(directory, 1 << 20, db, journal, disk)
}

fn all(engine: &SledEngine) -> Vec<Pair> {
    engine.range(b"", b"\xff", usize::MAX, usize::MAX).unwrap()
}

#[test]
fn small_transactions_that_were_acknowledged_are_there_after_recovering() {
    let small = |number: u64| Transaction {
        puts: vec![
            (b"last".to_vec(), Bytes::copy_from_slice(&number.to_be_bytes())),
            (number.to_be_bytes().to_vec(), value(number, 200)),
        ],
        deletes: vec![number.saturating_sub(5).to_be_bytes().to_vec()],
        ..Default::default()
    };
    let numbers = |engine: &SledEngine| -> Vec<u64> {
        let keys = all(engine).into_iter().filter_map(|(key, _)| <[u8; 8]>::try_from(&*key).ok());
        keys.map(u64::from_be_bytes).collect()
    };
    for (sync, loses) in (0..60).flat_map(|sync| [(sync, false), (sync, true)]) {
        let directory = tempfile::tempdir().unwrap();
        let engine = failing(directory.path(), sync, loses);
        let failed = (6..).find(|number| engine.transact(&small(*number)).is_err()).unwrap();
        assert!(engine.transact(&small(failed)).is_err(), "nothing more before it has recovered");
        engine.recover().unwrap();
        let found = numbers(&engine);
        let last = *found.last().unwrap_or(&5);
        assert!(last == failed || last == failed - 1, "sync {sync}: {found:?}, and {failed} failed");
        // The one that failed may have happened all the same, but then all of it did.
        let expected: Vec<u64> = (6.max(last - 4)..=last).collect();
        assert_eq!(found, expected, "sync {sync}");
        engine.transact(&small(last + 1)).unwrap();
        let found = all(&engine);
        drop(engine);
        assert!(all(&reopen(directory.path()).unwrap()) == found, "sync {sync}: and it stays so");
    }
}

#[test]
fn a_large_transaction_that_failed_half_way_is_whole_or_absent_after_recovering() {
    let puts: Vec<Pair> = (0..60u64).map(|i| (i.to_be_bytes().to_vec(), value(i, 3000))).collect();
    let large = Transaction { puts, ..Default::default() };
    let mut outcomes = Vec::new();
    for (sync, loses) in (0..40).flat_map(|sync| [(sync, false), (sync, true)]) {
        let directory = tempfile::tempdir().unwrap();
        let engine = failing(directory.path(), sync, loses);
        if engine.transact(&large).is_ok() {
            break;
        }
        engine.recover().unwrap();
        let found = all(&engine);
        assert!(found.is_empty() || found == large.puts, "sync {sync}: {} of 60", found.len());
        outcomes.push(!found.is_empty());
        drop(engine);
        assert!(all(&reopen(directory.path()).unwrap()) == found, "sync {sync}: and it stays so");
    }
    // The sync that fails first is the journal's; what the file holds may have reached the disk all the same.
    assert!(outcomes.len() > 4, "it takes several windows: {outcomes:?}");
    assert!(outcomes[2..].iter().all(|whole| *whole), "once it is in the journal it happens: {outcomes:?}");
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

fn blobs_in(directory: &Path) -> usize {
    fs::read_dir(directory.join("blobs")).unwrap().count()
}

/// A value of this length that is like no other.
fn value(seed: u64, length: usize) -> Bytes {
    let mut value: Vec<u8> = (0..length as u64).map(|i| (i.wrapping_mul(seed | 1) >> 3) as u8).collect();
    let stamp = seed.to_be_bytes();
    let stamped = stamp.len().min(length);
    value[..stamped].copy_from_slice(&stamp[..stamped]);
    value.into()
}

#[test]
fn a_journal_that_lacks_a_transaction_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let engine = SledEngine::open(directory.path(), 1 << 20).unwrap();
    let mut ends = Vec::new();
    for number in 0..5u64 {
        let puts = vec![(number.to_be_bytes().to_vec(), value(number, 100))];
        engine.transact(&Transaction { puts, ..Default::default() }).unwrap();
        ends.push(fs::metadata(journal_of(directory.path())).unwrap().len());
    }
    drop(engine);
    let mut journal = fs::read(journal_of(directory.path())).unwrap();
    journal[ends[2] as usize - 1] ^= 1;
    fs::write(journal_of(directory.path()), journal).unwrap();
    let Err(refused) = reopen(directory.path()) else { panic!("a missing transaction was not detected") };
    let said = refused.to_string();
    assert!(said.contains("the journal goes on with transaction 4, the rest ends with 2"), "{said}");
}

#[test]
fn the_journal_of_the_format_before_is_taken_in() {
    for (applied, expected) in [(4u64, "new"), (5, "old")] {
        let directory = tempfile::tempdir().unwrap();
        {
            let db = open_db(directory.path(), 1 << 20).unwrap();
            db.insert(value_key(b"k"), value_codec::encode(b"old").0).unwrap();
            db.insert(APPLIED, &applied.to_be_bytes()).unwrap();
            db.flush().unwrap();
        }
        let journal = Journal::open(directory.path()).unwrap();
        let put = |value: &[u8]| {
            vec![Change { key: value_key(b"k"), value: Some(value_codec::encode(value).0), replaces: 0 }]
        };
        let (_, end) = journal.write(End::of_format_3(4), put(b"new")).unwrap();
        // It held one transaction; what lies behind it is left of others.
        journal.write(end, put(b"left over")).unwrap();
        fs::write(directory.path().join("MUSTER_FORMAT"), "muster-store 3 used\n").unwrap();
        let engine = reopen(directory.path()).unwrap();
        assert_eq!(engine.get(b"k").unwrap().unwrap(), expected);
        let tag = fs::read_to_string(directory.path().join("MUSTER_FORMAT")).unwrap();
        assert_eq!(tag, "muster-store 4 used\n");
        drop(engine);
        assert_eq!(reopen(directory.path()).unwrap().get(b"k").unwrap().unwrap(), expected);
    }
}

#[test]
fn values_of_the_format_before_are_cut_anew() {
    const LONG: usize = 60 * 1024;
    let directory = tempfile::tempdir().unwrap();
    let values: Vec<_> = (0..100u64).map(|i| (i.to_be_bytes(), value(i, 1000 * i as usize))).collect();
    {
        let db = open_db(directory.path(), 1 << 20).unwrap();
        for (key, value) in &values {
            let (first, following) = value_codec::encode_in(LONG, value);
            db.insert(value_key(key), first).unwrap();
            for (index, piece) in following.into_iter().enumerate() {
                db.insert(piece_key(key, index), piece).unwrap();
            }
        }
        db.flush().unwrap();
    }
    assert!(blobs_in(directory.path()) > 0, "the format before had this to be cured of");
    fs::write(directory.path().join("MUSTER_FORMAT"), "muster-store 1\n").unwrap();

    let engine = reopen(directory.path()).unwrap();
    assert_eq!(fs::read_to_string(directory.path().join("MUSTER_FORMAT")).unwrap(), "muster-store 4 used\n");
    let cut = engine.shared().as_ref().unwrap().iter().all(|pair| !value_codec::is_long(&pair.unwrap().1));
    assert!(cut, "a long entry is left");
    let expected: Vec<Pair> = values.into_iter().map(|(key, value)| (key.to_vec(), value)).collect();
    assert!(all(&engine) == expected, "the values are what they were");
    drop(engine);
    assert!(all(&reopen(directory.path()).unwrap()) == expected, "and stay so");
}
