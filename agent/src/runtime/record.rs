//! What is written down about a container, so that an agent that comes later knows as much as the one before.
//!
//! Each attempt has three records under `<state-dir>/pods/<pod uid>/<container>/`, each written once, whole or not at
//! all: the *order* (the agent, before it starts the shim), the *run* (the shim, once the program runs) and the *exit*
//! (the shim, once nothing of the container is left).
//!
//! Two of the files double as locks. The shim holds the order for as long as it lives, so whoever can lock an order
//! knows that no shim works on it. The run is held by the shim while it reaps the container's first process and by the
//! agent while it signals the group, so a pid cannot pass to a stranger between the look at it and the signal.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::processes::ProcessKey;
use super::{ContainerId, ContainerSpec, Exit};

const ORDER: &str = "order";
const RUN: &str = "run";
const EXIT: &str = "exit";
const LOG: &str = "log";
const OLD_LOG: &str = "log.1";
const SHIM_LOG: &str = "shim";
const ENDINGS: [&str; 6] = [ORDER, RUN, EXIT, LOG, OLD_LOG, SHIM_LOG];
/// What a record's name ends in until all of it is there.
const UNFINISHED: &str = ".new";

/// What a shim is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub spec: ContainerSpec,
    pub cgroup: Option<CgroupPaths>,
    /// CPUs to pin the program to where no cgroup does it.
    pub affinity: Vec<u32>,
}

/// Where in the cgroup tree a container and its shim belong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPaths {
    pub container: PathBuf,
    /// Shims live outside their containers' cgroups, so that killing those leaves somebody to tell the tale.
    pub shims: PathBuf,
}

/// A container that a shim started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The boot that the processes belong to: their numbers mean nothing after another.
    pub boot_id: String,
    pub shim: ProcessKey,
    /// The container's first process and the leader of its group.
    pub main: ProcessKey,
    #[serde(with = "as_text")]
    pub started_at: Timestamp,
}

/// Where one attempt's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// `<folder>/<attempt>`, to which each file adds its termination.
    stem: PathBuf,
}

impl Files {
    /// The files of that container under the folder of all pods.
    pub fn of(pods: &Path, id: &ContainerId) -> Files {
        Files { stem: pods.join(id.pod.to_string()).join(&id.container).join(id.attempt.to_string()) }
    }

    /// The files that belong to an order.
    pub fn beside(order: &Path) -> Files {
        Files { stem: order.with_extension("") }
    }

    /// The files that this one belongs to; `None` when it is none of ours.
    fn with(path: &Path) -> Option<Files> {
        let (attempt, termination) = path.file_name()?.to_str()?.split_once('.')?;
        let termination = termination.strip_suffix(UNFINISHED).unwrap_or(termination);
        attempt.parse::<u32>().ok()?;
        ENDINGS.contains(&termination).then(|| Files { stem: path.with_file_name(attempt) })
    }

    pub fn order(&self) -> PathBuf {
        self.stem.with_extension(ORDER)
    }

    pub fn run(&self) -> PathBuf {
        self.stem.with_extension(RUN)
    }

    pub fn exit(&self) -> PathBuf {
        self.stem.with_extension(EXIT)
    }

    /// What the container prints.
    pub fn log(&self) -> PathBuf {
        self.stem.with_extension(LOG)
    }

    /// What the container printed before its log was cut.
    pub fn old_log(&self) -> PathBuf {
        self.stem.with_extension(OLD_LOG)
    }

    /// What the shim itself had to complain about.
    pub fn shim_log(&self) -> PathBuf {
        self.stem.with_extension(SHIM_LOG)
    }

    fn folder(&self) -> &Path {
        self.stem.parent().unwrap_or(Path::new("/"))
    }

    /// Makes the folder that the files belong to.
    pub fn make_folder(&self) -> io::Result<()> {
        make_private_dir(self.folder())
    }

    /// Removes all files, and the folders when they hold nothing else.
    ///
    /// The order goes first: from then on the attempt is forgotten, and [`sweep`] takes whatever a crash
    /// leaves of it.
    pub fn remove(&self) -> io::Result<()> {
        for termination in ENDINGS {
            absent_is_fine(fs::remove_file(self.stem.with_extension(termination)))?;
        }
        self.remove_empty_folders();
        Ok(())
    }

    fn remove_empty_folders(&self) {
        // A folder that still holds another attempt or container refuses to go, as it should.
        let container = self.folder();
        if fs::remove_dir(container).is_ok()
            && let Some(pod) = container.parent()
        {
            let _ = fs::remove_dir(pod);
        }
    }
}

/// Every order under the folder of all pods.
pub fn find_orders(pods: &Path) -> io::Result<Vec<PathBuf>> {
    let found = find_files(pods)?.into_iter();
    Ok(found.filter(|(path, files)| *path == files.order()).map(|(path, _)| path).collect())
}

/// Removes files that belong to no order: what a crash left of an attempt that was being forgotten or not yet ordered.
/// Only for one who knows that nobody writes orders meanwhile.
pub fn sweep(pods: &Path) -> io::Result<()> {
    for (path, files) in find_files(pods)? {
        if !files.order().try_exists()? {
            absent_is_fine(fs::remove_file(&path))?;
            files.remove_empty_folders();
        }
    }
    Ok(())
}

/// Every file of ours, in order, each with those that it belongs to.
fn find_files(pods: &Path) -> io::Result<Vec<(PathBuf, Files)>> {
    let mut found = Vec::new();
    for pod in folders_in(pods)? {
        for container in folders_in(&pod)? {
            for entry in fs::read_dir(container)? {
                let path = entry?.path();
                if let Some(files) = Files::with(&path) {
                    found.push((path, files));
                }
            }
        }
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found)
}

fn folders_in(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}

/// Makes a folder, and those above it, that only we can look into: environments hold secrets.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Reads a record, or `None` when there is none yet.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// How the container of these files ended, if it did.
pub fn read_exit(files: &Files) -> io::Result<Option<Exit>> {
    read(&files.exit())
}

/// Writes a record so that a reader finds all of it or none, also after a power cut.
pub fn write<T: Serialize>(path: &Path, record: &T) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(UNFINISHED);
    let fresh = PathBuf::from(fresh);
    let bytes = serde_json::to_vec(record)?;
    if let Err(error) = fill(&fresh, &bytes).and_then(|()| fs::rename(&fresh, path)) {
        // Most likely the disk is full, and should not hold this as well.
        let _ = fs::remove_file(&fresh);
        return Err(error);
    }
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

fn fill(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Whether a shim works on the order now; if not, the lock comes back, and no shim will while it is held.
pub fn lock_if_idle(order: &Path) -> io::Result<Option<File>> {
    let file = File::open(order)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

pub(super) fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// How values that have a text form are kept in records: as that text.
pub(super) mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(in crate::runtime) fn serialize<T: Display, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(in crate::runtime) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ExitReason, Limits, PodLimits};
    use super::*;

    fn spec() -> ContainerSpec {
        ContainerSpec {
            id: ContainerId {
                pod: "6ba7b810-9dad-11d1-80b4-00c04fd430c8".parse().unwrap(),
                container: "web".to_owned(),
                attempt: 3,
            },
            pod_namespace: "default".parse().unwrap(),
            pod_name: "shop-1.2".parse().unwrap(),
            command: vec!["sh".to_owned(), "-c".to_owned()],
            args: vec!["echo \"two\nlines\"".to_owned()],
            env: vec![("A".to_owned(), "ä=\u{1}\n".to_owned())],
            working_dir: String::new(),
            own_grace_seconds: Some(30),
            limits: Limits { cpus: vec![1, 2], memory_bytes: Some(7), ..Limits::default() },
            oom_score_adj: 999,
            pod_limits: PodLimits { cpu_request_millis: 500, pids: Some(9) },
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::of(dir.path(), &spec().id);
        files.make_folder().unwrap();
        let order = Order { spec: spec(), cgroup: None, affinity: vec![4] };
        assert_eq!(read::<Order>(&files.order()).unwrap(), None, "no record is no error");
        write(&files.order(), &order).unwrap();
        assert_eq!(read(&files.order()).unwrap(), Some(order));

        let exit = Exit {
            code: 143,
            signal: Some(15),
            reason: ExitReason::Error,
            message: String::new(),
            started_at: "2026-01-02T03:04:05.678901234Z".parse().unwrap(),
            finished_at: "2026-01-02T03:04:06Z".parse().unwrap(),
        };
        write(&files.exit(), &exit).unwrap();
        assert_eq!(read_exit(&files).unwrap(), Some(exit));
        assert_eq!(find_orders(dir.path()).unwrap(), vec![files.order()]);
        assert_eq!(Files::beside(&files.order()), files);
    }

    #[test]
    fn a_record_cut_short_is_an_error_and_not_a_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.run");
        fs::write(&path, b"{\"boot_id\":").unwrap();
        assert!(read::<Run>(&path).is_err());
    }

    #[test]
    fn removal_leaves_other_attempts_alone() {
        let dir = tempfile::tempdir().unwrap();
        let first = Files::of(dir.path(), &spec().id);
        let second = Files::of(dir.path(), &ContainerId { attempt: 4, ..spec().id });
        first.make_folder().unwrap();
        for path in [first.order(), first.log(), first.old_log(), second.order()] {
            fs::write(path, b"").unwrap();
        }
        first.remove().unwrap();
        let stranger = first.order().with_file_name("notes.txt");
        for path in [first.exit(), first.run().with_extension("run.new"), stranger.clone()] {
            fs::write(path, b"debris").unwrap();
        }
        assert_eq!(find_orders(dir.path()).unwrap(), vec![second.order()]);
        sweep(dir.path()).unwrap();
        assert_eq!(fs::read_dir(first.folder()).unwrap().count(), 2, "what belongs to no order is swept up");
        fs::remove_file(stranger).expect("what is none of ours is left alone");
        second.remove().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "empty folders go as well");
    }

    #[test]
    fn an_order_is_idle_until_somebody_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.order");
        fs::write(&path, b"").unwrap();
        let held = lock_if_idle(&path).unwrap().expect("nobody holds it");
        assert!(lock_if_idle(&path).unwrap().is_none());
        drop(held);
        assert!(lock_if_idle(&path).unwrap().is_some());
    }
}
