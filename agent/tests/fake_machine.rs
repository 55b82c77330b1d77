//! The agent on a fake machine, with a real store: what is posted when the machine changes.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::net::IpAddr;
use std::time::Duration;

use muster_proto::condition::ConditionStatus;
use muster_proto::key::Key;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pod::{Pod, PodPhase};

#[path = "fake_machine/cluster.rs"]
mod cluster;

use cluster::{Cluster, GI, MI, PATIENCE, asks, condition, eventually, holds};

/// A threshold that the fake machine does not reach.
const NO_THRESHOLDS: &str = "--eviction-hard=memory.available<1Mi";

#[tokio::test(flavor = "multi_thread")]
async fn s046_another_capacity_is_posted_with_the_next_status_and_is_no_transition() {
    let cluster = Cluster::ready(&[NO_THRESHOLDS]).await;
    let before = cluster.node().await.unwrap();
    assert_eq!(before.status.capacity["memory"].value(), i64::try_from(16 * GI).unwrap());
    cluster.machine.change(|facts| facts.hardware.memory_bytes = 24 * GI);
    let grown = |node: &Node| node.status.capacity["memory"].value() == i64::try_from(24 * GI).unwrap();
    // The interval is 10 s; an unchanged status is posted only after minutes.
    let look = async || cluster.node().await.filter(grown);
    let after = eventually(Duration::from_secs(30), "the new capacity is posted", look).await;
    let allocatable = i64::try_from(24 * GI - MI).unwrap();
    assert_eq!(after.status.allocatable["memory"].value(), allocatable, "and what pods may use of it");
    let times = |node: &Node| {
        let of = |kind| condition(node, kind).last_transition_time;
        ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].map(of)
    };
    assert_eq!(times(&before), times(&after));
    assert!(
        condition(&before, "Ready").last_heartbeat_time < condition(&after, "Ready").last_heartbeat_time,
        "a heartbeat of its own"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_unready_is_ready_as_soon_as_it_can_be() {
    let cluster = Cluster::new().await;
    cluster.machine.change(|facts| facts.is_disk_away = true);
    // The next status at the regular interval is long after the test.
    cluster.start(&[NO_THRESHOLDS, "--node-status-update-frequency=10m"]).await.unwrap();
    let node = cluster.node_that("it is registered", |node| !node.status.conditions.is_empty()).await;
    let ready = condition(&node, "Ready");
    assert_eq!(ready.status, ConditionStatus::False);
    assert!(ready.message.contains("ephemeral-storage"), "{ready:?}");
    cluster.machine.change(|facts| facts.is_disk_away = false);
    cluster.node_that("it is ready", |node| holds(node, "Ready")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resolver_that_does_not_answer_does_not_delay_renewals() {
    let cluster = Cluster::new().await;
    cluster.machine.change(|facts| facts.is_resolver_away = true);
    cluster.start(&[NO_THRESHOLDS, "--node-lease-duration-seconds=20"]).await.unwrap();
    let node = cluster.node_that("it is ready", |node| holds(node, "Ready")).await;
    assert_eq!(node.status.addresses[0].address, "10.0.0.5", "that of the default route");
    let key = Key::namespaced("kube-node-lease".parse().unwrap(), "n1".parse().unwrap());
    let renewed = async || cluster.client.get::<Lease>(&key).await.ok()?.spec.renew_time;
    let mut last = eventually(PATIENCE, "there is a lease", renewed).await;
    for round in 0..3 {
        let next = async || renewed().await.filter(|at| *at > last);
        let next = eventually(PATIENCE, "the lease is renewed", next).await;
        assert!(next.duration_since(last) < jiff::SignedDuration::from_secs(20), "round {round}: it ran out");
        last = next;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s062_s063_memory_pressure_holds_below_the_threshold_and_for_the_transition_period() {
    let cluster = Cluster::new().await;
    cluster.machine.change(|facts| facts.memory_available = 100 * MI);
    let flags = ["--eviction-hard=memory.available<100Mi", "--eviction-pressure-transition-period=40s"];
    cluster.start(&flags).await.unwrap();
    let node = cluster.node_that("it is ready", |node| holds(node, "Ready")).await;
    assert!(!holds(&node, "MemoryPressure"), "a level equal to the threshold is enough");

    cluster.machine.change(|facts| facts.memory_available = 99 * MI);
    let short = cluster.node_that("it has memory pressure", |node| holds(node, "MemoryPressure")).await;
    assert_eq!(condition(&short, "MemoryPressure").reason, "KubeletHasInsufficientMemory");
    assert!(!holds(&short, "DiskPressure") && holds(&short, "Ready"));
    cluster.machine.change(|facts| facts.memory_available = 8 * GI);
    let enough = cluster.node_that("it has no memory pressure", |node| !holds(node, "MemoryPressure")).await;
    assert_eq!(condition(&enough, "MemoryPressure").reason, "KubeletHasSufficientMemory");
    let at = |node: &Node| condition(node, "MemoryPressure").last_transition_time.unwrap();
    // The last observation of pressure is at or after the transition to True.
    let held = at(&enough).duration_since(at(&short));
    assert!(held >= jiff::SignedDuration::from_secs(25), "{held:?}: it holds for the transition period");
    let recorded = async || {
        let events = cluster.event_counts().await;
        events.contains_key("NodeHasInsufficientMemory").then_some(events)
    };
    let events = eventually(PATIENCE, "the event is recorded", recorded).await;
    assert!(events.contains_key("NodeHasSufficientMemory"), "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_use_up_their_allocatable_memory_cause_memory_pressure() {
    let flags = ["--eviction-hard=allocatableMemory.available<15Gi", "--system-reserved=memory=1Gi"];
    let cluster = Cluster::ready(&flags).await;
    assert!(!holds(&cluster.node().await.unwrap(), "MemoryPressure"), "16 Gi less 1 Gi, and no pod uses any");
    cluster.bind("a", asks(&[]), "exec sleep 60").await;
    cluster.pod_that("a", |pod| pod.status.phase == PodPhase::Running).await;
    cluster.node_that("the pod uses allocatable memory", |node| holds(node, "MemoryPressure")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_flag_disables_the_thresholds() {
    let cluster = Cluster::new().await;
    cluster.machine.change(|facts| facts.memory_available = MI);
    cluster.start(&["--eviction-hard="]).await.unwrap();
    let node = cluster.node_that("it is ready", |node| holds(node, "Ready")).await;
    assert_eq!(node.status.allocatable["memory"], node.status.capacity["memory"], "nothing is reserved");
    assert!(!holds(&node, "MemoryPressure"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_signal_of_the_disk_is_watched() {
    for signal in ["nodefs", "imagefs", "containerfs"] {
        for (threshold, what) in [("available<10%", "bytes"), ("inodesFree<5%", "inodes")] {
            let cluster = Cluster::new().await;
            cluster.machine.change(|facts| match what {
                "bytes" => facts.disk.available_bytes = GI,
                _ => facts.disk.inodes_free = 10,
            });
            cluster.start(&[&format!("--eviction-hard={signal}.{threshold}")]).await.unwrap();
            cluster
                .node_that(&format!("{signal} is short of {what}"), |node| holds(node, "DiskPressure"))
                .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s066_under_memory_pressure_only_pods_with_requests_are_admitted() {
    let cluster = Cluster::new().await;
    cluster.machine.change(|facts| facts.memory_available = 99 * MI);
    cluster.start(&["--eviction-hard=memory.available<100Mi"]).await.unwrap();
    cluster.node_that("it has memory pressure", |node| holds(node, "MemoryPressure")).await;
    cluster.bind("besteffort", asks(&[]), "exec sleep 60").await;
    cluster.bind("guaranteed", asks(&[("cpu", "100m"), ("memory", "64Mi")]), "exec sleep 60").await;
    let rejected = cluster.pod_that("besteffort", |pod| pod.status.phase == PodPhase::Failed).await;
    assert_eq!(rejected.status.reason, "Evicted", "{:?}", rejected.status);
    cluster.pod_that("guaranteed", |pod| pod.status.start_time.is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s066_under_disk_pressure_no_pod_is_admitted() {
    let cluster = Cluster::new().await;
    cluster.machine.change(|facts| facts.disk.available_bytes = GI);
    cluster.start(&["--eviction-hard=nodefs.available<10%"]).await.unwrap();
    let node = cluster.node_that("it has disk pressure", |node| holds(node, "DiskPressure")).await;
    assert_eq!(condition(&node, "DiskPressure").reason, "KubeletHasDiskPressure");
    cluster.bind("besteffort", asks(&[]), "exec sleep 60").await;
    cluster.bind("guaranteed", asks(&[("cpu", "100m"), ("memory", "64Mi")]), "exec sleep 60").await;
    for name in ["besteffort", "guaranteed"] {
        let rejected = cluster.pod_that(name, |pod| pod.status.phase == PodPhase::Failed).await;
        assert_eq!(
            (rejected.status.reason.as_str(), rejected.status.start_time),
            ("Evicted", None),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s067_the_pod_that_fills_the_disk_is_evicted_first_and_alone() {
    let cluster = Cluster::ready(&["--eviction-hard=nodefs.available<10%"]).await;
    // By name and by age the small one would be first.
    cluster.bind("a-small", asks(&[]), "exec sleep 60").await;
    cluster.pod_that("a-small", |pod| pod.status.phase == PodPhase::Running).await;
    cluster.bind("b-large", asks(&[]), "head -c 3000000 /dev/zero; echo; exec sleep 60").await;
    let large = cluster.pod_that("b-large", |pod| pod.status.phase == PodPhase::Running).await;
    let log = format!("agent/runtime/pods/{}/main/0.log", large.meta.uid.unwrap());
    let log = cluster.files.path().join(log);
    eventually(PATIENCE, "it has written", async || {
        (std::fs::metadata(&log).is_ok_and(|log| log.len() > 3_000_000)).then_some(())
    })
    .await;
    cluster.machine.change(|facts| facts.disk.available_bytes = GI);
    let evicted = cluster.pod_that("b-large", Pod::is_finished).await;
    assert_eq!(cluster.pod("a-small").await.status.phase, PodPhase::Running, "one pod is evicted per round");
    cluster.machine.change(|facts| facts.disk.available_bytes = 90 * GI);
    assert_eq!((evicted.status.phase, evicted.status.reason.as_str()), (PodPhase::Failed, "Evicted"));
    let target = evicted.status.conditions.iter().find(|condition| condition.kind == "DisruptionTarget");
    assert_eq!(target.unwrap().reason, "TerminationByKubelet");
    let recorded = async || cluster.event_counts().await.contains_key("EvictionThresholdMet").then_some(());
    eventually(PATIENCE, "the event is recorded", recorded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s054_one_address_of_each_family_is_reported_in_the_order_given() {
    let cluster = Cluster::new().await;
    let [v4, v6] = ["10.0.0.5", "fd00::5"].map(|text| text.parse::<IpAddr>().unwrap());
    cluster.machine.change(|facts| facts.network.local = vec![v4, v6]);
    cluster.start(&[NO_THRESHOLDS, "--node-ip=10.0.0.5,fd00::5"]).await.unwrap();
    let node = cluster.node_that("it is ready", |node| holds(node, "Ready")).await;
    let addresses: Vec<String> =
        node.status.addresses.iter().map(|it| format!("{} {}", it.kind, it.address)).collect();
    assert_eq!(addresses, ["InternalIP 10.0.0.5", "InternalIP fd00::5", "Hostname n1"]);
    // An address that is removed from the machine stays in the status, and the rest is still posted.
    cluster.machine.change(|facts| (facts.network.local, facts.hardware.cores) = (vec![v6], 8));
    let grown = cluster.node_that("it has more cores", |node| node.status.capacity["cpu"].value() == 8).await;
    assert_eq!(grown.status.addresses, node.status.addresses);
}

#[tokio::test(flavor = "multi_thread")]
async fn s079_s080_swap_is_refused_unless_it_is_accepted_and_then_reported() {
    let cluster = Cluster::new().await;
    cluster.machine.change(|facts| facts.hardware.swap_bytes = 8 * GI);
    let refused = cluster.start(&[NO_THRESHOLDS]).await.err().unwrap().to_string();
    assert!(refused.contains("--fail-swap-on=false"), "{refused}");
    assert!(cluster.node().await.is_none());
    cluster.start(&[NO_THRESHOLDS, "--fail-swap-on=false"]).await.unwrap();
    let node = cluster.node_that("it is registered", |_| true).await;
    let swap = node.status.node_info.swap;
    assert_eq!(swap.and_then(|swap| swap.capacity), Some(8_589_934_592));

    let without = Cluster::ready(&[NO_THRESHOLDS]).await;
    assert_eq!(without.node().await.unwrap().status.node_info.swap, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn s055_s059_allocatable_is_the_capacity_less_the_reservations() {
    let reserved = ["--system-reserved=cpu=500m,memory=1Gi", "--kube-reserved=cpu=500m,memory=1Gi"];
    let pods = ["--eviction-hard=memory.available<100Mi", "--max-pods=10", "--pods-per-core=2"];
    let cluster =
        Cluster::ready(&[reserved, [pods[0], pods[1]], [pods[2], "--provider-id=x"]].concat()).await;
    let status = cluster.node().await.unwrap().status;
    assert_eq!(status.allocatable["cpu"].milli(), 3000);
    assert_eq!(status.allocatable["memory"].value(), i64::try_from(14_236 * MI).unwrap());
    assert_eq!(status.capacity["pods"].value(), 8, "four cores of two");
}

#[tokio::test(flavor = "multi_thread")]
async fn s058_reservations_above_the_capacity_stop_the_agent_at_its_start() {
    let cluster = Cluster::new().await;
    let refused = cluster.start(&["--system-reserved=memory=17Gi"]).await.err().unwrap().to_string();
    assert!(refused.contains("memory"), "{refused}");
    assert!(cluster.node().await.is_none());
}
