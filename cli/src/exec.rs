//! `muster exec`: runs a command in a container, through the agent of its node.

use std::io::{self, IsTerminal, Read};
use std::thread;

use futures_util::stream::unfold;
use muster_proto::pb;
use muster_proto::pb::exec_request::Request;
use muster_proto::pb::exec_response::Response;
use muster_proto::record::Kind;
use muster_store_client::ClientError;
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode, size};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tonic::Streaming;

use crate::completion;
use crate::connection::agent::PodAgent;
use crate::connection::{Connection, ConnectionFlags, NamespaceFlags};
use crate::failure::{Exit, Failure};
use crate::records::key;
use crate::targets::strip_kind;
use crate::terminal::{Terminal, print_stderr, stderr_bytes};

/// Messages to the agent that wait while it does not take them.
const QUEUE: usize = 8;
/// The most input in one message.
const CHUNK: usize = 16 << 10;

/// Runs a command in a container of a pod
///
/// The command has the user, the environment, the working directory, the limits and the restrictions of the container.
/// Its exit code is that of `muster exec`. It ends with this command: `muster exec -it web-1 -- sh`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// The pod
    #[arg(value_name = "POD", add = completion::pod_names())]
    pod: String,

    /// The container [default: the first one]
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,

    /// Pass standard input to the command
    #[arg(short = 'i', long)]
    stdin: bool,

    /// Run the command in a terminal
    #[arg(short, long)]
    tty: bool,

    #[command(flatten)]
    namespace: NamespaceFlags,

    #[command(flatten)]
    connection: ConnectionFlags,

    /// The program and its arguments, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.resolve()?;
    let namespaces = connection.namespaces(&flags.namespace);
    let names = strip_kind(Kind::Pod, None, std::slice::from_ref(&flags.pod))?;
    let key = key(Kind::Pod, &names[0], &namespaces)?;
    let agent = connection.agent_of(&key).await?;
    let (container, choice) = agent.container(flags.container.as_deref())?;
    choice.into_iter().for_each(print_stderr);
    let start = pb::ExecStart {
        namespace: namespaces.of(Kind::Pod).to_string(),
        pod: agent.pod.meta.name.to_string(),
        container,
        node: agent.node.clone(),
        command: flags.command,
        stdin: flags.stdin,
        tty: flags.tty,
        terminal_size: flags.tty.then(terminal_size).flatten(),
    };
    let (requests, queued) = mpsc::channel(QUEUE);
    let _ = requests.send(message(Request::Start(start))).await;
    let responses = open(&connection, &agent, queued).await?;
    let is_terminal = io::stdin().is_terminal();
    if flags.tty && !is_terminal {
        print_stderr("(standard input is no terminal: keys are passed line by line)");
    }
    let raw = (flags.tty && flags.stdin && is_terminal).then(RawMode::enter).transpose()?;
    if flags.stdin {
        read_input(requests.clone());
    }
    let resizing = flags.tty.then(|| tokio::spawn(follow_size(requests.clone())));
    // The stream of requests ends with the command, not before: its end would be the end of the input.
    let code = relay(responses, &agent).await;
    drop((raw, requests));
    if let Some(resizing) = resizing {
        resizing.abort();
    }
    match code? {
        0 => Ok(()),
        code => Err(Failure::Exited(u8::try_from(code).unwrap_or(u8::MAX))),
    }
}

fn message(request: Request) -> pb::ExecRequest {
    pb::ExecRequest { request: Some(request) }
}

async fn open(
    connection: &Connection,
    agent: &PodAgent,
    queued: mpsc::Receiver<pb::ExecRequest>,
) -> Result<Streaming<pb::ExecResponse>, Failure> {
    let requests = unfold(queued, async |mut queued| queued.recv().await.map(|next| (next, queued)));
    let mut client = agent.client.clone();
    let opened = tokio::time::timeout(connection.timeout(), client.exec(requests)).await;
    let opened = opened.map_err(|_| agent.peer.failure(ClientError::DeadlineExceeded))?;
    Ok(opened.map_err(|status| agent.peer.failure(status.into()))?.into_inner())
}

/// Prints what the command writes until it ends; returns its exit code.
async fn relay(mut responses: Streaming<pb::ExecResponse>, agent: &PodAgent) -> Result<i32, Failure> {
    let terminal = Terminal::stdout();
    loop {
        let next = responses.message().await.map_err(|status| agent.peer.failure(status.into()))?;
        match next.map(|next| next.response) {
            Some(Some(Response::Stdout(bytes))) => terminal.print_bytes(&bytes)?,
            Some(Some(Response::Stderr(bytes))) => stderr_bytes(&bytes),
            Some(Some(Response::Exit(exit))) => return Ok(exit.code),
            Some(Some(Response::Started(_)) | None) => {}
            None => {
                let message = "the call ended before the command did";
                return Err(Failure::new(Exit::Failed, message).hint("see the log of the node's agent"));
            }
        }
    }
}

/// Passes standard input on, from a thread of its own, since reading it blocks.
fn read_input(requests: mpsc::Sender<pb::ExecRequest>) {
    thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        loop {
            let request = match io::stdin().lock().read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(read @ 1..) => Request::Stdin(buffer[..read].to_vec()),
                Ok(_) | Err(_) => {
                    let _ = requests.blocking_send(message(Request::StdinEnd(pb::ExecInputEnd {})));
                    return;
                }
            };
            if requests.blocking_send(message(request)).is_err() {
                return;
            }
        }
    });
}

async fn follow_size(requests: mpsc::Sender<pb::ExecRequest>) {
    let Ok(mut changes) = signal(SignalKind::window_change()) else { return };
    while changes.recv().await.is_some() {
        if let Some(size) = terminal_size()
            && requests.send(message(Request::Resize(size))).await.is_err()
        {
            return;
        }
    }
}

fn terminal_size() -> Option<pb::TerminalSize> {
    let (columns, rows) = size().ok()?;
    Some(pb::TerminalSize { columns: columns.into(), rows: rows.into() })
}

/// While it lives, keys go to the command as they are pressed, Ctrl-C included.
struct RawMode;

impl RawMode {
    fn enter() -> Result<RawMode, Failure> {
        enable_raw_mode().map(|()| RawMode).map_err(|error| {
            Failure::new(Exit::Failed, format!("the terminal cannot pass single keys: {error}"))
                .hint("leave out -t")
        })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = disable_raw_mode();
    }
}
