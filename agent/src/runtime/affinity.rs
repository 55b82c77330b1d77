//! CPU affinity of threads, for machines where no cgroup restricts CPUs.

use std::collections::BTreeSet;
use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::processes;

/// A process that is moved may fork meanwhile, and its children start on the old CPUs. After so many passes only a
/// process that moves itself back is left.
const LOOKS: u32 = 5;

/// A CPU set of these CPUs.
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

/// Restricts this thread to some CPUs, unless there are none; returns the CPUs that it had before.
pub fn pin(cpus: &[u32]) -> io::Result<Option<CpuSet>> {
    if cpus.is_empty() {
        return Ok(None);
    }
    let before = own()?;
    sched_setaffinity(None, &set_of(cpus)?)?;
    Ok(Some(before))
}

/// Restricts this thread to the CPUs of another.
pub fn follow(pid: i32) -> io::Result<()> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(sched_setaffinity(None, &sched_getaffinity(Some(pid))?)?)
}

/// Restores the CPUs that this thread had before.
pub fn restore(before: &CpuSet) -> io::Result<()> {
    Ok(sched_setaffinity(None, before)?)
}

/// Moves every thread of all descendants of these processes to some CPUs, but not the processes themselves.
pub fn move_all_below(parents: &BTreeSet<i32>, cpus: &CpuSet) -> io::Result<()> {
    for _ in 0..LOOKS {
        let mut is_moved = false;
        for thread in processes::descendants(parents)?.into_iter().flat_map(processes::threads) {
            // A thread that has ended meanwhile does not need to be moved.
            let is_there = sched_getaffinity(Some(thread)).is_ok_and(|now| now == *cpus);
            is_moved |= !is_there && sched_setaffinity(Some(thread), cpus).is_ok();
        }
        if !is_moved {
            return Ok(());
        }
    }
    Ok(())
}
