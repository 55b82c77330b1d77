//! `muster up`: Muster in this process, on an embedded data directory. So far
//! that is the store.
//!
//! It is the same code as the `muster-store` binary runs, wired by the same
//! function; this file only chooses the directory, says what is where, and waits.

mod failure;
mod greeting;
mod place;

use std::ffi::OsStr;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use muster_rpc::shutdown::Shutdown;
use muster_rpc::telemetry::{self, TelemetryFlags};
use muster_rpc::tls::TlsFlags;
use muster_store::Config;
use muster_store::run::{Running, start};

pub(crate) use self::failure::Failure;
use self::greeting::Greeting;
use self::place::Place;

/// Runs Muster in this process. Today this starts the store only
///
/// Today this starts the store only; the controller and the agent will join it
/// once they exist. The store's further settings are taken from the same MUSTER_
/// variables as by muster-store, whose --help lists them.
#[derive(Debug, Clone, clap::Args)]
// A person is watching: only what needs attention is worth a line.
#[command(mut_arg("log_level", |arg| arg.default_value("warn")))]
pub(crate) struct Flags {
    /// Where the records are kept [default: muster/store in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, env = "MUSTER_DATA_DIR", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Keep the records in a temporary directory and remove it at the end
    #[arg(long, conflicts_with = "data_dir")]
    pub(crate) ephemeral: bool,

    /// Where gRPC is served; port 0 picks a free one
    #[arg(long, env = "MUSTER_LISTEN", default_value = "127.0.0.1:7400", value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,

    /// Where metrics and health are served; port 0 picks a free one
    #[arg(long, env = "MUSTER_HTTP_LISTEN", default_value = "127.0.0.1:7401", value_name = "ADDRESS")]
    pub(crate) http_listen: SocketAddr,

    #[command(flatten)]
    pub(crate) tls: TlsFlags,

    #[command(flatten)]
    pub(crate) telemetry: TelemetryFlags,
}

/// The whole life of `muster up`.
pub(crate) fn main(flags: &Flags) -> Result<(), Failure> {
    let place = Place::choose(flags.ephemeral, flags.data_dir.as_deref())?;
    let config = config(flags, &place)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let telemetry = telemetry::init("muster", &flags.telemetry).map_err(muster_store::RunError::from)?;
        let ran = run(config, flags, &place).await;
        telemetry.shutdown().await;
        ran
    })?;
    say(&format!("stopped; {}\n", place.farewell()));
    Ok(())
}

async fn run(config: Config, flags: &Flags, place: &Place) -> Result<(), Failure> {
    let running = start(config, Shutdown::on_signals()?).await?;
    say(&greeting(&running, flags, place).to_string());
    running.stopped().await?;
    Ok(())
}

/// The store's settings: its own defaults and variables, and our flags over them.
fn config(flags: &Flags, place: &Place) -> Result<Config, Failure> {
    let mut store = muster_store::config::Flags::try_parse_from([OsStr::new("muster-store")])?;
    store.data_dir = place.directory().to_owned();
    store.listen = flags.listen;
    store.http_listen = flags.http_listen;
    store.tls = flags.tls.clone();
    Ok(Config::try_from(&store).map_err(muster_store::RunError::from)?)
}

fn greeting<'a>(running: &Running, flags: &'a Flags, place: &'a Place) -> Greeting<'a> {
    Greeting { grpc: running.address, http: running.http_address, place, tls: &flags.tls }
}

/// Speaks to the person who started us. If nobody listens any more, the store
/// runs on all the same.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
