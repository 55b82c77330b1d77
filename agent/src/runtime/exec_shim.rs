//! The two small processes of a command that is run in a container.
//!
//! The first one, `muster-agent exec-shim watch ...`, starts the second and waits for it. It adopts what the command
//! leaves behind and kills all of that before it exits with the command's exit code. It ends the command when it gets
//! TERM, as it does when the call is over or the agent dies. The second one, `muster-agent exec-shim become ...`, puts
//! itself into the container and becomes the command.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::pin::pin;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, ioctl_tiocsctty, kill_process, kill_process_group, set_child_subreaper,
    set_parent_process_death_signal, setsid, waitpid,
};
use rustix::stdio;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::processes;
use super::shim::{become_command, end_children, outlive_signals};

/// The agent's first argument when it runs as one of these.
pub const SUBCOMMAND: &str = "exec-shim";
const WATCH: &str = "watch";
const BECOME: &str = "become";
/// Whether the command has a terminal.
const TERMINAL: &str = "terminal";
const PIPES: &str = "pipes";

/// How long a command has between TERM and KILL, when its call is over.
const GRACE: Duration = Duration::from_secs(2);
/// The exit codes of a command that was not started, as shells have them.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The arguments for a command in the container of that order.
pub(super) fn arguments(order: &Path, has_terminal: bool, command: &[String]) -> Vec<OsString> {
    let mode = if has_terminal { TERMINAL } else { PIPES };
    let first = [SUBCOMMAND, WATCH, mode].map(OsString::from);
    let command = command.iter().map(OsString::from);
    first.into_iter().chain([order.as_os_str().to_owned()]).chain(command).collect()
}

/// Runs one of the two; `args` are what follows the subcommand.
pub fn exec_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let outcome = match args.as_slice() {
        [step, mode, order, command @ ..] if step == WATCH && !command.is_empty() => {
            watch(mode, order, command)
        }
        [step, mode, order, command @ ..] if step == BECOME && !command.is_empty() => {
            become_in_container(mode == TERMINAL, Path::new(order), command)
        }
        _ => Err(io::Error::other(format!(
            "usage: {SUBCOMMAND} {WATCH}|{BECOME} {TERMINAL}|{PIPES} <order> <command>"
        ))),
    };
    outcome.unwrap_or_else(|error| {
        let program = args.get(3).map(|word| word.to_string_lossy()).unwrap_or_default();
        eprintln!("{program:?} cannot be run: {error}");
        ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE })
    })
}

/// Starts the command and waits until nothing of it is left.
fn watch(mode: &OsStr, order: &OsStr, command: &[OsString]) -> io::Result<ExitCode> {
    // Signals to the agent's group do not reach it, and a terminal's belong to the command.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    outlive_signals()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let status = runtime.block_on(async {
        let (mut exits, mut ended) = (signal(SignalKind::child())?, signal(SignalKind::terminate())?);
        // Not before TERM is caught.
        set_parent_process_death_signal(Some(Signal::TERM))?;
        let mut child = Command::new("/proc/self/exe");
        child.arg0("muster-agent").args([SUBCOMMAND, BECOME]).arg(mode).arg(order).args(command);
        if mode == PIPES {
            // With a terminal it leads a session, and with that a group, by itself.
            child.process_group(0);
        }
        let mut child = child.spawn()?;
        let mut patience = pin!(sleep(GRACE));
        let mut is_stopping = false;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok::<_, io::Error>(status);
            }
            reap_adopted(&child)?;
            tokio::select! {
                _ = exits.recv() => {}
                _ = ended.recv(), if !is_stopping => {
                    is_stopping = true;
                    signal_all(&child, Signal::TERM);
                    patience.set(sleep(GRACE));
                }
                () = &mut patience, if is_stopping => {
                    signal_all(&child, Signal::KILL);
                    patience.set(sleep(GRACE));
                }
            }
        }
    })?;
    end_children()?;
    Ok(ExitCode::from(code_of(status)))
}

/// Signals the command's group, or the command alone if it leads none yet. It was not reaped, so the pid is its own.
fn signal_all(child: &Child, signal: Signal) {
    let Some(pid) = Pid::from_raw(child.id().cast_signed()) else { return };
    if kill_process_group(pid, signal).is_err() {
        let _ = kill_process(pid, signal);
    }
}

/// Reaps what the command left behind and has ended. What still runs stays until the command has ended.
fn reap_adopted(child: &Child) -> io::Result<()> {
    for adopted in processes::own_children()? {
        if adopted.as_raw_nonzero().get() != child.id().cast_signed() {
            let _ = waitpid(Some(adopted), WaitOptions::NOHANG);
        }
    }
    Ok(())
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    u8::try_from(code.unwrap_or_default()).unwrap_or(u8::MAX)
}

/// Becomes the command. Returns only on an error.
fn become_in_container(has_terminal: bool, order: &Path, command: &[OsString]) -> io::Result<ExitCode> {
    if has_terminal {
        setsid()?;
        ioctl_tiocsctty(stdio::stdin())?;
    }
    become_command(order, command, |program, order| {
        if let Some(user) = order.user {
            // So that it can open /dev/stdout and its terminal by their names.
            for stream in [stdio::stdin(), stdio::stdout(), stdio::stderr()] {
                let own = Some(rustix::fs::Uid::from_raw(user.uid));
                let _ = rustix::fs::fchown(stream, own, None);
            }
        }
        if has_terminal && !order.spec.env.iter().any(|(name, _)| name == "TERM") {
            program.env("TERM", "xterm");
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
