//! Volumes of pods: emptyDir on disk or in memory, and paths of the machine.
//!
//! The agent prepares the emptyDir volumes of a pod, one directory for each. The shim of a container gives the container a
//! view of the file system of its own (a mount namespace), in which the volumes are at their mount points. That needs the
//! right to mount: the agent must be root, or have the capability SYS_ADMIN.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

use muster_proto::name::Uid;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use super::User;
use super::processes::ProcessKey;
use super::record::{Order, absent_is_fine, make_private_dir};
use super::sandbox::become_user;

/// The directory of all emptyDir volumes, beside that of the pods.
const DIRECTORY: &str = "volumes";
/// Any user of the pod may use an emptyDir.
const OPEN: u32 = 0o777;

/// A volume at a place in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The volume's name in its pod.
    pub volume: String,
    pub source: VolumeSource,
    pub target: PathBuf,
    pub read_only: bool,
}

/// Where the content of a volume is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeSource {
    /// An emptyDir on the disk.
    Disk,
    /// An emptyDir in memory; without a limit it may take half of the machine's.
    Memory { bytes: Option<u64> },
    /// A path of the machine, and what must be there, in Kubernetes' words.
    Host { path: PathBuf, kind: String },
}

/// The emptyDir volumes of all pods of the node.
#[derive(Debug)]
pub struct Volumes {
    directory: PathBuf,
    /// Held while volumes are made: two containers of a pod may start at the same time.
    making: Mutex<()>,
}

impl Volumes {
    /// Beside the directory of the pods' records.
    pub fn beside(pods: &Path) -> Volumes {
        Volumes { directory: pods.with_file_name(DIRECTORY), making: Mutex::default() }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn of(&self, pod: Uid) -> PathBuf {
        self.directory.join(pod.to_string())
    }

    /// The pods that have volumes.
    pub fn pods(&self) -> Vec<Uid> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Makes the emptyDir volumes that are not there yet; returns their directory, if there are any.
    pub fn prepare(&self, pod: Uid, mounts: &[Mount]) -> Result<Option<PathBuf>, String> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = self.of(pod);
        let mut found = None;
        for Mount { volume, source, .. } in mounts {
            let made = match source {
                VolumeSource::Host { .. } => continue,
                VolumeSource::Disk => make_open(&directory, volume),
                VolumeSource::Memory { bytes } => {
                    make_open(&directory, volume).and_then(|()| mount_memory(&directory.join(volume), *bytes))
                }
            };
            made.map_err(|error| format!("volume {volume} cannot be made: {}", explained(&error)))?;
            found = Some(directory.clone());
        }
        Ok(found)
    }

    /// Removes the volumes of a pod with their content.
    pub fn remove(&self, pod: Uid) -> io::Result<()> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = self.of(pod);
        for entry in fs::read_dir(&directory).into_iter().flatten() {
            match unmount(entry?.path(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
                // It is no mount point, or an agent that may not unmount has mounted none.
                Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
        }
        absent_is_fine(fs::remove_dir_all(directory))
    }
}

fn make_open(directory: &Path, volume: &str) -> io::Result<()> {
    make_private_dir(directory)?;
    let path = directory.join(volume);
    match DirBuilder::new().mode(OPEN).create(&path) {
        // The umask may have taken something away.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(OPEN)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Mounts a filesystem in memory, unless that was done before.
fn mount_memory(path: &Path, bytes: Option<u64>) -> io::Result<()> {
    let above = path.parent().map(fs::metadata).transpose()?.map(|above| above.dev());
    if above != Some(fs::metadata(path)?.dev()) {
        return Ok(());
    }
    let size = bytes.map_or_else(|| "50%".to_owned(), |bytes| bytes.to_string());
    let options = format!("mode=0777,size={size}");
    let options = std::ffi::CString::new(options)?;
    Ok(mount("tmpfs", path, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(options.as_c_str()))?)
}

/// Gives the calling thread, and what it starts, a view of its own in which the container's volumes are mounted.
pub(super) fn enter(order: &Order) -> Result<(), String> {
    let mut mounts: Vec<&Mount> = order.spec.mounts.iter().collect();
    let Some(first) = mounts.first() else { return Ok(()) };
    let failed =
        |volume: &str, error: &io::Error| format!("volume {volume} cannot be mounted: {}", explained(error));
    #[allow(deprecated, reason = "its replacement is unsafe for the flag FILES, which is not used here")]
    let parted = rustix::thread::unshare(UnshareFlags::NEWNS);
    parted.map_err(|error| failed(&first.volume, &error.into()))?;
    // What the machine mounts later is seen here too, what is mounted here is not seen there.
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", propagation).map_err(|error| failed(&first.volume, &error.into()))?;
    // A mount point may be within another volume.
    mounts.sort_by_key(|mount| mount.target.components().count());
    for mount in mounts {
        mount_one(order, mount).map_err(|error| failed(&mount.volume, &error))?;
    }
    Ok(())
}

fn mount_one(order: &Order, mount: &Mount) -> io::Result<()> {
    let source = match &mount.source {
        VolumeSource::Disk | VolumeSource::Memory { .. } => {
            let directory = order.volumes.as_deref().ok_or_else(|| io::Error::other("it was not made"))?;
            place(&directory.join(&mount.volume))?
        }
        VolumeSource::Host { path, kind } => as_user(order.user, || host_path(path, kind))?,
    };
    // By the descriptor, so that no other path can take its place.
    let source_path = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
    make_target(&mount.target, fs::metadata(&source_path)?.is_dir()).map_err(|error| {
        io::Error::new(error.kind(), format!("its mount point {}: {error}", mount.target.display()))
    })?;
    mount_bind_recursive(&source_path, &mount.target)?;
    if mount.read_only {
        mount_remount(&mount.target, MountFlags::BIND | MountFlags::RDONLY, c"")?;
    }
    Ok(())
}

/// A descriptor of a place in the file system, which gives no right to its content.
fn place(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Reaches a path of the machine, and checks or makes what must be there.
fn host_path(path: &Path, kind: &str) -> io::Result<OwnedFd> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    match kind {
        "DirectoryOrCreate" => fs::create_dir_all(path).map_err(named)?,
        "FileOrCreate" => {
            OpenOptions::new().append(true).create(true).mode(0o644).open(path).map_err(named)?;
        }
        _ => {}
    }
    let found = place(path).map_err(named)?;
    let is = fs::metadata(path).map_err(named)?.file_type();
    let fits = match kind {
        "Directory" | "DirectoryOrCreate" => is.is_dir(),
        "File" | "FileOrCreate" => is.is_file(),
        "Socket" => is.is_socket(),
        "CharDevice" => is.is_char_device(),
        "BlockDevice" => is.is_block_device(),
        _ => true,
    };
    if fits { Ok(found) } else { Err(named(io::Error::other(format!("it is no {kind}")))) }
}

/// Runs it with the rights of the container's user: what the user cannot reach by the path, the volume must not show.
fn as_user(user: Option<User>, reach: impl FnOnce() -> io::Result<OwnedFd> + Send) -> io::Result<OwnedFd> {
    let Some(user) = user else { return reach() };
    thread::scope(|scope| {
        let reached = scope.spawn(|| become_user(user).and_then(|()| reach()));
        reached.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")))
    })
}

/// Makes the mount point if it does not exist. It is seen by all of the machine, and stays.
fn make_target(target: &Path, is_dir: bool) -> io::Result<()> {
    if fs::symlink_metadata(target).is_ok() {
        return Ok(());
    }
    if is_dir {
        return fs::create_dir_all(target);
    }
    if let Some(above) = target.parent() {
        fs::create_dir_all(above)?;
    }
    OpenOptions::new().write(true).create_new(true).open(target).map(drop)
}

/// Enters the view of a running container.
pub(super) fn join(main: Option<ProcessKey>) -> io::Result<()> {
    let gone = || io::Error::other("the container has ended, and its volumes with it");
    let main = main.filter(ProcessKey::is_alive).ok_or_else(gone)?;
    let view = File::open(format!("/proc/{}/ns/mnt", main.pid))?;
    // Another process may have got the pid meanwhile.
    if !main.is_alive() {
        return Err(gone());
    }
    Ok(move_into_link_name_space(view.as_fd(), Some(LinkNameSpaceType::Mount))?)
}

fn explained(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "{error}. To mount volumes the agent must run as root, or with the capability SYS_ADMIN; a hostPath must be \
             within reach of the container's user"
        ),
        _ => error.to_string(),
    }
}
