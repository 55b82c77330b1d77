//! `muster logs`: the output of a container, from the agent of its node.

use std::time::Duration;

use muster_proto::key::Key;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_rpc::config::parse_duration;
use muster_store_client::ClientError;
use tokio::time::{sleep, timeout};
use tonic::Streaming;

use crate::completion;
use crate::connection::agent::PodAgent;
use crate::connection::{Connection, ConnectionFlags, NamespaceFlags, Peer};
use crate::failure::{Exit, Failure};
use crate::records::key;
use crate::targets::strip_kind;
use crate::terminal::{Terminal, print_stderr};

/// How long after a broken connection the next one is tried, and for how long in all.
const RETRY: Duration = Duration::from_secs(1);
const PATIENCE: u32 = 60;

/// Prints the output of a container of a pod
///
/// The output comes from the agent of the pod's node: standard output and standard error as the container wrote them.
/// With --follow it goes on through restarts of the container, until the pod has ended.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// The pod
    #[arg(value_name = "POD", add = completion::pod_names())]
    pod: String,

    /// The container [default: the first one]
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,

    /// Go on with what the container will write
    #[arg(short, long)]
    follow: bool,

    /// The output of the instance before the current one, which has ended
    #[arg(short, long)]
    previous: bool,

    /// Only lines of this last time, such as 10s or 5m, to about a second
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    since: Option<Duration>,

    /// Only so many lines from the end; -1 for all
    #[arg(long, value_name = "LINES", default_value_t = -1, allow_negative_numbers = true)]
    tail: i64,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.resolve()?;
    let namespaces = connection.namespaces(&flags.namespace);
    let names = strip_kind(Kind::Pod, None, std::slice::from_ref(&flags.pod))?;
    let key = key(Kind::Pod, &names[0], &namespaces)?;
    let agent = connection.agent_of(&key).await?;
    let (container, choice) = agent.container(flags.container.as_deref())?;
    choice.into_iter().for_each(print_stderr);
    let mut request = pb::ReadLogRequest {
        namespace: namespaces.of(Kind::Pod).to_string(),
        pod: agent.pod.meta.name.to_string(),
        container,
        node: agent.node.clone(),
        follow: flags.follow,
        previous: flags.previous,
        tail_lines: (flags.tail >= 0).then_some(flags.tail),
        since: flags.since.and_then(|since| since.try_into().ok()),
        after: None,
    };
    let mut stream = open(&connection, &agent, &request).await?;
    let mut peer = agent.peer;
    loop {
        match stream.message().await {
            Ok(Some(part)) => {
                print(&part)?;
                request.after = part.position.or(request.after);
            }
            Ok(None) => return Ok(()),
            Err(status) => {
                let failure = peer.failure(status.into());
                if !flags.follow || failure.exit() != Some(Exit::Unreachable) {
                    return Err(failure);
                }
                // Connections do not live for ever, and agents are replaced while their pods run on.
                (stream, peer) = reopen(&connection, &key, &request, failure).await?;
            }
        }
    }
}

async fn open(
    connection: &Connection,
    agent: &PodAgent,
    request: &pb::ReadLogRequest,
) -> Result<Streaming<pb::ReadLogResponse>, Failure> {
    let mut client = agent.client.clone();
    let opened = timeout(connection.timeout(), client.read_log(request.clone())).await;
    let opened = opened.map_err(|_| agent.peer.failure(ClientError::DeadlineExceeded))?;
    Ok(opened.map_err(|status| agent.peer.failure(status.into()))?.into_inner())
}

/// Opens the stream again where it broke off. The agent may have another address by now.
async fn reopen(
    connection: &Connection,
    pod: &Key,
    request: &pb::ReadLogRequest,
    mut failure: Failure,
) -> Result<(Streaming<pb::ReadLogResponse>, Peer), Failure> {
    for _ in 0..PATIENCE {
        sleep(RETRY).await;
        let opened = async {
            let agent = connection.agent_of(pod).await?;
            Ok((open(connection, &agent, request).await?, agent.peer))
        };
        match opened.await {
            Err(again @ Failure::One { exit: Exit::Unreachable, .. }) => failure = again,
            other => return other,
        }
    }
    Err(failure)
}

fn print(part: &pb::ReadLogResponse) -> Result<(), Failure> {
    if part.skipped_bytes > 0 {
        print_stderr(format_args!(
            "({} bytes are missing here: the log was rotated before they were read)",
            part.skipped_bytes
        ));
    }
    Terminal::stdout().print_bytes(&part.data)
}
