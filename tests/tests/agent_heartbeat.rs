//! Signs of life of the real agent: its lease, its status, and a store that stops, freezes or is cut off.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]
#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

use std::process::Command;
use std::time::{Duration, Instant};

use muster_proto::pb;
use muster_tests::agent_process::gate::Gate;
use muster_tests::agent_process::{
    AgentProcess, Home, condition, events, is_ready, lease_where, node_where, pod_where, renewed_at, runs,
};
use muster_tests::fixtures::*;
use muster_tests::process::{Launch, PATIENCE, StoreProcess, free_port};
use muster_tests::proxy::Proxy;
use muster_tests::{Api, Follow, Wire, eventually, stays, within};
use rustix::process::Signal;
use tempfile::TempDir;

/// A store that can come back at the same place, and an agent whose node is ready and has a lease.
struct World {
    directory: TempDir,
    home: Home,
    port: u16,
}

impl World {
    async fn new() -> (World, StoreProcess, AgentProcess) {
        World::with(&[]).await
    }

    /// With an agent that waits 5 s for an answer, and so takes no store for lost that is only slow, and that renews
    /// its lease every 5 s.
    async fn unhurried() -> (World, StoreProcess, AgentProcess) {
        World::with(&[("node-status-update-frequency", "5s"), ("node-lease-duration-seconds", "20")]).await
    }

    async fn with(flags: &[(&str, &str)]) -> (World, StoreProcess, AgentProcess) {
        let world = World { directory: tempfile::tempdir().unwrap(), home: Home::new(), port: free_port() };
        let store = world.store();
        let launch = world.home.agent("n1", &store.url());
        let agent = flags.iter().fold(launch, |launch, (flag, value)| launch.flag(flag, value)).start();
        settled(&store.api(), &agent).await;
        (world, store, agent)
    }

    fn store(&self) -> StoreProcess {
        Launch::on(self.directory.path()).at(self.port).start()
    }
}

/// The node once the agent has posted a status of its own and renewed its lease.
async fn settled(api: &Api, agent: &AgentProcess) -> pb::Node {
    eventually(PATIENCE, "a status and a renewal of its own are taken", || async {
        let beliefs = agent.beliefs().await;
        (beliefs.acknowledged_status.is_some() && beliefs.acknowledged_renewal_at.is_some()).then_some(())
    })
    .await;
    node_where(api, "n1", "it is ready", is_ready).await
}

async fn renewed_since(api: &Api, before: &pb::Lease) -> pb::Lease {
    lease_where(api, "n1", "it was renewed", |lease| renewed_at(lease) > renewed_at(before)).await
}

/// A moment as a number.
fn micros((seconds, nanos): (i64, i32)) -> i64 {
    seconds * 1_000_000 + i64::from(nanos) / 1_000
}

async fn lease(api: &Api) -> pb::Lease {
    lease_where(api, "n1", "it exists", |_| true).await
}

/// Writes over the node's Ready, as a controller does that heard nothing for too long.
async fn doubt(api: &Api) -> pb::Node {
    let node = api.get::<pb::Node>("n1").await.unwrap().at(0);
    let doubted = node.status(|status| {
        for condition in status.conditions.iter_mut().filter(|condition| condition.r#type == "Ready") {
            "Unknown".clone_into(&mut condition.status);
            "NodeStatusUnknown".clone_into(&mut condition.reason);
            condition.last_transition_time =
                Some(prost_types::Timestamp { seconds: 1_000_000_000, nanos: 0 });
        }
    });
    api.update_status(doubted).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn s044_an_agent_with_nothing_to_say_renews_its_lease_and_posts_no_status() {
    let (_world, store, agent) = World::unhurried().await;
    let api = store.api();
    let node = settled(&api, &agent).await;
    let mut follow = api
        .watch::<pb::Lease>(Follow {
            namespace: "kube-node-lease",
            version: api.head().await,
            ..Follow::default()
        })
        .await
        .unwrap();
    // A lease of 20 s is renewed every 5 s, or a tenth sooner where the store wishes it so.
    let mut times = Vec::new();
    while times.len() < 4 {
        times.push(renewed_at(&follow.next().await.record).unwrap());
    }
    let pauses: Vec<i64> = times.windows(2).map(|pair| micros(pair[1]) - micros(pair[0])).collect();
    assert!(pauses.iter().sum::<i64>() >= 3 * 4_000_000, "more often than asked: {pauses:?}");
    assert!(pauses.iter().all(|pause| (1..20_000_000).contains(pause)), "it ran out: {pauses:?}");
    let after = api.get::<pb::Node>("n1").await.unwrap();
    assert_eq!(after.version(), node.version(), "the status was posted: {after:?}");
    let lease = lease(&api).await.spec.unwrap();
    assert_eq!((lease.holder_identity.as_str(), lease.lease_duration_seconds), ("n1", Some(20)));
    assert_ne!(lease.status_digest, 0, "renewals tell which status they stand for");
}

#[tokio::test(flavor = "multi_thread")]
async fn s045_s049_an_unchanged_status_is_posted_as_often_as_asked() {
    let world = World { directory: tempfile::tempdir().unwrap(), home: Home::new(), port: 0 };
    let store = world.store();
    let api = store.api();
    let launch = world.home.agent("n1", &store.url()).without("node-status-report-frequency");
    let agent = launch.start();
    let node = settled(&api, &agent).await;
    let follow = Follow { version: node.version(), ..Follow::default() };
    let mut watch = api.watch::<pb::Node>(follow).await.unwrap();
    let heartbeat = |node: &pb::Node| {
        let at = condition(node, "Ready").unwrap().last_heartbeat_time.unwrap();
        (at.seconds, at.nanos)
    };
    let mut last = node;
    for _ in 0..3 {
        let next = within(PATIENCE, "the next post", watch.next()).await.record;
        assert!(heartbeat(&next) > heartbeat(&last));
        let still = |node: &pb::Node| {
            let mut status = node.status.clone().unwrap();
            status.conditions.iter_mut().for_each(|condition| condition.last_heartbeat_time = None);
            status
        };
        assert_eq!(still(&next), still(&last), "only the time of the heartbeat changed");
        last = next;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s045_an_unchanged_status_is_posted_after_half_to_one_and_a_half_intervals_then_after_each() {
    let world = World { directory: tempfile::tempdir().unwrap(), home: Home::new(), port: 0 };
    let store = world.store();
    let api = store.api();
    // A post whose answer is late is made again: so it may be 3 s late.
    let launch = world.home.agent("n1", &store.url()).flag("node-status-report-frequency", "6s");
    let launch = launch.flag("node-status-update-frequency", "3s").flag("node-lease-duration-seconds", "40");
    let agent = launch.start();
    let node = settled(&api, &agent).await;
    let follow = Follow { version: node.version(), ..Follow::default() };
    let mut watch = api.watch::<pb::Node>(follow).await.unwrap();
    let heartbeat = |node: &pb::Node| {
        let at = condition(node, "Ready").unwrap().last_heartbeat_time.unwrap();
        Duration::new(at.seconds as u64, at.nanos as u32)
    };
    let (mut last, mut pauses) = (node, Vec::new());
    for _ in 0..3 {
        let next = within(PATIENCE, "the next post", watch.next()).await.record;
        pauses.push(heartbeat(&next) - heartbeat(&last));
        last = next;
    }
    // When the status was computed is not quite when it was posted.
    let slack = Duration::from_millis(500);
    assert!(pauses[0] + slack >= Duration::from_secs(3), "{pauses:?}");
    assert!(pauses[1..].iter().all(|pause| *pause + slack >= Duration::from_secs(6)), "{pauses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s047_an_address_block_is_answered_with_one_post() {
    let (_world, store, agent) = World::unhurried().await;
    let api = store.api();
    let node = settled(&api, &agent).await;
    let assigned = api.update(node.at(0).pod_cidrs(&["10.1.2.0/24"])).await.unwrap();
    let posted = node_where(&api, "n1", "a post follows", |node| node.version() > assigned.version()).await;
    assert_eq!(posted.spec, assigned.spec);
    // Two more turns.
    stays(Duration::from_secs(11), "it is one post", || async {
        api.get::<pb::Node>("n1").await.unwrap().version() == posted.version()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s048_a_ready_that_somebody_wrote_over_is_restored_with_a_new_transition() {
    let (_world, store, _agent) = World::new().await;
    let api = store.api();
    let doubted = doubt(&api).await;
    let node = node_where(&api, "n1", "it is ready again", is_ready).await;
    let transition =
        |node: &pb::Node| condition(node, "Ready").unwrap().last_transition_time.unwrap().seconds;
    assert!(transition(&node) > transition(&doubted));
    assert_eq!(condition(&node, "Ready").unwrap().reason, "KubeletReady");
    let others = ["MemoryPressure", "DiskPressure", "PIDPressure"];
    for kind in others {
        let times = [&doubted, &node].map(|node| condition(node, kind).unwrap().last_transition_time);
        assert_eq!(times[0], times[1], "{kind} did not change");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s050_a_deleted_lease_is_created_again_for_the_same_node() {
    let (_world, store, _agent) = World::new().await;
    let api = store.api();
    let node = api.get::<pb::Node>("n1").await.unwrap();
    let old = lease(&api).await;
    api.delete::<pb::Lease>("kube-node-lease/n1").await.unwrap();
    let new = lease_where(&api, "n1", "it is new", |lease| lease.uid() != old.uid()).await;
    let owners = &new.metadata.as_ref().unwrap().owner_references;
    assert_eq!(owners.iter().map(|owner| owner.uid.as_str()).collect::<Vec<_>>(), [node.uid()]);
    renewed_since(&api, &new).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s051_a_lease_that_somebody_edits_is_renewed_all_the_same() {
    let (_world, store, agent) = World::unhurried().await;
    let api = store.api();
    for round in 0..3 {
        // An edit that the agent was quicker than is made again, as administrators do.
        let edited = eventually(PATIENCE, "the edit", || async {
            api.update(lease(&api).await.label("round", &round.to_string())).await.ok()
        })
        .await;
        let after = renewed_since(&api, &edited).await;
        assert_eq!(after.uid(), edited.uid());
    }
    assert!(!agent.log().contains("the heartbeat stream was lost"), "{}", agent.log());
}

/// A store behind a gate that already has its orders, and an agent that goes through it with a lease of so many
/// seconds.
async fn behind_a_gate(lease: &str, orders: impl FnOnce(&Gate)) -> (World, StoreProcess, Gate, AgentProcess) {
    let world = World { directory: tempfile::tempdir().unwrap(), home: Home::new(), port: 0 };
    let store = world.store();
    let gate = Gate::before(&store.url()).await;
    orders(&gate);
    let launch = world.home.agent("n1", gate.url()).flag("node-lease-duration-seconds", lease);
    // An answer may take as long as a turn of the status: the gate's refusals are to be the only failures.
    let agent = launch.flag("node-status-update-frequency", "20s").start();
    (world, store, gate, agent)
}

#[tokio::test(flavor = "multi_thread")]
async fn s052_a_lease_is_renewed_in_the_round_in_which_four_calls_fail() {
    // A round of half a minute, so that the next one cannot be meant.
    let (_world, store, gate, _agent) = behind_a_gate("120", |gate| gate.refuse_renewals(4)).await;
    let taken = eventually(PATIENCE, "a renewal comes through", || async {
        let renewals = gate.renewals();
        renewals.iter().any(|renewal| !renewal.is_refused).then_some(renewals)
    })
    .await;
    let refused: Vec<bool> = taken.iter().map(|renewal| renewal.is_refused).collect();
    assert_eq!(refused, [true, true, true, true, false]);
    assert!(taken[4].at - taken[0].at < Duration::from_secs(30), "{taken:?}");
    let renewed = |lease: &pb::Lease| lease.spec.as_ref().unwrap().status_digest != 0;
    lease_where(&store.api(), "n1", "it was renewed", renewed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s052_the_fifth_failure_is_left_to_the_next_round() {
    let (_world, store, gate, _agent) = behind_a_gate("120", |gate| gate.refuse_renewals(5)).await;
    let taken = eventually(PATIENCE, "a renewal comes through", || async {
        let renewals = gate.renewals();
        renewals.iter().any(|renewal| !renewal.is_refused).then_some(renewals)
    })
    .await;
    let refused: Vec<bool> = taken.iter().map(|renewal| renewal.is_refused).collect();
    assert_eq!(refused, [true, true, true, true, true, false]);
    let pauses: Vec<Duration> = taken.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    let within = pauses[..4].iter().sum::<Duration>();
    assert!(pauses[4] >= Duration::from_secs(5), "the round takes 30 s: {pauses:?}");
    assert!(within < pauses[4], "five tries without a pause, then one: {pauses:?}");
    let renewed = |lease: &pb::Lease| lease.spec.as_ref().unwrap().status_digest != 0;
    lease_where(&store.api(), "n1", "it was renewed", renewed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_is_tried_five_times_and_what_it_was_to_tell_is_not_lost() {
    let world = World { directory: tempfile::tempdir().unwrap(), home: Home::new(), port: 0 };
    let store = world.store();
    let (api, gate) = (store.api(), Gate::before(&store.url()).await);
    let agent = world.home.agent("n1", gate.url()).start();
    let node = settled(&api, &agent).await;
    // Two rounds fail whole: five attempts each.
    gate.refuse_statuses(10);
    api.update(node.at(0).cordoned().without_label("kubernetes.io/os")).await.unwrap();
    eventually(PATIENCE, "the cordon is told", || async {
        (!events(&api, "n1", "NodeNotSchedulable").await.is_empty()).then_some(())
    })
    .await;
    assert_eq!(gate.statuses_to_refuse(), 0, "told with the first status that was taken");
    let told = events(&api, "n1", "NodeNotSchedulable").await;
    assert_eq!((told.len(), told[0].count), (1, 1), "{told:?}");
}

/// How long the store is out of reach: so many seconds, or `MUSTER_TEST_OUTAGE`, for who has the time.
fn outage(seconds: u64) -> Duration {
    let asked = std::env::var("MUSTER_TEST_OUTAGE").ok();
    Duration::from_secs(asked.map_or(seconds, |asked| asked.parse().expect("a number of seconds")))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_stops_and_comes_back_loses_no_change() {
    let (world, mut store, mut agent) = World::new().await;
    let api = store.api();
    let pod = pod("a").on("n1").spec(|spec| {
        let gate = world.home.file("gate").display().to_string();
        spec.containers[0].command = vec![
            "sh".to_owned(),
            "-c".to_owned(),
            format!("until test -e {gate}; do sleep 0.05; done; exit 5"),
        ];
        "Never".clone_into(&mut spec.restart_policy);
    });
    api.create(pod).await.unwrap();
    let pid = agent.process_of("a").await;
    pod_where(&api, "default/a", "it runs", |pod| pod.status.as_ref().unwrap().phase == "Running").await;
    let before = lease(&api).await;
    store.signal(Signal::TERM);
    store.wait();
    // What happens meanwhile is told afterwards.
    std::fs::write(world.home.file("gate"), "").unwrap();
    eventually(PATIENCE, "the pod has ended", || async { (!runs(pid)).then_some(()) }).await;
    stays(outage(5), "the agent puts up with it", || async { agent_runs(&agent) }).await;

    let store = world.store();
    let api = store.api();
    let ended =
        pod_where(&api, "default/a", "its end is told", |pod| pod.status.as_ref().unwrap().phase == "Failed");
    ended.await;
    renewed_since(&api, &before).await;
    doubt(&api).await;
    node_where(&api, "n1", "the agent hears and answers again", is_ready).await;
    assert!(agent.runs());
}

fn agent_runs(agent: &AgentProcess) -> bool {
    runs(agent.pid().as_raw_nonzero().get())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_killed_and_started_again_is_found_again_each_time() {
    let (world, mut store, agent) = World::new().await;
    for _ in 0..3 {
        let before = lease(&store.api()).await;
        store.kill();
        store = world.store();
        renewed_since(&store.api(), &before).await;
    }
    assert!(agent_runs(&agent));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_freezes_and_thaws_loses_no_change() {
    let (world, store, agent) = World::new().await;
    let api = store.api();
    let gate = world.home.file("gate").display().to_string();
    let pod = pod("a").on("n1").spec(|spec| {
        let body = format!("until test -e {gate}; do sleep 0.05; done; exit 5");
        spec.containers[0].command = vec!["sh".to_owned(), "-c".to_owned(), body];
        "Never".clone_into(&mut spec.restart_policy);
    });
    api.create(pod).await.unwrap();
    let pid = agent.process_of("a").await;
    pod_where(&api, "default/a", "it runs", |pod| pod.status.as_ref().unwrap().phase == "Running").await;
    let before = lease(&api).await;

    store.signal(Signal::STOP);
    // An answer that does not come is found out: nothing is refused, nothing is closed.
    agent.wait_logged("the heartbeat stream was lost");
    std::fs::write(world.home.file("gate"), "").unwrap();
    eventually(PATIENCE, "the pod has ended", || async { (!runs(pid)).then_some(()) }).await;
    stays(outage(10), "the agent puts up with it", || async { agent_runs(&agent) }).await;
    store.signal(Signal::CONT);

    renewed_since(&api, &before).await;
    let failed = |pod: &pb::Pod| pod.status.as_ref().unwrap().phase == "Failed";
    pod_where(&api, "default/a", "its end is told", failed).await;
    doubt(&api).await;
    node_where(&api, "n1", "the agent hears and answers again", is_ready).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_swallows_everything_is_replaced_before_the_lease_runs_out() {
    let world = World { directory: tempfile::tempdir().unwrap(), home: Home::new(), port: free_port() };
    let store = world.store();
    let api = store.api();
    let proxy = Proxy::before(([127, 0, 0, 1], world.port).into()).await;
    // As long as it is by default, but for the turns of the status.
    let launch = world.home.agent("n1", &proxy.url()).flag("node-lease-duration-seconds", "40");
    let agent = launch.start();
    settled(&api, &agent).await;
    for _ in 0..2 {
        let (before, made) = (lease(&api).await, proxy.made());
        proxy.swallow();
        let since = Instant::now();
        doubt(&api).await;
        let renewed = eventually(Duration::from_secs(40), "the lease is renewed", || async {
            let lease = api.get::<pb::Lease>("kube-node-lease/n1").await.unwrap();
            (renewed_at(&lease) > renewed_at(&before)).then_some(())
        });
        renewed.await;
        let ready = eventually(Duration::from_secs(40), "the node is ready again", || async {
            api.get::<pb::Node>("n1").await.ok().filter(is_ready)
        });
        ready.await;
        println!("made up for after {:?}", since.elapsed());
        assert!(proxy.made() > made, "over a connection of its own");
        // The watches have moved over, too.
        api.create(quick("a")).await.unwrap();
        pod_where(&api, "default/a", "it has ended", |pod| pod.status.as_ref().unwrap().phase == "Succeeded")
            .await;
        api.delete::<pb::Pod>("default/a").await.unwrap();
        eventually(PATIENCE, "the pod is gone", || async {
            api.get::<pb::Pod>("default/a").await.is_err().then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_connection_does_not_outlive_a_short_lease() {
    let world = World { directory: tempfile::tempdir().unwrap(), home: Home::new(), port: free_port() };
    let store = world.store();
    let api = store.api();
    let proxy = Proxy::before(([127, 0, 0, 1], world.port).into()).await;
    // A status every half minute finds nothing out in time.
    let launch = world.home.agent("n1", &proxy.url()).flag("node-lease-duration-seconds", "20");
    let agent = launch.flag("node-status-update-frequency", "30s").start();
    settled(&api, &agent).await;
    let mut follow = api
        .watch::<pb::Lease>(Follow {
            namespace: "kube-node-lease",
            version: api.head().await,
            ..Follow::default()
        })
        .await
        .unwrap();
    let mut last = renewed_at(&follow.next().await.record).unwrap();
    proxy.swallow();
    // Of these, one is the first over another connection.
    for _ in 0..3 {
        let next = within(PATIENCE, "the next renewal", follow.next()).await;
        let renewed = renewed_at(&next.record).unwrap();
        let pause = micros(renewed) - micros(last);
        assert!(pause < 20_000_000, "from {last:?} to {renewed:?} the lease had run out");
        last = renewed;
    }
}

/// A pod that is done at once.
fn quick(name: &str) -> pb::Pod {
    pod(name).on("n1").spec(|spec| {
        spec.containers[0].command = vec!["true".to_owned()];
        "Never".clone_into(&mut spec.restart_policy);
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_an_administrator_creates_again_is_taken_up() {
    let (_world, store, agent) = World::new().await;
    let api = store.api();
    let old = api.delete::<pb::Node>("n1").await.unwrap();
    let new = api.create(node("n1").label("by", "hand")).await.unwrap();
    assert_ne!(new.uid(), old.uid());
    node_where(&api, "n1", "it is ready", is_ready).await;
    let owned = |lease: &pb::Lease| {
        lease.metadata.as_ref().unwrap().owner_references.iter().any(|owner| owner.uid == new.uid())
    };
    let lease = lease_where(&api, "n1", "it is the new node's", owned).await;
    renewed_since(&api, &lease).await;
    assert_eq!(agent.beliefs().await.node_uid, new.uid());
}

#[tokio::test(flavor = "multi_thread")]
async fn s081_a_reboot_is_told_once() {
    let world = World { directory: tempfile::tempdir().unwrap(), home: Home::new(), port: 0 };
    let store = world.store();
    let api = store.api();
    let before = node("n1").status(|status| {
        status.node_info.get_or_insert_default().boot_id = "11111111-2222-3333-4444-555555555555".to_owned();
    });
    let created = api.create(before.clone()).await.unwrap();
    api.update_status(pb::Node { status: before.status, ..created }).await.unwrap();
    let agent = world.home.agent("n1", &store.url()).start();
    settled(&api, &agent).await;
    let told = || async { events(&api, "n1", "Rebooted").await };
    eventually(PATIENCE, "it is told", || async { (!told().await.is_empty()).then_some(()) }).await;
    stays(Duration::from_secs(3), "it is told once", || async {
        let told = told().await;
        told.len() == 1 && told[0].count <= 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s083_a_cordon_and_its_end_are_told() {
    let (_world, store, _agent) = World::new().await;
    let api = store.api();
    let node = api.get::<pb::Node>("n1").await.unwrap();
    api.update(node.at(0).cordoned()).await.unwrap();
    let told = |reason: &'static str| {
        let api = &api;
        async move { (!events(api, "n1", reason).await.is_empty()).then_some(()) }
    };
    eventually(PATIENCE, "the cordon is told", || told("NodeNotSchedulable")).await;
    let node = api.get::<pb::Node>("n1").await.unwrap();
    api.update(node.at(0).spec(|spec| spec.unschedulable = false)).await.unwrap();
    eventually(PATIENCE, "its end is told", || told("NodeSchedulable")).await;
}

/// A network namespace with a cable to this one. It must be run as root.
struct Cable {
    namespace: String,
    ours: String,
    net: String,
}

impl Cable {
    fn new() -> Cable {
        assert!(rustix::process::geteuid().is_root(), "this test lays a cable and must be run as root");
        let id = std::process::id() % 60_000;
        let (namespace, ours) = (format!("mt{id}"), format!("mt{id}a"));
        // Of the block for tests of networks.
        let net = format!("198.{}.{}", 18 + (id >> 8 & 1), id & 255);
        let cable = Cable { namespace, ours, net };
        let theirs = format!("mt{id}b");
        ip(&["netns", "add", &cable.namespace]);
        let peer = ["type", "veth", "peer", "name", &theirs, "netns", &cable.namespace];
        ip(&[&["link", "add", &cable.ours][..], &peer].concat());
        ip(&["address", "add", &format!("{}.1/24", cable.net), "dev", &cable.ours]);
        ip(&["link", "set", &cable.ours, "up"]);
        cable.there(&["address", "add", &format!("{}.2/24", cable.net), "dev", &theirs]);
        cable.there(&["link", "set", "lo", "up"]);
        cable.plug("up");
        cable
    }

    fn there(&self, args: &[&str]) {
        ip(&[&["-n", &self.namespace][..], args].concat());
    }

    /// `up` or `down`, at the other end.
    fn plug(&self, state: &str) {
        let theirs = self.ours.replace('a', "b");
        self.there(&["link", "set", &theirs, state]);
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "delete", &self.ours]).status();
        let _ = Command::new("ip").args(["netns", "delete", &self.namespace]).status();
    }
}

fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn s074_an_agent_that_is_cut_off_keeps_its_pods_and_makes_up_for_it() {
    let (directory, home, cable) = (tempfile::tempdir().unwrap(), Home::new(), Cable::new());
    let port = free_port();
    let store = Launch::on(directory.path()).everywhere_at(port).start();
    let channel = muster_tests::process::channel(&format!("http://127.0.0.1:{port}"));
    let api = Api::of(channel);
    let namespace = format!("--net=/run/netns/{}", cable.namespace);
    let agent = home
        .agent("n1", &format!("http://{}.1:{port}", cable.net))
        .flag("node-ip", &format!("{}.2", cable.net))
        .within(["nsenter", &namespace])
        .start();
    node_where(&api, "n1", "it is ready", is_ready).await;
    let mut pids = Vec::new();
    for name in ["p", "q"] {
        let file = home.file(name).display().to_string();
        let pod = pod(name).on("n1").grace(2).spec(|spec| {
            let body = format!("echo $$ > {file}.new; mv {file}.new {file}; exec sleep 1000");
            spec.containers[0].command = vec!["sh".to_owned(), "-c".to_owned(), body];
        });
        api.create(pod).await.unwrap();
        let running = |pod: &pb::Pod| pod.status.as_ref().unwrap().phase == "Running";
        pod_where(&api, &format!("default/{name}"), "it runs", running).await;
        // It runs before it has written a word.
        let written = eventually(PATIENCE, "its number is written", || async {
            std::fs::read_to_string(home.file(name)).ok()
        });
        pids.push(written.await.trim().parse::<i32>().unwrap());
    }
    let [p, q] = pids[..] else { unreachable!() };

    cable.plug("down");
    agent.wait_logged("the heartbeat stream was lost");
    let before = lease(&api).await;
    let doubted = doubt(&api).await;
    api.delete::<pb::Pod>("default/p").await.unwrap();
    stays(outage(6), "nobody hears of each other, and all runs on", || async {
        let deleted = api.get::<pb::Pod>("default/p").await;
        let node = api.get::<pb::Node>("n1").await.unwrap();
        runs(p) && runs(q) && deleted.is_ok() && node.version() == doubted.version()
    })
    .await;
    assert_eq!(renewed_at(&lease(&api).await), renewed_at(&before));

    cable.plug("up");
    renewed_since(&api, &before).await;
    node_where(&api, "n1", "it is ready again", is_ready).await;
    eventually(PATIENCE, "the deleted pod is gone", || async {
        api.get::<pb::Pod>("default/p").await.is_err().then_some(())
    })
    .await;
    assert!(!runs(p), "the record went before the process");
    assert!(runs(q), "nobody deleted it");
    drop(store);
}
