//! The node status matches what the tools of the machine report.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]
#![allow(clippy::disallowed_methods, reason = "the machine itself is asked")]

use std::fs;
use std::process::Command;

use muster_proto::pb;
use muster_tests::agent_process::{AgentHost, condition, is_ready, node_where};
use muster_tests::store_process::StoreLaunch;
use muster_tests::{TIMEOUT, eventually};

/// The output of a command.
fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap().trim().to_owned()
}

/// A size of /proc/meminfo, in KiB.
fn meminfo(field: &str) -> u64 {
    let info = read("/proc/meminfo");
    let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A value of /etc/os-release.
fn os_release(key: &str) -> String {
    let release = read("/etc/os-release");
    let value = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    value.unwrap_or_default().trim_matches('"').to_owned()
}

/// A quantity in bytes, with the units that agents use.
fn bytes(quantity: &str) -> u64 {
    let digits = quantity.trim_end_matches(char::is_alphabetic);
    let unit = match &quantity[digits.len()..] {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        other => panic!("the unit {other:?} in {quantity:?}"),
    };
    digits.parse::<u64>().unwrap() * unit
}

async fn reported(flags: &[(&str, &str)]) -> (pb::Node, pb::GetAgentResponse) {
    let (directory, host) = (tempfile::tempdir().unwrap(), AgentHost::new());
    let store = StoreLaunch::on(directory.path()).start();
    let mut launch = host.agent("n1", &store.url()).without("eviction-hard");
    for (flag, value) in flags {
        launch = launch.flag(flag, value);
    }
    let agent = launch.start();
    let node = node_where(&store.api(), "n1", "it is ready", is_ready).await;
    let state = eventually(TIMEOUT, "its status is acknowledged", || async {
        let state = agent.state().await;
        state.acknowledged_status.is_some().then_some(state)
    })
    .await;
    (node, state)
}

#[tokio::test(flavor = "multi_thread")]
async fn capacity_matches_nproc_and_meminfo() {
    let (node, _) = reported(&[]).await;
    let status = node.status.unwrap();
    assert_eq!(status.capacity["cpu"], output("nproc", &["--all"]));
    assert_eq!(bytes(&status.capacity["memory"]), meminfo("MemTotal") * 1024);
    assert_eq!(status.capacity["pods"], "110");
    let disk =
        output("stat", &["--file-system", "--format=%S %b", &std::env::temp_dir().display().to_string()]);
    let (block, blocks) = disk.split_once(' ').unwrap();
    let disk_bytes = block.parse::<u64>().unwrap() * blocks.parse::<u64>().unwrap();
    assert_eq!(bytes(&status.capacity["ephemeral-storage"]), disk_bytes);

    assert_eq!(status.allocatable["cpu"], status.capacity["cpu"]);
    let huge: u64 = status
        .capacity
        .iter()
        .filter(|(name, _)| name.starts_with("hugepages-"))
        .map(|(_, q)| bytes(q))
        .sum();
    let reserved = (100 << 20) + huge;
    assert_eq!(bytes(&status.allocatable["memory"]), meminfo("MemTotal") * 1024 - reserved);
    assert_eq!(status.allocatable["pods"], "110");
}

#[tokio::test(flavor = "multi_thread")]
async fn reservations_and_pod_limits_are_reported() {
    let flags = [
        ("system-reserved", "cpu=100m,memory=64Mi"),
        ("kube-reserved", "cpu=50m,memory=36Mi"),
        ("max-pods", "10"),
        ("pods-per-core", "1"),
    ];
    let (node, _) = reported(&flags).await;
    let status = node.status.unwrap();
    let cores: u64 = output("nproc", &["--all"]).parse().unwrap();
    assert_eq!(status.allocatable["cpu"], format!("{}m", cores * 1000 - 150));
    let huge: u64 = status
        .capacity
        .iter()
        .filter(|(name, _)| name.starts_with("hugepages-"))
        .map(|(_, q)| bytes(q))
        .sum();
    assert_eq!(bytes(&status.allocatable["memory"]), meminfo("MemTotal") * 1024 - (200 << 20) - huge);
    assert_eq!(status.capacity["pods"], cores.min(10).to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn node_info_matches_uname_os_release_and_boot_id() {
    let (node, _) = reported(&[]).await;
    let info = node.status.unwrap().node_info.unwrap();
    assert_eq!(info.kernel_version, output("uname", &["-r"]));
    assert_eq!(info.os_image, os_release("PRETTY_NAME"));
    assert_eq!(info.boot_id, read("/proc/sys/kernel/random/boot_id"));
    assert_eq!(info.operating_system, "linux");
    let architecture = match output("uname", &["-m"]).as_str() {
        "x86_64" => "amd64".to_owned(),
        "aarch64" => "arm64".to_owned(),
        other => other.to_owned(),
    };
    assert_eq!(info.architecture, architecture);
    if let Ok(machine_id) = fs::read_to_string("/etc/machine-id") {
        assert_eq!(info.machine_id, machine_id.trim());
    }
    assert!(info.container_runtime_version.contains("://"), "{info:?}");
    assert!(!info.kubelet_version.is_empty());
    match meminfo("SwapTotal") {
        0 => assert_eq!(info.swap, None),
        kib => assert_eq!(info.swap.unwrap().capacity, Some(kib as i64 * 1024)),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_address_is_one_of_the_interfaces_and_the_port_is_set() {
    let (node, state) = reported(&[]).await;
    let status = node.status.unwrap();
    let local = output("hostname", &["-I"]);
    let of = |kind: &str| -> Vec<String> {
        let addresses = status.addresses.iter().filter(|address| address.r#type == kind);
        addresses.map(|address| address.address.clone()).collect()
    };
    assert_eq!(of("Hostname"), ["n1"]);
    let internal = of("InternalIP");
    assert_eq!(internal.len(), 1, "{internal:?}");
    assert!(local.split_whitespace().any(|address| address == internal[0]), "{internal:?} of {local}");
    assert!(status.daemon_endpoints.unwrap().agent_port > 0);
    assert_eq!(state.acknowledged_status.unwrap().addresses, status.addresses);
}

#[tokio::test(flavor = "multi_thread")]
async fn s054_given_addresses_are_reported_in_their_order() {
    let local = output("hostname", &["-I"]);
    let usable = |address: &&str| !address.starts_with("fe80");
    let v4 = local.split_whitespace().find(|address| address.contains('.')).unwrap();
    let v6 = local.split_whitespace().filter(usable).find(|address| address.contains(':'));
    let given = match v6 {
        Some(v6) => vec![v6, v4],
        None => vec![v4],
    };
    let (node, _) = reported(&[("node-ip", &given.join(","))]).await;
    let addresses = node.status.unwrap().addresses;
    let received: Vec<(&str, &str)> =
        addresses.iter().map(|address| (address.r#type.as_str(), address.address.as_str())).collect();
    let mut wanted: Vec<(&str, &str)> = given.into_iter().map(|address| ("InternalIP", address)).collect();
    wanted.push(("Hostname", "n1"));
    assert_eq!(received, wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn s054_a_loopback_address_is_not_reported_but_the_rest_is() {
    let (node, _) = reported(&[("node-ip", "127.0.0.1")]).await;
    assert!(is_ready(&node) && condition(&node, "MemoryPressure").is_some());
    let status = node.status.unwrap();
    assert_eq!(status.addresses, []);
    assert!(status.capacity.contains_key("cpu"));
}
