//! A server proves its role: that its certificate comes from the right authority is not enough.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::ffi::OsStr;
use std::path::PathBuf;

use muster_tests::agent_process::AgentHost;
use muster_tests::certificate_authority::Authority;
use muster_tests::controller_process::ControllerProcess;
use muster_tests::store_process::{self, StoreLaunch, StoreProcess, muster};
use tempfile::TempDir;

/// The TLS flags of a process with that certificate, as `--flag=value`.
fn tls_flags(authority: &Authority, common_name: &str, organization: &str) -> [String; 3] {
    let [cert, key] = authority.issue(common_name, organization);
    let flag = |name: &str, file: PathBuf| format!("--{name}={}", file.display());
    [flag("tls-cert", cert), flag("tls-key", key), flag("tls-client-ca", authority.own())]
}

/// A store that serves with that certificate, and its URL.
fn store_as(
    directory: &TempDir,
    authority: &Authority,
    common_name: &str,
    group: &str,
) -> (StoreProcess, String) {
    let launch = StoreLaunch::on(&directory.path().join("store"));
    let launch = tls_flags(authority, common_name, group).iter().fold(launch, |launch, flag| {
        let (flag, value) = flag.split_once('=').unwrap();
        launch.flag(flag, value)
    });
    let store = launch.start();
    let url = store.url().replace("http://127.0.0.1", "https://localhost");
    (store, url)
}

/// Runs `muster` with an administrator's certificate; returns its exit code and what it printed.
fn muster_as_admin(authority: &Authority, args: &[&str]) -> (Option<i32>, String) {
    let [cert, key] = authority.issue("eva", "muster:admins").map(|path| path.display().to_string());
    let ca = authority.own().display().to_string();
    let tls = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    let output = muster(&args.iter().copied().chain(tls).collect::<Vec<_>>());
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code(), printed)
}

#[test]
fn a_certificate_of_a_node_does_not_pass_for_the_store() {
    let (directory, authority, host) = (tempfile::tempdir().unwrap(), Authority::new(), AgentHost::new());
    let (_impostor, url) = store_as(&directory, &authority, "node:evil", "muster:nodes");
    let refusal =
        format!("the server at {url} presents a certificate of role muster:nodes, expected muster:stores");

    let (code, printed) = muster_as_admin(&authority, &["get", "nodes", "--store", &url]);
    assert_eq!(code, Some(6), "{printed}");
    assert!(printed.contains(&refusal), "{printed}");
    let (code, printed) = muster_as_admin(&authority, &["doctor", "--live", "--store", &url]);
    assert_eq!(code, Some(6), "{printed}");
    assert!(printed.contains(&refusal), "{printed}");

    let agent = tls_flags(&authority, "node:n1", "muster:nodes").iter().fold(
        host.agent("n1", &url),
        |agent, flag| {
            let (flag, value) = flag.trim_start_matches("--").split_once('=').unwrap();
            agent.flag(flag, value)
        },
    );
    agent.spawn().wait_logged(&refusal);

    let flags = tls_flags(&authority, "c1", "muster:controllers");
    let controller = ControllerProcess::start(&url, &flags.each_ref().map(String::as_str));
    controller.wait_logged(&refusal);

    let backup = directory.path().join("backup");
    let flags = tls_flags(&authority, "eva", "muster:admins");
    let mut args: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
    args.extend([OsStr::new("backup"), backup.as_os_str(), OsStr::new("--store"), OsStr::new(&url)]);
    let output = store_process::run(&args);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && printed.contains(&refusal), "{printed}");
    assert!(!backup.exists());
}

#[test]
fn a_certificate_of_a_node_does_not_pass_for_the_controller() {
    let (directory, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let (_store, store) = store_as(&directory, &authority, "store", "muster:stores");
    let (code, printed) = muster_as_admin(&authority, &["get", "nodes", "--store", &store]);
    assert_eq!(code, Some(0), "the store itself is accepted: {printed}");
    for (name, group, accepted) in [("node:evil", "muster:nodes", false), ("c1", "muster:controllers", true)]
    {
        let flags = tls_flags(&authority, name, group);
        let controller = ControllerProcess::start(&store, &flags.each_ref().map(String::as_str));
        let url = controller.url().replace("http://127.0.0.1", "https://localhost");
        let (code, printed) = muster_as_admin(&authority, &["fleet", "--controller", &url]);
        let refusal = format!(
            "the server at {url} presents a certificate of role {group}, expected muster:controllers"
        );
        assert_eq!(
            (code == Some(0), printed.contains(&refusal)),
            (accepted, !accepted),
            "{group}: {printed}"
        );
    }
}
