//! Commands that make no calls.

use crate::harness::Harness;

#[tokio::test(flavor = "multi_thread")]
async fn help_explains_the_exit_codes() {
    let help = Harness::empty().muster("--help").await.ok();
    for line in
        ["  0  success", "  3  a named record does not exist", "  6  the store, the controller or an agent"]
    {
        assert!(help.contains(line), "{help}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_scripts_ask_muster() {
    let harness = Harness::empty();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = harness.muster(&format!("completion {shell}")).await.ok();
        assert!(script.contains("muster") && script.contains("COMPLETE"), "{shell}: {script}");
    }
    assert_eq!(harness.muster("completion tcl").await.code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_has_a_manual_page() {
    let harness = Harness::empty();
    harness.muster("manual pages").await.ok();
    for page in [
        "muster.1",
        "muster-get.1",
        "muster-drain.1",
        "muster-config-use-context.1",
        "muster-up.1",
        "muster-wait.1",
        "muster-edit.1",
    ] {
        let text = std::fs::read_to_string(harness.path("pages").join(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }
    let pages = std::fs::read_dir(harness.path("pages")).unwrap().map(|page| page.unwrap().file_name());
    let pages: Vec<String> = pages.map(|name| name.into_string().unwrap()).collect();
    assert!(!pages.iter().any(|name| name.contains("-help")), "{pages:?}");
    for (page, expected) in [
        ("muster.1", "Exit codes"),
        ("muster-store.1", r"data\-dir"),
        ("muster-store-backup.1", "FILE"),
        ("muster-controller.1", r"node\-monitor\-grace\-period"),
        ("muster-cloud-inventory.1", "inventory"),
        ("muster-agent.1", r"state\-dir"),
    ] {
        let text = std::fs::read_to_string(harness.path("pages").join(page)).unwrap();
        assert!(text.contains(expected), "{page} has no {expected}: {text}");
    }
    let stderr = harness.muster("manual /proc/nix").await.failed(1);
    assert!(stderr.contains("/proc/nix"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manual_page_of_a_command_says_what_its_help_says() {
    let harness = Harness::empty();
    harness.muster("manual pages").await.ok();
    let help = harness.muster("--help").await.ok();
    let commands = help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap();
    let starts =
        commands.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    let names: Vec<&str> = starts.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() >= 30, "{names:?}");
    for name in names.into_iter().filter(|name| *name != "help") {
        let help = harness.muster(&format!("{name} --help")).await.ok();
        let page = std::fs::read_to_string(harness.path("pages").join(format!("muster-{name}.1")));
        let page =
            page.unwrap_or_else(|error| panic!("{name}: {error}")).replace('\\', "").replace("*(Aq", "'");
        let summary = help.lines().next().unwrap();
        assert!(page.contains(summary), "the page of {name} has no `{summary}`");
        for flag in help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 3) {
            let flag = flag.trim_end_matches(|end: char| !end.is_ascii_alphanumeric());
            let flag = flag.split(['=', '[', '`']).next().unwrap();
            assert!(page.contains(flag), "the page of {name} has no {flag}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_checks_the_flags() {
    let harness = Harness::empty();
    let report = harness.muster("doctor --nodes 5000 --zones 4").await.ok();
    assert!(report.contains("is Unknown after") && report.contains("29.6s to 40s"), "{report}");
    assert!(report.contains("1250 nodes, 37500 pods"), "{report}");
    let unsafe_flags =
        harness.muster("doctor --node-monitor-grace-period 15s --node-lease-duration-seconds 40").await;
    assert!(unsafe_flags.out.contains("\nunsafe: one lost or late renewal"), "{}", unsafe_flags.out);
    unsafe_flags.failed(1);
    harness.muster("certs certificates admin").await.ok();
    let certificates = "doctor --tls-cert certificates/admin.crt --tls-ca certificates/ca.crt";
    let report = harness.muster(certificates).await.ok();
    for flag in ["--tls-cert certificates/admin.crt expires in", "--tls-ca certificates/ca.crt expires in"] {
        assert!(report.contains(flag), "{report}");
    }
    let document = harness.muster("doctor --nodes 5000 --zones 4 -o json").await.ok();
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["effects"]["nodesPerZone"], 1250);
    for wrong in
        ["--nodes 0", "--unhealthy-zone-threshold 2", "--node-eviction-rate -1", "--node-monitor-period x"]
    {
        assert_eq!(harness.muster(&format!("doctor {wrong}")).await.code, 2, "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_standard_output_is_no_failure() {
    let harness = Harness::empty();
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["completion", "bash"])
        .env("HOME", harness.path(""))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"".as_slice()));
}
