//! `muster fleet`: the fleet as the controller sees it.

use std::time::Duration;

use muster_proto::pb;
use muster_rpc::config::parse_duration;

use crate::connection::{At, ConnectionFlags, Controller};
use crate::failure::{Exit, Failure};
use crate::print::document::{Language, document};
use crate::print::fleet::fleet;
use crate::schema::message_to_json;
use crate::terminal::Terminal;

/// Shows zones with their states, rates and queues, pools of addresses, and drains
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Again whenever it changed
    #[arg(short, long)]
    watch: bool,

    /// Show all of it as a document instead
    #[arg(short, long, value_enum)]
    output: Option<Language>,

    /// With --watch, the shortest time between two pictures
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let controller = flags.connection.settle()?.controller()?;
    if flags.watch {
        return watch(&controller, &flags).await;
    }
    let request = controller.timed(pb::GetFleetRequest {});
    let answer = controller.client.clone().get_fleet(request).await.at(&controller.peer)?.into_inner();
    say(&answer.fleet.unwrap_or_default(), flags.output, true)
}

async fn watch(controller: &Controller, flags: &Flags) -> Result<(), Failure> {
    let request = pb::WatchFleetRequest { min_interval: flags.interval.try_into().ok() };
    let mut client = controller.client.clone();
    let mut answers = controller.opened(client.watch_fleet(request)).await?;
    let mut first = true;
    while let Some(answer) = answers.message().await.at(&controller.peer)? {
        let told = answer.fleet.unwrap_or_default();
        match flags.output {
            None => {
                let terminal = Terminal::stdout();
                terminal.show(&fleet(&told, terminal.paint), first)?;
            }
            language => say(&told, language, first)?,
        }
        first = false;
    }
    Err(Failure::new(Exit::Unreachable, "the controller ended the watch")
        .hint("it may be stopping: try again"))
}

fn say(told: &pb::Fleet, language: Option<Language>, first: bool) -> Result<(), Failure> {
    let terminal = Terminal::stdout();
    terminal.say(&match language {
        Some(language) => document(&message_to_json("Fleet", told), language, !first),
        None => fleet(told, terminal.paint),
    })
}
