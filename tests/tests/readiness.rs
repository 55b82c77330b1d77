//! A process that cannot do its work is not ready, and becomes ready again by itself: `/readyz`, the probe of the
//! subcommand `health` and `grpc.health.v1` agree, service by service. Each process gets a real fault.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use muster_grpc::node_service_client::NodeServiceClient;
use muster_proto::pb;
use muster_rpc::health_command::{self, HealthError};
use muster_tests::agent_process::AgentHost;
use muster_tests::child_process::ChildProcess;
use muster_tests::controller_process::ControllerProcess;
use muster_tests::disk::SmallDisk;
use muster_tests::eventually;
use muster_tests::fixtures::*;
use muster_tests::fleet::{FAST_LEASE, FAST_TIMINGS};
use muster_tests::store_process::{StoreLaunch, StoreProcess, TIMEOUT, channel, free_port};
use rustix::process::{Resource, Rlimit, prlimit};
use tokio::task::block_in_place;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// The whole process, in the health protocol.
const PROCESS: &str = "";
const HEARTBEAT: &str = "muster.v1.HeartbeatService";
/// The services of a store that also read.
const READING: [&str; 12] = [
    "muster.v1.NodeService",
    "muster.v1.LeaseService",
    "muster.v1.PodService",
    "muster.v1.DisruptionBudgetService",
    "muster.v1.PriorityClassService",
    "muster.v1.EventService",
    "muster.v1.DecisionService",
    "muster.v1.JoinTokenService",
    "muster.v1.CertificateRequestService",
    "muster.v1.RevocationService",
    "muster.v1.JoinService",
    "muster.v1.StoreService",
];
const FLEET: &str = "muster.v1.FleetService";
const AGENT: &str = "muster.v1.AgentService";

/// The readiness of a process by its HTTP port and by gRPC health.
struct Watched<'a> {
    part: &'a ChildProcess,
    health: HealthClient<Channel>,
}

impl<'a> Watched<'a> {
    fn new(part: &'a ChildProcess) -> Watched<'a> {
        Watched { part, health: HealthClient::new(channel(&part.url())) }
    }

    /// Why the part is not ready; `None` if it is.
    fn problem(&self) -> Option<String> {
        match block_in_place(|| health_command::check(self.part.http_address())) {
            Ok(()) => None,
            Err(HealthError::NotReady(problem)) => Some(problem),
            Err(error) => panic!("the HTTP port must answer: {error}"),
        }
    }

    async fn serves(&self, service: &str) -> bool {
        let request = HealthCheckRequest { service: service.to_owned() };
        let status = self.health.clone().check(request).await.unwrap().into_inner().status();
        assert_ne!(status, ServingStatus::Unknown);
        status == ServingStatus::Serving
    }

    /// Waits until the part is ready; then all its services serve.
    async fn becomes_ready(&self, services: &[&str]) {
        eventually(TIMEOUT, "it is ready", || async { self.problem().is_none().then_some(()) }).await;
        for service in [PROCESS].iter().chain(services) {
            assert!(self.serves(service).await, "{service:?} must serve");
        }
    }

    /// Waits until the part is not ready for that reason; then the process and these services do not serve, the others
    /// do.
    async fn becomes_unready(&self, reason: &str, not_serving: &[&str], serving: &[&str]) {
        eventually(TIMEOUT, &format!("it is not ready: {reason}"), || async {
            self.problem().filter(|problem| problem.contains(reason))
        })
        .await;
        for service in [PROCESS].iter().chain(not_serving) {
            assert!(!self.serves(service).await, "{service:?} must not serve");
        }
        for service in serving {
            assert!(self.serves(service).await, "{service:?} must serve");
        }
    }
}

fn all_of_the_store() -> Vec<&'static str> {
    READING.into_iter().chain([HEARTBEAT]).collect()
}

async fn create(store: &StoreProcess, name: &str) -> Result<(), tonic::Status> {
    let request = pb::CreateNodeRequest { node: Some(node(name)) };
    NodeServiceClient::new(store.channel()).create_node(request).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_on_a_full_disk_is_not_ready_until_there_is_free_space() {
    let directory = tempfile::tempdir().unwrap();
    let disk = SmallDisk::of(48, directory.path());
    disk.ready().await;
    let store = block_in_place(|| disk.launch().start());
    let watched = Watched::new(&store);
    watched.becomes_ready(&all_of_the_store()).await;

    disk.fill(0);
    create(&store, "refused").await.unwrap_err();
    watched.becomes_unready("disk: the disk is full", &[HEARTBEAT], &READING).await;
    assert_eq!(store.metric("muster_store_writable"), 0.0);
    // No client writes now: a load balancer that follows the probe sends no writes.
    disk.relieve();
    watched.becomes_ready(&all_of_the_store()).await;
    assert_eq!(store.metric("muster_store_writable"), 1.0);
    create(&store, "taken").await.unwrap();
    block_in_place(|| store.kill());

    // A store that starts with less free space than its reserve is not ready either, before any write fails.
    disk.fill(8 << 20);
    let store = block_in_place(|| disk.launch().start());
    let watched = Watched::new(&store);
    watched.becomes_unready("disk: the disk is full", &[HEARTBEAT], &READING).await;
    disk.relieve();
    watched.becomes_ready(&all_of_the_store()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_whose_disk_fails_is_not_ready_until_a_commit_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    // Without the trap, SIGXFSZ kills a process that exceeds the limit.
    let launch = StoreLaunch::on(directory.path()).within(["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"]);
    let store = block_in_place(|| launch.start());
    let watched = Watched::new(&store);
    create(&store, "first").await.unwrap();
    watched.becomes_ready(&all_of_the_store()).await;

    let limit = |bytes| {
        let limit = Rlimit { current: bytes, maximum: None };
        prlimit(Some(store.pid()), Resource::Fsize, limit).unwrap();
    };
    limit(Some(0));
    create(&store, "refused").await.unwrap_err();
    watched
        .becomes_unready("disk: the store could not read or write its files", &[HEARTBEAT], &READING)
        .await;
    limit(None);
    watched.becomes_ready(&all_of_the_store()).await;
    create(&store, "last").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_whose_disk_hangs_is_not_ready_while_the_commit_waits() {
    let directory = tempfile::tempdir().unwrap();
    let disk = SmallDisk::freezable(128, directory.path());
    disk.ready().await;
    let store = block_in_place(|| disk.launch().start());
    let watched = Watched::new(&store);
    watched.becomes_ready(&all_of_the_store()).await;

    let frozen = disk.freeze();
    let waiting = create(&store, "waiting");
    let unready = async {
        watched.becomes_unready("disk: a commit has waited for the disk", &[HEARTBEAT], &READING).await;
        drop(frozen);
    };
    let (created, ()) = tokio::join!(waiting, unready);
    created.unwrap();
    watched.becomes_ready(&all_of_the_store()).await;
}

fn controller(store: &str) -> ControllerProcess {
    let flags: Vec<&str> = FAST_TIMINGS.into_iter().chain(FAST_LEASE).collect();
    block_in_place(|| ControllerProcess::start(store, &flags))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_without_its_store_is_not_ready_until_it_is_synced_again() {
    let directory = tempfile::tempdir().unwrap();
    let launch = StoreLaunch::on(directory.path()).at(free_port());
    let store = block_in_place(|| launch.start());
    let leader = controller(&store.url());
    Watched::new(&leader).becomes_ready(&[FLEET]).await;
    let standby = controller(&store.url());
    Watched::new(&standby).becomes_ready(&[FLEET]).await;

    block_in_place(|| store.kill());
    for part in [&leader, &standby] {
        let watched = Watched::new(part);
        watched.becomes_unready("watches: ", &[FLEET], &[]).await;
        watched.becomes_unready("leader: no controller holds a live leader lease", &[FLEET], &[]).await;
    }
    let _store = block_in_place(|| launch.start());
    for part in [&leader, &standby] {
        Watched::new(part).becomes_ready(&[FLEET]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_cannot_write_the_lease_are_not_ready() {
    let directory = tempfile::tempdir().unwrap();
    let disk = SmallDisk::of(48, directory.path());
    disk.ready().await;
    let store = block_in_place(|| disk.launch().start());
    let leader = controller(&store.url());
    let watched = Watched::new(&leader);
    watched.becomes_ready(&[FLEET]).await;

    disk.fill(0);
    watched.becomes_unready("leader: no controller holds a live leader lease", &[FLEET], &[]).await;
    let problem = watched.problem().unwrap();
    assert!(!problem.contains("watches"), "a store on a full disk still sends events: {problem}");
    disk.relieve();
    watched.becomes_ready(&[FLEET]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_its_store_is_not_ready_once_its_lease_has_expired() {
    let (directory, host) = (tempfile::tempdir().unwrap(), AgentHost::new());
    let launch = StoreLaunch::on(directory.path()).at(free_port());
    let store = block_in_place(|| launch.start());
    let agent = block_in_place(|| host.agent("n1", &store.url()).start());
    let watched = Watched::new(&agent);
    watched.becomes_ready(&[AGENT]).await;

    block_in_place(|| store.kill());
    let reason = "heartbeat: the store has not acknowledged a heartbeat for the lease's duration of 4s";
    watched.becomes_unready(reason, &[], &[AGENT]).await;
    let _store = block_in_place(|| launch.start());
    watched.becomes_ready(&[AGENT]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_refused_is_not_ready_until_it_holds_the_lease() {
    let (directory, hosts) = (tempfile::tempdir().unwrap(), [AgentHost::new(), AgentHost::new()]);
    let store = block_in_place(|| StoreLaunch::on(directory.path()).start());
    // Long enough that an agent that is only slow does not lose its lease.
    let start = |host: &AgentHost| {
        let launch = host.agent("n1", &store.url()).flag("node-lease-duration-seconds", "15");
        block_in_place(|| launch.start())
    };
    let first = start(&hosts[0]);
    Watched::new(&first).becomes_ready(&[AGENT]).await;
    let second = start(&hosts[1]);
    let watched = Watched::new(&second);
    watched.becomes_unready("heartbeat: the store refused this agent: ", &[], &[AGENT]).await;
    Watched::new(&first).becomes_ready(&[AGENT]).await;

    block_in_place(|| first.kill());
    watched.becomes_ready(&[AGENT]).await;
}
