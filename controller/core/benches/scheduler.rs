//! The cost of scheduling each of many equal pods, at two sizes of fleet.
//!
//! `cargo bench -p muster-controller-core --bench scheduler`: for the first of a thousand pods every node is examined,
//! for the others only the nodes that have changed. So the cost of the others must not grow with the number of nodes by
//! more than log n, or the benchmark fails. CPU time of the thread, medians over several runs of both sizes in turn.
//! Pods follow each other at once, so the limit allows for the CPU caches that favour the smaller fleet, as in the
//! `reconciler` benchmark.

use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use muster_controller_core::plan::{Action, Plan};
use muster_controller_core::scheduler::{Scheduler, Settings};
use muster_controller_core::world::World;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::time::Mono;
use muster_proto::time::Now;
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

const PODS: usize = 1_000;
const SIZES: [usize; 2] = [10_000, 100_000];
/// How many times as long each pod but the first may take in the large fleet.
const LIMIT: f64 = 2.0;
/// Runs of each size.
const RUNS: usize = 5;

fn main() -> ExitCode {
    let mut runs = SIZES.map(|_| Vec::with_capacity(RUNS));
    for _ in 0..RUNS {
        for (nodes, runs) in SIZES.into_iter().zip(&mut runs) {
            runs.push(measure(nodes));
        }
    }
    println!("{:>8}  {:>14}  {:>16}", "nodes", "first pod", "each other pod");
    let medians = runs.map(|mut runs| {
        runs.sort_by_key(|(_, others)| *others);
        runs[RUNS / 2]
    });
    for (nodes, (first, others)) in SIZES.into_iter().zip(medians) {
        let first = format!("{first:.2?}");
        let each = format!("{:.2?}", others / (PODS as u32 - 1));
        println!("{nodes:>8}  {first:>14}  {each:>16}");
    }
    let [(_, few), (_, many)] = medians;
    let growth = many.as_secs_f64() / few.as_secs_f64();
    let within = growth <= LIMIT;
    let kept = if within { "kept" } else { "EXCEEDED" };
    println!("each other pod: x {growth:.2}, limit x {LIMIT:.2} {kept}");
    if within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("less than a second"))
}

/// How long the first pod took, and all others together.
fn measure(nodes: usize) -> (Duration, Duration) {
    let mut world = World::new();
    let mut scheduler = Scheduler::new(Settings { max_pods: 1, ..Settings::default() });
    for i in 0..nodes {
        for delta in world.apply_node(node(i)) {
            scheduler.observe(&delta, &world, now());
        }
    }
    for i in 0..PODS {
        for delta in world.apply_pod(pod(i)) {
            scheduler.observe(&delta, &world, now());
        }
    }
    let mut times = Vec::with_capacity(PODS);
    for _ in 0..PODS {
        let mut plan = Plan::default();
        let begun = cpu_time();
        scheduler.decide(&world, now(), &mut plan);
        times.push(cpu_time() - begun);
        assert!(matches!(plan.actions[..], [ref one] if matches!(one.action, Action::BindPod { .. })));
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
