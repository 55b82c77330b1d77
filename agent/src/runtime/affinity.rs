//! Which CPUs threads run on, where no cgroup sees to it.

use std::collections::BTreeSet;
use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::processes;

/// What is moved may have children meanwhile; they start where their parent was. After so many looks only something
/// that moves itself back is left.
const LOOKS: u32 = 5;

/// These CPUs, as the kernel takes them.
pub fn set_of(cpus: &[u32]) -> io::Result<CpuSet> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu as usize >= CpuSet::MAX_CPU {
            return Err(io::Error::other(format!("there is no CPU {cpu}")));
        }
        set.set(cpu as usize);
    }
    Ok(set)
}

/// The CPUs that this thread may run on.
pub fn own() -> io::Result<CpuSet> {
    Ok(sched_getaffinity(None)?)
}

/// Keeps this thread to some CPUs, unless there are none; how it was before comes back.
pub fn pin(cpus: &[u32]) -> io::Result<Option<CpuSet>> {
    if cpus.is_empty() {
        return Ok(None);
    }
    let before = own()?;
    sched_setaffinity(None, &set_of(cpus)?)?;
    Ok(Some(before))
}

/// Keeps this thread to where another runs.
pub fn follow(pid: i32) -> io::Result<()> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(sched_setaffinity(None, &sched_getaffinity(Some(pid))?)?)
}

/// Puts this thread back to where it was.
pub fn restore(before: &CpuSet) -> io::Result<()> {
    Ok(sched_setaffinity(None, before)?)
}

/// Moves every thread of every process below these to some CPUs, but not these themselves.
pub fn move_all_below(parents: &BTreeSet<i32>, cpus: &CpuSet) -> io::Result<()> {
    for _ in 0..LOOKS {
        let mut is_moved = false;
        for thread in processes::descendants(parents)?.into_iter().flat_map(processes::threads) {
            // One that has ended meanwhile is nowhere, which is fine.
            let is_there = sched_getaffinity(Some(thread)).is_ok_and(|now| now == *cpus);
            is_moved |= !is_there && sched_setaffinity(Some(thread), cpus).is_ok();
        }
        if !is_moved {
            return Ok(());
        }
    }
    Ok(())
}
