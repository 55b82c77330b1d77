//! Commands in running containers: started, fed, resized and ended.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::Interest;
use tokio::sync::watch;

use super::super::nonblocking::Channel;
use super::super::{ContainerId, RuntimeError, exec_shim};
use super::{ProcessRuntime, Stage};

/// What sends an end of input from a terminal: Ctrl-D.
const END_OF_INPUT: &[u8] = b"\x04";

/// A command to run in a container.
#[derive(Clone, Debug)]
pub struct ExecSpec {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether it gets input.
    pub has_input: bool,
    /// The size of its terminal, if it has one.
    pub terminal: Option<TerminalSize>,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}

/// A command that runs in a container. When it is dropped, the command and all that it started get TERM, and KILL soon
/// after.
#[derive(Debug)]
pub struct Exec {
    input: Option<Arc<Channel>>,
    /// Standard output, or all output of a terminal.
    pub output: Arc<Channel>,
    /// Standard error, unless it has a terminal.
    pub errors: Option<Arc<Channel>>,
    terminal: Option<Arc<Channel>>,
    watcher: OwnedFd,
    ended: watch::Receiver<Option<i32>>,
}

impl ProcessRuntime {
    /// Runs a command in a running container. It must be called within a tokio runtime, and blocks for the start.
    pub fn exec(&self, id: &ContainerId, spec: &ExecSpec) -> Result<Exec, RuntimeError> {
        if spec.command.first().is_none_or(String::is_empty) {
            return Err(RuntimeError::NoCommand(id.to_string()));
        }
        match self.inner.entry(id)?.stage {
            Stage::Starting => return Err(RuntimeError::Starting(id.clone())),
            Stage::Exited(_) => return Err(RuntimeError::Ended(id.clone())),
            Stage::Running(_) => {}
        }
        let order = self.inner.files(id).order();
        let mut command = Command::new(&self.inner.shim);
        command.arg0("muster-agent").env_clear().current_dir("/");
        command.args(exec_shim::arguments(&order, spec.terminal.is_some(), &spec.command));
        start(command, spec).map_err(RuntimeError::machine(format!("run a command in {id}")))
    }
}

fn start(mut command: Command, spec: &ExecSpec) -> io::Result<Exec> {
    let (mut input, mut errors, mut terminal) = (None, None, None);
    let output = match spec.terminal {
        Some(size) => {
            let (ours, theirs) = open_terminal(size)?;
            command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
            let ours = Arc::new(Channel::new(ours, Interest::READABLE | Interest::WRITABLE)?);
            terminal = Some(Arc::clone(&ours));
            input = spec.has_input.then(|| Arc::clone(&ours));
            ours
        }
        None => {
            let reader = || {
                let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
                Ok::<_, io::Error>((Arc::new(Channel::new(ours, Interest::READABLE)?), theirs))
            };
            command.stdin(Stdio::null());
            if spec.has_input {
                let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
                command.stdin(theirs);
                input = Some(Arc::new(Channel::new(ours, Interest::WRITABLE)?));
            }
            let ((output, stdout), (stderr_here, stderr)) = (reader()?, reader()?);
            command.stdout(stdout).stderr(stderr);
            errors = Some(stderr_here);
            output
        }
    };
    let (watcher, ended) = spawn(command)?;
    Ok(Exec { input, output, errors, terminal, watcher, ended })
}

fn open_terminal(size: TerminalSize) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    resize(&ours, size)?;
    Ok((ours, theirs))
}

fn resize(terminal: impl AsFd, size: TerminalSize) -> io::Result<()> {
    let TerminalSize { columns, rows } = size;
    Ok(tcsetwinsize(terminal, Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 })?)
}

/// Starts the command from a thread of its own, which waits for it: the kernel takes the end of the thread that started a
/// process for the death of its parent. Returns a descriptor of the process, and how it ends.
fn spawn(mut command: Command) -> io::Result<(OwnedFd, watch::Receiver<Option<i32>>)> {
    let (ending, ended) = watch::channel(None);
    let (began, beginning) = std::sync::mpsc::channel();
    thread::Builder::new().name("exec".to_owned()).spawn(move || {
        let begun = command.spawn().and_then(|child| Ok((descriptor(&child)?, child)));
        // What the command's output ends with must not be kept open here.
        drop(command);
        match begun {
            Ok((watcher, mut child)) => {
                let _ = began.send(Ok(watcher));
                let code = child.wait().map_or(None, |status| {
                    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
                });
                ending.send_replace(Some(code.unwrap_or(-1)));
            }
            Err(error) => drop(began.send(Err(error))),
        }
    })?;
    let watcher = beginning.recv().map_err(|_| io::Error::other("its thread died"))??;
    Ok((watcher, ended))
}

fn descriptor(child: &Child) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(child.id().cast_signed()).ok_or(io::ErrorKind::InvalidData)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

impl Exec {
    /// The exit code, once the command and all that it started have ended.
    pub fn ended(&self) -> watch::Receiver<Option<i32>> {
        self.ended.clone()
    }

    /// Takes the command's input; `None` if it gets none, or if it was taken before.
    pub fn take_input(&mut self) -> Option<ExecInput> {
        let (channel, terminal) = (self.input.take(), self.terminal.clone());
        (channel.is_some() || terminal.is_some()).then_some(ExecInput { channel, terminal })
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        match pidfd_send_signal(&self.watcher, Signal::TERM) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => tracing::warn!(%error, "a command in a container cannot be ended"),
        }
    }
}

/// The input of a command, and its terminal.
#[derive(Debug)]
pub struct ExecInput {
    channel: Option<Arc<Channel>>,
    terminal: Option<Arc<Channel>>,
}

impl ExecInput {
    /// Writes input, and waits while the command does not read it. Input for a command that reads no more is dropped.
    pub async fn write(&mut self, bytes: &[u8]) {
        if let Some(channel) = &self.channel
            && channel.write_all(bytes).await.is_err()
        {
            self.channel = None;
        }
    }

    /// Says that there is no more input.
    pub async fn end(&mut self) {
        if let Some(channel) = self.channel.take()
            && self.terminal.is_some()
        {
            let _ = channel.write_all(END_OF_INPUT).await;
        }
    }

    pub fn resize(&self, size: TerminalSize) {
        if let Some(terminal) = &self.terminal
            && let Err(error) = resize(terminal, size)
        {
            tracing::debug!(%error, "a terminal cannot be resized");
        }
    }
}
