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
use super::{StoreAndHost, lease, micros, renewals, renewed_since, set_ready_unknown, settled};

/// How long the store is unreachable: `seconds`, or `MUSTER_TEST_OUTAGE` for a longer test.
fn outage(seconds: u64) -> Duration {
    let asked = std::env::var("MUSTER_TEST_OUTAGE").ok();
    Duration::from_secs(asked.map_or(seconds, |asked| asked.parse().expect("a number of seconds")))
}

/// A pod that exits with 5 when the file `gate` exists on that host.
fn exits_at_gate(host: &AgentHost) -> pb::Pod {
    let gate = host.file("gate").display().to_string();
    pod("a").on("n1").spec(|spec| {
        let body = format!("until test -e {gate}; do sleep 0.05; done; exit 5");
        spec.containers[0].command = vec!["sh".to_owned(), "-c".to_owned(), body];
        "Never".clone_into(&mut spec.restart_policy);
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn no_change_is_lost_when_the_store_restarts() {
    let (setup, mut store, mut agent) = StoreAndHost::new().await;
    let api = store.api();
    api.create(exits_at_gate(&setup.host)).await.unwrap();
    let pid = agent.container_pid("a").await;
    pod_where(&api, "default/a", "it runs", |pod| pod.status.as_ref().unwrap().phase == "Running").await;
    let before = lease(&api).await;
    store.signal(Signal::TERM);
    store.wait();
    // What happens during the outage is reported after it.
    std::fs::write(setup.host.file("gate"), "").unwrap();
    eventually(TIMEOUT, "the pod has exited", || async { (!is_running(pid)).then_some(()) }).await;
    holds_for(outage(5), "the agent keeps running", || async { agent_runs(&agent) }).await;

    let store = setup.store();
    let api = store.api();
    let ended = pod_where(&api, "default/a", "its exit is reported", |pod| {
        pod.status.as_ref().unwrap().phase == "Failed"
    });
    ended.await;
    renewed_since(&api, &before).await;
    set_ready_unknown(&api).await;
    node_where(&api, "n1", "the agent receives changes and reports again", is_ready).await;
    assert!(agent.is_running());
}

fn agent_runs(agent: &AgentProcess) -> bool {
    is_running(agent.pid().as_raw_nonzero().get())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_reconnects_after_each_kill_of_the_store() {
    let (setup, mut store, agent) = StoreAndHost::new().await;
    for _ in 0..3 {
        let before = lease(&store.api()).await;
        store.kill();
        store = setup.store();
        renewed_since(&store.api(), &before).await;
    }
    assert!(agent_runs(&agent));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_change_is_lost_while_the_store_is_paused() {
    let (setup, store, agent) = StoreAndHost::new().await;
    let api = store.api();
    api.create(exits_at_gate(&setup.host)).await.unwrap();
    let pid = agent.container_pid("a").await;
    pod_where(&api, "default/a", "it runs", |pod| pod.status.as_ref().unwrap().phase == "Running").await;
    let before = lease(&api).await;

    store.signal(Signal::STOP);
    // The agent must detect the missing answer by itself: no call fails and no connection closes.
    agent.wait_logged("the heartbeat stream was lost");
    std::fs::write(setup.host.file("gate"), "").unwrap();
    eventually(TIMEOUT, "the pod has exited", || async { (!is_running(pid)).then_some(()) }).await;
    holds_for(outage(10), "the agent keeps running", || async { agent_runs(&agent) }).await;
    store.signal(Signal::CONT);

    renewed_since(&api, &before).await;
    let failed = |pod: &pb::Pod| pod.status.as_ref().unwrap().phase == "Failed";
    pod_where(&api, "default/a", "its exit is reported", failed).await;
    set_ready_unknown(&api).await;
    node_where(&api, "n1", "the agent receives changes and reports again", is_ready).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blackholed_connection_is_replaced_before_the_lease_expires() {
    let setup =
        StoreAndHost { directory: tempfile::tempdir().unwrap(), host: AgentHost::new(), port: free_port() };
    let store = setup.store();
    let api = store.api();
    let proxy = TcpProxy::to(([127, 0, 0, 1], setup.port).into()).await;
    // The default lease duration; only the status frequency is shorter.
    let launch = setup.host.agent("n1", &proxy.url()).flag("node-lease-duration-seconds", "40");
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
        println!("recovered after {:?}", since.elapsed());
        assert!(proxy.connections_made() > made, "over a new connection");
        // The watches use a new connection too.
        api.create(quick("a")).await.unwrap();
        pod_where(&api, "default/a", "it has succeeded", |pod| {
            pod.status.as_ref().unwrap().phase == "Succeeded"
        })
        .await;
        api.delete::<pb::Pod>("default/a").await.unwrap();
        eventually(TIMEOUT, "the pod is removed", || async {
            api.get::<pb::Pod>("default/a").await.is_err().then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_connection_is_replaced_before_a_short_lease_expires() {
    let setup =
        StoreAndHost { directory: tempfile::tempdir().unwrap(), host: AgentHost::new(), port: free_port() };
    let store = setup.store();
    let api = store.api();
    let proxy = TcpProxy::to(([127, 0, 0, 1], setup.port).into()).await;
    // Neither a status every 30 s nor the keepalive of a default lease (15 s) would detect it in time.
    let launch = setup.host.agent("n1", &proxy.url()).flag("node-lease-duration-seconds", "12");
    let agent = launch.flag("node-status-update-frequency", "30s").start();
    settled(&api, &agent).await;
    let mut follow = renewals(&api).await;
    let mut last = renewed_at(&follow.next().await.record).unwrap();
    proxy.blackhole();
    // One of these is the first renewal over a new connection.
    for _ in 0..3 {
        let next = within(TIMEOUT, "the next renewal", follow.next()).await;
        let renewed = renewed_at(&next.record).unwrap();
        let pause = micros(renewed) - micros(last);
        assert!(pause < 12_000_000, "from {last:?} to {renewed:?} the lease had expired");
        last = renewed;
    }
}

/// A pod that exits at once.
fn quick(name: &str) -> pb::Pod {
    pod(name).on("n1").spec(|spec| {
        spec.containers[0].command = vec!["true".to_owned()];
        "Never".clone_into(&mut spec.restart_policy);
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn s074_a_partitioned_agent_keeps_its_pods_and_stops_deleted_ones_after_the_partition() {
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
        // The container may be Running before it has written the file.
        let written = eventually(TIMEOUT, "its process id is written", || async {
            std::fs::read_to_string(host.file(name)).ok()
        });
        pids.push(written.await.trim().parse::<i32>().unwrap());
    }
    let [p, q] = pids[..] else { unreachable!() };

    link.set_interface("down");
    agent.wait_logged("the heartbeat stream was lost");
    let before = lease(&api).await;
    let overwritten = set_ready_unknown(&api).await;
    api.delete::<pb::Pod>("default/p").await.unwrap();
    holds_for(outage(6), "nothing is reported and all pods keep running", || async {
        let deleted = api.get::<pb::Pod>("default/p").await;
        let node = api.get::<pb::Node>("n1").await.unwrap();
        is_running(p) && is_running(q) && deleted.is_ok() && node.version() == overwritten.version()
    })
    .await;
    assert_eq!(renewed_at(&lease(&api).await), renewed_at(&before));

    link.set_interface("up");
    renewed_since(&api, &before).await;
    node_where(&api, "n1", "it is ready again", is_ready).await;
    eventually(TIMEOUT, "the deleted pod is removed", || async {
        api.get::<pb::Pod>("default/p").await.is_err().then_some(())
    })
    .await;
    assert!(!is_running(p), "the record was removed before the process exited");
    assert!(is_running(q), "this pod was not deleted");
    drop(store);
}
