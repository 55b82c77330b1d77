use std::time::{Duration, Instant};

use muster_proto::pb;
use muster_tests::agent_process::{
    AgentHost, AgentProcess, is_ready, is_running, node_where, pod_where, renewed_at,
};
use muster_tests::fixtures::*;
use muster_tests::store_process::{StoreLaunch, TIMEOUT, free_port};
use muster_tests::tcp_proxy::TcpProxy;
use muster_tests::{Api, Resource, eventually, holds_for, within};
use rustix::process::Signal;

use super::network_link::NetworkLink;
use super::{World, lease, micros, renewals, renewed_since, set_ready_unknown, settled};

/// How long the store is out of reach: so many seconds, or `MUSTER_TEST_OUTAGE`, for who has the time.
fn outage(seconds: u64) -> Duration {
    let asked = std::env::var("MUSTER_TEST_OUTAGE").ok();
    Duration::from_secs(asked.map_or(seconds, |asked| asked.parse().expect("a number of seconds")))
}

/// A pod that ends, with 5, once there is a file `gate` in that host.
fn until_told(host: &AgentHost) -> pb::Pod {
    let gate = host.file("gate").display().to_string();
    pod("a").on("n1").spec(|spec| {
        let body = format!("until test -e {gate}; do sleep 0.05; done; exit 5");
        spec.containers[0].command = vec!["sh".to_owned(), "-c".to_owned(), body];
        "Never".clone_into(&mut spec.restart_policy);
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_stops_and_comes_back_loses_no_change() {
    let (world, mut store, mut agent) = World::new().await;
    let api = store.api();
    api.create(until_told(&world.host)).await.unwrap();
    let pid = agent.container_pid("a").await;
    pod_where(&api, "default/a", "it runs", |pod| pod.status.as_ref().unwrap().phase == "Running").await;
    let before = lease(&api).await;
    store.signal(Signal::TERM);
    store.wait();
    // What happens meanwhile is told afterwards.
    std::fs::write(world.host.file("gate"), "").unwrap();
    eventually(TIMEOUT, "the pod has ended", || async { (!is_running(pid)).then_some(()) }).await;
    holds_for(outage(5), "the agent puts up with it", || async { agent_runs(&agent) }).await;

    let store = world.store();
    let api = store.api();
    let ended =
        pod_where(&api, "default/a", "its end is told", |pod| pod.status.as_ref().unwrap().phase == "Failed");
    ended.await;
    renewed_since(&api, &before).await;
    set_ready_unknown(&api).await;
    node_where(&api, "n1", "the agent hears and answers again", is_ready).await;
    assert!(agent.is_running());
}

fn agent_runs(agent: &AgentProcess) -> bool {
    is_running(agent.pid().as_raw_nonzero().get())
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
    api.create(until_told(&world.host)).await.unwrap();
    let pid = agent.container_pid("a").await;
    pod_where(&api, "default/a", "it runs", |pod| pod.status.as_ref().unwrap().phase == "Running").await;
    let before = lease(&api).await;

    store.signal(Signal::STOP);
    // An answer that does not come is found out: nothing is refused, nothing is closed.
    agent.wait_logged("the heartbeat stream was lost");
    std::fs::write(world.host.file("gate"), "").unwrap();
    eventually(TIMEOUT, "the pod has ended", || async { (!is_running(pid)).then_some(()) }).await;
    holds_for(outage(10), "the agent puts up with it", || async { agent_runs(&agent) }).await;
    store.signal(Signal::CONT);

    renewed_since(&api, &before).await;
    let failed = |pod: &pb::Pod| pod.status.as_ref().unwrap().phase == "Failed";
    pod_where(&api, "default/a", "its end is told", failed).await;
    set_ready_unknown(&api).await;
    node_where(&api, "n1", "the agent hears and answers again", is_ready).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_swallows_everything_is_replaced_before_the_lease_runs_out() {
    let world = World { directory: tempfile::tempdir().unwrap(), host: AgentHost::new(), port: free_port() };
    let store = world.store();
    let api = store.api();
    let proxy = TcpProxy::to(([127, 0, 0, 1], world.port).into()).await;
    // As long as it is by default, but for the turns of the status.
    let launch = world.host.agent("n1", &proxy.url()).flag("node-lease-duration-seconds", "40");
    let agent = launch.start();
    settled(&api, &agent).await;
    for _ in 0..2 {
        let (before, made) = (lease(&api).await, proxy.connections_made());
        proxy.blackhole();
        let since = Instant::now();
        set_ready_unknown(&api).await;
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
        assert!(proxy.connections_made() > made, "over a connection of its own");
        // The watches have moved over, too.
        api.create(quick("a")).await.unwrap();
        pod_where(&api, "default/a", "it has ended", |pod| pod.status.as_ref().unwrap().phase == "Succeeded")
            .await;
        api.delete::<pb::Pod>("default/a").await.unwrap();
        eventually(TIMEOUT, "the pod is gone", || async {
            api.get::<pb::Pod>("default/a").await.is_err().then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_connection_does_not_outlive_a_short_lease() {
    let world = World { directory: tempfile::tempdir().unwrap(), host: AgentHost::new(), port: free_port() };
    let store = world.store();
    let api = store.api();
    let proxy = TcpProxy::to(([127, 0, 0, 1], world.port).into()).await;
    // A status every half minute finds nothing out in time, nor do the probes that the usual lease asks for: 15 s.
    let launch = world.host.agent("n1", &proxy.url()).flag("node-lease-duration-seconds", "12");
    let agent = launch.flag("node-status-update-frequency", "30s").start();
    settled(&api, &agent).await;
    let mut follow = renewals(&api).await;
    let mut last = renewed_at(&follow.next().await.record).unwrap();
    proxy.blackhole();
    // Of these, one is the first over another connection.
    for _ in 0..3 {
        let next = within(TIMEOUT, "the next renewal", follow.next()).await;
        let renewed = renewed_at(&next.record).unwrap();
        let pause = micros(renewed) - micros(last);
        assert!(pause < 12_000_000, "from {last:?} to {renewed:?} the lease had run out");
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
async fn s074_an_agent_that_is_cut_off_keeps_its_pods_and_makes_up_for_it() {
    let (directory, host, link) = (tempfile::tempdir().unwrap(), AgentHost::new(), NetworkLink::new());
    let port = free_port();
    let store = StoreLaunch::on(directory.path()).everywhere_at(port).start();
    let channel = muster_tests::store_process::channel(&format!("http://127.0.0.1:{port}"));
    let api = Api::of(channel);
    let namespace = format!("--net=/run/netns/{}", link.namespace);
    let agent = host
        .agent("n1", &format!("http://{}.1:{port}", link.net))
        .flag("node-ip", &format!("{}.2", link.net))
        .within(["nsenter", &namespace])
        .start();
    node_where(&api, "n1", "it is ready", is_ready).await;
    let mut pids = Vec::new();
    for name in ["p", "q"] {
        let file = host.file(name).display().to_string();
        let pod = pod(name).on("n1").grace(2).spec(|spec| {
            let body = format!("echo $$ > {file}.new; mv {file}.new {file}; exec sleep 1000");
            spec.containers[0].command = vec!["sh".to_owned(), "-c".to_owned(), body];
        });
        api.create(pod).await.unwrap();
        let running = |pod: &pb::Pod| pod.status.as_ref().unwrap().phase == "Running";
        pod_where(&api, &format!("default/{name}"), "it runs", running).await;
        // It runs before it has written a word.
        let written = eventually(TIMEOUT, "its number is written", || async {
            std::fs::read_to_string(host.file(name)).ok()
        });
        pids.push(written.await.trim().parse::<i32>().unwrap());
    }
    let [p, q] = pids[..] else { unreachable!() };

    link.plug("down");
    agent.wait_logged("the heartbeat stream was lost");
    let before = lease(&api).await;
    let overwritten = set_ready_unknown(&api).await;
    api.delete::<pb::Pod>("default/p").await.unwrap();
    holds_for(outage(6), "nobody hears of each other, and all runs on", || async {
        let deleted = api.get::<pb::Pod>("default/p").await;
        let node = api.get::<pb::Node>("n1").await.unwrap();
        is_running(p) && is_running(q) && deleted.is_ok() && node.version() == overwritten.version()
    })
    .await;
    assert_eq!(renewed_at(&lease(&api).await), renewed_at(&before));

    link.plug("up");
    renewed_since(&api, &before).await;
    node_where(&api, "n1", "it is ready again", is_ready).await;
    eventually(TIMEOUT, "the deleted pod is gone", || async {
        api.get::<pb::Pod>("default/p").await.is_err().then_some(())
    })
    .await;
    assert!(!is_running(p), "the record went before the process");
    assert!(is_running(q), "nobody deleted it");
    drop(store);
}
