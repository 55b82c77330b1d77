//! The resources that a process has used so far: CPU time, memory, and bytes written to its disk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::Pid;

/// What a process has used since it started. The difference of two values is the cost of what happened in between.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub cpu_micros: f64,
    /// Bytes that the process itself caused to be written, in whole pages, without the file system's own.
    pub own_bytes: f64,
    /// Bytes written to the block device of its directory, by all processes.
    pub disk_bytes: f64,
    pub resident_mib: u64,
}

impl Usage {
    /// Of a process whose files are in that directory.
    pub fn of(pid: Pid, directory: &Path) -> Usage {
        let pid = pid.as_raw_nonzero();
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let stat = read("stat");
        // The program's name, in brackets, may contain spaces. User and system time are fields 14 and 15.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: f64 = fields.iter().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
        Usage {
            cpu_micros: ticks * 1e6 / rustix::param::clock_ticks_per_second() as f64,
            own_bytes: figure(&read("io"), "write_bytes:") as f64,
            disk_bytes: written(directory),
            resident_mib: figure(&read("status"), "VmRSS:") / 1024,
        }
    }
}

/// The number after a name in a file of `/proc`, 0 if there is none.
fn figure(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    value.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Bytes written to the block device of a directory, by all processes.
fn written(directory: &Path) -> f64 {
    let device = fs::metadata(directory).expect("the directory is there").dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stats = fs::read_to_string("/proc/diskstats").unwrap_or_default();
    let sectors = stats.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let here = fields.first()?.parse() == Ok(major) && fields.get(1)?.parse() == Ok(minor);
        here.then(|| fields.get(9)?.parse::<f64>().ok()).flatten()
    });
    sectors.unwrap_or(0.0) * 512.0
}
