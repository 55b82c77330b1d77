//! How containers stop, by themselves and by signals, and that no process of theirs is left.

use std::fs;
use std::time::Duration;

use muster_agent::runtime::processes::ProcessKey;
use muster_agent::runtime::{
    ContainerId, ContainerSpec, ExitReason, HookEnd, Runtime, RuntimeError, Signal, State,
};
use rustix::process::{Pid, Signal as Raw, kill_process};

use crate::harness::{Harness, container, eventually, shell};

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_is_reported_with_its_code_or_signal() {
    let harness = Harness::new();
    for (script, code, signal, reason) in [
        ("exit 0", 0, None, ExitReason::Completed),
        ("exit 7", 7, None, ExitReason::Error),
        ("kill -9 $$", 137, Some(9), ExitReason::Error),
        ("kill -15 $$", 143, Some(15), ExitReason::Error),
    ] {
        let id = harness.start(&shell(script));
        let exit = harness.exit(&id).await;
        assert_eq!((exit.code, exit.signal, exit.reason), (code, signal, reason), "{script}");
        assert!(exit.started_at <= exit.finished_at, "{script}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn term_stops_a_container_that_does_not_ignore_it() {
    let harness = Harness::new();
    let id = harness.start(&container(&["sleep", "1000"]));
    harness.runtime().signal(&id, Signal::Term).unwrap();
    assert_eq!(harness.exit(&id).await.signal, Some(15));
    harness.runtime().signal(&id, Signal::Term).expect("a signal to an exited container has no effect");
    harness.runtime().kill(&id).expect("nor has a kill");
}

#[tokio::test(flavor = "multi_thread")]
async fn term_reaches_the_whole_group() {
    let harness = Harness::new();
    let id = harness.start(&shell(
        "(trap 'echo child; exit 0' TERM; echo ready; while :; do sleep 0.01; done) & \
                                 trap 'wait; exit 3' TERM; wait",
    ));
    harness.line(&id, "ready").await;
    harness.runtime().signal(&id, Signal::Term).unwrap();
    assert_eq!(harness.exit(&id).await.code, 3);
    harness.line(&id, "child").await;
}

/// Ignores TERM and has children in its group, in a group of their own, and in a session of their own.
const STUBBORN: &str = "trap '' TERM
    sleep 1001 & echo child $!
    sh -c 'sleep 1002 & echo grandchild $!; wait' &
    setsid sh -c 'echo runaway $$; exec sleep 1003' &
    (setsid sh -c 'echo daemon $$; exec sleep 1004' &)
    echo ready; while :; do sleep 0.05; done";
const STUBBORN_CHILDREN: [&str; 4] = ["child ", "grandchild ", "runaway ", "daemon "];

async fn stubborn(harness: &Harness) -> (ContainerId, Vec<ProcessKey>) {
    let id = harness.start(&shell(STUBBORN));
    let mut processes = vec![harness.run(&id).main];
    for name in STUBBORN_CHILDREN {
        processes.push(harness.process(&id, name).await);
    }
    harness.line(&id, "ready").await;
    assert!(processes.iter().all(ProcessKey::is_alive));
    (id, processes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_leaves_nothing_of_a_container_that_ignores_term() {
    let harness = Harness::new();
    let (id, processes) = stubborn(&harness).await;
    harness.runtime().signal(&id, Signal::Term).unwrap();
    assert!(matches!(harness.state(&id), Some(State::Running(_))));

    harness.runtime().kill(&id).unwrap();
    assert_eq!(harness.exit(&id).await.signal, Some(9));
    for process in processes {
        assert!(!process.is_alive(), "{process:?} is gone before the exit is reported");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_a_container_leaves_behind_are_killed() {
    let harness = Harness::new();
    let id = harness.start(
        &shell(
            "sleep 1001 & echo child $!; (setsid sh -c 'echo daemon $$; exec sleep 1002' &); \
                                 read go < /dev/null; while [ ! -e gone ]; do sleep 0.01; done; exit 4",
        )
        .in_folder(&harness),
    );
    let left = [harness.process(&id, "child ").await, harness.process(&id, "daemon ").await];
    fs::write(harness.path().join("gone"), b"").unwrap();
    assert_eq!(harness.exit(&id).await.code, 4);
    assert!(!left.iter().any(ProcessKey::is_alive));
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_are_reaped_while_their_container_runs() {
    let harness = Harness::new();
    let id = harness.start(&shell("(sh -c 'echo orphan $$; exec sleep 0.1' &) ; exec sleep 1000"));
    let pid: i32 = harness.line(&id, "orphan ").await.parse().unwrap();
    eventually("the orphan to be reaped", || (!fs::exists(format!("/proc/{pid}")).unwrap()).then_some(()))
        .await;
    assert!(matches!(harness.state(&id), Some(State::Running(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_exited_container_can_be_removed_and_its_files_go_too() {
    let harness = Harness::new();
    let id = harness.start(&shell("echo hello; exec sleep 1000"));
    harness.line(&id, "hello").await;
    assert!(matches!(harness.runtime().remove(&id), Err(RuntimeError::StillRunning(_))));
    harness.runtime().kill(&id).unwrap();
    harness.exit(&id).await;

    harness.runtime().remove(&id).unwrap();
    assert_eq!(harness.runtime().list(), []);
    assert_eq!(fs::read_dir(harness.pods()).unwrap().count(), 0);
    assert!(matches!(harness.runtime().remove(&id), Err(RuntimeError::Unknown(_))));
    assert!(matches!(harness.runtime().kill(&id), Err(RuntimeError::Unknown(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_survives_signals() {
    let harness = Harness::new();
    let id = harness.start(&container(&["sleep", "1000"]));
    let shim = Pid::from_raw(harness.run(&id).shim.pid).unwrap();
    for signal in [Raw::HUP, Raw::INT, Raw::QUIT, Raw::TERM, Raw::USR1] {
        kill_process(shim, signal).unwrap();
    }
    harness.runtime().signal(&id, Signal::Interrupt).unwrap();
    assert_eq!(harness.exit(&id).await.signal, Some(2), "the shim recorded the exit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_outlives_its_shim_and_can_still_be_killed() {
    let harness = Harness::new();
    let id = harness.start(&container(&["sleep", "1000"]));
    let run = harness.run(&id);
    kill_process(Pid::from_raw(run.shim.pid).unwrap(), Raw::KILL).unwrap();
    eventually("the shim to be gone", || (!run.shim.is_alive()).then_some(())).await;
    assert!(run.main.is_alive());
    assert!(matches!(harness.state(&id), Some(State::Running(_))));

    harness.runtime().kill(&id).unwrap();
    let exit = harness.exit(&id).await;
    assert_eq!((exit.code, exit.reason), (137, ExitReason::Unknown));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_runs_in_its_containers_environment() {
    let harness = Harness::new();
    let spec = ContainerSpec {
        env: vec![("WHO".to_owned(), "me".to_owned())],
        ..container(&["sleep", "1000"]).in_folder(&harness)
    };
    let id = harness.start(&spec);
    let minute = Duration::from_secs(60);
    let run = |script: &str, timeout| {
        harness.runtime().run_hook(&id, &["sh".to_owned(), "-c".to_owned(), script.to_owned()], timeout)
    };
    assert_eq!(run("env > seen; exit 3", minute).unwrap(), HookEnd::Code(3));
    let seen = fs::read_to_string(harness.path().join("seen")).unwrap();
    assert!(seen.contains("WHO=me\n") && !seen.contains("CARGO"), "{seen}");
    assert_eq!(run("kill -9 $$", minute).unwrap(), HookEnd::Code(137));
    let missing = harness.runtime().run_hook(&id, &["no-such-program".to_owned()], minute);
    assert_eq!(missing.unwrap(), HookEnd::Code(127));

    harness.runtime().kill(&id).unwrap();
    harness.exit(&id).await;
    assert!(matches!(run("true", minute), Err(RuntimeError::Ended(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_takes_too_long_is_killed_with_its_children() {
    let harness = Harness::new();
    let id = harness.start(&container(&["sleep", "1000"]).in_folder(&harness));
    let script = "sleep 1001 & echo $! > child; wait";
    let hook = ["sh".to_owned(), "-c".to_owned(), script.to_owned()];
    let end = harness.runtime().run_hook(&id, &hook, Duration::from_millis(500)).unwrap();
    assert_eq!(end, HookEnd::TimedOut);
    // It may have been killed before it had written a whole line.
    if let Ok(child) = fs::read_to_string(harness.path().join("child"))
        && child.ends_with('\n')
        && let Ok(child) = ProcessKey::of(child.trim().parse().unwrap())
    {
        eventually("the hook's child to be gone", || (!child.is_alive()).then_some(())).await;
    }
    assert!(matches!(harness.state(&id), Some(State::Running(_))), "the container still runs");
}

trait InFolder {
    fn in_folder(self, harness: &Harness) -> ContainerSpec;
}

impl InFolder for ContainerSpec {
    fn in_folder(self, harness: &Harness) -> ContainerSpec {
        ContainerSpec { working_dir: harness.path().to_str().unwrap().to_owned(), ..self }
    }
}

/// Waits on the calling thread, without a runtime.
fn wait_until(holds: impl Fn() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("timed out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_outlives_its_container_can_be_killed() {
    let harness = Harness::new();
    let go = harness.path().join("go");
    let id = harness.start(&shell(&format!("while [ ! -e {} ]; do sleep 0.01; done", go.display())));
    let mark = harness.path().join("hook");
    let hook = ["sh", "-c", &format!("echo $$ > {}; exec sleep 1000", mark.display())].map(str::to_owned);
    let ended = std::thread::scope(|scope| {
        let running = scope.spawn(|| harness.runtime().run_hook(&id, &hook, Duration::from_secs(1000)));
        let is_up = || fs::read_to_string(&mark).is_ok_and(|text| text.ends_with('\n'));
        let is_over = || matches!(harness.state(&id), Some(State::Exited(_)));
        wait_until(is_up);
        fs::write(&go, b"").unwrap();
        wait_until(is_over);
        harness.runtime().kill(&id).unwrap();
        running.join().unwrap().unwrap()
    });
    assert_eq!(ended, HookEnd::Code(137));
}
