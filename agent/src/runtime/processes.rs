//! Processes as /proc shows them, and how one is told from the next that gets its number.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

/// A process that is not mistaken for another with the same pid, as long as the machine is not restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessKey {
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

/// What `/proc/<pid>/stat` says, as far as we care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub state: char,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// Time on a CPU, in clock ticks.
    pub cpu_ticks: u64,
    pub start_ticks: u64,
    pub resident_pages: u64,
}

impl ProcessKey {
    /// The process that has this pid now.
    pub fn of(pid: i32) -> io::Result<ProcessKey> {
        Ok(ProcessKey { pid, start_ticks: stat(pid)?.start_ticks })
    }

    /// Whether it still runs. One that ended and only waits to be reaped does not.
    pub fn is_alive(&self) -> bool {
        self.look().is_some_and(|stat| !stat.is_over())
    }

    /// Signals the whole group that this process leads, provided that it still is that process.
    ///
    /// A process that ended but was not reaped counts: its number is not free yet and its group may live on. Whether
    /// the group was found comes back.
    pub fn signal_group(&self, signal: Signal) -> io::Result<bool> {
        // Number 1 never leads a container, and as a group it would mean every process there is.
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.pid > 1) else { return Ok(false) };
        if self.look().is_none_or(|stat| stat.group != self.pid) {
            return Ok(false);
        }
        match kill_process_group(pid, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn look(&self) -> Option<Stat> {
        stat(self.pid).ok().filter(|stat| stat.start_ticks == self.start_ticks)
    }
}

impl Stat {
    fn parse(text: &str) -> Option<Stat> {
        // The second field is a file name in parentheses, which may itself hold spaces and parentheses.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // Numbered as in proc(5), where the state is field 3.
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Stat {
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            group: field(5)?.parse().ok()?,
            session: field(6)?.parse().ok()?,
            cpu_ticks: field(14)?.parse::<u64>().ok()?.saturating_add(field(15)?.parse().ok()?),
            start_ticks: field(22)?.parse().ok()?,
            resident_pages: field(24)?.parse().ok()?,
        })
    }

    /// Whether the process has ended and only its exit status is left.
    pub fn is_over(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    pub fn resident_bytes(&self) -> u64 {
        self.resident_pages.saturating_mul(rustix::param::page_size() as u64)
    }

    pub fn cpu(&self) -> Duration {
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_micros(self.cpu_ticks.saturating_mul(1_000_000) / per_second)
    }
}

/// What is known of the process with that pid.
pub fn stat(pid: i32) -> io::Result<Stat> {
    // Names of programs need not be UTF-8; the fields behind them are ASCII.
    let bytes = fs::read(format!("/proc/{pid}/stat"))?;
    Stat::parse(&String::from_utf8_lossy(&bytes)).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Every process there is. Those that end meanwhile are left out.
pub fn all() -> io::Result<Vec<(i32, Stat)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok())
            && let Ok(stat) = stat(pid)
        {
            found.push((pid, stat));
        }
    }
    Ok(found)
}

/// Every process below these, however far, without these themselves.
pub fn below(parents: &BTreeSet<i32>) -> io::Result<BTreeSet<i32>> {
    let all = all()?;
    let mut found = parents.clone();
    loop {
        let more: BTreeSet<i32> =
            all.iter().filter(|(_, stat)| found.contains(&stat.parent)).map(|(pid, _)| *pid).collect();
        if more.is_subset(&found) {
            return Ok(&found - parents);
        }
        found.extend(more);
    }
}

/// The children of the calling thread, also those that ended and were not reaped.
pub fn own_children() -> io::Result<Vec<i32>> {
    match fs::read_to_string("/proc/thread-self/children") {
        Ok(text) => Ok(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()),
        // Kernels are built without that file too.
        Err(_) => {
            let me = rustix::process::getpid().as_raw_nonzero().get();
            Ok(all()?.into_iter().filter(|(_, stat)| stat.parent == me).map(|(pid, _)| pid).collect())
        }
    }
}

/// A name for the time since the machine was last started.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_full_of_parentheses_confuses_nobody() {
        let text = "12 (a) b) (c) S 7 12 11 0 -1 4194304 1 2 3 4 50 6 0 0 20 0 1 0 98765 1000 42 1844 1 1";
        let expected = Stat {
            state: 'S',
            parent: 7,
            group: 12,
            session: 11,
            cpu_ticks: 56,
            start_ticks: 98765,
            resident_pages: 42,
        };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("12 (sleep"), None);
        assert_eq!(Stat::parse("12 (sleep) S 7"), None);
    }

    #[test]
    fn we_find_ourselves_and_no_earlier_holder_of_our_number() {
        let pid = std::process::id().cast_signed();
        let key = ProcessKey::of(pid).unwrap();
        assert!(key.is_alive());
        let before = ProcessKey { start_ticks: key.start_ticks - 1, ..key };
        assert!(!before.is_alive());
        assert!(!before.signal_group(Signal::KILL).unwrap(), "nobody is signalled in its place");
    }

    #[test]
    fn the_first_process_is_never_signalled() {
        let init = ProcessKey::of(1).unwrap();
        assert!(!init.signal_group(Signal::CONT).unwrap());
    }
}
