//! Parity of a record file, from which a damaged block can be rebuilt.
//!
//! Both checkpoints refer to the same record files, so neither can stand in for the other there. For each group of blocks a
//! second file holds a parity block, the exclusive-or of them. One block of a group that is damaged or cannot be read is
//! computed from the others; the checksum in the manifest proves that it is the one that was written.

use std::io;
use std::path::Path;

use super::damage::{Damage, ReadError};
use super::disk::{Disk, at};
use super::manifest::{FileBlocks, RecordFileBlocks};
use super::record_file;

/// How many blocks have one parity block. More of them cost less, and survive less.
const GROUP: usize = 32;
const EXTENSION: &str = "parity";

pub(super) fn file_name(number: u32) -> String {
    Path::new(&record_file::file_name(number)).with_extension(EXTENSION).to_string_lossy().into_owned()
}

/// The parity of a file whose blocks are added in order.
#[derive(Default)]
struct Parity {
    complete: Vec<u8>,
    group: Vec<u8>,
    blocks: usize,
}

impl Parity {
    fn add(&mut self, block: &[u8]) {
        if self.blocks == GROUP {
            self.complete.append(&mut self.group);
            self.blocks = 0;
        }
        if self.group.len() < block.len() {
            self.group.resize(block.len(), 0);
        }
        xor_into(&mut self.group, block);
        self.blocks += 1;
    }

    fn finish(mut self) -> Vec<u8> {
        self.complete.append(&mut self.group);
        self.complete
    }
}

fn xor_into(sum: &mut [u8], block: &[u8]) {
    sum.iter_mut().zip(block).for_each(|(sum, byte)| *sum ^= byte);
}

/// Makes a new record file and its parity durable, and reads both back from the disk.
pub(super) fn complete(
    disk: &dyn Disk,
    directory: &Path,
    number: u32,
) -> Result<RecordFileBlocks, ReadError> {
    let mut parity = Parity::default();
    let name = record_file::file_name(number);
    let blocks = FileBlocks::of_each(disk, directory, &name, |block| parity.add(block))?;
    let name = file_name(number);
    let path = directory.join(&name);
    let written = disk.create(&path).and_then(|file| file.write_all_at(&parity.finish(), 0));
    written.map_err(|error| ReadError::io(&path, 0, error))?;
    let parity = FileBlocks::of(disk, directory, &name)?;
    Ok(RecordFileBlocks { blocks, parity, live_bytes: 0 })
}

/// Computes a block from the others of its group.
pub(super) fn rebuild(
    disk: &dyn Disk,
    directory: &Path,
    file: &RecordFileBlocks,
    index: usize,
) -> Result<Vec<u8>, ReadError> {
    let RecordFileBlocks { blocks, parity, .. } = file;
    let group = index / GROUP;
    let mut rebuilt = parity.open(disk, directory)?.block(group)?;
    let opened = blocks.open(disk, directory)?;
    for other in (group * GROUP..blocks.len().min((group + 1) * GROUP)).filter(|other| *other != index) {
        xor_into(&mut rebuilt, &opened.block(other)?);
    }
    rebuilt.truncate(blocks.block_len(index));
    if blocks.is_block(index, &rebuilt) {
        return Ok(rebuilt);
    }
    let what = "a block does not match its checksum, and its parity does not either";
    Err(Damage::at(&directory.join(&blocks.name), blocks.offset_of(index), what).into())
}

/// Deletes a record file and its parity.
pub(super) fn remove(disk: &dyn Disk, directory: &Path, number: u32) -> io::Result<()> {
    // The record file last: those without one are not looked for.
    let parity = directory.join(file_name(number));
    match disk.remove_file(&parity) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => at(&parity, removed)?,
    }
    let records = directory.join(record_file::file_name(number));
    at(&records, disk.remove_file(&records))
}

#[cfg(test)]
mod tests {
    use super::super::disk::RealDisk;
    use super::super::manifest::BLOCK;
    use super::*;

    /// A record file of some length, complete with its parity.
    fn complete_file(directory: &Path, length: usize) -> (Vec<u8>, RecordFileBlocks) {
        let content: Vec<u8> = (0..length).map(|index| (index / 7 + index / BLOCK) as u8).collect();
        std::fs::write(directory.join(record_file::file_name(1)), &content).unwrap();
        let file = complete(&RealDisk, directory, 1).unwrap();
        (content, file)
    }

    #[test]
    fn any_one_block_of_a_group_is_rebuilt() {
        for length in [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, GROUP * BLOCK, (GROUP + 1) * BLOCK + 5] {
            let directory = tempfile::tempdir().unwrap();
            let (content, file) = complete_file(directory.path(), length);
            let path = directory.path().join(record_file::file_name(1));
            for index in [0, (length - 1) / BLOCK / 2, (length - 1) / BLOCK] {
                let range = index * BLOCK..length.min((index + 1) * BLOCK);
                let mut damaged = content.clone();
                damaged[range.clone()].fill(0xa5);
                std::fs::write(&path, damaged).unwrap();
                let rebuilt = rebuild(&RealDisk, directory.path(), &file, index).unwrap();
                assert!(rebuilt == content[range], "block {index} of {length} bytes");
            }
        }
    }

    #[test]
    fn two_damaged_blocks_of_a_group_or_a_damaged_parity_are_not_taken_for_right() {
        let directory = tempfile::tempdir().unwrap();
        let (content, file) = complete_file(directory.path(), 3 * BLOCK);
        let (path, parity) =
            (directory.path().join(&file.blocks.name), directory.path().join(&file.parity.name));
        let mut damaged = content.clone();
        damaged[5] ^= 1;
        damaged[BLOCK + 5] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        let error = rebuild(&RealDisk, directory.path(), &file, 0).unwrap_err();
        assert!(error.to_string().contains(&format!("damaged at byte {BLOCK}")), "{error}");
        damaged[BLOCK + 5] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        rebuild(&RealDisk, directory.path(), &file, 0).unwrap();
        let mut other = std::fs::read(&parity).unwrap();
        other[9] ^= 1;
        std::fs::write(&parity, other).unwrap();
        assert!(rebuild(&RealDisk, directory.path(), &file, 0).is_err());
        std::fs::remove_file(&parity).unwrap();
        assert!(rebuild(&RealDisk, directory.path(), &file, 0).is_err());
    }
}
