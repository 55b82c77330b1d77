//! What it costs to find a node for each of many equal pods, at two sizes of fleet.
//!
//! `cargo bench -p muster-controller --bench placement`: the first of a thousand pods has every node looked at, the
//! others only what has changed. So the cost of the others must not grow with the fleet by more than log n.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the machine's clock")]

use std::time::{Duration, Instant};

use jiff::Timestamp;
use muster_controller::placement::{Placement, Settings};
use muster_controller::plan::{Action, Plan};
use muster_controller::time::Now;
use muster_controller::world::World;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_rpc::clock::Mono;
use uuid::Uuid;

const PODS: usize = 1_000;

fn main() {
    println!("{:>8}  {:>14}  {:>16}", "nodes", "first pod", "each other pod");
    for nodes in [10_000, 100_000] {
        let mut runs: Vec<(Duration, Duration)> = (0..5).map(|_| measure(nodes)).collect();
        runs.sort_by_key(|(_, others)| *others);
        let (first, others) = runs[runs.len() / 2];
        let first = format!("{first:.2?}");
        let each = format!("{:.2?}", others / (PODS as u32 - 1));
        println!("{nodes:>8}  {first:>14}  {each:>16}");
    }
}

/// How long the first pod took, and all others together.
fn measure(nodes: usize) -> (Duration, Duration) {
    let mut world = World::new();
    let mut placement = Placement::new(Settings { tries: 1, ..Settings::default() });
    for i in 0..nodes {
        for delta in world.apply_node(node(i)) {
            placement.observe(&delta, &world, now());
        }
    }
    for i in 0..PODS {
        for delta in world.apply_pod(pod(i)) {
            placement.observe(&delta, &world, now());
        }
    }
    let mut times = Vec::with_capacity(PODS);
    for _ in 0..PODS {
        let mut plan = Plan::default();
        let begun = Instant::now();
        placement.decide(&world, now(), &mut plan);
        times.push(begun.elapsed());
        assert!(matches!(plan.proposals[..], [ref one] if matches!(one.action, Action::BindPod { .. })));
    }
    (times[0], times[1..].iter().sum())
}

fn now() -> Now {
    let wall = Timestamp::from_second(1_700_000_000).expect("a time");
    Now { mono: Mono::since_origin(Duration::from_secs(1_000)), wall }
}

fn metadata(name: &str, namespace: &str, version: usize) -> Option<pb::Metadata> {
    Some(pb::Metadata {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        uid: Uuid::new_v5(&Uuid::NAMESPACE_DNS, name.as_bytes()).to_string(),
        resource_version: version as u64 + 1,
        labels: [("topology.kubernetes.io/zone".to_owned(), format!("z{}", version % 10))].into(),
        ..pb::Metadata::default()
    })
}

fn node(i: usize) -> Node {
    let allocatable = [("cpu", "16"), ("memory", "64Gi"), ("pods", "110")];
    let allocatable = allocatable.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into();
    let status = pb::NodeStatus { allocatable, ..pb::NodeStatus::default() };
    let metadata = metadata(&format!("node-{i:06}"), "", i);
    Node::try_from(pb::Node { metadata, spec: None, status: Some(status) }).expect("a node")
}

fn pod(i: usize) -> Pod {
    let requests = [("cpu".to_owned(), "500m".to_owned()), ("memory".to_owned(), "1Gi".to_owned())].into();
    let container = pb::Container {
        name: "main".to_owned(),
        image: "app".to_owned(),
        resources: Some(pb::ResourceRequirements { requests, ..Default::default() }),
        ..Default::default()
    };
    let spec = pb::PodSpec { containers: vec![container], ..pb::PodSpec::default() };
    let metadata = metadata(&format!("pod-{i:06}"), "default", i);
    Pod::try_from(pb::Pod { metadata, spec: Some(spec), status: None }).expect("a pod")
}
