//! What the store and the agent keep is for their own user only, and they keep it in directories of their own only.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use muster_proto::pb;
use muster_tests::Resource;
use muster_tests::agent_process::{AgentHost, node_where, pod_where};
use muster_tests::fixtures::*;
use muster_tests::store_process::{self, StoreLaunch, until};
use rustix::process::geteuid;

/// Another user, for a test that runs as root.
const OTHER_USER: u32 = 65_532;

/// All directories and files of a directory, itself included, that others may access.
fn accessible_to_others(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut unread = vec![directory.to_owned()];
    while let Some(path) = unread.pop() {
        // A file may be renamed or deleted meanwhile.
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.mode() & 0o077 != 0 {
            found.push(path.clone());
        }
        if metadata.is_dir() {
            unread.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    found
}

/// The manifests of the checkpoints, by their content.
fn checkpoints(data: &Path) -> Vec<Vec<u8>> {
    let manifests = ["checkpoint-a", "checkpoint-b"].map(|name| data.join(name).join("MANIFEST"));
    manifests.iter().filter_map(|path| fs::read(path).ok()).collect()
}

const NONE: [&Path; 0] = [];

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_its_user_may_access_the_files_of_a_store() {
    let directory = tempfile::tempdir().unwrap();
    // The directory that the store creates its own in is open, as /var/lib is.
    set_mode(directory.path(), 0o755);
    let data = directory.path().join("new/data");
    let store = StoreLaunch::on(&data).start();
    let api = store.api();
    assert_eq!(accessible_to_others(&data), NONE, "after the start");
    // The journal grows by as much as makes a checkpoint due.
    let first = checkpoints(&data);
    api.create(node("n7")).await.unwrap();
    for number in 0..60 {
        let image = || pb::ContainerImage { names: vec!["x".repeat(12_000)], size_bytes: number };
        let large = node("n7").status(|status| status.images = (0..100).map(|_| image()).collect());
        api.update_status(large).await.unwrap();
    }
    until("a checkpoint is written", || checkpoints(&data).iter().any(|manifest| !first.contains(manifest)))
        .await;
    assert_eq!(accessible_to_others(&data), NONE, "after a checkpoint");

    let (backup, restored) = (directory.path().join("backup"), directory.path().join("restored"));
    fs::write(directory.path().join("backup.partial"), "left by another").unwrap();
    let url = store.url();
    let args = ["backup".as_ref(), backup.as_os_str(), "--store".as_ref(), OsStr::new(&url)];
    assert!(store_process::run(&args).status.success());
    assert_eq!(mode(&backup), 0o600);
    let args = ["--data-dir".as_ref(), restored.as_os_str(), "restore".as_ref(), backup.as_os_str()];
    assert!(store_process::run(&args).status.success());
    assert_eq!(accessible_to_others(&restored), NONE, "after a restore");

    // As an earlier release left them.
    store.kill();
    for path in [data.join("journal"), data.join("MUSTER_FORMAT"), data.join("LOCK"), data.clone()] {
        let lax = if path.is_dir() { 0o755 } else { 0o644 };
        set_mode(&path, lax);
    }
    let store = StoreLaunch::on(&data).start();
    assert_eq!(accessible_to_others(&data), NONE, "after an upgrade");
    store.wait_logged("others could access the directory");
    assert_eq!(store.api().get::<pb::Node>("n7").await.unwrap().name(), "n7");
}

#[test]
fn a_store_refuses_a_directory_that_is_not_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let (real, link) = (directory.path().join("real"), directory.path().join("link"));
    fs::create_dir(&real).unwrap();
    symlink(&real, &link).unwrap();
    let (status, log) = StoreLaunch::on(&link).run_to_exit();
    assert!(!status.success() && log.contains("--data-dir: "), "{log}");
    assert!(log.contains("is a symbolic link: give the directory itself"), "{log}");
    StoreLaunch::on(&link.join("below")).start();
    if geteuid().is_root() {
        chown(&real, Some(OTHER_USER), None).unwrap();
        fs::remove_dir_all(real.join("below")).unwrap();
        let (status, log) = StoreLaunch::on(&real).run_to_exit();
        let expected = format!("belongs to user {OTHER_USER}, and this process runs as user 0");
        assert!(!status.success() && log.contains(&expected), "{log}");
        assert!(fs::read_dir(&real).unwrap().next().is_none(), "nothing was written");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_its_user_may_access_the_files_of_an_agent_and_programs_have_the_usual_umask() {
    let directory = tempfile::tempdir().unwrap();
    let (store, host) = (StoreLaunch::on(directory.path()).start(), AgentHost::new());
    let (api, written) = (store.api(), host.file("written"));
    let state = host.file("state");
    fs::create_dir(&state).unwrap();
    set_mode(&state, 0o777);
    let agent = host.agent("n1", &store.url()).start();
    agent.wait_logged("others could access the directory");
    node_where(&api, "n1", "it is registered", |_| true).await;
    let script = format!("umask; touch {0}.new && mv {0}.new {0}; exec sleep 1000", written.display());
    let running = pod("p").on("n1").spec(|spec| {
        spec.containers[0].command = ["sh", "-c", &script].map(str::to_owned).to_vec();
    });
    api.create(running).await.unwrap();
    until("the program has written its file", || written.exists()).await;
    assert_eq!(mode(&written), 0o644, "a program's files are not the agent's");
    pod_where(&api, "default/p", "it runs", |pod| {
        pod.status.as_ref().is_some_and(|status| status.phase == "Running")
    })
    .await;
    assert_eq!(accessible_to_others(&state), NONE);
}

#[test]
fn an_agent_refuses_a_directory_that_is_not_its_own() {
    let host = AgentHost::new();
    let (state, real) = (host.file("state"), host.file("real"));
    let agent = host.agent("n1", "http://127.0.0.1:9");
    let refused = || {
        let (status, log) = agent.run_to_exit();
        assert!(!status.success() && log.contains("--state-dir: "), "{log}");
        log
    };
    fs::create_dir(&real).unwrap();
    symlink(&real, &state).unwrap();
    assert!(refused().contains("is a symbolic link: give the directory itself"));
    fs::remove_file(&state).unwrap();

    fs::create_dir(&state).unwrap();
    set_mode(&state, 0o755);
    fs::write(state.join("passwd"), "of another program").unwrap();
    assert!(refused().contains("has files of something else, and others may access it (mode 755)"));
    assert_eq!(mode(&state), 0o755, "it was left alone");
    if geteuid().is_root() {
        chown(&state, Some(OTHER_USER), None).unwrap();
        assert!(refused().contains(&format!("belongs to user {OTHER_USER}")));
    }
}
