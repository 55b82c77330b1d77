//! The file operations of the embedded ledger. Tests replace them to inject faults.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use muster_rpc::private_dir;

/// The file system.
pub(super) trait Disk: Send + Sync {
    /// Opens an existing file for reading and, if `writable`, for writing.
    fn open(&self, path: &Path, writable: bool) -> io::Result<Box<dyn DiskFile>>;

    /// Creates a file that must not exist yet.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// The names in a directory, sorted.
    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>>;

    fn create_dir(&self, path: &Path) -> io::Result<()>;

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove_file(&self, path: &Path) -> io::Result<()>;

    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// The bytes that can still be written.
    fn available(&self, directory: &Path) -> io::Result<u64>;

    /// The bytes of the whole file system.
    fn total(&self, directory: &Path) -> io::Result<u64>;
}

/// An open file.
pub(super) trait DiskFile: Send + Sync {
    /// Reads at most `buffer.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes the content durable.
    fn sync(&self) -> io::Result<()>;

    fn len(&self) -> io::Result<u64>;

    /// Reserves space and sets the length; the new bytes are zero.
    fn allocate(&self, length: u64) -> io::Result<()>;

    /// Drops the file from the page cache, so that it is read from the disk: the kernel keeps pages whose write failed,
    /// and treats them as written.
    fn drop_cached(&self) -> io::Result<()>;
}

/// The real file system.
pub(super) struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path, writable: bool) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().read(true).write(writable).open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(private_dir::file_options().read(true).write(true).create_new(true).open(path)?))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        let entries = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name()));
        let mut names = entries.collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        private_dir::create_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn available(&self, directory: &Path) -> io::Result<u64> {
        let space = rustix::fs::statvfs(directory)?;
        Ok(space.f_bavail * space.f_frsize)
    }

    fn total(&self, directory: &Path) -> io::Result<u64> {
        let space = rustix::fs::statvfs(directory)?;
        Ok(space.f_blocks * space.f_frsize)
    }
}

impl DiskFile for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < buffer.len() {
            match FileExt::read_at(self, &mut buffer[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(some) => read += some,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(self, flags, 0, length) {
            // Not every file system can reserve space.
            Err(rustix::io::Errno::OPNOTSUPP) => self.set_len(length),
            allocated => Ok(allocated?),
        }
    }

    fn drop_cached(&self) -> io::Result<()> {
        self.sync_data()?;
        Ok(rustix::fs::fadvise(self, 0, None, rustix::fs::Advice::DontNeed)?)
    }
}

/// Adds the file to an error.
pub(super) fn at<T>(path: &Path, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
