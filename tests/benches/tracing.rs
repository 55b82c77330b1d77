//! The cost of tracing: renewals per second without tracing, with the default sampling, and with all traces.
//!
//! `cargo bench -p muster-tests --bench tracing`
//!
//! Three stores are loaded in turns, many times, so that other load on the machine affects all of them. Every turn is
//! compared with the untraced turn of its round, and the median of these ratios counts. On a busy machine the ratios
//! vary, so rounds are added, up to a limit, until it is clear on which side of its limit each ratio is. Spans go to a
//! collector that drops them. The benchmark fails when tracing clearly costs more than allowed; when the machine is too
//! busy for a result, it says so.

#![allow(clippy::unwrap_used, reason = "a benchmark says what broke by panicking")]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_tests::load::Agents;
use muster_tests::load::shares::{Shares, Side, median};
use muster_tests::store_process::{StoreLaunch, StoreProcess};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use tempfile::TempDir;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How a store is traced, and the ratio of its untraced rate that must remain.
const SETTINGS: [(&str, Option<&str>, f64); 3] =
    [("no tracing", None, 0.0), ("default share", Some("0.01"), 0.95), ("all traces", Some("1"), 0.70)];
const STREAMS: usize = 1024;
const CALLERS: usize = 64;
const WARM_UP: Duration = Duration::from_millis(300);
const TURN: Duration = Duration::from_secs(1);
/// Fewer rounds have no statistical meaning.
const FEWEST: usize = 9;
const MOST: usize = 45;

/// Counts and drops spans.
#[derive(Clone, Default)]
struct Collector(Arc<AtomicU64>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let scopes = request.get_ref().resource_spans.iter().flat_map(|resource| &resource.scope_spans);
        let spans: usize = scopes.map(|scope| scope.spans.len()).sum();
        self.0.fetch_add(spans as u64, Ordering::Relaxed);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    async fn serve(self) -> String {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("http://{}", incoming.local_addr().unwrap());
        tokio::spawn(
            Server::builder().add_service(TraceServiceServer::new(self)).serve_with_incoming(incoming),
        );
        url
    }
}

/// A store with its load generator and results.
struct Subject {
    _store: StoreProcess,
    _directory: TempDir,
    agents: Agents,
    spans: Collector,
    streamed: Vec<f64>,
    called: Vec<f64>,
}

impl Subject {
    async fn start(share: Option<&str>) -> Subject {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let spans = Collector::default();
        let mut launch = StoreLaunch::on(directory.path());
        if let Some(share) = share {
            launch = launch.flag("--otlp-endpoint", &spans.clone().serve().await);
            launch = launch.flag("--trace-sample-ratio", share);
        }
        let store = launch.start();
        let mut agents = Agents::of(&store.url()).await;
        agents.register(STREAMS).await;
        Subject { _store: store, _directory: directory, agents, spans, streamed: vec![], called: vec![] }
    }

    async fn turn(&mut self) {
        self.streamed.push(self.agents.stream(WARM_UP, TURN).await.per_second);
        self.called.push(self.agents.call(CALLERS, WARM_UP, TURN).await.per_second);
    }
}

/// The ratios for renewals by stream and by call.
fn shares(subject: &Subject, plain: &Subject) -> [Shares; 2] {
    [Shares::of(&subject.streamed, &plain.streamed), Shares::of(&subject.called, &plain.called)]
}

fn are_clear(subjects: &[Subject]) -> bool {
    let mut limits = SETTINGS.iter().zip(subjects).skip(1);
    limits.all(|((.., least), subject)| {
        shares(subject, &subjects[0]).iter().all(|share| share.side(*least) != Side::Unclear)
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut subjects = Vec::new();
    for (_, share, _) in SETTINGS {
        subjects.push(Subject::start(share).await);
    }
    let mut rounds = 0;
    while rounds < FEWEST || (rounds < MOST && !are_clear(&subjects)) {
        // The order rotates: the first store of a round has an idle disk.
        for place in 0..subjects.len() {
            let next = (rounds + place) % subjects.len();
            subjects[next].turn().await;
        }
        rounds += 1;
    }
    println!(
        "renewals acknowledged per second, median of {rounds} rounds, and their ratio to the untraced rate\n"
    );
    println!("{:>14}  {STREAMS:>12} streams  {CALLERS:>16} callers  {:>10}", "", "spans");
    let mut fine = true;
    for ((name, _, least), subject) in SETTINGS.iter().zip(&subjects) {
        let shares = shares(subject, &subjects[0]);
        let [streamed, called] = shares.each_ref().map(Shares::median);
        println!(
            "{name:>14}  {:>11.0} {:>6.1} %  {:>15.0} {:>6.1} %  {:>10}",
            median(&subject.streamed),
            100.0 * streamed,
            median(&subject.called),
            100.0 * called,
            subject.spans.0.load(Ordering::Relaxed)
        );
        let sides = shares.each_ref().map(|shares| shares.side(*least));
        if sides.contains(&Side::TooLittle) {
            println!("{:>14}  less than {:.0} % remains", "", 100.0 * least);
            fine = false;
        } else if sides.contains(&Side::Unclear) {
            println!("{:>14}  too uneven to say whether {:.0} % remains", "", 100.0 * least);
        }
    }
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
