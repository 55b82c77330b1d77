//! `muster version`: the versions of this command and of the servers.

use muster_store_client::ClientError;
use serde_json::json;

use crate::connection::{Connection, ConnectionFlags, Peer};
use crate::failure::{Failure, Failures};
use crate::print::document::{Language, document};
use crate::print::{Cell, Table, UNKNOWN};
use crate::server_version::ask;
use crate::terminal::Terminal;

/// Shows the versions of this command, the stores and the controllers
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Only the version of this command; nothing is called
    #[arg(long)]
    client: bool,

    /// Print the versions as a document
    #[arg(short, long, value_enum)]
    output: Option<Language>,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// The version of this command.
pub(crate) const CLIENT: &str = env!("CARGO_PKG_VERSION");

/// One server's version, or why it is not known.
struct Server {
    peer: Peer,
    version: Result<String, ClientError>,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let servers = if flags.client { Vec::new() } else { servers(&flags.connection.resolve()?).await? };
    let terminal = Terminal::stdout();
    terminal.print(&match flags.output {
        Some(language) => document(&as_document(&servers), language, true),
        None => table(&servers).take(terminal.paint),
    })?;
    let mut failures = Failures::default();
    for Server { peer, version } in servers {
        if let Err(error) = version {
            failures.keep::<()>(Err(peer.failure(error)))?;
        }
    }
    failures.finish()
}

async fn servers(connection: &Connection) -> Result<Vec<Server>, Failure> {
    let mut channels = connection.store_channels()?;
    channels.extend(connection.controllers()?.into_iter().map(|it| (it.peer, it.channel)));
    let ask_one = async |(peer, channel)| {
        let answer = ask(channel, connection.timeout()).await;
        let version = answer.map(|answer| answer.version.unwrap_or_else(|| UNKNOWN.to_owned()));
        Server { peer, version: version.map_err(ClientError::from) }
    };
    Ok(futures_util::future::join_all(channels.into_iter().map(ask_one)).await)
}

fn table(servers: &[Server]) -> Table {
    let mut table = Table::new(["COMPONENT", "VERSION", "ADDRESS"]);
    table.push(["client", CLIENT, ""]);
    for Server { peer, version } in servers {
        let version = match version {
            Ok(version) if version == CLIENT => Cell::new(version),
            Ok(version) => Cell::new(version).doubtful(),
            Err(_) => Cell::new("unreachable").bad(),
        };
        table.push([Cell::new(peer.role()), version, Cell::new(peer.address())]);
    }
    table
}

fn as_document(servers: &[Server]) -> serde_json::Value {
    let server = |Server { peer, version }: &Server| json!({"component": peer.role(), "address": peer.address(), "version": version.as_ref().ok()});
    json!({"client": CLIENT, "servers": servers.iter().map(server).collect::<Vec<_>>()})
}
