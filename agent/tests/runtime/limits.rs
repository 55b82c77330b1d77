//! What containers use, their limits, and what their shims cost.

use std::fs;
use std::path::PathBuf;

use muster_agent::runtime::cgroup::Tree;
use muster_agent::runtime::processes::ProcessKey;
use muster_agent::runtime::{ContainerSpec, Limits, PodLimits, Runtime};

use crate::harness::{Harness, container, eventually, shell};

/// A cgroup tree that can be used, or `None` where the machine has none.
fn usable_root() -> Option<PathBuf> {
    let root = Tree::find_root()?;
    match Tree::open(&root) {
        Ok(_) => Some(root),
        Err(error) => {
            eprintln!("no cgroups to test with: {error}");
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_the_sum_of_all_processes() {
    let harness = Harness::new();
    let busy = harness.start(&shell("sleep 1001 & sleep 1002 & while :; do :; done"));
    let quiet = harness.start(&container(&["sleep", "1000"]));
    let usage = eventually("three processes at work", || {
        let usage = harness.runtime().usages().remove(&busy)?;
        (usage.pids == 3 && !usage.cpu.is_zero()).then_some(usage)
    })
    .await;
    assert!(usage.memory_bytes > 0);
    assert_eq!(harness.runtime().usages().remove(&quiet).unwrap().pids, 1);

    harness.runtime().kill(&busy).unwrap();
    harness.exit(&busy).await;
    assert_eq!(harness.runtime().usages().remove(&busy), None, "an exited container uses nothing");
    assert_eq!(harness.runtime().usages().len(), 1);
}

/// The CPUs that a process may run on, as the kernel writes them.
fn allowed(pid: i32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse().unwrap()..=last.parse().unwrap()
    };
    list.trim().split(',').flat_map(range).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_that_share_are_moved_with_all_their_processes() {
    let harness = Harness::new();
    let all = allowed(std::process::id().cast_signed());
    let (first, last) = (all[0], all[all.len() - 1]);
    let own = Limits { cpus: vec![first], ..Limits::default() };
    let alone = harness.start(&ContainerSpec { limits: own, ..container(&["sleep", "1000"]) });
    // One of its children leaves its session.
    let script =
        "sleep 1001 & echo child $!; setsid sleep 1002 & echo stray $!; echo main $$; exec sleep 1000";
    let shares = harness.start(&shell(script));
    let mut pids = Vec::new();
    for word in ["main ", "child ", "stray "] {
        pids.push(harness.process(&shares, word).await.pid);
    }
    let alone = harness.run(&alone).main.pid;

    harness.runtime().share(&[last]).unwrap();
    for pid in &pids {
        assert_eq!(allowed(*pid), [last]);
    }
    assert_eq!(allowed(alone), [first]);
    let later = harness.start(&container(&["sleep", "1000"]));
    assert_eq!(allowed(harness.run(&later).main.pid), [last], "a later container starts there");
    assert!(harness.runtime().list().iter().any(|found| found.id == later && found.cpus.is_empty()));

    harness.runtime().share(&[]).unwrap();
    pids.push(harness.run(&later).main.pid);
    for pid in &pids {
        assert_eq!(allowed(*pid), all, "on any CPU again");
    }
    assert_eq!(allowed(alone), [first]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_runs_on_the_cpus_that_its_container_was_moved_to() {
    let harness = Harness::new();
    let all = allowed(std::process::id().cast_signed());
    let id = harness.start(&container(&["sleep", "1000"]));
    harness.runtime().share(&all[..1]).unwrap();
    let file = harness.path().join("where");
    let script = format!("grep Cpus_allowed_list /proc/self/status > {}", file.display());
    let hook = ["sh", "-c", &script].map(str::to_owned);
    harness.runtime().run_hook(&id, &hook, std::time::Duration::from_secs(30)).unwrap();
    let allowed = fs::read_to_string(file).unwrap();
    assert_eq!(allowed.split_whitespace().last(), Some(all[0].to_string().as_str()), "{allowed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_usage_of_a_pod_is_counted() {
    let harness = Harness::new();
    let quiet = harness.start(&container(&["true"]));
    let loud = harness.start(&shell("head -c 1000000 /dev/zero"));
    for id in [&quiet, &loud] {
        harness.exit(id).await;
    }
    let usages = harness.runtime().disk_usages();
    assert!(usages[&loud.pod].bytes >= usages[&quiet.pod].bytes + 900_000, "{usages:?}");
    assert_eq!(usages[&loud.pod].inodes, usages[&quiet.pod].inodes, "the same files");
    assert!(usages[&quiet.pod].inodes >= 5, "two folders, order, run and exit: {usages:?}");
    harness.runtime().remove(&loud).unwrap();
    assert!(!harness.runtime().disk_usages().contains_key(&loud.pod));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_has_a_higher_oom_score_than_its_shim() {
    let score = |pid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        text.trim().parse::<i32>().unwrap()
    };
    let harness = Harness::new();
    let own = score(std::process::id().cast_signed());
    let spec = ContainerSpec { oom_score_adj: 321, ..container(&["sleep", "1000"]) };
    let id = harness.start(&spec);
    let run = harness.run(&id);
    assert_eq!((score(run.main.pid), score(run.shim.pid)), (321, own));
    let file = harness.path().join("score");
    let hook = ["sh", "-c", &format!("cat /proc/self/oom_score_adj > {}", file.display())].map(str::to_owned);
    harness.runtime().run_hook(&id, &hook, std::time::Duration::from_secs(30)).unwrap();
    assert_eq!(fs::read_to_string(file).unwrap(), "321\n", "and so has its hook");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_without_cgroups_reports_a_limitation() {
    let harness = Harness::new();
    let said = harness.runtime().limitations();
    assert!(said.len() == 1 && said[0].contains("not enforced"), "{said:?}");
    assert!(!harness.runtime().controls_swap());

    let plain_folder = tempfile::tempdir().unwrap();
    let harness = Harness::with_cgroups(Some(plain_folder.path().to_owned()));
    let said = harness.runtime().limitations();
    assert!(said.len() == 1 && said[0].contains("no cgroup v2 tree"), "{said:?}");
    let id = harness.start(&container(&["true"]));
    assert_eq!(harness.exit(&id).await.code, 0, "containers still run");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_in_its_cgroup_from_the_start() {
    let Some(root) = usable_root() else { return };
    let harness = Harness::with_cgroups(Some(root.clone()));
    let limits = Limits {
        cpu_request_millis: Some(100),
        cpu_millis: Some(500),
        memory_bytes: Some(64 << 20),
        swap_bytes: Some(0),
        cpus: vec![0],
    };
    let pod_limits = PodLimits { cpu_request_millis: 100, pids: Some(50) };
    let spec = ContainerSpec {
        limits,
        pod_limits,
        ..shell("grep ^0: /proc/self/cgroup; sleep 1001 & exec sleep 1000")
    };
    let id = harness.start(&spec);
    let place = format!("muster/{}/main", id.pod);
    assert!(harness.line(&id, "0::").await.ends_with(&place));
    let run = harness.run(&id);
    let shim = fs::read_to_string(format!("/proc/{}/cgroup", run.shim.pid)).unwrap();
    assert!(shim.contains("muster/shims"), "a kill of the container does not reach the shim: {shim}");
    eventually("two processes", || (harness.runtime().usages().remove(&id)?.pids == 2).then_some(())).await;

    harness.runtime().kill(&id).unwrap();
    assert_eq!(harness.exit(&id).await.signal, Some(9));
    assert!(!root.join(place).exists(), "an exited container keeps no cgroup");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_by_cgroup_reaches_processes_that_left_the_group() {
    let Some(root) = usable_root() else { return };
    let harness = Harness::with_cgroups(Some(root));
    let id =
        harness.start(&shell("trap '' TERM; (setsid sh -c 'echo daemon $$; exec sleep 1001' &); sleep 1000"));
    let daemon: ProcessKey = harness.process(&id, "daemon ").await;
    harness.runtime().kill(&id).unwrap();
    harness.exit(&id).await;
    assert!(!daemon.is_alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_uses_little_memory() {
    let harness = Harness::new();
    let id = harness.start(&container(&["sleep", "1000"]));
    let status = fs::read_to_string(format!("/proc/{}/status", harness.run(&id).shim.pid)).unwrap();
    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kib: u64 = own.trim().trim_end_matches(" kB").parse().unwrap();
    println!("the shim's own memory: {kib} KiB");
    // Most of it are relocations of an unoptimised program; mapped pages are shared with the agent.
    assert!(kib < 3072, "{kib} KiB");
}
