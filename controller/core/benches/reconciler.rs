//! The cost of the reconciler per renewal and per expiry, at two fleet sizes.
//!
//! `cargo bench -p muster-controller-core --bench reconciler`: every node renews its lease once in ten seconds, so
//! 100,000 nodes make 10,000 renewals a second; one node in a hundred stops and expires. Times are CPU times of the
//! thread, medians over several runs of both sizes in turn. The cost of an event must not grow with the fleet by more
//! than log n, or the benchmark fails.
//!
//! It is measured twice. In a running controller, milliseconds pass between two batches, in which messages are decoded
//! and other programs run: a batch finds the caches filled with other data. So before each timed step the benchmark
//! walks through a large piece of memory. Without that, batch follows upon batch, and the smaller fleet never leaves
//! the caches nearest to the processor, which no fleet has in practice; that growth shows what the caches contribute,
//! and has a limit of its own, so that it does not get worse unnoticed.
//!
//! Both sizes do the same work: a decision observes the same number of renewals, which come in an order unrelated to
//! names and memory, and each expiry has a decision of its own. Checks of nodes that turn out to be alive are part of
//! the cost of a renewal; assessing zones with unhealthy nodes is part of the cost of an expiry.
//!
//! To count work without waiting for memory, count instructions: run the same fleet with and without another million
//! renewals, or with and without a thousand nodes that stop, and divide the difference by their number. When this was
//! written, a renewal took 3,175 instructions at either size, most of them to create it, and an expiry 142,000 with
//! 100,000 nodes and not fewer with 10,000.
//!
//! ```sh
//! bench=$(cargo bench -p muster-controller-core --bench reconciler --no-run 2>&1 | sed -n 's/.*(\(.*\)).*/\1/p')
//! count() { valgrind --tool=callgrind --callgrind-out-file=/dev/null $bench "$@" 2>&1 | grep Collected; }
//! count --nodes 100000 --renewals 1000000
//! count --nodes 100000 --renewals 2000000
//! count --nodes 100000 --renewals 1000000 --silent 1000
//! ```

use std::collections::VecDeque;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use muster_controller_core::plan::{Action, Answer, Outcome, Plan, PlannedAction};
use muster_controller_core::policy::Policy;
use muster_controller_core::reconciler::{Observation, Reconciler};
use muster_proto::lease::{Lease, LeaseSpec};
use muster_proto::meta::Metadata;
use muster_proto::name::{Name, Uid};
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::time::Mono;
use muster_proto::time::Now;
use muster_proto::watch_event::WatchEvent;
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const SMALL: usize = 10_000;
const LARGE: usize = 100_000;
/// By which factor an event may take longer in the large fleet.
const LIMITS: [(Caches, f64); 2] = [(Caches::Cold, 1.25), (Caches::Warm, 2.0)];
/// Runs of each size.
const RUNS: usize = 5;
/// More than the caches of the machines it was written on.
const OTHER_MEMORY: usize = 64 << 20;
const CACHE_LINE: usize = 64;
/// The interval of renewals that the store gives to agents.
const INTERVAL: Duration = Duration::from_secs(10);
/// Renewals per decision.
const BATCH: usize = 100;
const ZONES: usize = 10;
/// Per second and zone: every node that waits is tainted before the next batch.
const TOKENS: f64 = 1_000_000.0;
/// One node in this many stops.
const SILENT: usize = 100;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let given = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag)?;
        args.get(at + 1)?.parse::<usize>().ok()
    };
    if let Some(nodes) = given("--nodes") {
        run(nodes, given("--renewals").unwrap_or_default(), given("--silent").unwrap_or_default());
        return ExitCode::SUCCESS;
    }
    compare()
}

/// Observes this many renewals, while this many nodes never renew. For counting instructions.
fn run(nodes: usize, renewals: usize, silent: usize) {
    let mut fleet = Fleet::new(nodes);
    let is_silent = |node: usize| silent > 0 && node.is_multiple_of(nodes / silent);
    let mut expired = 0;
    for _ in 0..renewals / BATCH {
        let batch = fleet.next_renewals(is_silent);
        let plan = fleet.observe_and_decide(batch);
        expired += fleet.settle(plan);
    }
    black_box(&fleet.reconciler);
    println!("{nodes} nodes, {renewals} renewals, {expired} expired");
}

/// What a batch finds in the caches.
#[derive(Clone, Copy)]
enum Caches {
    /// Data of other work that was done in between.
    Cold,
    /// What the batch before has left there.
    Warm,
}

impl std::fmt::Display for Caches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Caches::Cold => "after other work",
            Caches::Warm => "batch upon batch",
        })
    }
}

/// Memory that other programs use between two batches.
struct OtherWork(Vec<u8>);

impl OtherWork {
    fn new() -> OtherWork {
        OtherWork(vec![0; OTHER_MEMORY])
    }

    fn run(&mut self, caches: Caches) {
        if let Caches::Cold = caches {
            self.0.iter_mut().step_by(CACHE_LINE).for_each(|byte| *byte = byte.wrapping_add(1));
            black_box(&self.0);
        }
    }
}

fn compare() -> ExitCode {
    let log = (LARGE as f64).ln() / (SMALL as f64).ln();
    println!("log n alone is x {log:.2}");
    let mut other_work = OtherWork::new();
    let mut all_within = true;
    for (caches, limit) in LIMITS {
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            small.push(measure(SMALL, caches, &mut other_work));
            large.push(measure(LARGE, caches, &mut other_work));
        }
        for (what, cost) in
            [("renewal", (|costs| costs.renewal) as fn(&Costs) -> f64), ("expiry", |costs| costs.expiry)]
        {
            let [few, many] = [&small, &large].map(|runs| median(runs.iter().map(cost)));
            let growth = many / few;
            let within = growth <= limit;
            all_within &= within;
            let kept = if within { "kept" } else { "EXCEEDED" };
            println!(
                "{caches}, per {what}: {few:.0} ns of {SMALL} nodes, {many:.0} ns of {LARGE}: x {growth:.2}, \
                 limit x {limit:.2} {kept}"
            );
        }
    }
    if all_within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// In nanoseconds of CPU time.
struct Costs {
    /// Observing it, with its share of the decisions.
    renewal: f64,
    /// Everything that follows from it.
    expiry: f64,
}

fn median(costs: impl Iterator<Item = f64>) -> f64 {
    let mut costs: Vec<f64> = costs.collect();
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}

/// Runs a fleet in which one node in a hundred stopped within the last interval, until all of those have expired.
fn measure(nodes: usize, caches: Caches, other_work: &mut OtherWork) -> Costs {
    let mut fleet = Fleet::new(nodes);
    let intervals = |count: usize| count * nodes / BATCH;
    // Long enough for every check to be where the renewals put it.
    for _ in 0..intervals(5) {
        let batch = fleet.next_renewals(|_| false);
        fleet.observe_and_decide(batch);
    }
    for _ in 0..intervals(1) {
        let batch = fleet.next_renewals(is_silent);
        fleet.observe_and_decide(batch);
        fleet.last_renewals();
    }
    let (mut renewals, mut renewing) = (0, Duration::ZERO);
    let (mut expiries, mut expiring) = (0, Duration::ZERO);
    for _ in 0..intervals(5) {
        let batch = fleet.next_renewals(is_silent);
        let count = batch.len();
        other_work.run(caches);
        let (began, plan) = (cpu_time(), fleet.observe_and_decide(batch));
        if plan.actions.is_empty() && plan.trace_events.is_empty() {
            renewing += cpu_time() - began;
            renewals += count;
        } else {
            expiries += fleet.settle(plan);
            expiring += cpu_time() - began;
        }
        fleet.half_a_step();
        other_work.run(caches);
        let (began, plan) = (cpu_time(), fleet.reconciler.decide(fleet.now()));
        if !plan.actions.is_empty() {
            expiries += fleet.settle(plan);
            expiring += cpu_time() - began;
        }
    }
    assert_eq!(expiries, nodes / SILENT, "all nodes that stopped have expired, and no others");
    let each = |time: Duration, count: usize| time.as_nanos() as f64 / count as f64;
    Costs { renewal: each(renewing, renewals), expiry: each(expiring, expiries) }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("less than a second"))
}

fn is_silent(node: usize) -> bool {
    node.is_multiple_of(SILENT)
}

struct Fleet {
    reconciler: Reconciler,
    /// The order of the renewals within an interval.
    order: Vec<usize>,
    /// Batches so far.
    steps: usize,
    /// The time between two batches.
    step: Duration,
    elapsed: Duration,
    version: u64,
}

impl Fleet {
    fn new(nodes: usize) -> Fleet {
        let policy = Policy { hold: Duration::ZERO, eviction_rate: TOKENS, ..Policy::default() };
        let step = INTERVAL * BATCH as u32 / nodes as u32;
        let order = shuffled(nodes);
        let mut fleet = Fleet {
            reconciler: Reconciler::new(policy),
            order,
            steps: 0,
            step,
            elapsed: Duration::ZERO,
            version: 0,
        };
        let now = fleet.now();
        for node in 0..nodes {
            let record = fleet.node(node);
            fleet.reconciler.observe(Observation::Node(WatchEvent::Applied { record }), now);
            let renewal = fleet.renewal(node);
            fleet.reconciler.observe(renewal, now);
        }
        let revision = fleet.version;
        fleet.reconciler.observe(Observation::Node(WatchEvent::Synced { revision }), now);
        fleet.reconciler.observe(Observation::Pod(WatchEvent::Synced { revision }), now);
        fleet.reconciler.observe(Observation::Lease(WatchEvent::Synced { revision }), now);
        fleet.reconciler.observe(Observation::Leading(true), now);
        fleet.reconciler.decide(now);
        fleet
    }

    /// The renewals of the next step, without those of nodes that stopped.
    fn next_renewals(&mut self, silent: impl Fn(usize) -> bool) -> Vec<Observation> {
        self.elapsed = self.step * u32::try_from(self.steps).expect("few steps");
        self.steps += 1;
        let batch = self.batch(|node| !silent(node));
        batch.into_iter().map(|node| self.renewal(node)).collect()
    }

    /// The nodes of the current step that pass the filter.
    fn batch(&self, filter: impl Fn(usize) -> bool) -> Vec<usize> {
        let first = (self.steps - 1) * BATCH % self.order.len();
        self.order[first..first + BATCH].iter().copied().filter(|node| filter(*node)).collect()
    }

    /// Observes a batch and decides a moment later, so that checks due at the time of a batch a grace ago are included.
    fn observe_and_decide(&mut self, renewals: Vec<Observation>) -> Plan {
        let now = self.now();
        self.reconciler.observe_all(renewals, now);
        self.elapsed += Duration::from_micros(1);
        self.reconciler.decide(self.now())
    }

    /// The nodes of the last batch that stop now renew a last time, between two batches, so that no other node is due
    /// when they are.
    fn last_renewals(&mut self) {
        self.half_a_step();
        let now = self.now();
        for node in self.batch(is_silent) {
            let renewal = self.renewal(node);
            self.reconciler.observe(renewal, now);
        }
    }

    /// Moves the time to the middle between two batches.
    fn half_a_step(&mut self) {
        self.elapsed = self.step * u32::try_from(self.steps - 1).expect("few steps") + self.step / 2;
    }

    /// Performs the plan and all plans that follow from it, token by token; returns how many nodes became Unknown.
    fn settle(&mut self, plan: Plan) -> usize {
        let mut expired = 0;
        let mut pending: VecDeque<PlannedAction> = plan.actions.into();
        while let Some(planned) = pending.pop_front() {
            expired += usize::from(matches!(planned.action, Action::UpdateNodeStatus(_)));
            let outcome = self.perform(planned);
            self.reconciler.observe(Observation::Outcome(outcome), self.now());
            pending.extend(self.reconciler.decide(self.now()).actions);
            if pending.is_empty() {
                self.elapsed += Duration::from_secs_f64(1.0 / TOKENS);
                pending.extend(self.reconciler.decide(self.now()).actions);
            }
        }
        expired
    }

    fn now(&self) -> Now {
        let wall = Timestamp::from_second(1_700_000_000).expect("a time");
        Now {
            mono: Mono::since_origin(Duration::from_secs(1_000) + self.elapsed),
            wall: wall.checked_add(self.elapsed).expect("a time"),
        }
    }

    fn node(&mut self, node: usize) -> Node {
        self.version += 1;
        let ready = pb::NodeCondition {
            r#type: "Ready".to_owned(),
            status: "True".to_owned(),
            ..pb::NodeCondition::default()
        };
        let metadata = pb::Metadata {
            name: name(node).to_string(),
            uid: uid(node).to_string(),
            resource_version: self.version,
            labels: [("topology.kubernetes.io/zone".to_owned(), format!("z{}", node % ZONES))].into(),
            ..pb::Metadata::default()
        };
        let status = pb::NodeStatus { conditions: vec![ready], ..pb::NodeStatus::default() };
        let record = pb::Node { metadata: Some(metadata), spec: None, status: Some(status) };
        Node::try_from(record).expect("a node")
    }

    /// As decoded from the wire, with a name of its own.
    fn renewal(&mut self, node: usize) -> Observation {
        self.version += 1;
        let mut meta = Metadata::new(Some("kube-node-lease".parse().expect("a namespace")), name(node));
        meta.uid = Some(uid(node));
        meta.resource_version = self.version;
        let spec = LeaseSpec { renew_time: Some(self.now().wall), ..LeaseSpec::default() };
        Observation::Lease(WatchEvent::Applied { record: Lease { meta, spec } })
    }

    /// Writes the record as the store would.
    fn perform(&mut self, planned: PlannedAction) -> Outcome {
        self.version += 1;
        let PlannedAction { controller, subject, action, .. } = planned;
        let (Action::UpdateNode(mut written) | Action::UpdateNodeStatus(mut written)) = action else {
            panic!("no such action without pods: {action:?}");
        };
        written.meta.resource_version = self.version;
        Outcome { controller, subject, result: Ok(Answer::Node(written)) }
    }
}

fn name(node: usize) -> Name {
    format!("node-{node:06}").parse().expect("a name")
}

fn uid(node: usize) -> Uid {
    Uid::new(Uuid::from_u128(node as u128 + 1))
}

/// All nodes in a pseudo-random order that is the same each time.
fn shuffled(nodes: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..nodes).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for last in (1..nodes).rev() {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, (state % (last as u64 + 1)) as usize);
    }
    order
}
