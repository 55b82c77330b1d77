//! `muster cluster-info`: the servers that the other commands would call, and whether they answer.

use muster_proto::pb;
use muster_store_client::ClientError;

use crate::connection::{ConnectionFlags, Controller};
use crate::failure::Failure;
use crate::print::rows::or_none;
use crate::print::{Cell, Table, Word};
use crate::server_version::ask;
use crate::terminal::Terminal;

/// Shows the servers that are called, whether they answer, and which controller leads
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.resolve()?;
    let mut table = Table::new(["COMPONENT", "ADDRESS", "STATE"]);
    let mut failures = Vec::new();
    for (peer, channel) in connection.store_channels()? {
        let state = match ask(channel, connection.timeout()).await {
            Ok(_) => Cell::new("answers").good(),
            Err(status) => {
                failures.push(peer.failure(ClientError::from(status)));
                Cell::new("unreachable").bad()
            }
        };
        table.push([Cell::new("store"), Cell::new(peer.address()), state]);
    }
    for controller in connection.controllers()? {
        let state = match get_fleet(&controller).await {
            Ok(fleet) => state(&fleet),
            Err(error) => {
                failures.push(controller.peer.failure(error));
                Cell::new("unreachable").bad()
            }
        };
        table.push([Cell::new("controller"), Cell::new(controller.peer.address()), state]);
    }
    let terminal = Terminal::stdout();
    terminal.print(&table.take(terminal.paint))?;
    // Every address that does not answer is reported, and not only the first.
    match failures.len() {
        0 => Ok(()),
        1 => Err(failures.remove(0)),
        _ => Err(Failure::Several(failures)),
    }
}

async fn get_fleet(controller: &Controller) -> Result<pb::Fleet, ClientError> {
    let request = controller.with_timeout(pb::GetFleetRequest {});
    let answer = controller.client.clone().get_fleet(request).await.map_err(ClientError::from)?;
    Ok(answer.into_inner().fleet.unwrap_or_default())
}

fn state(fleet: &pb::Fleet) -> Cell {
    let leads = !fleet.leader.is_empty() && fleet.leader == fleet.controller;
    let word = or_none(&fleet.state().word());
    let nodes = format!("{} of {} nodes ready", fleet.ready_nodes, fleet.nodes);
    match (leads, fleet.leader.as_str()) {
        (true, _) => Cell::new(format!("leads as {}: {word}, {nodes}", fleet.controller)).good(),
        (false, "") => Cell::new(format!("{word}, no leader, {nodes}")).doubtful(),
        (false, leader) => Cell::new(format!("{word}, the leader is {leader}")),
    }
}
