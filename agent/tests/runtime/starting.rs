//! What a container finds when it starts, and which starts are errors.

use std::fs;
use std::path::PathBuf;

use muster_agent::runtime::process::ProcessRuntime;
use muster_agent::runtime::{ContainerId, ContainerSpec, Limits, Runtime, RuntimeError, State};
use muster_rpc::clock::SystemClock;

use crate::harness::{Harness, container, eventually, shell};

#[tokio::test(flavor = "multi_thread")]
async fn a_started_container_is_listed_with_its_process() {
    let harness = Harness::new();
    let spec = container(&["sleep", "1000"]);
    let started = harness.runtime().start(&spec).unwrap();

    let listed = harness.runtime().list();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].id, &listed[0].state), (&spec.id, &State::Running(started)));
    assert_eq!((listed[0].pod_namespace.as_str(), listed[0].pod_name.as_str()), ("default", "pod-1"));
    let command = fs::read(format!("/proc/{}/cmdline", started.pid)).unwrap();
    assert_eq!(command, b"sleep\x001000\x00");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_is_the_containers_and_a_path() {
    let harness = Harness::new();
    let given = |pairs: &[(&str, &str)]| ContainerSpec {
        env: pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        ..container(&["env"])
    };
    for (pairs, expected) in [
        (
            &[("GREETING", "good day"), ("EMPTY", "")][..],
            "EMPTY=\nGREETING=good day\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        ),
        (&[("PATH", "/bin:/usr/bin")][..], "PATH=/bin:/usr/bin"),
    ] {
        let id = harness.start(&given(pairs));
        assert_eq!(harness.exit(&id).await.code, 0);
        let log = harness.log(&id);
        let mut lines: Vec<&str> = log.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines.join("\n"), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_starts_with_default_signals_and_no_open_files() {
    let harness = Harness::new();
    // `cat` ends at once, since standard input is /dev/null.
    let mut spec = shell("pwd; cat; exec sleep 1000");
    let id = harness.start(&spec);
    harness.line(&id, "/").await;
    let pid = harness.run(&id).main.pid;
    let status = eventually("the shell to become sleep", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.starts_with("Name:\tsleep").then_some(status)
    })
    .await;
    let signals = |kind: &str| {
        let set = status.lines().find_map(|line| line.strip_prefix(kind)).unwrap();
        u64::from_str_radix(set.trim(), 16).unwrap()
    };
    let ours = 1 << (1 - 1) | 1 << (2 - 1) | 1 << (3 - 1) | 1 << (13 - 1) | 1 << (15 - 1);
    for kind in ["SigBlk:", "SigIgn:", "SigCgt:"] {
        assert_eq!(
            signals(kind) & ours,
            0,
            "HUP, INT, QUIT, PIPE and TERM have their usual effect: {status}"
        );
    }
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    // A file that the loader had open for a moment may be closed by now.
    let open: Vec<PathBuf> = open.filter_map(|file| fs::read_link(file.ok()?.path()).ok()).collect();
    let kept: Vec<&PathBuf> = open.iter().filter(|path| path.starts_with(harness.path())).collect();
    assert_eq!(kept, [&harness.files(&id).log(), &harness.files(&id).log()], "of our files only its output");
    harness.runtime().kill(&id).unwrap();
    harness.exit(&id).await;

    spec.id.attempt = 1;
    spec.working_dir = harness.path().to_str().unwrap().to_owned();
    let id = harness.start(&spec);
    harness.line(&id, &spec.working_dir).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_and_errors_are_in_the_log() {
    let harness = Harness::new();
    let mut spec = shell("echo out; echo err >&2; echo \"$0\" \"$1\"");
    spec.args = vec!["zero".to_owned(), "one two".to_owned()];
    let id = harness.start(&spec);
    harness.exit(&id).await;
    assert_eq!(harness.log(&id), "out\nerr\nzero one two\n");
    assert_eq!(harness.runtime().log_tail(&id, 4).unwrap(), b"two\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_pinned_to_its_cpus() {
    let harness = Harness::new();
    let limits = Limits { cpus: vec![0], ..Limits::default() };
    let id = harness.start(&ContainerSpec { limits, ..shell("grep Cpus_allowed_list /proc/self/status") });
    harness.exit(&id).await;
    assert_eq!(harness.log(&id), "Cpus_allowed_list:\t0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_cannot_start_is_an_error_and_leaves_no_files() {
    let harness = Harness::new();
    let named = |name: &str| {
        let spec = container(&["true"]);
        ContainerSpec { id: ContainerId { container: name.to_owned(), ..spec.id }, ..spec }
    };
    let variable = ContainerSpec { env: vec![("A=B".to_owned(), String::new())], ..container(&["true"]) };
    let elsewhere = ContainerSpec { working_dir: "/no/such/place".to_owned(), ..container(&["true"]) };
    let only_args = ContainerSpec { args: vec!["true".to_owned()], ..container(&[]) };
    for (spec, reason) in [
        (only_args, "no images"),
        (container(&[""]), "no images"),
        (
            container(&["no-such-program-at-all"]),
            "\"no-such-program-at-all\" cannot be started: No such file",
        ),
        (container(&["/etc/passwd"]), "Permission denied"),
        (elsewhere, "its working directory \"/no/such/place\" cannot be entered: No such file"),
        (variable, "\"A=B\" cannot name a variable"),
        (named("../../escape"), "its name"),
        (named(""), "its name"),
    ] {
        let error = harness.runtime().start(&spec).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(harness.runtime().list(), [], "{reason}");
        assert_eq!(fs::read_dir(harness.pods()).unwrap().count(), 0, "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_starts_once_and_not_while_another_runs() {
    let harness = Harness::new();
    let mut spec = container(&["sleep", "1000"]);
    let first = harness.start(&spec);
    assert!(matches!(harness.runtime().start(&spec), Err(RuntimeError::Exists(_))));
    spec.id.attempt = 1;
    assert!(matches!(harness.runtime().start(&spec), Err(RuntimeError::Busy { running: 0, .. })));

    harness.runtime().kill(&first).unwrap();
    harness.exit(&first).await;
    harness.start(&spec);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_agents_cannot_share_a_directory() {
    let harness = Harness::new();
    let second = ProcessRuntime::open(harness.config(), SystemClock::shared());
    let Err(RuntimeError::Machine { source, .. }) = second else { panic!("it was opened") };
    assert!(source.to_string().contains("another agent"));
}
