//! Reads the directory of static pods (`--pod-manifest-path`) whenever it changes.
//!
//! The kernel says when (inotify); the directory is also read now and then, for file systems that do not say.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_agent_core::static_pods::{BrokenFile, DEFAULT_NAMESPACE, StaticPods};
use muster_agent_core::status::NodeEvent;
use muster_manifest::Manifest;
use muster_proto::event::EventType;
use muster_proto::name::{Name, Namespace};
use muster_proto::pod::Pod;
use muster_proto::record::Kind;
use muster_rpc::shutdown::Shutdown;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::events::EventRecorder;
use crate::shared_state::SharedState;

/// How often the directory is read without a reason.
const RESCAN: Duration = Duration::from_secs(20);
/// After a change, the next change is waited for this long: files come in several writes.
const SETTLE: Duration = Duration::from_millis(100);
/// No manifest of a pod is larger.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The static pods, once the directory was read.
pub type Pods = Option<Arc<Vec<Pod>>>;

type Files = BTreeMap<String, Result<Vec<Pod>, String>>;

/// Reads the directory and publishes its pods.
pub struct StaticPodReader {
    pub path: PathBuf,
    pub node: Name,
    pub pods: watch::Sender<Pods>,
    pub shared: Arc<SharedState>,
    pub events: EventRecorder,
}

impl StaticPodReader {
    /// Runs until the agent stops.
    pub async fn run(self, stop: Shutdown) {
        tokio::select! {
            () = stop.requested() => {}
            () = self.read_on_changes() => {}
        }
    }

    async fn read_on_changes(&self) {
        let mut static_pods = StaticPods::new(self.node.clone());
        let mut is_unreadable = false;
        loop {
            // The watch begins before the directory is read, so no change is missed in between.
            let changes = watch_changes(&self.path).inspect_err(|error| {
                tracing::debug!(path = %self.path.display(), %error, "changes are noticed by reading again");
            });
            let path = self.path.clone();
            match spawn_blocking(move || read_all(&path))
                .await
                .unwrap_or_else(|error| Err(io::Error::other(error)))
            {
                Ok(files) => {
                    is_unreadable = false;
                    let news = static_pods.observe(files);
                    self.publish(&static_pods, news);
                }
                // The pods that are known keep running: nobody said that their files are gone.
                Err(error) if !is_unreadable => {
                    is_unreadable = true;
                    tracing::warn!(path = %self.path.display(), %error, "--pod-manifest-path cannot be read");
                }
                Err(_) => {}
            }
            match changes {
                Ok(changes) => wait_for_change(changes).await,
                Err(_) => sleep(RESCAN).await,
            }
        }
    }

    fn publish(&self, static_pods: &StaticPods, news: Vec<BrokenFile>) {
        for BrokenFile { file, reason, keeps_pods } in news {
            let kept = if keeps_pods { "; the pods that it held before keep running" } else { "" };
            tracing::warn!(file, reason, keeps_pods, "a manifest of --pod-manifest-path cannot be used");
            let message = format!("{}: {reason}{kept}", self.path.join(&file).display());
            let event = NodeEvent { kind: EventType::Warning, reason: "InvalidStaticPod", message };
            let uid = self.shared.status().node_uid;
            self.events.record_node(&self.node, uid, event);
        }
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.shared.metrics.broken_manifests.set(count(static_pods.broken()));
        let pods: Vec<Pod> = static_pods.pods().cloned().collect();
        self.pods.send_if_modified(|known| {
            let is_new = known.as_ref().is_none_or(|known| **known != pods);
            if is_new {
                tracing::info!(count = pods.len(), path = %self.path.display(), "static pods read");
                *known = Some(Arc::new(pods));
            }
            is_new
        });
    }
}

/// Waits until something changed, or for [`RESCAN`].
async fn wait_for_change(changes: OwnedFd) {
    let changes = Arc::new(changes);
    for _ in 0..RESCAN.as_secs() {
        let changes = Arc::clone(&changes);
        let waited = spawn_blocking(move || {
            let wait = Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut [PollFd::new(&*changes, PollFlags::IN)], Some(&wait))
        });
        match waited.await {
            Ok(Ok(0) | Err(Errno::INTR)) => {}
            Ok(Ok(_)) => return sleep(SETTLE).await,
            Ok(Err(_)) | Err(_) => return sleep(RESCAN).await,
        }
    }
}

/// Becomes readable when something below the path changed.
fn watch_changes(path: &Path) -> io::Result<OwnedFd> {
    let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let flags = WatchFlags::CLOSE_WRITE
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MODIFY
        | WatchFlags::MOVE
        | WatchFlags::MOVE_SELF;
    inotify::add_watch(&changes, path, flags)?;
    Ok(changes)
}

/// The pods of every file. A directory that does not exist has none.
fn read_all(path: &Path) -> io::Result<Files> {
    let entries = match fs::metadata(path) {
        Ok(found) if found.is_dir() => fs::read_dir(path)?,
        Ok(_) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Ok(Files::from([(name, read(path))]));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Files::new()),
        Err(error) => return Err(error),
    };
    let mut files = Files::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Names with a dot are those of editors and of tools that replace files.
        if name.starts_with('.') || entry.path().is_dir() {
            continue;
        }
        // A file that went since the directory was listed is not there.
        if entry.path().try_exists()? {
            files.insert(name, read(&entry.path()));
        }
    }
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<Pod>, String> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    let size = fs::metadata(path).map_err(unreadable)?.len();
    if size > MAX_FILE_BYTES {
        return Err(format!("has {size} bytes; a manifest has at most {MAX_FILE_BYTES}"));
    }
    let text = fs::read_to_string(path).map_err(unreadable)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut manifests = muster_manifest::read(&name, &text).map_err(|error| error.to_string())?;
    manifests.iter_mut().map(pod).collect()
}

fn pod(manifest: &mut Manifest) -> Result<Pod, String> {
    if manifest.kind != Kind::Pod {
        return Err(format!("{} is a {}; only pods can be static", manifest.location, manifest.kind));
    }
    let default: Namespace = DEFAULT_NAMESPACE.parse().expect("a valid namespace");
    let named = manifest.set_namespace(None, &default).and_then(|()| manifest.key());
    named.and_then(|_| manifest.to_record()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main}]}\n";

    #[test]
    fn every_file_is_read_by_itself() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(root.path().join(name), text).unwrap();
        write("good.yaml", POD);
        write("broken.yaml", "apiVersion: v1\nkind: Pod\nmetadata: [\n");
        write("unknown.yaml", &POD.replace("spec: {", "spec: {containerz: [], "));
        write("node.json", r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}"#);
        write("nameless.yaml", "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: main}]}\n");
        write(".hidden", "no manifest");
        write("large.yaml", &"#".repeat(usize::try_from(MAX_FILE_BYTES).unwrap() + 1));
        fs::create_dir(root.path().join("folder")).unwrap();
        let files = read_all(root.path()).unwrap();
        assert_eq!(files.len(), 6);
        assert_eq!(files["good.yaml"].as_ref().unwrap()[0].meta.name, "web");
        for (name, expected) in [
            ("broken.yaml", "is neither YAML nor JSON"),
            ("unknown.yaml", "unknown field spec.containerz"),
            ("node.json", "only pods can be static"),
            ("nameless.yaml", "has no metadata.name"),
            ("large.yaml", "1048577 bytes"),
        ] {
            let refused = files[name].as_ref().unwrap_err();
            assert!(refused.contains(expected), "{name}: {refused}");
        }
        assert!(read_all(&root.path().join("none")).unwrap().is_empty(), "no directory, no pods");
        assert_eq!(read_all(&root.path().join("good.yaml")).unwrap().len(), 1, "one file is a path too");
    }
}
