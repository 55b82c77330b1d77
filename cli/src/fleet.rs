//! `muster fleet`: the state of the fleet as the controller reports it.

use std::time::Duration;

use muster_proto::lease::Lease;
use muster_proto::pb;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;
use muster_rpc::clock::{Clock, SystemClock};
use muster_rpc::config::parse_duration;
use muster_store_client::ListOptions;

use crate::connection::{Connection, ConnectionFlags, Controller, OrFailure};
use crate::failure::{Exit, Failure};
use crate::print::document::{Language, document};
use crate::print::fleet::{Late, fleet};
use crate::terminal::Terminal;
use muster_manifest::schema::message_to_json;

/// Shows the state of the fleet: zones with their eviction rates and queues, CIDR pools, and drains
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Keep running and show every change
    #[arg(short, long)]
    watch: bool,

    /// Print the whole answer as a document
    #[arg(short, long, value_enum)]
    output: Option<Language>,

    /// With --watch, the minimum time between two updates
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.resolve()?;
    let controller = connection.controller().await?;
    if flags.watch {
        return watch(&controller, &flags).await;
    }
    let request = controller.with_timeout(pb::GetFleetRequest {});
    let answer =
        controller.client.clone().get_fleet(request).await.or_failure(&controller.peer)?.into_inner();
    let late = if flags.output.is_none() { late(&connection).await } else { None };
    print(&answer.fleet.unwrap_or_default(), flags.output, late.as_ref(), true)
}

/// The nodes that have missed renewals. The answer of the controller is shown without it if the store cannot be read.
async fn late(connection: &Connection) -> Option<Late> {
    let namespace = NODE_LEASE_NAMESPACE.parse().expect("a valid name");
    let options = ListOptions { namespace: Some(namespace), ..ListOptions::default() };
    let leases = connection.store().ok()?.client.list::<Lease>(options).await.ok()?;
    Some(Late::of(leases.records.iter(), SystemClock::new().wall()))
}

async fn watch(controller: &Controller, flags: &Flags) -> Result<(), Failure> {
    let request = pb::WatchFleetRequest { min_interval: flags.interval.try_into().ok() };
    let mut client = controller.client.clone();
    let mut answers = controller.open_stream(client.watch_fleet(request)).await?;
    let mut is_first = true;
    while let Some(answer) = answers.message().await.or_failure(&controller.peer)? {
        let current = answer.fleet.unwrap_or_default();
        match flags.output {
            None => {
                let terminal = Terminal::stdout();
                terminal.redraw(&fleet(&current, None, terminal.paint, terminal.width), is_first)?;
            }
            language => print(&current, language, None, is_first)?,
        }
        is_first = false;
    }
    Err(Failure::new(Exit::Unreachable, "the controller ended the watch")
        .hint("the controller may be shutting down: try again"))
}

fn print(
    current: &pb::Fleet,
    language: Option<Language>,
    late: Option<&Late>,
    is_first: bool,
) -> Result<(), Failure> {
    let terminal = Terminal::stdout();
    terminal.print(&match language {
        Some(language) => document(&message_to_json("Fleet", current), language, is_first),
        None => fleet(current, late, terminal.paint, terminal.width),
    })
}
