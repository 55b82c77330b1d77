//! `muster revoke`: certificates that are refused from now on.

use std::time::Duration;

use jiff::SignedDuration;
use muster_proto::meta::Metadata;
use muster_proto::name::Name;
use muster_proto::revocation::{
    Revocation, RevocationSpec, RevocationStatus, Revoked, Serial, revocation_name,
};
use muster_rpc::clock::{Clock, SystemClock};
use muster_rpc::config::parse_duration;

use crate::connection::{ConnectionFlags, OrFailure};
use crate::failure::Failure;
use crate::terminal::Terminal;

/// Revokes certificates: they are refused within seconds, and their open connections end
///
/// A revoked node can join again with a token that is created afterwards and names it. To let it in for good, delete
/// the revocation.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Command {
    /// Revokes all certificates of a node that were issued until now
    Node {
        /// Name of the node
        #[arg(value_name = "NAME")]
        name: Name,

        #[command(flatten)]
        flags: RevokeFlags,
    },
    /// Revokes one certificate
    Serial {
        /// Serial number in hexadecimal, with or without colons
        #[arg(value_name = "HEX")]
        serial: Serial,

        #[command(flatten)]
        flags: RevokeFlags,
    },
}

#[derive(Debug, Clone, clap::Args)]
struct RevokeFlags {
    /// Why, for those who read the revocation
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,

    /// How long the revocation is kept: until the certificates have expired [default: 400 days]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    keep: Option<Duration>,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let (revoked, flags) = match flags.command {
        Command::Node { name, flags } => (Revoked::Node(name), flags),
        Command::Serial { serial, flags } => (Revoked::Serial(serial), flags),
    };
    let now = SystemClock::new().wall();
    let expires = |keep| now.checked_add(SignedDuration::try_from(keep).ok()?).ok();
    let expire_time = match flags.keep {
        Some(keep) => Some(expires(keep).ok_or_else(|| {
            Failure::usage("--keep is too long").hint("give the longest life of the certificates")
        })?),
        None => None,
    };
    let store = flags.connection.resolve()?.store()?;
    let revocation = Revocation {
        meta: Metadata::new(None, revocation_name(&revoked)),
        spec: RevocationSpec { revoked, reason: flags.reason, expire_time },
        status: RevocationStatus::default(),
    };
    let stored = store.client.revoke(revocation).await.or_failure(&store.peer)?;
    Terminal::stdout().print(&format!("{} revoked\n", stored.spec.revoked))
}
