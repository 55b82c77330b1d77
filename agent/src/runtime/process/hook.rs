//! Stop hooks: a command that is waited for with a timeout.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::super::HookEnd;
use super::super::processes::ProcessKey;

/// Runs the command in its own process group and kills what is left of the group when the command has exited or timed
/// out. `begun` is called with the group's leader once it runs.
pub(super) fn run(
    mut command: Command,
    timeout: Duration,
    begun: impl FnOnce(ProcessKey),
) -> io::Result<HookEnd> {
    let mut child = command.process_group(0).spawn()?;
    if let Ok(leader) = ProcessKey::of(child.id().cast_signed()) {
        begun(leader);
    }
    let ended = wait_for(&child, timeout);
    // Not reaped yet, so the group still has its pid.
    if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait()?;
    if !ended? {
        return Ok(HookEnd::TimedOut);
    }
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(HookEnd::Code(code.unwrap_or_default()))
}

/// Whether the child exited in time. It is not reaped.
fn wait_for(child: &Child, timeout: Duration) -> io::Result<bool> {
    let pid = Pid::from_raw(child.id().cast_signed()).ok_or(io::ErrorKind::InvalidData)?;
    let end = pidfd_open(pid, PidfdFlags::empty())?;
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    loop {
        match poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
