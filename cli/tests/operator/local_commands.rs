//! Commands that need nobody to answer.

use crate::harness::Stage;

#[tokio::test(flavor = "multi_thread")]
async fn help_says_what_exit_codes_mean() {
    let help = Stage::empty().muster("--help").await.ok();
    for line in
        ["  0  done", "  3  a record that was named does not exist", "  6  the store or the controller"]
    {
        assert!(help.contains(line), "{help}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shells_are_told_muster_s_words() {
    let stage = Stage::empty();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stage.muster(&format!("completion {shell}")).await.ok();
        assert!(script.contains("uncordon") && script.contains("ignore-daemonsets"), "{shell}");
    }
    assert_eq!(stage.muster("completion tcl").await.code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_a_page_of_the_manual_for_every_command() {
    let stage = Stage::empty();
    stage.muster("manual pages").await.ok();
    for page in ["muster.1", "muster-get.1", "muster-drain.1", "muster-config-use-context.1", "muster-up.1"] {
        let text = std::fs::read_to_string(stage.path("pages").join(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }
    let pages = std::fs::read_dir(stage.path("pages")).unwrap().map(|page| page.unwrap().file_name());
    let pages: Vec<String> = pages.map(|name| name.into_string().unwrap()).collect();
    assert!(!pages.iter().any(|name| name.contains("-help")), "{pages:?}");
    for (page, said) in [
        ("muster.1", "Exit codes"),
        ("muster-store.1", r"data\-dir"),
        ("muster-store-backup.1", "FILE"),
        ("muster-controller.1", r"node\-monitor\-grace\-period"),
        ("muster-cloud-inventory.1", "inventory"),
        ("muster-agent.1", r"state\-dir"),
    ] {
        let text = std::fs::read_to_string(stage.path("pages").join(page)).unwrap();
        assert!(text.contains(said), "{page} has no {said}: {text}");
    }
    let complaint = stage.muster("manual /proc/nix").await.refused(1);
    assert!(complaint.contains("/proc/nix"), "{complaint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_judges_the_flags() {
    let stage = Stage::empty();
    let report = stage.muster("doctor --nodes 5000 --zones 4").await.ok();
    assert!(report.contains("is Unknown after") && report.contains("29.6s to 40s"), "{report}");
    assert!(report.contains("1250 nodes, 37500 pods"), "{report}");
    let ill = stage.muster("doctor --node-monitor-grace-period 15s --node-lease-duration-seconds 40").await;
    assert!(ill.out.contains("\nunsafe: one renewal that is lost or late"), "{}", ill.out);
    ill.refused(1);
    for wrong in
        ["--nodes 0", "--unhealthy-zone-threshold 2", "--node-eviction-rate -1", "--node-monitor-period x"]
    {
        assert_eq!(stage.muster(&format!("doctor {wrong}")).await.code, 2, "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nobody_reads_to_its_end_is_no_failure() {
    let stage = Stage::empty();
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["completion", "bash"])
        .env("HOME", stage.path(""))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"".as_slice()));
}
