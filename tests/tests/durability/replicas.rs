//! Two stores on one etcd: one leads, the other follows and takes over.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use muster_proto::pb;
use muster_proto::pb::heartbeat_request::Message;
use muster_tests::agent_process::{
    AgentHost, condition, events, is_ready, lease_where, node_where, renewed_at,
};
use muster_tests::certificate_authority::Authority;
use muster_tests::controller_process::ControllerProcess;
use muster_tests::etcd::Etcd;
use muster_tests::fixtures;
use muster_tests::http;
use muster_tests::rpc_error::RpcError;
use muster_tests::store_process::write_log::{Writer, WriterKind, check_all};
use muster_tests::store_process::{SeededRandom, StoreLaunch, StoreProcess, free_port, until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::task::block_in_place;
use tonic::Code;

use super::crash::{ActiveWriters, Watchers, check_versions, counts};

const ROUNDS: usize = 4;

/// Stores on one etcd.
pub(super) struct Replicas {
    pub(super) stores: [Option<StoreProcess>; 2],
    launches: [StoreLaunch; 2],
    pub(super) etcd: Etcd,
    directory: TempDir,
}

impl Replicas {
    pub(super) async fn start() -> Replicas {
        Replicas::start_with(|_, launch| launch).await
    }

    /// The same with these changes of how each is started.
    pub(super) async fn start_with(change: impl Fn(&Path, StoreLaunch) -> StoreLaunch) -> Replicas {
        let directory = tempfile::tempdir().unwrap();
        let etcd = Etcd::start(&directory.path().join("etcd")).await;
        let launches = ["a", "b"].map(|name| {
            let launch = StoreLaunch::on(&directory.path().join(name)).at(free_port());
            let launch = launch.flag("--engine", "etcd").flag("--etcd-endpoints", &etcd.url());
            change(&directory.path().join(name), launch)
        });
        let stores = [0, 1].map(|index| Some(launches[index].spawn()));
        let replicas = Replicas { stores, launches, etcd, directory };
        for index in [0, 1] {
            block_in_place(|| replicas.at(index).wait_logged("has loaded the records"));
        }
        replicas
    }

    pub(super) fn at(&self, index: usize) -> &StoreProcess {
        self.stores[index].as_ref().unwrap()
    }

    /// All addresses, separated by commas.
    pub(super) fn urls(&self) -> String {
        [0, 1].map(|index| self.at(index).url()).join(",")
    }

    /// Which store leads, once one of these does.
    pub(super) async fn leader_among(&self, candidates: &[usize]) -> usize {
        let leads = |index: &usize| {
            self.stores[*index].as_ref().is_some_and(|store| store.metric("muster_store_leader") == 1.0)
        };
        until("a store leads", || candidates.iter().any(leads)).await;
        *candidates.iter().find(|index| leads(index)).expect("it has just won")
    }

    pub(super) async fn leader(&self) -> usize {
        self.leader_among(&[0, 1]).await
    }

    /// The files of one store.
    pub(super) fn directory(&self, index: usize) -> PathBuf {
        self.directory.path().join(["a", "b"][index])
    }

    /// Stops one in order.
    pub(super) fn stop(&mut self, index: usize) {
        let mut stopped = self.stores[index].take().unwrap();
        stopped.signal(Signal::TERM);
        let status = block_in_place(|| stopped.wait());
        assert_eq!(status.code(), Some(0), "{}", stopped.log());
    }

    pub(super) fn kill(&mut self, index: usize) {
        block_in_place(|| self.stores[index].take().unwrap().kill());
    }

    pub(super) fn start_again(&mut self, index: usize) {
        let store = self.launches[index].spawn();
        block_in_place(|| store.wait_logged("has loaded the records"));
        self.stores[index] = Some(store);
    }
}

/// Stops a process, and waits until none of its threads runs any more: the signal takes effect a moment later.
pub(super) async fn suspend(process: Pid) {
    kill_process(process, Signal::STOP).unwrap();
    let is_stopped = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).unwrap();
        let states = tasks
            .map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default());
        states.into_iter().all(|status| status.contains("State:\tT"))
    };
    until("it is stopped", is_stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_death_of_the_leader_loses_no_acknowledged_write_and_leaves_no_gap() {
    let mut random = SeededRandom::seeded();
    let mut replicas = Replicas::start().await;
    let mut leader = replicas.leader().await;
    let watchers = Watchers::follow_at(replicas.urls(), replicas.at(leader)).await;
    // Each of their writes takes one revision.
    let kinds =
        [WriterKind::Nodes, WriterKind::Nodes, WriterKind::Pods, WriterKind::Leases, WriterKind::Leases];
    let mut writers: Vec<_> = (0..)
        .zip(kinds)
        .map(|(number, kind)| Writer::new(&format!("{number}-{kind:?}").to_lowercase(), kind, random.fork()))
        .collect();
    let mut slowest = Duration::ZERO;
    for _ in 0..ROUNDS {
        let head = check_all(&mut writers, &replicas.at(leader).channel()).await;
        let since = counts(&writers);
        let busy = ActiveWriters::with(writers, replicas.at(leader));
        busy.acknowledged(100 + random.below(200)).await;
        tokio::time::sleep(Duration::from_micros(random.below(5_000))).await;
        let began = Instant::now();
        replicas.kill(leader);
        (writers, _) = busy.interrupted().await;
        check_versions(&writers, &since, head);
        let successor = replicas.leader_among(&[1 - leader]).await;
        slowest = slowest.max(began.elapsed());
        replicas.start_again(leader);
        leader = successor;
    }
    let store = replicas.at(leader);
    check_all(&mut writers, &store.channel()).await;
    for writer in &mut writers {
        writer.write(store.channel(), 3).await.unwrap();
    }
    let head = check_all(&mut writers, &store.channel()).await;
    let received = watchers.check(&writers, store).await;
    // The node that the watchers began with was created and deleted.
    let changes: usize = counts(&writers).iter().sum();
    assert_eq!(head, changes as u64 + 2, "every revision is somebody's write");
    println!("{ROUNDS} leaders killed, {changes} changes; slowest fail-over {slowest:?}; {received}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_that_sleeps_longer_than_its_lease_writes_nothing_when_it_wakes_and_follows() {
    let mut replicas = Replicas::start().await;
    let old = replicas.leader().await;
    let new = 1 - old;
    let mut stream = replicas.at(old).api().agent("sleeper").await;
    let renewal = || Message::Renewal(pb::HeartbeatRenewal { status_digest: 1, status_age_millis: 0 });
    let before = stream.send(renewal()).await.unwrap();
    suspend(replicas.at(old).pid()).await;
    // It waits in the socket of the leader that sleeps, and is the first thing it finds.
    let late = tokio::spawn(async move { stream.send(renewal()).await });
    replicas.leader_among(&[new]).await;
    replicas.at(old).signal(Signal::CONT);
    assert!(late.await.unwrap().is_err(), "a deposed leader acknowledges nothing");
    block_in_place(|| replicas.at(old).wait_logged("does not lead any more; it follows"));
    assert_eq!(replicas.at(old).metric("muster_store_leader"), 0.0);

    // The successor goes on from where the old one was, so nothing was written in between.
    let api = replicas.at(new).api();
    let revision = api.revision().await;
    assert_eq!(revision, before.resource_version);
    let created = api.create(fixtures::node("n")).await.unwrap();
    assert_eq!(created.metadata.unwrap().resource_version, revision + 1);
    assert!(replicas.at(old).api().get::<pb::Node>("n").await.is_ok(), "the one that slept has it at once");

    // The successor stops in order, and the one that slept leads again, without a restart and without loading.
    replicas.stop(new);
    replicas.leader_among(&[old]).await;
    let api = replicas.at(old).api();
    assert!(api.get::<pb::Node>("n").await.is_ok());
    assert_eq!(api.revision().await, revision + 1);
    assert_eq!(replicas.at(old).log().matches("has loaded the records").count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fail_over_makes_no_agent_look_silent() {
    let mut replicas = Replicas::start().await;
    let old = replicas.leader().await;
    let urls = replicas.urls();
    let controller = block_in_place(|| {
        ControllerProcess::start(&urls, &["--node-monitor-grace-period=12s", "--node-monitor-period=1s"])
    });
    let host = AgentHost::new();
    let agent = block_in_place(|| host.agent("n1", &urls).start());
    let api = replicas.at(old).api();
    let ready = node_where(&api, "n1", "is ready", is_ready).await;
    let since = |node: &pb::Node| condition(node, "Ready").and_then(|ready| ready.last_transition_time);
    let lease = lease_where(&api, "n1", "is renewed", |lease| renewed_at(lease).is_some()).await;

    replicas.kill(old);
    let new = replicas.leader_among(&[1 - old]).await;
    let api = replicas.at(new).api();
    // Longer than the silence that the controller tolerates.
    let (last, _) = renewed_at(&lease).unwrap();
    lease_where(&api, "n1", "is renewed on", |lease| renewed_at(lease).is_some_and(|(at, _)| at > last + 15))
        .await;
    let node = api.get::<pb::Node>("n1").await.unwrap();
    assert!(is_ready(&node), "{node:?}");
    assert_eq!(since(&node), since(&ready), "it was ready all the time");
    assert_eq!(events(&api, "n1", "NodeNotReady").await, []);
    drop((agent, controller));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_space_in_etcd_a_store_is_read_only_and_heals_when_the_alarm_is_disarmed() {
    let replicas = Replicas::start().await;
    let leader = replicas.at(replicas.leader().await);
    let api = leader.api();
    api.create(fixtures::node("before")).await.unwrap();
    replicas.etcd.set_space_alarm(true).await;
    let refused = RpcError::from(&api.create(fixtures::node("refused")).await.unwrap_err());
    assert_eq!((refused.code, &*refused.reason), (Code::Unavailable, "STORAGE_UNAVAILABLE"), "{refused:?}");
    assert!(refused.message.contains("NOSPACE") && refused.retry_after.is_some(), "{refused:?}");
    assert_eq!(leader.metric("muster_store_writable"), 0.0);
    let readiness = http::get(leader.http_address(), "/readyz").unwrap();
    assert!(readiness.contains("etcd: etcd's space is used up"), "{readiness}");
    assert!(api.get::<pb::Node>("before").await.is_ok(), "reads go on");

    replicas.etcd.set_space_alarm(false).await;
    until("it writes again", || leader.metric("muster_store_writable") == 1.0).await;
    api.create(fixtures::node("after")).await.unwrap();
    assert!(api.get::<pb::Node>("refused").await.is_err());
    assert_eq!(leader.metric("muster_store_leader"), 1.0, "it kept its lease");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn etcd_is_reached_with_tls_and_a_prefix_of_somebody_else_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let etcd = Etcd::start_with(&directory.path().join("etcd"), Some(&authority)).await;
    let [cert, key] = authority.issue("store", "");
    let launch = StoreLaunch::on(&directory.path().join("a")).at(free_port());
    let launch = launch.flag("--engine", "etcd").flag("--etcd-endpoints", &etcd.secure_url());
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let secured = launch
        .clone()
        .flag("--etcd-ca", &path(&authority.own()))
        .flag("--etcd-cert", &path(&cert))
        .flag("--etcd-key", &path(&key));
    let store = block_in_place(|| secured.start());
    store.api().create(fixtures::node("n")).await.unwrap();
    block_in_place(|| store.kill());

    let (status, log) = block_in_place(|| launch.run_to_exit());
    assert!(!status.success() && log.contains("needs --etcd-ca"), "{log}");
    etcd.put("/other/key").await;
    let (status, log) = block_in_place(|| secured.flag("--etcd-prefix", "/other").run_to_exit());
    assert!(!status.success() && log.contains("such as /other/key"), "{log}");
}
