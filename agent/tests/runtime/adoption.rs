//! Agents that stop or are killed, and the agents after them.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use jiff::Timestamp;
use muster_agent::runtime::process::ProcessRuntime;
use muster_agent::runtime::processes::{self, ProcessKey};
use muster_agent::runtime::record::{self, Order, Run};
use muster_agent::runtime::{ContainerId, ContainerSpec, Exit, ExitReason, Runtime, Signal, State};
use muster_rpc::clock::SystemClock;
use rustix::process::{Pid, Signal as Raw, kill_process_group};

use crate::harness::{Harness, config, container, eventually, shell};

/// Exits with 5 once there is a file `go` in its directory.
fn waiting(folder: &Path) -> ContainerSpec {
    ContainerSpec {
        working_dir: folder.to_str().unwrap().to_owned(),
        ..shell("while [ ! -e go ]; do sleep 0.01; done; exit 5")
    }
}

async fn exit_written(harness: &Harness, id: &ContainerId) -> Exit {
    eventually("the exit to be written down", || record::read_exit(&harness.files(id)).unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_finds_running_and_exited_containers() {
    let mut harness = Harness::new();
    let spec = container(&["sleep", "1000"]);
    let started = harness.runtime().start(&spec).unwrap();
    let short = harness.start(&waiting(harness.path()));
    let earlier = harness.start(&shell("exit 9"));
    let seen = harness.exit(&earlier).await;

    harness.close();
    fs::write(harness.path().join("go"), b"").unwrap();
    exit_written(&harness, &short).await;
    harness.open();

    assert_eq!(harness.state(&spec.id), Some(State::Running(started)));
    assert_eq!(harness.state(&earlier), Some(State::Exited(seen)));
    assert_eq!(harness.exit(&short).await.code, 5);

    harness.runtime().signal(&spec.id, Signal::Term).unwrap();
    assert_eq!(harness.exit(&spec.id).await.signal, Some(15), "it is watched like a container of its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_survive_the_kill_of_their_agent() {
    let mut harness = Harness::new();
    harness.close();
    let mut agent = agent_to_be_killed(harness.path());
    let orders = eventually("two containers to run", || {
        let orders = record::find_orders(&harness.pods()).ok()?;
        let runs = orders.iter().filter(|order| order.with_extension("run").exists()).count();
        (runs == 2).then_some(orders)
    })
    .await;
    // The whole process group of the agent, as a terminal or a supervisor may kill it.
    kill_process_group(Pid::from_raw(agent.id().cast_signed()).unwrap(), Raw::KILL).unwrap();
    agent.wait().unwrap();
    fs::write(harness.path().join("go"), b"").unwrap();

    let order_of = |command: &str| {
        let orders = orders.iter().filter_map(|path| record::read::<Order>(path).unwrap());
        orders.map(|order| order.spec).find(|spec| spec.command[0] == command).unwrap().id
    };
    let (long, short) = (order_of("sleep"), order_of("sh"));
    exit_written(&harness, &short).await;
    harness.open();
    assert_eq!(harness.exit(&short).await.code, 5);
    assert!(harness.run(&long).main.is_alive());
    assert!(matches!(harness.state(&long), Some(State::Running(_))));
    harness.runtime().kill(&long).unwrap();
    assert_eq!(harness.exit(&long).await.signal, Some(9));
}

const STATE: &str = "MUSTER_TEST_STATE";

/// Starts the test below as its own process and process group.
fn agent_to_be_killed(folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--ignored", "adoption::an_agent_that_waits_to_be_killed"]);
    command.env(STATE, folder).process_group(0).spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "no test: the process that agent_to_be_killed starts for one"]
async fn an_agent_that_waits_to_be_killed() {
    let Some(folder) = std::env::var_os(STATE) else { return };
    let folder = Path::new(&folder);
    let runtime = ProcessRuntime::open(config(folder, None), SystemClock::shared()).unwrap();
    runtime.start(&container(&["sleep", "1000"])).unwrap();
    runtime.start(&waiting(folder)).unwrap();
    std::future::pending::<()>().await;
}

/// Writes the records of a container with the processes of the given run.
fn forge(harness: &Harness, run: Option<&Run>) -> ContainerId {
    let spec = container(&["sleep", "1000"]);
    let files = harness.files(&spec.id);
    files.make_folder().unwrap();
    let order = Order {
        spec: spec.clone(),
        cgroup: None,
        affinity: Vec::new(),
        own_id: None,
        user: None,
        volumes: None,
    };
    record::write(&files.order(), &order).unwrap();
    if let Some(run) = run {
        record::write(&files.run(), run).unwrap();
    }
    spec.id
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_with_a_containers_pid_is_not_signalled() {
    let mut harness = Harness::new();
    harness.close();
    let other = KilledAtEnd(Command::new("sleep").arg("1000").process_group(0).spawn().unwrap());
    let itself = ProcessKey::of(other.0.id().cast_signed()).unwrap();
    let earlier = ProcessKey { start_ticks: itself.start_ticks - 1, ..itself };
    let boot_id = processes::boot_id().unwrap();
    let started_at = Timestamp::UNIX_EPOCH;
    let runs = [
        Run { boot_id: boot_id.clone(), shim: earlier, main: earlier, started_at },
        Run { boot_id: "another".to_owned(), shim: itself, main: itself, started_at },
    ];
    for run in runs {
        let id = forge(&harness, Some(&run));
        harness.open();
        harness.runtime().kill(&id).unwrap();
        harness.runtime().signal(&id, Signal::Term).unwrap();
        let exit = harness.exit(&id).await;
        assert_eq!((exit.code, exit.reason, exit.started_at), (137, ExitReason::Unknown, started_at));
        assert!(itself.is_alive(), "{run:?}");
        harness.close();
        assert_eq!(exit_written(&harness, &id).await, exit, "the next agent reads the same");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_of_an_earlier_boot_are_distinguished_from_those_of_this_one() {
    let mut harness = Harness::new();
    let own = harness.start(&container(&["true"]));
    harness.exit(&own).await;
    harness.close();
    let nobody = ProcessKey { pid: i32::MAX, start_ticks: 1 };
    let run =
        Run { boot_id: "another".to_owned(), shim: nobody, main: nobody, started_at: Timestamp::UNIX_EPOCH };
    let earlier = forge(&harness, Some(&run));
    let is_this_boot = |harness: &Harness, id: &ContainerId| {
        harness.runtime().list().into_iter().find(|found| found.id == *id).unwrap().is_this_boot
    };
    for agent in 0..2 {
        harness.open();
        assert!(!is_this_boot(&harness, &earlier), "agent {agent}");
        assert!(is_this_boot(&harness, &own), "agent {agent}");
        harness.close();
        exit_written(&harness, &earlier).await;
    }
}

/// A process that is killed at the end of its test.
struct KilledAtEnd(Child);

impl Drop for KilledAtEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_without_a_shim_is_closed_for_good() {
    let mut harness = Harness::new();
    harness.close();
    let id = forge(&harness, None);
    harness.open();
    let Some(State::Exited(exit)) = harness.state(&id) else { panic!("it has not terminated") };
    assert_eq!((exit.code, exit.reason), (128, ExitReason::NotStarted));

    // A shim that starts now comes too late.
    let shim =
        Command::new(harness.config().shim).arg("shim").arg(harness.files(&id).order()).output().unwrap();
    assert_eq!(shim.stdout, b"failed: another process has closed this order\n");
    assert!(!harness.files(&id).run().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_in_progress_is_waited_for() {
    let mut harness = Harness::new();
    harness.close();
    let id = forge(&harness, None);
    let held = record::lock_if_idle(&harness.files(&id).order()).unwrap().expect("no shim yet");
    harness.open();
    assert_eq!(harness.state(&id), Some(State::Starting));
    drop(held);
    assert_eq!(harness.exit(&id).await.reason, ExitReason::NotStarted, "its shim ended without a record");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_loses_one_container_and_not_the_others() {
    let mut harness = Harness::new();
    let good = harness.start(&container(&["sleep", "1000"]));
    harness.close();
    let bad = forge(&harness, None);
    fs::write(harness.files(&bad).order(), b"{").unwrap();
    harness.open();
    assert!(harness.state(&good).is_some());
    assert_eq!(harness.state(&bad), None);
}
