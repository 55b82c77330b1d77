//! The cost of the audit log: statuses written per second without and with it, by calls and by heartbeat streams.
//!
//! `cargo bench -p muster-tests --bench audit`
//!
//! Two stores are loaded in turns, many times, so that other load on the machine affects both. Every turn is compared
//! with the turn without a log of its round, and the median of these ratios counts. Rounds are added, up to a limit,
//! until it is clear on which side of the limit each ratio is. The benchmark fails when the log clearly costs more than
//! allowed; when the machine is too busy for a result, it says so.

#![allow(clippy::unwrap_used, reason = "a benchmark says what broke by panicking")]

use std::process::ExitCode;
use std::time::Duration;

use muster_proto::pb;
use muster_tests::fixtures::{node, status_of};
use muster_tests::load::calls::Calls;
use muster_tests::load::raw_client::{NUMBER, NumberedMessage, connect};
use muster_tests::load::shares::{Shares, Side, median};
use muster_tests::load::{Agents, Heartbeat, name};
use muster_tests::store_process::{StoreLaunch, StoreProcess};
use tempfile::TempDir;
use tonic::transport::Channel;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const UPDATE_STATUS: &str = "/muster.v1.NodeService/UpdateNodeStatus";
/// The share of the rate that must remain.
const LEAST: f64 = 0.97;
const CONNECTIONS: usize = 8;
const IN_FLIGHT: usize = 256;
/// The size of a status, in bytes.
const SIZE: usize = 2048;
const WARM_UP: Duration = Duration::from_millis(300);
const TURN: Duration = Duration::from_secs(1);
/// Fewer rounds have no statistical meaning.
const FEWEST: usize = 9;
const MOST: usize = 45;

/// A store with its load generator and results.
struct Subject {
    store: StoreProcess,
    _directory: TempDir,
    channels: Vec<Channel>,
    agents: Agents,
    updates: Vec<NumberedMessage>,
    called: Vec<f64>,
    streamed: Vec<f64>,
}

impl Subject {
    async fn start(is_audited: bool) -> Subject {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut launch = StoreLaunch::on(&directory.path().join("store"));
        if is_audited {
            launch = launch.flag("--audit-log", &directory.path().join("audit.log").display().to_string());
        }
        let store = launch.start();
        let channels = connect(&store.url(), CONNECTIONS).await;
        let mut agents = Agents::over(channels.clone());
        agents.register(IN_FLIGHT).await;
        let record = |index| pb::Node { status: Some(status_of(SIZE, NUMBER)), ..node(&name(index)) };
        let update = |index| pb::UpdateNodeStatusRequest { node: Some(record(index)) };
        let updates = (0..IN_FLIGHT).map(|index| NumberedMessage::of(&update(index))).collect();
        Subject { store, _directory: directory, channels, agents, updates, called: vec![], streamed: vec![] }
    }

    async fn turn(&mut self) {
        let calls = Calls { channels: &self.channels, method: UPDATE_STATUS };
        self.called.push(calls.measure(&self.updates, IN_FLIGHT, WARM_UP, TURN).await.per_second);
        let status = Heartbeat::status(SIZE);
        self.streamed.push(self.agents.send(0..IN_FLIGHT, &status, WARM_UP, TURN).await.per_second);
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut subjects = [Subject::start(false).await, Subject::start(true).await];
    let shares = |[plain, audited]: &[Subject; 2]| {
        [Shares::of(&audited.called, &plain.called), Shares::of(&audited.streamed, &plain.streamed)]
    };
    let is_clear =
        |subjects: &[Subject; 2]| shares(subjects).iter().all(|shares| shares.side(LEAST) != Side::Unclear);
    let mut rounds = 0;
    while rounds < FEWEST || (rounds < MOST && !is_clear(&subjects)) {
        // The order changes: the first store of a round has an idle disk.
        for place in 0..2 {
            subjects[(rounds + place) % 2].turn().await;
        }
        rounds += 1;
    }
    println!(
        "statuses of {SIZE} bytes written per second, {IN_FLIGHT} in flight, median of {rounds} rounds\n"
    );
    println!("{:>16}  {:>10}  {:>10}", "", "by calls", "by streams");
    for (name, subject) in ["no audit log", "with audit log"].iter().zip(&subjects) {
        println!("{name:>16}  {:>10.0}  {:>10.0}", median(&subject.called), median(&subject.streamed));
    }
    let shares = shares(&subjects);
    let [called, streamed] = shares.each_ref().map(|shares| 100.0 * shares.median());
    println!("{:>16}  {called:>8.1} %  {streamed:>8.1} %", "remains");
    let audited = &subjects[1].store;
    let (lines, lost) =
        (audited.metric("muster_audit_lines_total"), audited.metric("muster_audit_lost_total"));
    println!("\n{lines} lines, {lost} lost");
    let sides = shares.each_ref().map(|shares| shares.side(LEAST));
    if sides.contains(&Side::TooLittle) {
        println!("less than {:.0} % remains", 100.0 * LEAST);
        return ExitCode::FAILURE;
    }
    if sides.contains(&Side::Unclear) {
        println!("too uneven to say whether {:.0} % remains", 100.0 * LEAST);
    }
    ExitCode::SUCCESS
}
