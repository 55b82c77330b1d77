//! `muster decisions`: the log of what the controllers decided.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use muster_manifest::schema::message_to_json;
use muster_proto::pb;
use muster_rpc::clock::{Clock as _, SystemClock};
use muster_rpc::config::parse_duration;
use muster_store_client::ClientError;

use crate::connection::{ConnectionFlags, OrFailure, Store};
use crate::failure::Failure;
use crate::print::decisions::{Clock, HEADERS, row, table};
use crate::print::document::{Language, document};
use crate::print::{Paint, Table};
use crate::terminal::{Terminal, print_stderr};

/// Decisions of one call.
const PAGE: u32 = 1000;
/// The pause before a watch that was lost is opened again.
const RECONNECT: Duration = Duration::from_secs(1);

/// Shows what the controllers decided: by which rule, from which values, and what came of it
///
/// `muster why` shows what happened to one node, pod or zone. deploy/rules.md explains each rule.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Keep running and show every decision as it is recorded
    #[arg(short, long)]
    watch: bool,

    /// Only decisions about this node and its pods
    #[arg(long, value_name = "NAME")]
    node: Option<String>,

    /// Only decisions about this zone, written REGION/ZONE, and about its nodes and pods
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,

    /// Only decisions by this rule, such as health-taint
    #[arg(long, value_name = "RULE")]
    rule: Option<String>,

    /// Only decisions of this last time, such as 2h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    since: Option<Duration>,

    /// How many decisions to show at most, the newest ones
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    limit: usize,

    /// Print the decisions as documents
    #[arg(short, long, value_enum)]
    output: Option<Language>,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let store = flags.connection.resolve()?.store()?;
    let now = SystemClock::new().wall();
    let filter = pb::DecisionFilter {
        node: flags.node.clone().unwrap_or_default(),
        zone: flags.zone.clone().unwrap_or_default(),
        rule: flags.rule.clone().unwrap_or_default(),
        since: flags.since.and_then(|since| now.checked_sub(since).ok()).map(timestamp),
        ..pb::DecisionFilter::default()
    };
    let listed = newest(&store, &filter, flags.limit).await?;
    let clock = Clock { now, zone: TimeZone::system() };
    let terminal = Terminal::stdout();
    let mut printer = Printer { output: flags.output, clock, is_first: true, terminal };
    let last_id = listed.last_id;
    if flags.watch {
        printer.print_each(&listed.decisions)?;
        return watch(&store, filter, last_id, &mut printer).await;
    }
    printer.print_all(&listed)
}

/// The newest decisions that match, at most `most`, in their order.
pub(crate) async fn newest(
    store: &Store,
    filter: &pb::DecisionFilter,
    most: usize,
) -> Result<pb::ListDecisionsResponse, Failure> {
    let mut all = pb::ListDecisionsResponse::default();
    let mut request = pb::ListDecisionsRequest { filter: Some(filter.clone()), ..Default::default() };
    loop {
        let left = u32::try_from(most.saturating_sub(all.decisions.len())).unwrap_or(u32::MAX);
        request.page_size = left.min(PAGE);
        if left == 0 {
            break;
        }
        let page = store.client.list_decisions(request.clone()).await.or_failure(&store.peer)?;
        all.last_id = all.last_id.max(page.last_id);
        all.decisions.extend(page.decisions);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    all.decisions.reverse();
    Ok(all)
}

async fn watch(
    store: &Store,
    filter: pb::DecisionFilter,
    mut after: u64,
    printer: &mut Printer,
) -> Result<(), Failure> {
    let mut is_open = false;
    loop {
        let request = pb::WatchDecisionsRequest { filter: Some(filter.clone()), after_id: Some(after) };
        let error = match store.client.watch_decisions(request).await {
            Ok(mut stream) => {
                is_open = true;
                loop {
                    match stream.message().await {
                        Ok(Some(message)) => {
                            printer.print_each(&message.decisions)?;
                            after = message.last_id;
                        }
                        Ok(None) => break ClientError::Unavailable("the store ended the stream".to_owned()),
                        Err(status) => break status.into(),
                    }
                }
            }
            Err(error) => error,
        };
        if !is_open || !error.is_retryable() {
            return Err(error).or_failure(&store.peer);
        }
        print_stderr(format_args!("warning: the watch was lost: {error}; reconnecting"));
        tokio::time::sleep(RECONNECT).await;
    }
}

/// Prints decisions as they come.
struct Printer {
    output: Option<Language>,
    clock: Clock,
    is_first: bool,
    terminal: Terminal,
}

impl Printer {
    fn print_all(&self, listed: &pb::ListDecisionsResponse) -> Result<(), Failure> {
        let Terminal { paint, width, .. } = self.terminal;
        match self.output {
            Some(language) => self.terminal.print(&document(
                &message_to_json("ListDecisionsResponse", listed),
                language,
                true,
            )),
            None if listed.decisions.is_empty() => {
                print_stderr("No decisions found.");
                Ok(())
            }
            None => self.terminal.print(&table(&listed.decisions, &self.clock, paint, width)),
        }
    }

    fn print_each(&mut self, decisions: &[pb::Decision]) -> Result<(), Failure> {
        for decision in decisions {
            let is_first = std::mem::replace(&mut self.is_first, false);
            let text = match self.output {
                Some(language) => document(&message_to_json("Decision", decision), language, is_first),
                None => {
                    let mut table = if is_first { Table::new(HEADERS) } else { Table::without_headers() };
                    table.push(row(decision, &self.clock));
                    table.take_within(self.paint(), self.terminal.width)
                }
            };
            self.terminal.print(&text)?;
        }
        Ok(())
    }

    fn paint(&self) -> Paint {
        self.terminal.paint
    }
}

/// A moment as a message.
pub(crate) fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond().max(0) }
}
