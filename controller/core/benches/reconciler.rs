//! What the judgement costs per renewal and per expiry, at two sizes of fleet.
//!
//! `cargo bench -p muster-controller --bench cores`: every node renews its lease once in ten seconds, so 100,000 nodes
//! make 10,000 renewals a second; one node in a hundred falls silent and expires. CPU time of the thread, medians over
//! several runs of both sizes in turn. What an event costs must not grow with the fleet by more than log n, or the
//! benchmark fails.
//!
//! That is measured twice. In a running controller, milliseconds pass between two batches, in which messages are decoded
//! and other programs have their turn: a batch finds caches that are not its own. So something else goes through a
//! large piece of memory before each step that is timed. Without that, batch follows upon batch and the smaller fleet
//! never leaves the caches nearest to the reconciler, which no fleet has in practice; that growth says what the caches give,
//! and has a limit of its own, so that it does not get worse unseen.
//!
//! Both sizes do like for like: a decision takes in the same number of renewals, which come in an order that has nothing
//! to do with names or memory, and each expiry has a decision of its own. Looks at nodes that turn out to be well are
//! part of what a renewal costs, the assessment of zones in which somebody is lost is part of what an expiry costs.
//!
//! What is work and no waiting for memory shows in instructions: the same fleet with and without a million renewals more, or with and without a thousand that fall
//! silent, and the difference divided by them. When this was written a renewal took 3,175 instructions at either size,
//! most of them to make it, and an expiry 142,000 of 100,000 nodes and not less of 10,000.
//!
//! ```sh
//! bench=$(cargo bench -p muster-controller --bench cores --no-run 2>&1 | sed -n 's/.*(\(.*\)).*/\1/p')
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
/// How many times as long an event may take in the large fleet.
const LIMITS: [(Caches, f64); 2] = [(Caches::Taken, 1.25), (Caches::Kept, 2.0)];
/// Runs of each size.
const RUNS: usize = 5;
/// More than the caches of the machines this was written on.
const OTHER_MEMORY: usize = 64 << 20;
const CACHE_LINE: usize = 64;
/// A renewal every ten seconds, as agents are told.
const INTERVAL: Duration = Duration::from_secs(10);
/// Renewals that a decision takes in.
const BATCH: usize = 100;
const ZONES: usize = 10;
/// A second in each zone: everybody who waits is given up before the next batch.
const TOKENS: f64 = 1_000_000.0;
/// One node in so many falls silent.
const SILENT: usize = 100;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let given = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag)?;
        args.get(at + 1)?.parse::<usize>().ok()
    };
    if let Some(nodes) = given("--nodes") {
        fold(nodes, given("--renewals").unwrap_or_default(), given("--silent").unwrap_or_default());
        return ExitCode::SUCCESS;
    }
    compare()
}

/// So many renewals, while so many nodes never renew: for whoever counts instructions.
fn fold(nodes: usize, renewals: usize, silent: usize) {
    let mut fleet = Fleet::new(nodes);
    let is_silent = |node: usize| silent > 0 && node.is_multiple_of(nodes / silent);
    let mut expired = 0;
    for _ in 0..renewals / BATCH {
        let beats = fleet.next_beats(is_silent);
        let plan = fleet.renew(beats);
        expired += fleet.settle(plan);
    }
    black_box(&fleet.reconciler);
    println!("{nodes} nodes, {renewals} renewals, {expired} expired");
}

/// What a batch finds in the caches.
#[derive(Clone, Copy)]
enum Caches {
    /// Of other things, which were done in between.
    Taken,
    /// As the batch before has left them.
    Kept,
}

impl std::fmt::Display for Caches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Caches::Taken => "after other work",
            Caches::Kept => "batch upon batch",
        })
    }
}

/// Whoever else uses the machine between two batches.
struct Others(Vec<u8>);

impl Others {
    fn new() -> Others {
        Others(vec![0; OTHER_MEMORY])
    }

    fn have_their_turn(&mut self, caches: Caches) {
        if let Caches::Taken = caches {
            self.0.iter_mut().step_by(CACHE_LINE).for_each(|byte| *byte = byte.wrapping_add(1));
            black_box(&self.0);
        }
    }
}

fn compare() -> ExitCode {
    let log = (LARGE as f64).ln() / (SMALL as f64).ln();
    println!("log n alone is x {log:.2}");
    let mut others = Others::new();
    let mut all_within = true;
    for (caches, limit) in LIMITS {
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            small.push(measure(SMALL, caches, &mut others));
            large.push(measure(LARGE, caches, &mut others));
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
    /// Folded in, with its share of the decisions.
    renewal: f64,
    /// Everything that follows from it.
    expiry: f64,
}

fn median(costs: impl Iterator<Item = f64>) -> f64 {
    let mut costs: Vec<f64> = costs.collect();
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}

/// A fleet in its stride, of which one in a hundred fell silent within the last interval; until they all have expired.
fn measure(nodes: usize, caches: Caches, others: &mut Others) -> Costs {
    let mut fleet = Fleet::new(nodes);
    let intervals = |count: usize| count * nodes / BATCH;
    // Long enough for every look at a node to be where its renewals put it.
    for _ in 0..intervals(5) {
        let beats = fleet.next_beats(|_| false);
        fleet.renew(beats);
    }
    for _ in 0..intervals(1) {
        let beats = fleet.next_beats(is_silent);
        fleet.renew(beats);
        fleet.last_words();
    }
    let (mut renewals, mut renewing) = (0, Duration::ZERO);
    let (mut expiries, mut expiring) = (0, Duration::ZERO);
    for _ in 0..intervals(5) {
        let beats = fleet.next_beats(is_silent);
        let count = beats.len();
        others.have_their_turn(caches);
        let (began, plan) = (cpu_time(), fleet.renew(beats));
        if plan.actions.is_empty() && plan.trace_events.is_empty() {
            renewing += cpu_time() - began;
            renewals += count;
        } else {
            expiries += fleet.settle(plan);
            expiring += cpu_time() - began;
        }
        fleet.half_a_step();
        others.have_their_turn(caches);
        let (began, plan) = (cpu_time(), fleet.reconciler.decide(fleet.now()));
        if !plan.actions.is_empty() {
            expiries += fleet.settle(plan);
            expiring += cpu_time() - began;
        }
    }
    assert_eq!(expiries, nodes / SILENT, "all that fell silent have expired, and nobody else");
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
    /// Who renews when within an interval.
    order: Vec<usize>,
    /// How many batches have come.
    steps: usize,
    /// Between two batches.
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
            let beat = fleet.renewal(node);
            fleet.reconciler.observe(beat, now);
        }
        let revision = fleet.version;
        fleet.reconciler.observe(Observation::Node(WatchEvent::Synced { revision }), now);
        fleet.reconciler.observe(Observation::Pod(WatchEvent::Synced { revision }), now);
        fleet.reconciler.observe(Observation::Lease(WatchEvent::Synced { revision }), now);
        fleet.reconciler.observe(Observation::Leading(true), now);
        fleet.reconciler.decide(now);
        fleet
    }

    /// The renewals of the next step, but for those who are silent.
    fn next_beats(&mut self, silent: impl Fn(usize) -> bool) -> Vec<Observation> {
        self.elapsed = self.step * u32::try_from(self.steps).expect("few steps");
        self.steps += 1;
        let batch = self.batch(|node| !silent(node));
        batch.into_iter().map(|node| self.renewal(node)).collect()
    }

    /// Those of the present step of whom something holds.
    fn batch(&self, holds: impl Fn(usize) -> bool) -> Vec<usize> {
        let first = (self.steps - 1) * BATCH % self.order.len();
        self.order[first..first + BATCH].iter().copied().filter(|node| holds(*node)).collect()
    }

    /// Folds a batch in and decides, a moment after: what fell due with the last batch of a grace ago is looked at.
    fn renew(&mut self, beats: Vec<Observation>) -> Plan {
        let now = self.now();
        self.reconciler.observe_all(beats, now);
        self.elapsed += Duration::from_micros(1);
        self.reconciler.decide(self.now())
    }

    /// Those of the last batch who are silent from now on speak a last time, between two batches, so that nobody else
    /// falls due when they do.
    fn last_words(&mut self) {
        self.half_a_step();
        let now = self.now();
        for node in self.batch(is_silent) {
            let beat = self.renewal(node);
            self.reconciler.observe(beat, now);
        }
    }

    /// Between two batches.
    fn half_a_step(&mut self) {
        self.elapsed = self.step * u32::try_from(self.steps - 1).expect("few steps") + self.step / 2;
    }

    /// Does what was decided and all that follows from it, token by token; says how many turned Unknown.
    fn settle(&mut self, plan: Plan) -> usize {
        let mut expired = 0;
        let mut pending: VecDeque<PlannedAction> = plan.actions.into();
        while let Some(proposal) = pending.pop_front() {
            expired += usize::from(matches!(proposal.action, Action::UpdateNodeStatus(_)));
            let outcome = self.perform(proposal);
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

    /// As it comes off the wire, with a name of its own.
    fn renewal(&mut self, node: usize) -> Observation {
        self.version += 1;
        let mut meta = Metadata::new(Some("kube-node-lease".parse().expect("a namespace")), name(node));
        meta.uid = Some(uid(node));
        meta.resource_version = self.version;
        let spec = LeaseSpec { renew_time: Some(self.now().wall), ..LeaseSpec::default() };
        Observation::Lease(WatchEvent::Applied { record: Lease { meta, spec } })
    }

    /// The store's part: the record is written as asked.
    fn perform(&mut self, proposal: PlannedAction) -> Outcome {
        self.version += 1;
        let PlannedAction { controller, subject, action, .. } = proposal;
        let (Action::UpdateNode(mut written) | Action::UpdateNodeStatus(mut written)) = action else {
            panic!("a fleet without pods asks for nothing like {action:?}");
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

/// All nodes in an order that looks like chance and is the same each time.
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
