//! `muster approve` and `muster deny`: decide about requests for certificates.

use muster_proto::name::Name;

use crate::connection::{ConnectionFlags, OrFailure};
use crate::failure::{Failure, Failures};
use crate::terminal::Terminal;

/// Approves requests for certificates of machines that join without a token
///
/// `muster get certificaterequests` lists them. Compare the name of the request with the one that the agent logs: it is
/// derived from the agent's key, so nobody else has it.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ApproveFlags {
    /// Names of requests
    #[arg(value_name = "NAME", required = true)]
    names: Vec<Name>,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// Denies requests for certificates
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DenyFlags {
    /// Names of requests
    #[arg(value_name = "NAME", required = true)]
    names: Vec<Name>,

    /// Why, for those who read the request or the agent's log
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn approve(flags: ApproveFlags) -> Result<(), Failure> {
    let store = flags.connection.resolve()?.store()?;
    let mut failures = Failures::default();
    for name in &flags.names {
        let approved = store.client.approve_request(name).await.or_failure(&store.peer);
        if let Some(request) = failures.keep(approved)? {
            let node = &request.spec.node_name;
            Terminal::stdout().print(&format!("certificaterequest/{name} approved for node {node}\n"))?;
        }
    }
    failures.finish()
}

pub(crate) async fn deny(flags: DenyFlags) -> Result<(), Failure> {
    let store = flags.connection.resolve()?.store()?;
    let mut failures = Failures::default();
    for name in &flags.names {
        let denied = store.client.deny_request(name, &flags.reason).await.or_failure(&store.peer);
        if failures.keep(denied)?.is_some() {
            Terminal::stdout().print(&format!("certificaterequest/{name} denied\n"))?;
        }
    }
    failures.finish()
}
