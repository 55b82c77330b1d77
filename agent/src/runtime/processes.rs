//! Processes as /proc shows them, and how one process is told from the next that gets its pid.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use procfs::process::{Process, Stat, all_processes};
use procfs::{FromRead, ProcError, WithCurrentSystemInfo};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

/// A process that is not mistaken for another with the same pid, as long as the machine is not rebooted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessKey {
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessKey {
    /// The process that has this pid now.
    pub fn of(pid: i32) -> io::Result<ProcessKey> {
        Ok(ProcessKey { pid, start_ticks: stat(pid)?.starttime })
    }

    /// Whether the process still runs. A zombie does not.
    pub fn is_alive(&self) -> bool {
        self.stat().is_some_and(|stat| !is_zombie(&stat))
    }

    /// Signals the process group that this process leads, if the pid still belongs to this process. Returns whether the
    /// group was found.
    ///
    /// A zombie counts: its pid is not free yet, and other processes of its group may live on.
    pub fn signal_group(&self, signal: Signal) -> io::Result<bool> {
        // Pid 1 never leads a container, and kill(-1) would signal every process on the machine.
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.pid > 1) else { return Ok(false) };
        if self.stat().is_none_or(|stat| stat.pgrp != self.pid) {
            return Ok(false);
        }
        match kill_process_group(pid, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn stat(&self) -> Option<Stat> {
        stat(self.pid).ok().filter(|stat| stat.starttime == self.start_ticks)
    }
}

fn stat(pid: i32) -> io::Result<Stat> {
    Stat::from_file(format!("/proc/{pid}/stat")).map_err(io_error)
}

/// Whether the process has ended and only its exit status is left.
pub fn is_zombie(stat: &Stat) -> bool {
    matches!(stat.state, 'Z' | 'X' | 'x')
}

/// The memory of the process that is not swapped out.
pub fn resident_bytes(stat: &Stat) -> u64 {
    stat.rss_bytes().get()
}

/// The time that the process spent on a CPU.
pub fn cpu_time(stat: &Stat) -> Duration {
    let ticks = stat.utime.saturating_add(stat.stime);
    Duration::from_micros(ticks.saturating_mul(1_000_000) / procfs::ticks_per_second().max(1))
}

/// All processes of the machine. A process that ends during the listing is left out.
pub fn all() -> io::Result<Vec<Stat>> {
    let processes = all_processes().map_err(io_error)?;
    Ok(processes.filter_map(|process| process.ok()?.stat().ok()).collect())
}

/// All descendants of these processes, without the processes themselves.
pub fn descendants(parents: &BTreeSet<i32>) -> io::Result<BTreeSet<i32>> {
    let all = all()?;
    let mut found = parents.clone();
    loop {
        let more: BTreeSet<i32> =
            all.iter().filter(|stat| found.contains(&stat.ppid)).map(|stat| stat.pid).collect();
        if more.is_subset(&found) {
            return Ok(&found - parents);
        }
        found.extend(more);
    }
}

/// The threads of a process; none if the process has ended.
pub fn threads(pid: i32) -> Vec<Pid> {
    let tasks = Process::new(pid).and_then(|process| process.tasks());
    tasks.into_iter().flatten().filter_map(|task| Pid::from_raw(task.ok()?.tid)).collect()
}

/// The children of the calling thread, zombies included.
pub fn own_children() -> io::Result<Vec<Pid>> {
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    let listed = Process::myself().and_then(|process| process.task_from_tid(me)?.children());
    let children: Vec<i32> = match listed {
        Ok(children) => children.into_iter().map(u32::cast_signed).collect(),
        // Kernels without CONFIG_PROC_CHILDREN do not have the file.
        Err(_) => {
            let me = rustix::process::getpid().as_raw_nonzero().get();
            all()?.into_iter().filter(|stat| stat.ppid == me).map(|stat| stat.pid).collect()
        }
    };
    Ok(children.into_iter().filter_map(Pid::from_raw).collect())
}

/// The id of the machine's current boot.
pub fn boot_id() -> io::Result<String> {
    procfs::sys::kernel::random::boot_id().map_err(io_error)
}

fn io_error(error: ProcError) -> io::Error {
    match error {
        ProcError::Io(error, _) => error,
        ProcError::NotFound(_) => io::Error::new(io::ErrorKind::NotFound, error),
        ProcError::PermissionDenied(_) => io::Error::new(io::ErrorKind::PermissionDenied, error),
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_does_not_shift_the_fields() {
        let text = "12 (a) b) (c) S 7 12 11 0 -1 4194304 1 2 3 4 50 6 0 0 20 0 1 0 98765 1000 42 1844 \
                    1 1 0 0 0 0 0 0 0 0 0 0";
        let stat = Stat::from_read(text.as_bytes()).unwrap();
        assert_eq!((stat.state, stat.ppid, stat.pgrp, stat.session), ('S', 7, 12, 11));
        assert_eq!((stat.starttime, stat.rss), (98765, 42));
        assert_eq!(cpu_time(&stat), Duration::from_micros(56 * 1_000_000 / procfs::ticks_per_second()));
        assert!(Stat::from_read("12 (sleep".as_bytes()).is_err());
        assert!(Stat::from_read("12 (sleep) S 7".as_bytes()).is_err());
    }

    #[test]
    fn our_own_process_is_found_and_an_earlier_process_with_our_pid_is_not() {
        let pid = std::process::id().cast_signed();
        let key = ProcessKey::of(pid).unwrap();
        assert!(key.is_alive());
        let before = ProcessKey { start_ticks: key.start_ticks - 1, ..key };
        assert!(!before.is_alive());
        assert!(!before.signal_group(Signal::KILL).unwrap(), "no other process is signalled in its place");
    }

    #[test]
    fn the_first_process_is_never_signalled() {
        let init = ProcessKey::of(1).unwrap();
        assert!(!init.signal_group(Signal::CONT).unwrap());
    }

    #[test]
    fn a_child_is_listed_until_it_is_reaped() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        assert!(own_children().unwrap().contains(&pid));
        child.wait().unwrap();
        assert!(!own_children().unwrap().contains(&pid));
    }
}
