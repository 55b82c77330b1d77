//! Connects one caller with a command that runs in a container.

use std::sync::Arc;

use muster_proto::pb;
use muster_proto::pb::exec_request::Request as Input;
use muster_proto::pb::exec_response::Response as Output;
use muster_rpc::shutdown::Shutdown;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tonic::{Status, Streaming};

use crate::runtime::nonblocking::Channel;
use crate::runtime::process::ProcessRuntime;
use crate::runtime::process::exec::{Exec, ExecInput, TerminalSize};
use crate::runtime::{ContainerId, Runtime, State};

/// The bytes of one message.
const CHUNK: usize = 32 << 10;
/// Messages that wait for a caller who reads slowly.
pub(super) const QUEUE: usize = 4;

pub(super) type ExecSender = mpsc::Sender<Result<pb::ExecResponse, Status>>;

/// A command and its caller.
pub(super) struct ExecStream {
    pub(super) runtime: Arc<ProcessRuntime>,
    pub(super) container: ContainerId,
    pub(super) exec: Exec,
    pub(super) requests: Streaming<pb::ExecRequest>,
    pub(super) stop: Shutdown,
    /// Its place among the commands that may run.
    pub(super) _permit: OwnedSemaphorePermit,
}

impl ExecStream {
    /// Runs until the command has ended, or its caller, its container or the agent. The command does not outlive it.
    pub(super) async fn run(mut self, sender: ExecSender) {
        let started = pb::ExecStarted { container: self.container.container.clone() };
        if sender.send(message(Output::Started(started))).await.is_err() {
            return;
        }
        let input = self.exec.take_input();
        let exec = &self.exec;
        let output = async {
            let errors = async {
                if let Some(errors) = &exec.errors {
                    pump(errors, exec.ended(), &sender, Output::Stderr).await;
                }
            };
            tokio::join!(pump(&exec.output, exec.ended(), &sender, Output::Stdout), errors);
            let mut ended = exec.ended();
            ended.wait_for(Option::is_some).await.ok().and_then(|code| *code)
        };
        let last = tokio::select! {
            code = output => match code {
                Some(code) => message(Output::Exit(pb::ExecExit { code })),
                None => Err(Status::internal("the end of the command was not observed")),
            },
            () = sender.closed() => return,
            () = feed(&mut self.requests, input) => return,
            () = container_ended(&self.runtime, &self.container) => {
                Err(Status::aborted(format!("the container {} has ended", self.container.container)))
            }
            () = self.stop.requested() => Err(Status::unavailable("the agent stops")),
        };
        let _ = sender.send(last).await;
    }
}

fn message(response: Output) -> Result<pb::ExecResponse, Status> {
    Ok(pb::ExecResponse { response: Some(response) })
}

/// Sends what the command writes, at the caller's pace. When the command has ended, what it left in the pipe is the rest.
async fn pump(
    channel: &Channel,
    mut ended: watch::Receiver<Option<i32>>,
    sender: &ExecSender,
    wrap: fn(Vec<u8>) -> Output,
) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = tokio::select! {
            read = channel.read(&mut buffer) => read,
            _ = ended.wait_for(Option::is_some) => break,
        };
        match read {
            Ok(0) | Err(_) => return,
            Ok(read) if sender.send(message(wrap(buffer[..read].to_vec()))).await.is_err() => return,
            Ok(_) => {}
        }
    }
    while let Ok(read @ 1..) = channel.read_now(&mut buffer) {
        if sender.send(message(wrap(buffer[..read].to_vec()))).await.is_err() {
            return;
        }
    }
}

/// Feeds the command with the caller's messages. Returns when the caller is gone, or sends what makes no sense.
async fn feed(requests: &mut Streaming<pb::ExecRequest>, mut input: Option<ExecInput>) {
    loop {
        match (requests.message().await, &mut input) {
            (Ok(Some(pb::ExecRequest { request })), Some(input)) => match request {
                Some(Input::Stdin(bytes)) => input.write(&bytes).await,
                Some(Input::StdinEnd(_)) => input.end().await,
                Some(Input::Resize(size)) => input.resize(terminal_size(size)),
                Some(Input::Start(_)) | None => {}
            },
            (Ok(Some(_)), None) => {}
            (Ok(None), input) => {
                if let Some(input) = input {
                    input.end().await;
                }
                return std::future::pending().await;
            }
            (Err(_), _) => return,
        }
    }
}

/// The size as the kernel has it.
pub(super) fn terminal_size(size: pb::TerminalSize) -> TerminalSize {
    let bounded = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
    TerminalSize { columns: bounded(size.columns), rows: bounded(size.rows) }
}

/// Returns when a container does not run any more.
async fn container_ended(runtime: &ProcessRuntime, id: &ContainerId) {
    let mut changes = runtime.changes();
    loop {
        changes.mark_unchanged();
        let runs =
            runtime.list().iter().any(|found| found.id == *id && matches!(found.state, State::Running(_)));
        if !runs || changes.changed().await.is_err() {
            return;
        }
    }
}
