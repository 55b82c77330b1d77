//! Hostile callers of a real store with mutual TLS: whatever one of them does, agents renew their leases and others are
//! answered, and the controller leads on.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::io::Write;
use std::net::TcpStream;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_proto::pb;
use muster_tests::fixtures::node;
use muster_tests::load::attack::{Answers, Attack, Attacker, FLOODED};
use muster_tests::load::paced::PacedAgents;
use muster_tests::load::{Agents, name};
use muster_tests::secure_store::SecureStore;
use muster_tests::store_process::TIMEOUT;
use muster_tests::{Api, eventually, http};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// Agents that renew all the time, and that join them during each attack.
const AGENTS: usize = 200;
const LATE: usize = 10;
const EVERY: Duration = Duration::from_millis(200);

/// A term that a slow machine does not end while the attack begins; renewed often, so that the test need not wait.
const LEADER_LEASE: [&str; 3] = [
    "--leader-elect-lease-duration=40s",
    "--leader-elect-renew-deadline=30s",
    "--leader-elect-retry-period=500ms",
];

/// What the store keeps of a flood: how many calls of one viewer on one connection it has at once.
const CALLS: usize = 1_250;
const STREAMS: usize = 1_563;

/// Agents of these nodes, with a certificate and a connection each.
async fn agents(store: &SecureStore, fleet: &Agents, nodes: Range<usize>) -> PacedAgents {
    let mut connections = Vec::new();
    for index in nodes {
        let channel = store.connect(&format!("node:{}", name(index)), "muster:nodes").await;
        connections.push((channel, fleet.hello(index)));
    }
    PacedAgents::start(connections, EVERY).await
}

/// Returns when every agent has renewed so often from now on; panics when a stream ends.
async fn each_renews(agents: &PacedAgents, times: u64, what: &str) {
    let before = agents.acknowledged();
    eventually(TIMEOUT, &format!("every agent renews beside {what}"), || async {
        assert_eq!(agents.failure(), None, "beside {what}");
        let now = agents.acknowledged();
        before.iter().zip(now).all(|(before, now)| now >= before + times).then_some(())
    })
    .await;
}

/// Returns when the attack holds all that it can get.
async fn takes_hold(attacker: &Attacker, what: &str, holds: impl Fn(&Answers) -> bool) {
    eventually(TIMEOUT, &format!("the store has answered {what}"), || async {
        holds(&attacker.answers).then_some(())
    })
    .await;
}

/// The lease of the controllers' leader.
async fn leader(admin: &Api) -> pb::LeaseSpec {
    let lease: pb::Lease = admin.get("kube-system/muster-controller").await.unwrap();
    lease.spec.unwrap()
}

/// Returns when the leader has renewed its lease; panics when there was another term meanwhile.
async fn leads_on(admin: &Api, since: &pb::LeaseSpec, what: &str) {
    let begun = leader(admin).await.renew_time;
    eventually(TIMEOUT, &format!("the leader renews beside {what}"), || async {
        let now = leader(admin).await;
        let terms = [since, &now].map(|term| (term.holder_identity.clone(), term.lease_transitions));
        assert_eq!(terms[0], terms[1], "beside {what}");
        (now.renew_time != begun).then_some(())
    })
    .await;
}

fn count(counter: &std::sync::atomic::AtomicUsize) -> usize {
    counter.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_renewal_is_acknowledged_beside_hostile_callers() {
    let directory = tempfile::tempdir().unwrap();
    let store = SecureStore::start(directory.path());
    let admin = Api::of(store.connect("eva", "muster:admins").await);
    let mut fleet = Agents::over(vec![admin.channel()]);
    fleet.register(AGENTS + 7 * LATE).await;
    admin.create(node(FLOODED)).await.unwrap();
    let _controller = store.controller(&LEADER_LEASE);
    let term = eventually(TIMEOUT, "a controller leads", || async {
        admin.get::<pb::Lease>("kube-system/muster-controller").await.ok()?.spec
    })
    .await;
    let early = agents(&store, &fleet, 0..AGENTS).await;
    let stranger = store.connect("stranger", "").await;

    type Holds = fn(&Answers) -> bool;
    let flooder = format!("node:{FLOODED}");
    let attacks: [(&str, [&str; 2], Attack, usize, Holds); 7] = [
        ("half-open calls without a role", ["stranger", ""], Attack::HalfOpenCalls, 20_001, |answers| {
            count(&answers.denied) == 20_001
        }),
        (
            "half-open calls of a viewer",
            ["joe", "muster:viewers"],
            Attack::HalfOpenCalls,
            20_001,
            |answers| count(&answers.exhausted) >= 20_001 - CALLS,
        ),
        // Those without a hello end after ten seconds, and others may take their places.
        ("silent heartbeat streams", ["joe", "muster:viewers"], Attack::SilentStreams, 5_000, |answers| {
            answers.all() == 5_000 && count(&answers.exhausted) > 0
        }),
        ("watches", ["joe", "muster:viewers"], Attack::Watches, 5_000, |answers| {
            count(&answers.exhausted) == 5_000 - count(&answers.opened) && count(&answers.opened) >= STREAMS
        }),
        ("garbage", ["joe", "muster:viewers"], Attack::Garbage, 2_000, |answers| {
            count(&answers.invalid) == 2_000
        }),
        ("statuses of 1.4 MB", [&flooder, "muster:nodes"], Attack::LargeStatuses, 20_000, |answers| {
            answers.all() >= 64
        }),
        ("events of 1.4 MB", [&flooder, "muster:nodes"], Attack::LargeEvents, 20_000, |answers| {
            answers.all() >= 64
        }),
    ];
    for (round, (what, [common_name, organization], attack, calls, holds)) in attacks.into_iter().enumerate()
    {
        let attacker = Attacker::start(store.target(common_name, organization), attack, calls);
        takes_hold(&attacker, what, holds).await;
        let first = AGENTS + round * LATE;
        let late = agents(&store, &fleet, first..first + LATE).await;
        each_renews(&early, 3, what).await;
        each_renews(&late, 3, what).await;
        leads_on(&admin, &term, what).await;
        late.stop().await;
        admin.get::<pb::Node>(&name(0)).await.unwrap();
        let mut health = HealthClient::new(stranger.clone());
        health.check(HealthCheckRequest::default()).await.unwrap();
        // The connection of a caller whose large requests are refused again and again is closed.
        if !matches!(attack, Attack::LargeStatuses | Attack::LargeEvents) {
            assert_eq!(attacker.answers.first_other.get().map(ToString::to_string), None, "beside {what}");
        }
        attacker.stop().await;
    }

    // More descriptors than many shells allow a process.
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let half_sent = |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: mus").unwrap();
        stream
    };
    let to_http: Vec<_> = (0..1_100).map(|_| half_sent(store.store.http_address())).collect();
    assert_eq!(http::get(store.store.http_address(), "/healthz").as_deref(), Some("ok\n"));
    let to_grpc: Vec<_> = (0..200).map(|_| half_sent(store.store.grpc_address())).collect();
    each_renews(&early, 3, "half-sent requests").await;
    drop((to_http, to_grpc));
    early.stop().await;
}
