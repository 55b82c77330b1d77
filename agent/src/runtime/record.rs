//! The records of a container on disk, by which a later agent knows as much as the one before.
//!
//! Each attempt has three records under `<state-dir>/pods/<pod uid>/<container>/`, each written once and as a whole:
//! the *order* (by the agent, before it starts the shim), the *run* (by the shim, once the program runs) and the *exit*
//! (by the shim, once none of the container's processes is left).
//!
//! Two of the files are locks too. The shim locks the order for its whole life, so an order that can be locked has no
//! shim. The run is locked by the shim while it reaps the container's first process, and by the agent while it signals
//! the process group, so the pid cannot pass to another process between the check and the signal.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::processes::ProcessKey;
use super::{ContainerId, ContainerSpec, Exit, User};

const ORDER: &str = "order";
const RUN: &str = "run";
const EXIT: &str = "exit";
const LOG: &str = "log";
const SHIM_LOG: &str = "shim";
const ENDINGS: [&str; 5] = [ORDER, RUN, EXIT, LOG, SHIM_LOG];
/// The suffix of a record that is not complete yet.
const UNFINISHED: &str = ".new";

/// What a shim has to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub spec: ContainerSpec,
    pub cgroup: Option<CgroupPaths>,
    /// CPUs to pin the program to, where no cgroup restricts CPUs.
    pub affinity: Vec<u32>,
    /// The user and group id that belongs to its pod alone, if the agent is root. A later agent keeps it.
    #[serde(default)]
    pub own_id: Option<u32>,
    /// The user to run as; `None` is the agent's.
    #[serde(default)]
    pub user: Option<User>,
    /// The directory of the pod's emptyDir volumes, if the container sees one of them.
    #[serde(default)]
    pub volumes: Option<PathBuf>,
}

/// The cgroups of a container and its shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPaths {
    pub container: PathBuf,
    /// Shims are outside their containers' cgroups: killing a container's cgroup leaves the shim to record the exit.
    pub shims: PathBuf,
}

/// A container that a shim started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The boot in which the processes ran: their pids mean nothing in another.
    pub boot_id: String,
    pub shim: ProcessKey,
    /// The container's first process and the leader of its group.
    pub main: ProcessKey,
    #[serde(with = "as_text")]
    pub started_at: Timestamp,
}

/// The files of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// `<directory>/<attempt>`, to which each file adds its extension.
    stem: PathBuf,
}

impl Files {
    /// The files of that container under the directory of all pods.
    pub fn of(pods: &Path, id: &ContainerId) -> Files {
        Files { stem: pods.join(id.pod.to_string()).join(&id.container).join(id.attempt.to_string()) }
    }

    /// The files of an order.
    pub fn beside(order: &Path) -> Files {
        Files { stem: order.with_extension("") }
    }

    /// The attempt that a file belongs to; `None` if it is not one of our files.
    fn with(path: &Path) -> Option<Files> {
        let (attempt, termination) = path.file_name()?.to_str()?.split_once('.')?;
        let termination = termination.strip_suffix(UNFINISHED).unwrap_or(termination);
        attempt.parse::<u32>().ok()?;
        let is_ours = ENDINGS.contains(&termination) || rotated_at(termination).is_some();
        is_ours.then(|| Files { stem: path.with_file_name(attempt) })
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

    /// The container's output.
    pub fn log(&self) -> PathBuf {
        self.stem.with_extension(LOG)
    }

    /// The part of the container's output that begins at that byte of all of it, once it was moved out of the log.
    pub fn rotated_log(&self, offset: u64) -> PathBuf {
        self.stem.with_extension(format!("{LOG}.{offset}"))
    }

    /// The parts that were moved out of the log, with the byte that each begins at, the oldest first.
    pub fn rotated_logs(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let own = self.stem.file_name().unwrap_or_default();
        let mut found = Vec::new();
        for entry in fs::read_dir(self.folder())? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some((attempt, rest)) = name.split_once('.')
                && attempt == own
                && let Some(offset) = rotated_at(rest)
            {
                found.push((offset, path));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// The shim's own error output.
    pub fn shim_log(&self) -> PathBuf {
        self.stem.with_extension(SHIM_LOG)
    }

    fn folder(&self) -> &Path {
        self.stem.parent().unwrap_or(Path::new("/"))
    }

    /// Creates the directory of the files.
    pub fn make_folder(&self) -> io::Result<()> {
        make_private_dir(self.folder())
    }

    /// Removes all files, and the directories that are empty then.
    ///
    /// The order first: without it the attempt does not exist any more, and [`sweep`] removes what a crash leaves of
    /// it.
    pub fn remove(&self) -> io::Result<()> {
        for termination in ENDINGS {
            absent_is_fine(fs::remove_file(self.stem.with_extension(termination)))?;
        }
        for (_, path) in self.rotated_logs().unwrap_or_default() {
            absent_is_fine(fs::remove_file(path))?;
        }
        self.remove_empty_folders();
        Ok(())
    }

    fn remove_empty_folders(&self) {
        // A directory with another attempt or container cannot be removed, which is intended.
        let container = self.folder();
        if fs::remove_dir(container).is_ok()
            && let Some(pod) = container.parent()
        {
            let _ = fs::remove_dir(pod);
        }
    }
}

/// The byte at which a part of the log begins, from what its file's name has behind the attempt: `log.10485760`.
fn rotated_at(termination: &str) -> Option<u64> {
    termination.strip_prefix(LOG)?.strip_prefix('.')?.parse().ok()
}

/// All orders under the directory of all pods.
pub fn find_orders(pods: &Path) -> io::Result<Vec<PathBuf>> {
    let found = find_files(pods)?.into_iter();
    Ok(found.filter(|(path, files)| *path == files.order()).map(|(path, _)| path).collect())
}

/// Removes files without an order: what a crash left of an attempt that was being removed or not yet ordered. Must not
/// run while another process writes orders.
pub fn sweep(pods: &Path) -> io::Result<()> {
    for (path, files) in find_files(pods)? {
        if !files.order().try_exists()? {
            absent_is_fine(fs::remove_file(&path))?;
            files.remove_empty_folders();
        }
    }
    Ok(())
}

/// All of our files, sorted, each with its attempt.
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

/// Creates a directory, and its parents, that only its owner can read: environments hold secrets.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Reads a record; `None` if it does not exist.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// The recorded exit of the attempt, if there is one.
pub fn read_exit(files: &Files) -> io::Result<Option<Exit>> {
    read(&files.exit())
}

/// Writes a record so that a reader finds all of it or none, also after a power failure.
pub fn write<T: Serialize>(path: &Path, record: &T) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(UNFINISHED);
    let fresh = PathBuf::from(fresh);
    let bytes = serde_json::to_vec(record)?;
    if let Err(error) = fill(&fresh, &bytes).and_then(|()| fs::rename(&fresh, path)) {
        // The disk is probably full, and should not keep this file too.
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

/// Locks an order that no shim works on; `None` if a shim does. No shim can begin while the lock is held.
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

/// Serialises values as their text form.
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
    use super::super::{ExitReason, Limits, PodLimits, Privilege, Security};
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
            security: Security { user: Some(7), group: None, privilege: Privilege::Escalating },
            mounts: Vec::new(),
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::of(dir.path(), &spec().id);
        files.make_folder().unwrap();
        let user = Some(User { uid: 7, gid: 2000 });
        let order =
            Order { spec: spec(), cgroup: None, affinity: vec![4], own_id: Some(2000), user, volumes: None };
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
    fn a_truncated_record_is_an_error() {
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
        for path in [first.order(), first.log(), first.rotated_log(7), second.order()] {
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
    fn an_order_is_idle_until_it_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.order");
        fs::write(&path, b"").unwrap();
        let held = lock_if_idle(&path).unwrap().expect("it is not locked");
        assert!(lock_if_idle(&path).unwrap().is_none());
        drop(held);
        assert!(lock_if_idle(&path).unwrap().is_some());
    }
}
