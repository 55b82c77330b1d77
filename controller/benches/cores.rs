//! What the judgement costs per event and per expiry, at two sizes of fleet.
//!
//! `cargo bench -p muster-controller --bench cores`: a fleet renews its leases at a tenth of its size per second while
//! one node in a hundred has fallen silent. The cost per event must not grow with the fleet by more than log n.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the machine's clock")]

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use muster_controller::core::{Core, News};
use muster_controller::plan::{Action, Answer, Outcome, Proposal, Subject};
use muster_controller::policy::Policy;
use muster_controller::time::Now;
use muster_proto::lease::Lease;
use muster_proto::meta::Metadata;
use muster_proto::name::{Name, Uid};
use muster_proto::node::Node;
use muster_proto::pb;
use muster_rpc::clock::Mono;
use muster_store_client::Event;
use uuid::Uuid;

/// A renewal every ten seconds, as agents are told.
const INTERVAL: u64 = 10;
const ZONES: usize = 10;

fn main() {
    println!("{:>8}  {:>14}  {:>16}", "nodes", "per renewal", "per expiry");
    let small = measure(10_000);
    let large = measure(100_000);
    let log = (100_000f64).ln() / (10_000f64).ln();
    println!(
        "100,000 over 10,000 nodes: renewal x {:.2}, expiry x {:.2} (log n alone: x {log:.2})",
        ratio(large.renewal, small.renewal),
        ratio(large.expiry, small.expiry),
    );
}

struct Costs {
    /// Folded in, with its share of the decisions that found nothing to do.
    renewal: Duration,
    /// Everything that follows from it.
    expiry: Duration,
}

fn ratio(large: Duration, small: Duration) -> f64 {
    large.as_secs_f64() / small.as_secs_f64()
}

/// A fleet that has been heard, then renews for two graces while every hundredth node is silent.
fn measure(nodes: usize) -> Costs {
    let mut fleet = Fleet::new(nodes);
    let mut renewals = (0usize, Duration::ZERO);
    let mut expiries = (0usize, Duration::ZERO);
    let silent = |node: usize| node.is_multiple_of(100);
    // A hundredth of a second at a time: what one decision takes in.
    for step in 0..80 * 100u64 {
        fleet.millis += 10;
        let now = fleet.now();
        let share = nodes as u64 / INTERVAL / 100;
        let first = (step * share) as usize % nodes;
        let beats: Vec<News> = (first..first + share as usize)
            .map(|node| node % nodes)
            .filter(|&node| !silent(node))
            .map(|node| fleet.renewal(node))
            .collect();
        let (count, began) = (beats.len(), Instant::now());
        for beat in beats {
            fleet.core.observe(beat, now);
        }
        renewals.0 += count;
        renewals.1 += began.elapsed();

        let began = Instant::now();
        let plan = fleet.core.decide(now);
        let took = began.elapsed();
        if plan.proposals.is_empty() {
            renewals.1 += took;
        } else {
            // All that follows from an expiry: the status, the taints, the queue.
            let began = Instant::now();
            let mut pending: VecDeque<Proposal> = plan.proposals.into();
            while let Some(proposal) = pending.pop_front() {
                expiries.0 += usize::from(matches!(proposal.action, Action::UpdateNodeStatus(_)));
                let outcome = fleet.perform(proposal);
                fleet.core.observe(News::Outcome(outcome), now);
                pending.extend(fleet.core.decide(now).proposals);
            }
            expiries.1 += took + began.elapsed();
        }
    }
    let each = |(count, time): (usize, Duration)| time / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
    let costs = Costs { renewal: each(renewals), expiry: each(expiries) };
    println!(
        "{nodes:>8}  {:>14}  {:>16}   ({} renewals, {} expiries)",
        format!("{:.2?}", costs.renewal),
        format!("{:.2?}", costs.expiry),
        renewals.0,
        expiries.0
    );
    black_box(&fleet.core);
    costs
}

struct Fleet {
    core: Core,
    names: Vec<Name>,
    millis: u64,
    version: u64,
}

impl Fleet {
    fn new(nodes: usize) -> Fleet {
        let policy = Policy { hold: Duration::ZERO, ..Policy::default() };
        let names = (0..nodes).map(|node| format!("node-{node:06}").parse().expect("a name")).collect();
        let mut fleet = Fleet { core: Core::new(policy), names, millis: 0, version: 0 };
        let now = fleet.now();
        for node in 0..nodes {
            let record = fleet.node(node);
            fleet.core.observe(News::Node(Event::Applied { record }), now);
            let beat = fleet.renewal(node);
            fleet.core.observe(beat, now);
        }
        let revision = fleet.version;
        fleet.core.observe(News::Node(Event::Synced { revision }), now);
        fleet.core.observe(News::Pod(Event::Synced { revision }), now);
        fleet.core.observe(News::Lease(Event::Synced { revision }), now);
        fleet.core.observe(News::Leading(true), now);
        fleet.core.decide(now);
        fleet
    }

    fn now(&self) -> Now {
        let elapsed = Duration::from_millis(self.millis);
        let wall = Timestamp::from_second(1_700_000_000).expect("a time");
        Now {
            mono: Mono::since_origin(Duration::from_secs(1_000) + elapsed),
            wall: wall.checked_add(elapsed).expect("a time"),
        }
    }

    fn node(&mut self, node: usize) -> Node {
        self.version += 1;
        let name = &self.names[node];
        let ready = pb::NodeCondition {
            r#type: "Ready".to_owned(),
            status: "True".to_owned(),
            ..pb::NodeCondition::default()
        };
        let metadata = pb::Metadata {
            name: name.to_string(),
            uid: uid(name).to_string(),
            resource_version: self.version,
            labels: [("topology.kubernetes.io/zone".to_owned(), format!("z{}", node % ZONES))].into(),
            ..pb::Metadata::default()
        };
        let status = pb::NodeStatus { conditions: vec![ready], ..pb::NodeStatus::default() };
        let record = pb::Node { metadata: Some(metadata), spec: None, status: Some(status) };
        Node::try_from(record).expect("a node")
    }

    fn renewal(&mut self, node: usize) -> News {
        self.version += 1;
        let mut meta =
            Metadata::new(Some("kube-node-lease".parse().expect("a namespace")), self.names[node].clone());
        meta.uid = Some(uid(&self.names[node]));
        meta.resource_version = self.version;
        let spec = muster_proto::lease::LeaseSpec { renew_time: Some(self.now().wall), ..Default::default() };
        News::Lease(Event::Applied { record: Lease { meta, spec } })
    }

    /// The store's part: the record is written as asked.
    fn perform(&mut self, proposal: Proposal) -> Outcome {
        self.version += 1;
        let Proposal { room, subject, action, .. } = proposal;
        let written = match action {
            Action::UpdateNode(node) | Action::UpdateNodeStatus(node) => node,
            other => panic!("a fleet without pods asks for nothing like {other:?}"),
        };
        let mut written = *written;
        written.meta.resource_version = self.version;
        debug_assert!(matches!(subject, Subject::Node(..)));
        Outcome { room, subject, result: Ok(Answer::Node(Box::new(written))) }
    }
}

fn uid(name: &Name) -> Uid {
    Uid::new(Uuid::new_v5(&Uuid::NAMESPACE_DNS, name.as_str().as_bytes()))
}
