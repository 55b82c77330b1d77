use std::time::Duration;

use muster_proto::pb;
use muster_tests::agent_process::fault_proxy::FaultProxy;
use muster_tests::agent_process::{
    AgentHost, AgentProcess, condition, events, is_ready, lease_where, node_where,
};
use muster_tests::fixtures::*;
use muster_tests::store_process::TIMEOUT;
use muster_tests::{Api, Resource, WatchQuery, eventually, holds_for};

use super::{StoreAndHost, renewed_since, set_ready_unknown, settled};

/// The current node, and the node after each of the next three status posts.
async fn four_posts(api: &Api, agent: &AgentProcess) -> Vec<pb::Node> {
    let mut posts = vec![settled(api, agent).await];
    let follow = WatchQuery { version: posts[0].version(), ..WatchQuery::default() };
    let mut watch = api.watch::<pb::Node>(follow).await.unwrap();
    while posts.len() < 4 {
        posts.push(watch.next().await.record);
    }
    posts
}

/// The times between the heartbeat times of consecutive posts.
fn pauses(posts: &[pb::Node]) -> Vec<Duration> {
    let made = |node: &pb::Node| {
        let at = condition(node, "Ready").unwrap().last_heartbeat_time.unwrap();
        Duration::new(at.seconds as u64, at.nanos as u32)
    };
    posts.windows(2).map(|pair| made(&pair[1]).saturating_sub(made(&pair[0]))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn s045_s049_an_unchanged_status_is_posted_at_the_update_frequency() {
    let setup = StoreAndHost { directory: tempfile::tempdir().unwrap(), host: AgentHost::new(), port: 0 };
    let store = setup.store();
    let api = store.api();
    let launch = setup.host.agent("n1", &store.url()).without("node-status-report-frequency");
    let agent = launch.start();
    let posts = four_posts(&api, &agent).await;
    let still = |node: &pb::Node| {
        let mut status = node.status.clone().unwrap();
        status.conditions.iter_mut().for_each(|condition| condition.last_heartbeat_time = None);
        status
    };
    assert!(
        posts.iter().all(|post| still(post) == still(&posts[0])),
        "more than the heartbeat time changed: {posts:?}"
    );
    let pauses = pauses(&posts);
    assert!(pauses.iter().all(|pause| *pause > Duration::ZERO), "{pauses:?}");
    // One second was requested. On a busy machine some pauses are longer, but without the flag all would be.
    assert!(pauses.iter().any(|pause| *pause < Duration::from_secs(5)), "{pauses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s045_the_first_unchanged_status_is_posted_after_half_to_one_and_a_half_intervals() {
    let setup = StoreAndHost { directory: tempfile::tempdir().unwrap(), host: AgentHost::new(), port: 0 };
    let store = setup.store();
    let api = store.api();
    // A post without an answer is repeated after the update frequency: 3 s are enough for a slow store.
    let launch = setup.host.agent("n1", &store.url()).flag("node-status-report-frequency", "6s");
    let launch = launch.flag("node-status-update-frequency", "3s").flag("node-lease-duration-seconds", "40");
    let agent = launch.start();
    let pauses = pauses(&four_posts(&api, &agent).await);
    // The heartbeat time is when the status was computed, shortly before the post.
    let slack = Duration::from_millis(500);
    assert!(pauses[0] + slack >= Duration::from_secs(3), "{pauses:?}");
    assert!(pauses[1..].iter().all(|pause| *pause + slack >= Duration::from_secs(6)), "{pauses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s047_the_agent_posts_once_after_a_pod_cidr_is_assigned() {
    let (_setup, store, agent) = StoreAndHost::with_long_timeouts().await;
    let api = store.api();
    let node = settled(&api, &agent).await;
    let assigned = api.update(node.at(0).pod_cidrs(&["10.1.2.0/24"])).await.unwrap();
    let posted =
        node_where(&api, "n1", "the agent has posted", |node| node.version() > assigned.version()).await;
    assert_eq!(posted.spec, assigned.spec);
    // Two more update periods.
    holds_for(Duration::from_secs(11), "there is no second post", || async {
        api.get::<pb::Node>("n1").await.unwrap().version() == posted.version()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s048_an_overwritten_ready_condition_is_restored_with_a_new_transition_time() {
    let (_setup, store, _agent) = StoreAndHost::new().await;
    let api = store.api();
    let overwritten = set_ready_unknown(&api).await;
    let node = node_where(&api, "n1", "it is ready again", is_ready).await;
    let transition =
        |node: &pb::Node| condition(node, "Ready").unwrap().last_transition_time.unwrap().seconds;
    assert!(transition(&node) > transition(&overwritten));
    assert_eq!(condition(&node, "Ready").unwrap().reason, "KubeletReady");
    let others = ["MemoryPressure", "DiskPressure", "PIDPressure"];
    for kind in others {
        let times = [&overwritten, &node].map(|node| condition(node, kind).unwrap().last_transition_time);
        assert_eq!(times[0], times[1], "{kind} did not change");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_status_is_retried_and_its_event_is_not_lost() {
    let setup = StoreAndHost { directory: tempfile::tempdir().unwrap(), host: AgentHost::new(), port: 0 };
    let store = setup.store();
    let (api, faults) = (store.api(), FaultProxy::to(&store.url()).await);
    let agent = setup.host.agent("n1", faults.url()).start();
    let node = settled(&api, &agent).await;
    // Two complete rounds of five attempts fail.
    faults.fail_statuses(10);
    api.update(node.at(0).cordoned().without_label("kubernetes.io/os")).await.unwrap();
    eventually(TIMEOUT, "the cordon event is recorded", || async {
        (!events(&api, "n1", "NodeNotSchedulable").await.is_empty()).then_some(())
    })
    .await;
    assert_eq!(faults.statuses_to_fail(), 0, "recorded with the first status that succeeded");
    let received = events(&api, "n1", "NodeNotSchedulable").await;
    assert_eq!((received.len(), received[0].count), (1, 1), "{received:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_adopts_a_node_that_an_administrator_recreated() {
    let (_setup, store, agent) = StoreAndHost::new().await;
    let api = store.api();
    let old = api.delete::<pb::Node>("n1").await.unwrap();
    let new = api.create(node("n1").label("by", "hand")).await.unwrap();
    assert_ne!(new.uid(), old.uid());
    node_where(&api, "n1", "it is ready", is_ready).await;
    let owned = |lease: &pb::Lease| {
        lease.metadata.as_ref().unwrap().owner_references.iter().any(|owner| owner.uid == new.uid())
    };
    let lease = lease_where(&api, "n1", "the new node owns it", owned).await;
    renewed_since(&api, &lease).await;
    assert_eq!(agent.state().await.node_uid, new.uid());
}

#[tokio::test(flavor = "multi_thread")]
async fn s081_a_reboot_is_one_event() {
    let setup = StoreAndHost { directory: tempfile::tempdir().unwrap(), host: AgentHost::new(), port: 0 };
    let store = setup.store();
    let api = store.api();
    let before = node("n1").status(|status| {
        status.node_info.get_or_insert_default().boot_id = "11111111-2222-3333-4444-555555555555".to_owned();
    });
    let created = api.create(before.clone()).await.unwrap();
    api.update_status(pb::Node { status: before.status, ..created }).await.unwrap();
    let agent = setup.host.agent("n1", &store.url()).start();
    settled(&api, &agent).await;
    let recorded = || async { events(&api, "n1", "Rebooted").await };
    eventually(TIMEOUT, "the event is recorded", || async { (!recorded().await.is_empty()).then_some(()) })
        .await;
    holds_for(Duration::from_secs(3), "there is one event", || async {
        let received = recorded().await;
        received.len() == 1 && received[0].count <= 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s083_cordon_and_uncordon_are_events() {
    let (_setup, store, _agent) = StoreAndHost::new().await;
    let api = store.api();
    let node = api.get::<pb::Node>("n1").await.unwrap();
    api.update(node.at(0).cordoned()).await.unwrap();
    let recorded = |reason: &'static str| {
        let api = &api;
        async move { (!events(api, "n1", reason).await.is_empty()).then_some(()) }
    };
    eventually(TIMEOUT, "the cordon event is recorded", || recorded("NodeNotSchedulable")).await;
    let node = api.get::<pb::Node>("n1").await.unwrap();
    api.update(node.at(0).spec(|spec| spec.unschedulable = false)).await.unwrap();
    eventually(TIMEOUT, "the uncordon event is recorded", || recorded("NodeSchedulable")).await;
}
