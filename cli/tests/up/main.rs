//! `muster up` as an operator starts it: the built binary, its output and its exit code.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

mod api;
mod process;

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use muster_proto::pb;
use rustix::process::Signal;

use crate::api::{
    create, delete, eventually, find, pod, ready, wait_for_ready, wait_until_gone, wait_until_running,
};
use crate::process::{FREE_PORT, LISTEN_FLAGS, Up, muster_up};

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_becomes_ready_and_a_signal_stops_all_components_in_order() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut up = Up::start(&["--ephemeral"]);
        up.wait_for("ready");
        let nodes = up.nodes().await;
        let listed = nodes.clone().list_nodes(pb::ListNodesRequest::default()).await.unwrap().into_inner();
        assert_eq!(listed.nodes.len(), 10, "nine simulated nodes and this machine");
        for node in listed.nodes {
            let name = node.metadata.unwrap().name;
            wait_for_ready(&nodes, &name, "True").await;
        }
        drop(nodes);
        let directory = up.value_of("records").split(',').next().unwrap().to_owned();
        assert!(std::path::Path::new(&directory).is_dir(), "{directory}");
        up.signal(signal);
        let status = up.wait_for_exit();
        assert_eq!(status.code(), Some(0), "{}", up.stderr());
        assert!(!std::path::Path::new(&directory).exists(), "{directory} was not removed");
        let end: Vec<&str> = up.output.iter().rev().take(5).rev().map(String::as_str).collect();
        assert_eq!(
            end,
            [
                "the agent has stopped",
                "the simulated agents have stopped",
                "the controller has stopped",
                "the store has stopped",
                "stopped; the records were removed",
            ]
        );
        // A busy test machine may be slow for a moment; the agent logs that its last readings still count.
        let stderr = up.stderr();
        let wrong = stderr.lines().filter(|line| !line.contains("still count"));
        assert_eq!(wrong.collect::<Vec<_>>(), [""; 0], "a run without problems logs nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_survive_a_restart_and_surplus_simulated_nodes_are_deleted() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("not/made/yet");
    let node = pb::Node {
        metadata: Some(pb::Metadata { name: "a".into(), ..Default::default() }),
        ..Default::default()
    };
    for (round, simulated) in [("3", ["sim-1", "sim-2", "sim-3"].as_slice()), ("1", &["sim-1"])] {
        let mut up = Up::start(&["--data-dir", directory.to_str().unwrap(), "--no-agent", "--nodes", round]);
        up.wait_for("ready");
        let mut nodes = up.nodes().await;
        if round == "3" {
            nodes.create_node(pb::CreateNodeRequest { node: Some(node.clone()) }).await.unwrap();
        }
        let listed = nodes.list_nodes(pb::ListNodesRequest::default()).await.unwrap().into_inner().nodes;
        let names: Vec<String> = listed.into_iter().map(|node| node.metadata.unwrap().name).collect();
        let mut expected = vec!["a"];
        expected.extend(simulated);
        assert_eq!(names, expected, "with {round} simulated nodes");
        up.signal(Signal::INT);
        assert_eq!(up.wait_for_exit().code(), Some(0), "{}", up.stderr());
    }
}

#[test]
fn the_simulation_is_not_for_web_pages() {
    let mut up = Up::start(&["--ephemeral", "--no-agent", "--nodes", "2", "--zones", "1"]);
    up.wait_for("ready");
    for headers in [
        "Host: evil.example",
        "Host: localhost\r\nOrigin: http://evil.example",
        "Host: localhost\r\nOrigin: null",
    ] {
        let answer = up.post_with("kill?all", headers);
        assert!(answer.starts_with("HTTP/1.1 403"), "{headers}: {answer}");
    }
    assert_eq!(up.post("kill?all"), ["sim-1", "sim-2"], "no node was off");
}

#[test]
fn all_components_accept_each_other_with_the_certificate_for_muster_up() {
    let directory = tempfile::tempdir().unwrap();
    let mut certs = Command::new(env!("CARGO_BIN_EXE_muster"));
    assert!(certs.arg("certs").arg(directory.path()).arg("up").output().unwrap().status.success());
    let flag = |name: &str, file: &str| format!("--{name}={}", directory.path().join(file).display());
    let flags = [flag("tls-client-ca", "ca.crt"), flag("tls-cert", "up.crt"), flag("tls-key", "up.key")];
    let arguments = ["--ephemeral", "--nodes", "2"].into_iter().chain(flags.iter().map(String::as_str));
    let mut up = Up::start(&arguments.collect::<Vec<_>>());
    up.wait_for("ready");
    up.signal(Signal::INT);
    assert!(up.wait_for_exit().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_simulated_node_is_unknown_until_it_is_revived() {
    let mut up = Up::start(&["--ephemeral", "--no-agent", "--nodes", "4", "--zones", "2", "--speed", "10"]);
    up.wait_for("ready");
    let nodes = up.nodes().await;
    assert_eq!(up.post("kill?node=sim-1"), ["sim-1"]);
    wait_for_ready(&nodes, "sim-1", "Unknown").await;
    assert_eq!(ready(&nodes, "sim-3").await, "True", "other nodes are not affected");
    assert_eq!(up.post("kill?zone=zone-1"), ["sim-3"], "sim-1 was off already");
    wait_for_ready(&nodes, "sim-3", "Unknown").await;
    assert_eq!(up.post("revive?all"), ["sim-1", "sim-3"]);
    wait_for_ready(&nodes, "sim-1", "True").await;
    wait_for_ready(&nodes, "sim-3", "True").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_on_simulated_nodes_run_and_terminate_only_while_their_node_is_on() {
    let mut up = Up::start(&["--ephemeral", "--no-agent", "--nodes", "2"]);
    up.wait_for("ready");
    let pods = up.pods().await;
    create(&pods, pod("a", "sim-1", &[])).await;
    create(&pods, pod("b", "sim-2", &[])).await;
    wait_until_running(&pods, "a").await;
    wait_until_running(&pods, "b").await;
    up.post("kill?node=sim-2");
    delete(&pods, "a").await;
    delete(&pods, "b").await;
    wait_until_gone(&pods, "a").await;
    let left =
        find(&pods, "b").await.expect("the agent of a killed node cannot confirm that its pods stopped");
    assert!(left.metadata.unwrap().deletion_timestamp.is_some());
    up.post("revive?node=sim-2");
    wait_until_gone(&pods, "b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_of_this_machines_agent_end_with_an_ephemeral_fleet() {
    let home = tempfile::tempdir().unwrap();
    // The pod has a user of its own.
    std::fs::set_permissions(home.path(), Permissions::from_mode(0o777)).unwrap();
    let file = home.path().join("pid");
    let mut up = Up::start(&["--ephemeral", "--nodes", "0"]);
    up.wait_for("ready");
    let mut nodes = up.nodes().await;
    let listed = nodes.list_nodes(pb::ListNodesRequest::default()).await.unwrap().into_inner().nodes;
    let node = listed.into_iter().next().unwrap().metadata.unwrap().name;
    let pods = up.pods().await;
    let script = format!("echo $$ > {}; exec sleep 1000", file.display());
    create(&pods, pod("sleeper", &node, &["sh", "-c", &script])).await;
    wait_until_running(&pods, "sleeper").await;
    let pid = || async { std::fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n')) };
    let pid = eventually("the process writes its pid", pid).await;
    let process = std::path::Path::new("/proc").join(pid.trim());
    assert!(process.exists());
    up.signal(Signal::INT);
    assert_eq!(up.wait_for_exit().code(), Some(0), "{}", up.stderr());
    assert!(!process.exists(), "{} still runs after its records were removed", process.display());
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_same_user_use_the_sockets_without_an_address() {
    let (data, settings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let directory = data.path().join("up");
    let mut up = Up::start(&["--data-dir", directory.to_str().unwrap(), "--nodes", "1", "--no-agent"]);
    up.wait_for("ready");
    let muster = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MUSTER_"))
        {
            command.env_remove(name);
        }
        command.env("MUSTER_UP_DATA_DIR", &directory).env("XDG_CONFIG_HOME", settings.path());
        command.args(arguments).output().unwrap()
    };
    // The ports are not those that commands use by default.
    for arguments in [["get", "nodes"].as_slice(), &["fleet"], &["cordon", "sim-1"]] {
        let output = muster(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mode = |path: &str| std::fs::metadata(directory.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode("run"), mode("run/store.sock"), mode("run/controller.sock")], [0o700, 0o600, 0o600]);
    up.signal(Signal::TERM);
    assert_eq!(up.wait_for_exit().code(), Some(0), "{}", up.stderr());
    assert!(!directory.join("run/store.sock").exists());
}

fn refused(arguments: &[&str]) -> String {
    let output = muster_up(arguments).output().unwrap();
    let (out, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(output.status.code(), Some(1), "{out}{stderr}");
    assert_eq!(out, "", "nothing is printed before all components listen");
    assert!(stderr.contains("\nhint: "), "{stderr}");
    stderr
}

#[test]
fn a_port_in_use_is_reported_with_a_hint() {
    let taken = TcpListener::bind(FREE_PORT).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in LISTEN_FLAGS {
        let stderr = refused(&["--ephemeral", flag, &address]);
        let message = format!("{flag}: cannot listen on {address}: the port is in use by another process");
        assert!(stderr.contains(&message), "{stderr}");
        assert!(stderr.contains(&format!("{flag} 127.0.0.1:0 picks a free one")), "{stderr}");
    }
}

#[test]
fn the_simulation_listens_on_loopback_addresses_only() {
    let stderr = refused(&["--ephemeral", "--simulation-listen", "0.0.0.0:0"]);
    assert!(stderr.contains("--simulation-listen: 0.0.0.0:0 can be reached by other machines"), "{stderr}");
}

#[test]
fn the_page_listens_on_loopback_addresses_only() {
    let stderr = refused(&["--ephemeral", "--ui-listen", "0.0.0.0:0"]);
    assert!(stderr.contains("--ui-listen: 0.0.0.0:0 can be reached by other machines"), "{stderr}");
}

#[test]
fn a_data_directory_in_use_is_reported_with_a_hint() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().to_str().unwrap();
    let arguments = ["--data-dir", directory, "--no-agent", "--nodes", "0"];
    let mut up = Up::start(&arguments);
    up.wait_for("ready");
    let stderr = refused(&arguments);
    assert!(stderr.contains(&format!("{directory}/store is in use by another process")), "{stderr}");
    assert!(stderr.contains("--data-dir"), "{stderr}");
}

#[test]
fn a_data_directory_that_cannot_be_created_is_reported_with_a_hint() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let directory = file.path().join("below-a-file");
    let stderr = refused(&["--data-dir", directory.to_str().unwrap()]);
    assert!(stderr.contains(directory.to_str().unwrap()), "{stderr}");
    assert!(stderr.contains("--ephemeral"), "{stderr}");
}

#[test]
fn the_variable_sets_the_default_directory_and_conflicts_with_no_flag() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("default");
    for (arguments, is_used) in [(&["--ephemeral"][..], false), (&[], true)] {
        let arguments = [arguments, &["--no-agent", "--nodes", "0"]].concat();
        let mut up = Up::start_with(&arguments, &[("MUSTER_UP_DATA_DIR", directory.to_str().unwrap())]);
        up.wait_for("ready");
        assert_eq!(up.value_of("records") == directory.to_str().unwrap(), is_used, "{arguments:?}");
        assert_eq!(directory.exists(), is_used, "{arguments:?}");
        up.signal(Signal::INT);
        assert_eq!(up.wait_for_exit().code(), Some(0), "{}", up.stderr());
    }
}
