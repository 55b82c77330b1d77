//! Small private disks that a test can fill or freeze. They require root.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::statvfs;

use crate::store_process::{StoreLaunch, until};

/// A small disk in a mount namespace that a child process keeps open: the disk survives every store on it and is
/// removed when the value is dropped.
#[derive(Debug)]
pub struct SmallDisk {
    holder: Child,
    mounted: PathBuf,
}

impl SmallDisk {
    /// A disk in memory.
    pub fn of(megabytes: u32, mounted: &Path) -> SmallDisk {
        SmallDisk::mounted_by(&format!("mount -t tmpfs -o size={megabytes}m tmpfs \"$0\""), mounted)
    }

    /// A disk in a file, with a file system that can be frozen.
    pub fn freezable(megabytes: u32, mounted: &Path) -> SmallDisk {
        let image = "\"$0/image\"";
        let script = format!(
            "truncate -s {megabytes}M {image} && mkfs.ext4 -q {image} && mount -o loop {image} \"$0\""
        );
        SmallDisk::mounted_by(&script, mounted)
    }

    fn mounted_by(mount: &str, mounted: &Path) -> SmallDisk {
        let root = rustix::process::geteuid().is_root();
        assert!(root, "this test mounts a small disk and must be run as root");
        let script =
            format!("PATH=$PATH:/usr/sbin:/sbin; {mount} && touch \"$0/mounted\" && exec sleep infinity");
        let holder = Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .arg(mounted)
            .stdin(Stdio::null())
            .spawn()
            .expect("unshare can be run");
        SmallDisk { holder, mounted: mounted.to_owned() }
    }

    /// Waits until it is mounted.
    pub async fn ready(&self) {
        let mark = self.outside("mounted");
        until("the disk is mounted", || mark.exists()).await;
    }

    /// A path of the disk as seen from the test's mount namespace.
    fn outside(&self, path: &str) -> PathBuf {
        let inside = self.mounted.strip_prefix("/").expect("an absolute path");
        Path::new(&format!("/proc/{}/root", self.holder.id())).join(inside).join(path)
    }

    fn namespace(&self) -> String {
        format!("--mount=/proc/{}/ns/mnt", self.holder.id())
    }

    /// The option of `nsenter` for processes that see the disk.
    pub fn nsenter(&self) -> String {
        self.namespace()
    }

    /// How to start a store on the disk.
    pub fn launch(&self) -> StoreLaunch {
        StoreLaunch::on(&self.mounted.join("data")).within(["nsenter", &self.namespace()])
    }

    /// Fills the disk until at most `bytes` are free.
    pub fn fill(&self, bytes: u64) {
        let mut filler = File::create(self.outside("filler")).expect("the disk takes another file");
        let block = vec![7; 64 * 1024];
        let free = || statvfs(self.outside("")).map(|disk| disk.f_bavail * disk.f_frsize);
        while free().expect("the disk is mounted") > bytes && filler.write_all(&block).is_ok() {}
    }

    /// Removes what [`fill`](Self::fill) wrote.
    pub fn relieve(&self) {
        fs::remove_file(self.outside("filler")).expect("the disk was filled");
    }

    /// Lets every write to the disk hang until the guard is dropped. Drop it before any store on the disk: a process
    /// that waits for a frozen disk cannot be killed.
    #[must_use]
    pub fn freeze(&self) -> Frozen<'_> {
        self.fsfreeze("--freeze");
        Frozen(self)
    }

    fn fsfreeze(&self, option: &str) {
        let mut command = Command::new("nsenter");
        command.args([&self.namespace(), "fsfreeze", option]).arg(&self.mounted);
        let path = std::env::var("PATH").unwrap_or_default();
        let done = command.env("PATH", format!("{path}:/usr/sbin:/sbin")).status();
        assert!(done.is_ok_and(|status| status.success()), "fsfreeze {option} failed");
    }
}

/// A disk on which every write hangs.
#[derive(Debug)]
pub struct Frozen<'a>(&'a SmallDisk);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.fsfreeze("--unfreeze");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
