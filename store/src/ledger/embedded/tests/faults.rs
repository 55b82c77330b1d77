//! A disk that fails or loses power: each operation in turn, and nothing acknowledged is lost.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Mutex;

use super::super::disk::DiskFile;
use super::*;

/// What the disk does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// This operation fails, and the following ones succeed.
    Once(u64),
    /// This operation and all following ones fail, until it is healed.
    From(u64),
}

#[derive(Default)]
struct State {
    operations: u64,
    fault: Option<Fault>,
    /// Written and not synced: file, offset, and the bytes that were there before.
    unsynced: HashMap<PathBuf, Vec<(u64, Vec<u8>)>>,
}

/// The real disk, with faults.
#[derive(Clone, Default)]
struct FaultyDisk(Arc<Mutex<State>>);

impl FaultyDisk {
    fn failing(fault: Fault) -> Self {
        let disk = Self::default();
        disk.0.lock().unwrap().fault = Some(fault);
        disk
    }

    fn heal(&self) {
        self.0.lock().unwrap().fault = None;
    }

    fn operations(&self) -> u64 {
        self.0.lock().unwrap().operations
    }

    fn operation(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.operations += 1;
        let now = state.operations;
        match state.fault {
            Some(Fault::Once(number)) if number == now => Err(io::Error::from_raw_os_error(5)),
            Some(Fault::From(number)) if number <= now => Err(io::Error::from_raw_os_error(5)),
            _ => Ok(()),
        }
    }

    /// Undoes what was not synced, each write with some probability, as a loss of power does.
    fn cut_power(&self, random: &mut Random) {
        let unsynced = std::mem::take(&mut self.0.lock().unwrap().unsynced);
        for (path, writes) in unsynced {
            if !path.exists() {
                continue;
            }
            let mut content = fs::read(&path).unwrap();
            for (offset, before) in writes.into_iter().rev() {
                for (index, sector) in before.chunks(512).enumerate() {
                    let from = offset as usize + 512 * index;
                    if random.below(2) == 0 && from + sector.len() <= content.len() {
                        content[from..from + sector.len()].copy_from_slice(sector);
                    }
                }
            }
            fs::write(&path, content).unwrap();
        }
    }
}

struct FaultyFile {
    disk: FaultyDisk,
    path: PathBuf,
    file: Box<dyn DiskFile>,
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path, writable: bool) -> io::Result<Box<dyn DiskFile>> {
        self.operation()?;
        let file = RealDisk.open(path, writable)?;
        Ok(Box::new(FaultyFile { disk: self.clone(), path: path.to_owned(), file }))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.operation()?;
        let file = RealDisk.create(path)?;
        Ok(Box::new(FaultyFile { disk: self.clone(), path: path.to_owned(), file }))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        self.operation()?;
        RealDisk.list(directory)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.operation()?;
        RealDisk.create_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operation()?;
        RealDisk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.operation()?;
        RealDisk.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.operation()?;
        RealDisk.remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.operation()?;
        RealDisk.sync_dir(path)
    }

    fn available(&self, directory: &Path) -> io::Result<u64> {
        self.operation()?;
        RealDisk.available(directory)
    }

    fn total(&self, directory: &Path) -> io::Result<u64> {
        self.operation()?;
        RealDisk.total(directory)
    }
}

impl DiskFile for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk.operation()?;
        self.file.read_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut before = vec![0; bytes.len()];
        self.file.read_at(&mut before, offset)?;
        let mut state = self.disk.0.lock().unwrap();
        state.unsynced.entry(self.path.clone()).or_default().push((offset, before));
        drop(state);
        if let Err(error) = self.disk.operation() {
            // A part of it may have been written.
            let _ = self.file.write_all_at(&bytes[..bytes.len() / 2], offset);
            return Err(error);
        }
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.operation()?;
        self.disk.0.lock().unwrap().unsynced.remove(&self.path);
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.disk.operation()?;
        self.file.len()
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        self.disk.operation()?;
        self.file.allocate(length)
    }

    fn drop_cached(&self) -> io::Result<()> {
        self.disk.operation()?;
        self.file.drop_cached()
    }
}

/// Opens, writes, makes checkpoints and opens again, as far as the disk allows. Returns the acknowledged state, and the
/// state if an unanswered commit happened all the same.
fn run(disk: &FaultyDisk, directory: &Path, seed: u64) -> Option<[(Revision, Fingerprint); 2]> {
    let mut random = Random::seeded(seed);
    let ledger = EmbeddedLedger::open_on(Arc::new(disk.clone()), directory, CACHE).ok()?;
    let mut writer = TestWriter::try_keeping(ledger, 20).ok()?;
    for round in 0..12 {
        let some = steps(&mut random, 6, 3_000);
        let maybe = writer.draft(&some);
        let maybe = (maybe.head, maybe.fingerprint);
        if writer.commit(&some).is_err() {
            let acknowledged = writer.state();
            if writer.ledger.recover().is_err() {
                return Some([acknowledged, maybe]);
            }
            continue;
        }
        if round % 4 == 3 {
            let _ = writer.checkpoint();
            let _ = writer.ledger.trim();
        }
    }
    Some([writer.state(); 2])
}

fn load(directory: &Path) -> Result<(Revision, Fingerprint), String> {
    let ledger = EmbeddedLedger::open(directory, CACHE).map_err(|error| error.to_string())?;
    let memory = ledger.load(&mut |_| ()).map_err(|error| error.to_string())?;
    Ok((memory.head(), memory.fingerprint()))
}

/// How many operations a whole run has.
fn operations(directory: &Path) -> u64 {
    let disk = FaultyDisk::default();
    run(&disk, directory, 5).unwrap();
    disk.operations()
}

#[test]
fn an_error_of_any_single_operation_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let whole = operations(&directory.path().join("whole"));
    let stride = (whole / 150).max(1);
    for number in (1..=whole).step_by(stride as usize) {
        let data = directory.path().join(number.to_string());
        let disk = FaultyDisk::failing(Fault::Once(number));
        let ran = run(&disk, &data, 5);
        let loaded = load(&data).unwrap_or_else(|error| panic!("operation {number}: {error}"));
        if let Some(states) = ran {
            assert!(states.contains(&loaded), "operation {number} of {whole}");
        }
        fs::remove_dir_all(&data).unwrap();
    }
}

#[test]
fn an_error_while_opening_destroys_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let state = run(&FaultyDisk::default(), &data, 6).unwrap()[0];
    let open = |disk: &FaultyDisk| {
        let ledger = EmbeddedLedger::open_on(Arc::new(disk.clone()), &data, CACHE);
        ledger.map_err(|error| error.to_string())?.load(&mut |_| ()).map_err(|error| error.to_string())
    };
    let disk = FaultyDisk::default();
    open(&disk).unwrap();
    for number in 1..=disk.operations() {
        for fault in [Fault::Once(number), Fault::From(number)] {
            if let Ok(loaded) = open(&FaultyDisk::failing(fault)) {
                assert_eq!((loaded.head(), loaded.fingerprint()), state, "{fault:?}");
            }
            assert_eq!(load(&data), Ok(state), "after {fault:?}");
        }
    }
}

#[test]
fn a_store_whose_disk_fails_for_a_while_goes_on_from_memory() {
    let directory = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::default();
    let ledger = EmbeddedLedger::open_on(Arc::new(disk.clone()), directory.path(), CACHE).unwrap();
    let mut writer = TestWriter::on(ledger);
    let mut random = Random::seeded(9);
    for _ in 0..10 {
        writer.commit(&steps(&mut random, 5, 1_000)).unwrap();
        disk.0.lock().unwrap().fault = Some(Fault::From(0));
        assert!(writer.commit(&[put("refused", 1)]).is_err());
        assert!(writer.ledger.recover().is_err() || writer.commit(&[put("refused", 1)]).is_err());
        disk.heal();
        writer.ledger.recover().unwrap();
        writer.commit(&steps(&mut random, 5, 1_000)).unwrap();
        writer.checkpoint().unwrap();
    }
    let state = writer.state();
    drop(writer);
    assert_eq!(load(directory.path()), Ok(state));
}

#[test]
fn a_loss_of_power_loses_nothing_that_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let whole = operations(&directory.path().join("whole"));
    let mut random = Random::seeded(8);
    let stride = (whole / 150).max(1);
    for number in (1..=whole).step_by(stride as usize) {
        let data = directory.path().join(number.to_string());
        // The process gets no further than this operation.
        let disk = FaultyDisk::failing(Fault::From(number));
        let ran = run(&disk, &data, 5);
        disk.cut_power(&mut random);
        match load(&data) {
            Ok(loaded) => {
                if let Some(states) = ran {
                    assert!(states.contains(&loaded), "operation {number} of {whole}");
                }
            }
            Err(error) => panic!("operation {number} of {whole}: {error}"),
        }
        fs::remove_dir_all(&data).unwrap();
    }
}
