//! Flags as an operator writes them, and the settings that they become.

use std::ffi::OsString;

use clap::{CommandFactory, Parser};
use muster_proto::quantity::Quantity;
use muster_proto::taint::{Taint, TaintEffect};

use super::*;

fn flags(args: &[&str]) -> Flags {
    let command = ["muster-agent", "--store", "http://127.0.0.1:7400"];
    Flags::try_parse_from(command.iter().chain(args)).unwrap()
}

fn config(args: &[&str]) -> Config {
    Config::try_from(&flags(args)).unwrap()
}

fn refusal(args: &[&str]) -> String {
    Config::try_from(&flags(args)).unwrap_err().to_string()
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_defaults_are_those_of_kubernetes() {
    let config = config(&[]);
    assert_eq!(config.stores, ["http://127.0.0.1:7400"]);
    assert_eq!(config.state_dir, PathBuf::from("/var/lib/muster/agent"));
    assert_eq!(config.listen.to_string(), "127.0.0.1:7600");
    assert_eq!(config.http_listen.to_string(), "127.0.0.1:7601");
    assert_eq!(config.node, NodeConfig { register: true, ..NodeConfig::default() });
    assert_eq!(
        config.status,
        StatusConfig { update_frequency: secs(10), report_frequency: secs(300), max_images: Some(50) }
    );
    assert_eq!(config.lease_duration, secs(40));
    assert_eq!((config.capacity.max_pods, config.capacity.pods_per_core), (110, 0));
    assert_eq!(
        config.eviction.hard,
        [
            "memory.available<100Mi",
            "nodefs.available<10%",
            "nodefs.inodesFree<5%",
            "imagefs.available<15%",
            "imagefs.inodesFree<5%"
        ]
    );
    assert_eq!(config.eviction.pressure_transition_period, secs(300));
    assert_eq!(config.shutdown, ShutdownConfig::default());
    assert_eq!(config.topology, TopologyConfig::default());
    assert_eq!(config.swap, SwapConfig { fail_on: true, behavior: SwapBehavior::NoSwap });
    assert_eq!(config.pod_security.own_ids.to_string(), "2000000000-2000065535");
    assert!(config.pod_security.allowed_ids.is_empty() && !config.pod_security.allow_privileged);
    assert!(config.client_tls.is_none() && config.warnings.is_empty());
}

#[test]
fn the_error_of_an_invalid_flag_names_it() {
    for (args, expected) in [
        (&["--pod-uid-range=0-9"][..], "--pod-uid-range: must not contain 0, which is root"),
        (&["--pod-uid-range=9-1"], r#"--pod-uid-range: "9-1" must be an id such as 1000"#),
        (&["--allow-run-as=5,x"], r#"--allow-run-as: "x" must be an id such as 1000"#),
        (
            &["--allow-run-as=5,90-110", "--pod-uid-range=100-200"],
            "--allow-run-as: 90-110 overlaps --pod-uid-range: a pod could run as the user of another",
        ),
        (&["--node-labels", "a"], r#"--node-labels: "a" must be written key=value"#),
        (&["--node-labels", "a=b,/x=1"], "--node-labels: the key \"/x\" has an invalid prefix"),
        (&["--node-labels", "a=b c"], "--node-labels: the value of \"a\" must be empty, or of letters"),
        (&["--register-with-taints", "a"], "--register-with-taints: \"a\" must be written key=value:effect"),
        (&["--node-ip", "10.0.0.5,10.0.0.6"], "--node-ip: names two IPv4 addresses"),
        (&["--node-name", "a_b"], "--node-name: may hold only lower-case letters"),
        (&["--node-name", " "], "--node-name: must not be empty"),
        (&["--node-name", "a", "--hostname-override", "b"], "--hostname-override: contradicts --node-name"),
        (&["--cloud-provider", "aws"], "--cloud-provider: \"aws\" must be external, or empty"),
        (&["--node-status-update-frequency", "0s"], "--node-status-update-frequency: must be more than 0"),
        (&["--node-status-report-frequency", "0"], "--node-status-report-frequency: must be more than 0"),
        (&["--node-lease-duration-seconds", "0"], "--node-lease-duration-seconds: must be 1 to 3600"),
        (&["--node-lease-duration-seconds", "-4"], "--node-lease-duration-seconds: must be 1 to 3600"),
        (&["--node-lease-duration-seconds", "3601"], "--node-lease-duration-seconds: must be 1 to 3600"),
        (&["--node-status-max-images", "-2"], "--node-status-max-images: must be -1 for all images"),
        (&["--max-pods", "-1"], "--max-pods: must be 0 to 2147483647"),
        (&["--pods-per-core", "-1"], "--pods-per-core: must be 0 to 2147483647"),
        (&["--system-reserved", "pods=1"], "--system-reserved: \"pods\" cannot be reserved; cpu, memory"),
        (&["--system-reserved", "cpu=x"], "--system-reserved: the amount of cpu must be a number"),
        (&["--kube-reserved", "memory=-1Gi"], "--kube-reserved: the amount of memory must not be negative"),
        (&["--kube-reserved", "cpu=1,cpu=2"], "--kube-reserved: cpu is given twice"),
        (
            &["--feature-gates=NodeLeases=true"],
            "--feature-gates: \"NodeLeases\" is no gate; these are: NodeLease,",
        ),
        (&["--feature-gates=NodeLease=false"], "--feature-gates: NodeLease cannot be switched off"),
        (
            &["--feature-gates=NodeSwap=false", "--memory-swap-behavior=LimitedSwap"],
            "--feature-gates: NodeSwap=false contradicts --memory-swap-behavior",
        ),
        (
            &["--feature-gates=TopologyManager=false", "--topology-manager-policy=restricted"],
            "--feature-gates: TopologyManager=false contradicts --topology-manager-policy",
        ),
        (
            &["--kubeconfig", "/etc/passwd"],
            "--credentials: must be a directory with ca.crt, tls.crt and tls.key",
        ),
        (&["--kubeconfig", "/nonexistent"], "--credentials: cannot read /nonexistent/ca.crt"),
        (&["--container-log-max-size", "x"], "--container-log-max-size: "),
        (&["--container-log-max-size", "0"], "--container-log-max-size: must be more than 0"),
        (&["--container-log-max-files", "1"], "--container-log-max-files: must be 2 or more"),
        (&["--pod-max-pids", "0"], "--pod-max-pids: must be -1 for no limit"),
        (&["--pod-max-pids", "-2"], "--pod-max-pids: must be -1 for no limit"),
        (&["--eviction-max-pod-grace-period", "-1"], "--eviction-max-pod-grace-period: must be 0 to"),
        (
            &["--shutdown-grace-period-by-pod-priority", "x=1"],
            "--shutdown-grace-period-by-pod-priority: \"x=1\"",
        ),
        (
            &["--shutdown-grace-period-by-pod-priority", "1=1,1=2"],
            "--shutdown-grace-period-by-pod-priority: priority 1 is given twice",
        ),
        (
            &["--shutdown-grace-period-by-pod-priority", "1=1", "--shutdown-grace-period", "1s"],
            "--shutdown-grace-period-by-pod-priority: contradicts --shutdown-grace-period",
        ),
        (&["--topology-manager-policy", "strict"], "--topology-manager-policy: \"strict\" must be none"),
        (&["--topology-manager-scope", "node"], "--topology-manager-scope: \"node\" must be container"),
        (&["--memory-swap-behavior", "UnlimitedSwap"], "--memory-swap-behavior: \"UnlimitedSwap\" must be"),
        (&["--listen", "0.0.0.0:7600"], "0.0.0.0:7600 can be reached by other machines"),
        (&["--credentials", "/nonexistent"], "--credentials: cannot read /nonexistent/ca.crt"),
        (&["--tls-cert", "/x"], "--tls-key is missing"),
    ] {
        let found = refusal(args);
        assert!(found.starts_with(expected), "{args:?}: {found}");
    }
    let no_store = Flags::try_parse_from(["muster-agent", "--store", ""]).unwrap();
    assert_eq!(Config::try_from(&no_store).unwrap_err().to_string(), "--store: must name at least one store");
}

#[test]
fn older_names_of_flags_are_understood_with_a_hint() {
    let args = ["muster-agent", "--api-servers=http://a:1,http://b:1", "--feature-gates=NodeSwap=true"];
    let mut flags = Flags::try_parse_from(args).unwrap();
    flags.note_older_names(args.map(OsString::from));
    let config = Config::try_from(&flags).unwrap();
    assert_eq!(config.stores, ["http://a:1", "http://b:1"]);
    assert_eq!(config.warnings, ["--api-servers is the older name of --store: use that one"]);
    assert_eq!(config.log_limits, LogLimits { max_bytes: 10 << 20, max_files: 5 });
}

#[test]
fn s038_a_label_that_would_promote_the_node_is_refused_by_key() {
    for key in ["node-role.kubernetes.io/master", "node-restriction.kubernetes.io/x", "other.k8s.io/x"] {
        let found = refusal(&["--node-labels", &format!("a=b,{key}=")]);
        assert!(found.starts_with(&format!("--node-labels: a node may not set {key:?}")), "{found}");
    }
    let labels = config(&["--node-labels", "kubelet.kubernetes.io/x=1, a=b,", "--node-labels", "a=c"]);
    assert_eq!(
        labels.node.labels,
        [("a", "c"), ("kubelet.kubernetes.io/x", "1")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    );
}

#[test]
fn s039_taints_are_read_and_may_not_repeat_a_key_and_effect() {
    let node = config(&["--register-with-taints", "k=v:NoSchedule,k:NoExecute"]).node;
    assert_eq!(
        node.taints,
        [Taint::new("k", "v", TaintEffect::NoSchedule), Taint::new("k", "", TaintEffect::NoExecute)]
    );
    let found = refusal(&["--register-with-taints", "a=1:NoSchedule,a=2:NoSchedule"]);
    assert_eq!(
        found,
        "--register-with-taints: \"a=2:NoSchedule\" has the key and effect of an earlier taint"
    );
    let unregistered = config(&["--register-with-taints", "k:NoExecute", "--register-node=false"]).node;
    assert!(!unregistered.register && unregistered.taints.is_empty());
}

#[test]
fn s049_an_update_frequency_given_alone_sets_the_report_frequency_too() {
    const UPDATE: &str = "--node-status-update-frequency";
    const REPORT: &str = "--node-status-report-frequency";
    for (args, expected) in [
        (&[][..], (10, 300)),
        (&[UPDATE, "5s"], (5, 5)),
        (&[REPORT, "1m"], (10, 60)),
        (&[UPDATE, "5s", REPORT, "1m"], (5, 60)),
        // Given explicitly, even with the default value.
        (&[UPDATE, "10s"], (10, 10)),
    ] {
        let status = config(args).status;
        let found = (status.update_frequency, status.report_frequency);
        assert_eq!(found, (secs(expected.0), secs(expected.1)), "{args:?}");
    }
}

#[test]
fn the_name_is_the_operators_or_the_kept_one_or_the_hostname() {
    for (args, kept, hostname, expected) in [
        (&[][..], None, " Web-1.Example \n", Ok("web-1.example")),
        (&["--node-name", "N1"], None, "h", Ok("n1")),
        (&["--hostname-override", " n2 "], None, "h", Ok("n2")),
        (&["--hostname-override", "n3", "--node-name", "N3"], None, "h", Ok("n3")),
        (&[], Some("old"), "h", Ok("h")),
        (&["--keep-node-name"], None, "h", Ok("h")),
        (&["--keep-node-name"], Some("old"), "h", Ok("old")),
        (&["--keep-node-name"], Some("old"), "a_b", Ok("old")),
        (&["--keep-node-name", "--node-name", "n1"], Some("old"), "h", Ok("n1")),
        (&["--node-name", "n1"], Some("old"), "h", Ok("n1")),
        (&["--hostname-override", "n2"], Some("old"), "h", Ok("n2")),
        (&[], None, "a_b", Err("the hostname \"a_b\" cannot name a node: it may hold only")),
    ] {
        let kept = kept.map(|name: &str| name.parse().unwrap());
        let name = config(args).node_name(kept.as_ref(), hostname);
        match (name, expected) {
            (Ok(name), Ok(expected)) => assert_eq!(name, expected),
            (Err(error), Err(expected)) => assert!(error.to_string().starts_with(expected), "{error}"),
            (found, expected) => panic!("{args:?}: {found:?}, not {expected:?}"),
        }
    }
}

#[test]
fn all_other_flags_become_settings() {
    let config = config(&[
        "--server=a:1,b:2",
        "--system-reserved=cpu=500m,memory=1Gi",
        "--kube-reserved=ephemeral-storage=1Gi,pid=1000",
        "--eviction-hard=",
        "--eviction-soft=memory.available<200Mi",
        "--eviction-soft-grace-period=memory.available=1m30s",
        "--shutdown-grace-period-by-pod-priority=100000=10,-5=60",
        "--shutdown-on-sigterm",
        "--topology-manager-policy=single-numa-node",
        "--topology-manager-scope=pod",
        "--fail-swap-on=false",
        "--memory-swap-behavior=LimitedSwap",
        "--node-status-max-images=-1",
        "--node-ip=nonsense",
        "--cloud-provider=external",
        "--provider-id=cloud://1",
    ]);
    assert_eq!(config.stores, ["http://127.0.0.1:7400", "a:1", "b:2"]);
    assert_eq!(config.capacity.system_reserved["cpu"], Quantity::from_milli(500));
    assert_eq!(config.capacity.system_reserved["memory"], Quantity::bytes(1 << 30));
    assert_eq!(config.capacity.kube_reserved["pid"], Quantity::whole(1000));
    assert!(config.eviction.hard.is_empty());
    assert_eq!(config.eviction.soft, ["memory.available<200Mi"]);
    assert_eq!(config.eviction.soft_grace_period, ["memory.available=1m30s"]);
    assert_eq!(config.shutdown.by_pod_priority, [(-5, secs(60)), (100_000, secs(10))]);
    assert!(config.shutdown.on_sigterm);
    assert_eq!(config.topology, TopologyConfig { policy: Policy::SingleNumaNode, scope: Scope::Pod });
    assert_eq!(config.swap, SwapConfig { fail_on: false, behavior: SwapBehavior::LimitedSwap });
    assert_eq!(config.status.max_images, None);
    assert_eq!(config.warnings.len(), 1);
    assert_eq!((config.node.cloud, config.node.provider_id.as_str()), (Cloud::External, "cloud://1"));
}

#[test]
fn a_bare_switch_and_a_named_value_mean_the_same() {
    assert!(config(&["--register-node"]).node.register);
    assert!(config(&["--register-node=true"]).node.register);
    assert!(config(&["--fail-swap-on"]).swap.fail_on);
}

#[test]
fn s079_a_machine_with_swap_is_refused_unless_it_is_accepted() {
    for (args, bytes, starts) in [
        (&[][..], 0, true),
        (&[], 1, false),
        (&["--fail-swap-on=false"], 1, true),
        (&["--fail-swap-on=false"], 0, true),
    ] {
        assert_eq!(config(args).swap.check(bytes).is_ok(), starts, "{args:?} {bytes}");
    }
}

#[test]
fn every_flag_is_an_environment_variable_of_its_name() {
    for arg in Flags::command().get_arguments() {
        let long = arg.get_long().unwrap();
        let expected = format!("MUSTER_{}", long.to_uppercase().replace('-', "_"));
        assert_eq!(arg.get_env().and_then(|name| name.to_str()), Some(expected.as_str()), "--{long}");
    }
    Flags::command().debug_assert();
}

#[test]
fn a_file_gives_lists_switches_and_numbers() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = r#"
        store = ["a:1", "b:2"]
        register-node = false
        node-labels = ["a=b", "c=d"]
        eviction-hard = ["memory.available<5%"]
        max-pods = 7
        node-status-update-frequency = "5s"
        shutdown-on-sigterm = true
    "#;
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap();
    let flags: Flags =
        muster_rpc::config::parse_with_config(["muster-agent", "--config", path, "--max-pods=9"]).unwrap();
    let config = Config::try_from(&flags).unwrap();
    assert_eq!(config.stores, ["a:1", "b:2"]);
    assert!(!config.node.register && config.shutdown.on_sigterm);
    assert_eq!(config.node.labels.len(), 2);
    assert_eq!(config.eviction.hard, ["memory.available<5%"]);
    assert_eq!((config.capacity.max_pods, config.status.report_frequency), (9, secs(5)));
}
