//! What containers and pods use.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use muster_proto::name::Uid;

use super::super::{ContainerId, DiskUsage, Usage, cgroup, processes};
use super::Inner;

/// The unit in which the kernel counts the blocks of files, whatever the filesystem.
const BLOCK: u64 = 512;

impl Inner {
    pub(super) fn usages(&self) -> BTreeMap<ContainerId, Usage> {
        let running = self.running();
        let mut usages = BTreeMap::new();
        let mut uncounted = BTreeMap::new();
        for (id, run, paths) in running {
            match paths.and_then(|paths| cgroup::usage(&paths.container)) {
                Some(usage) => drop(usages.insert(id, usage)),
                // The processes of a container are in its shim's session, unless they left it on purpose.
                None => drop(uncounted.insert(run.shim.pid, (run.shim.pid, id))),
            }
        }
        if uncounted.is_empty() {
            return usages;
        }
        // One listing of all processes, however many containers need it.
        for stat in processes::all().unwrap_or_default() {
            let Some((shim, id)) = uncounted.get(&stat.session) else { continue };
            if stat.pid != *shim && !processes::is_zombie(&stat) {
                let usage: &mut Usage = usages.entry(id.clone()).or_default();
                usage.memory_bytes = usage.memory_bytes.saturating_add(processes::resident_bytes(&stat));
                usage.cpu = usage.cpu.saturating_add(processes::cpu_time(&stat));
                usage.pids += 1;
            }
        }
        usages
    }

    pub(super) fn disk_usages(&self) -> BTreeMap<Uid, DiskUsage> {
        let mut usages: BTreeMap<Uid, DiskUsage> = BTreeMap::new();
        let device = fs::metadata(&self.pods).map_or(0, |found| found.dev());
        for directory in [self.pods.as_path(), self.volumes.directory()] {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                if let Some(uid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                    add_up(&entry.path(), device, usages.entry(uid).or_default());
                }
            }
        }
        usages
    }
}

/// Adds a file, or a directory with its content, unless it is on another device: a volume in memory uses no disk. A file
/// that vanishes meanwhile counts nothing.
fn add_up(path: &Path, device: u64, usage: &mut DiskUsage) {
    let Ok(found) = fs::symlink_metadata(path) else { return };
    if found.dev() != device {
        return;
    }
    usage.bytes = usage.bytes.saturating_add(found.blocks().saturating_mul(BLOCK));
    usage.inodes += 1;
    if found.is_dir() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            add_up(&entry.path(), device, usage);
        }
    }
}
