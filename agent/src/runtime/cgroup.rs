//! Limits and usage of containers, through a cgroup v2 tree of `muster/<pod uid>/<container>`.
//!
//! A machine may lack parts of it. What is missing becomes a sentence of [`Tree::limitations`], and containers run
//! without it; a limit that the kernel refuses although its controller exists fails the start of the container.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::record::{CgroupPaths, absent_is_fine};
use super::{ContainerId, Limits, PodLimits, Usage};

/// Where cgroup v2 is mounted: alone, or beside the trees of v1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
const CGROUP2_MAGIC: u64 = 0x6367_7270;
/// The directory of our cgroups.
const OURS: &str = "muster";
/// The cgroup of the shims; it cannot be mistaken for a pod's uid.
const SHIMS: &str = "shims";
/// The controllers in use, and what is not enforced without each.
const CONTROLLERS: [(&str, &str); 4] = [
    ("cpu", "CPU limits and weights of containers are not enforced"),
    ("memory", "memory and swap limits of containers are not enforced"),
    ("pids", "limits on the number of a pod's processes are not enforced"),
    ("cpuset", "containers are pinned to CPUs by affinity only, which they can change themselves"),
];
/// The period of CPU limits in microseconds; the kernel's default.
const CPU_PERIOD: u64 = 100_000;
/// The smallest quota that the kernel accepts.
const MIN_CPU_QUOTA: u64 = 1_000;

/// Our part of the machine's cgroups.
#[derive(Clone, Debug)]
pub struct Tree {
    ours: PathBuf,
    controllers: Vec<&'static str>,
    swap: bool,
}

impl Tree {
    /// The first mount of cgroup v2 on the machine.
    pub fn find_root() -> Option<PathBuf> {
        MOUNTS.iter().map(Path::new).find(|path| is_cgroup2(path)).map(Path::to_owned)
    }

    /// Opens our part of the tree that is mounted there, and creates it if it does not exist.
    pub fn open(root: &Path) -> io::Result<Tree> {
        if !is_cgroup2(root) {
            return Err(io::Error::other(format!("{} is no cgroup v2 tree", root.display())));
        }
        let ours = root.join(OURS);
        fs::create_dir_all(ours.join(SHIMS))?;
        // A tree that can be read may still not accept processes.
        OpenOptions::new().write(true).open(ours.join(SHIMS).join("cgroup.procs"))?;
        let offered = fs::read_to_string(root.join("cgroup.controllers"))?;
        let mut controllers = Vec::new();
        for (name, _) in CONTROLLERS {
            let is_offered = offered.split_ascii_whitespace().any(|offer| offer == name);
            if is_offered && enable(root, name).and_then(|()| enable(&ours, name)).is_ok() {
                controllers.push(name);
            }
        }
        let swap = controllers.contains(&"memory") && ours.join("memory.swap.max").exists();
        Ok(Tree { ours, controllers, swap })
    }

    pub fn limitations(&self) -> Vec<String> {
        let missing = CONTROLLERS.iter().filter(|(name, _)| !self.controllers.contains(name));
        let mut sentences: Vec<String> = missing
            .map(|(name, lost)| format!("The cgroup v2 controller {name} is not available: {lost}."))
            .collect();
        if self.controllers.contains(&"memory") && !self.swap {
            sentences.push(
                "The kernel does not count swap: swap limits of containers are not enforced.".to_owned(),
            );
        }
        sentences
    }

    pub fn controls_swap(&self) -> bool {
        self.swap
    }

    /// Whether cpusets restrict containers to their CPUs.
    pub fn controls_cpus(&self) -> bool {
        self.controllers.contains(&"cpuset")
    }

    /// The cgroups of a container and its shim.
    pub fn paths(&self, id: &ContainerId) -> CgroupPaths {
        CgroupPaths {
            container: self.ours.join(id.pod.to_string()).join(&id.container),
            shims: self.ours.join(SHIMS),
        }
    }

    /// Creates a container's cgroup and its pod's, and sets the limits of both.
    pub fn create(
        &self,
        id: &ContainerId,
        limits: &Limits,
        pod_limits: &PodLimits,
    ) -> io::Result<CgroupPaths> {
        let paths = self.paths(id);
        fs::create_dir_all(&paths.container)?;
        if let Some(pod) = paths.container.parent() {
            for controller in &self.controllers {
                enable(pod, controller)?;
            }
            write_all(pod, pod_settings(pod_limits, &self.controllers))?;
        }
        write_all(&paths.container, settings(limits, &self.controllers, self.swap))?;
        Ok(paths)
    }

    /// Removes a container's cgroup, and its pod's if that is empty.
    pub fn remove(&self, id: &ContainerId) {
        remove(&self.paths(id).container);
    }
}

/// Moves the calling process into a cgroup.
pub fn enter(cgroup: &Path) -> io::Result<()> {
    put(&cgroup.join("cgroup.procs"), "0")
}

/// Kills all processes in a cgroup; kernels before 5.14 cannot.
pub fn kill(cgroup: &Path) -> io::Result<()> {
    absent_is_fine(put(&cgroup.join("cgroup.kill"), "1"))
}

/// Restricts a cgroup to some CPUs; none means all CPUs of its parent.
pub fn keep_to(cgroup: &Path, cpus: &[u32]) -> io::Result<()> {
    // A write of zero bytes would not reach the kernel.
    absent_is_fine(put(&cgroup.join("cpuset.cpus"), &format!("{}\n", cpu_list(cpus))))
}

/// Removes a cgroup without processes, and its parent if that is empty then.
pub fn remove(cgroup: &Path) {
    // The kernel refuses to remove a cgroup that is in use, which is relied on here.
    if absent_is_fine(fs::remove_dir(cgroup)).is_ok()
        && let Some(pod) = cgroup.parent()
    {
        let _ = fs::remove_dir(pod);
    }
}

/// Whether the kernel killed a process of the cgroup because it was out of memory.
pub fn ran_out_of_memory(cgroup: &Path) -> bool {
    fs::read_to_string(cgroup.join("memory.events"))
        .is_ok_and(|events| number_after(&events, "oom_kill").is_some_and(|kills| kills > 0))
}

/// What a cgroup's processes use; `None` without the controllers that count it.
pub fn usage(cgroup: &Path) -> Option<Usage> {
    let read = |file: &str| fs::read_to_string(cgroup.join(file)).ok();
    let total: u64 = read("memory.current")?.trim().parse().ok()?;
    // The kernel reclaims inactive file pages before anything else.
    let spare = number_after(&read("memory.stat")?, "inactive_file").unwrap_or(0);
    let cpu = number_after(&read("cpu.stat")?, "usage_usec")?;
    let pids = match read("pids.current") {
        Some(text) => text.trim().parse().ok()?,
        None => read("cgroup.procs")?.lines().count() as u64,
    };
    Some(Usage { memory_bytes: total.saturating_sub(spare), cpu: Duration::from_micros(cpu), pids })
}

fn write_all(cgroup: &Path, settings: Vec<(&'static str, String)>) -> io::Result<()> {
    for (file, value) in settings {
        put(&cgroup.join(file), &value)
            .map_err(|error| io::Error::new(error.kind(), format!("{file} refused {value:?}: {error}")))?;
    }
    Ok(())
}

/// What is written to which file of a pod's cgroup to set its limits.
fn pod_settings(limits: &PodLimits, controllers: &[&str]) -> Vec<(&'static str, String)> {
    let mut settings = Vec::new();
    if controllers.contains(&"cpu") {
        settings.push(("cpu.weight", cpu_weight(limits.cpu_request_millis).to_string()));
    }
    if controllers.contains(&"pids") {
        // Written again with each container: the agent may have been restarted with another limit.
        settings.push(("pids.max", limits.pids.map_or("max".to_owned(), |pids| pids.to_string())));
    }
    settings
}

/// What is written to which file of a container's cgroup to set its limits.
fn settings(limits: &Limits, controllers: &[&str], swap: bool) -> Vec<(&'static str, String)> {
    let mut settings = Vec::new();
    if controllers.contains(&"cpu") {
        // A container without a request gets the lowest weight; the kernel's default weight would exceed that of small
        // requests.
        let asked = limits.cpu_request_millis.unwrap_or(0);
        settings.push(("cpu.weight", cpu_weight(asked).to_string()));
        if let Some(millis) = limits.cpu_millis {
            let quota = millis.saturating_mul(CPU_PERIOD / 1000).max(MIN_CPU_QUOTA);
            settings.push(("cpu.max", format!("{quota} {CPU_PERIOD}")));
        }
    }
    if controllers.contains(&"memory") {
        if let Some(bytes) = limits.memory_bytes {
            settings.push(("memory.max", bytes.to_string()));
            // A container that lost one of its processes is of no use: all are killed together.
            settings.push(("memory.oom.group", "1".to_owned()));
        }
        if let (true, Some(bytes)) = (swap, limits.swap_bytes) {
            settings.push(("memory.swap.max", bytes.to_string()));
        }
    }
    if controllers.contains(&"cpuset") && !limits.cpus.is_empty() {
        settings.push(("cpuset.cpus", cpu_list(&limits.cpus)));
    }
    settings
}

/// A CPU request as a cgroup v2 weight, computed through the shares of v1 as the kubelet does: 2..=262144 onto
/// 1..=10000.
fn cpu_weight(millis: u64) -> u64 {
    let shares = (millis.saturating_mul(1024) / 1000).clamp(2, 262_144);
    1 + (shares - 2) * 9999 / 262_142
}

fn cpu_list(cpus: &[u32]) -> String {
    let mut list = String::new();
    for cpu in cpus {
        let comma = if list.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = write!(list, "{comma}{cpu}");
    }
    list
}

/// The number in the line `<key> <number>`.
fn number_after(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == key)
        .and_then(|(_, number)| number.trim().parse().ok())
}

fn is_cgroup2(path: &Path) -> bool {
    #[allow(clippy::unnecessary_cast, reason = "the field's type differs between architectures")]
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u64 == CGROUP2_MAGIC)
}

/// Enables a controller for the children of a cgroup.
fn enable(cgroup: &Path, controller: &str) -> io::Result<()> {
    put(&cgroup.join("cgroup.subtree_control"), &format!("+{controller}"))
}

/// Writes a control file. It must exist: only the kernel creates them.
fn put(path: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [&str; 4] = ["cpu", "memory", "pids", "cpuset"];

    fn limits() -> Limits {
        Limits {
            cpu_request_millis: Some(250),
            cpu_millis: Some(1500),
            memory_bytes: Some(64 << 20),
            swap_bytes: Some(0),
            cpus: vec![0, 2, 3],
        }
    }

    #[test]
    fn limits_become_control_files() {
        let expected = [
            ("cpu.weight", "10"),
            ("cpu.max", "150000 100000"),
            ("memory.max", "67108864"),
            ("memory.oom.group", "1"),
            ("memory.swap.max", "0"),
            ("cpuset.cpus", "0,2,3"),
        ]
        .map(|(file, value)| (file, value.to_owned()));
        assert_eq!(settings(&limits(), &ALL, true), expected);
        let least = [("cpu.weight", "1".to_owned())];
        assert_eq!(settings(&Limits::default(), &ALL, true), least, "no request, the least weight");
    }

    #[test]
    fn processes_are_limited_for_the_whole_pod() {
        for (pids, expected) in [(Some(100), "100"), (None, "max")] {
            let asked = pod_settings(&PodLimits { pids, cpu_request_millis: 0 }, &["pids"]);
            assert_eq!(asked, [("pids.max", expected.to_owned())]);
        }
        let limits = PodLimits { pids: Some(100), cpu_request_millis: 1 };
        assert_eq!(pod_settings(&limits, &["memory", "cpuset"]), []);
    }

    #[test]
    fn a_pods_weight_follows_its_request_and_is_lowest_without_one() {
        let weight = |cpu_request_millis| {
            let limits = PodLimits { pids: None, cpu_request_millis };
            pod_settings(&limits, &["cpu"]).pop().unwrap().1.parse::<u64>().unwrap()
        };
        assert_eq!((weight(0), weight(1000), weight(4000)), (1, 39, 157));
    }

    #[test]
    fn no_file_of_a_missing_controller_is_written() {
        for missing in ALL {
            let others: Vec<&str> = ALL.into_iter().filter(|name| *name != missing).collect();
            let asked = settings(&limits(), &others, true);
            assert!(asked.iter().all(|(file, _)| file.split('.').next() != Some(missing)), "{asked:?}");
        }
        let asked = settings(&limits(), &ALL, false);
        assert!(asked.iter().all(|(file, _)| *file != "memory.swap.max"), "{asked:?}");
    }

    #[test]
    fn a_tiny_cpu_limit_is_rounded_up_to_what_the_kernel_accepts() {
        let sliver = Limits { cpu_millis: Some(1), ..Limits::default() };
        let asked = settings(&sliver, &ALL, true);
        assert!(asked.contains(&("cpu.max", "1000 100000".to_owned())), "{asked:?}");
    }

    #[test]
    fn weights_follow_requests_within_the_kernels_bounds() {
        for (millis, weight) in
            [(0, 1), (2, 1), (1000, 39), (4000, 157), (256_000, 10_000), (u64::MAX, 10_000)]
        {
            assert_eq!(cpu_weight(millis), weight, "{millis} m");
        }
    }

    #[test]
    fn missing_controllers_are_limitations() {
        let tree = Tree { ours: PathBuf::new(), controllers: vec!["cpu", "memory"], swap: false };
        let said = tree.limitations();
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].contains("pids") && said[1].contains("cpuset") && said[2].contains("swap"));
        assert!(
            Tree { ours: PathBuf::new(), controllers: ALL.to_vec(), swap: true }.limitations().is_empty()
        );
    }

    #[test]
    fn a_plain_directory_is_not_a_cgroup_tree() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Tree::open(dir.path()).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "and is left as it was");
    }

    #[test]
    fn a_key_must_match_as_a_whole() {
        let text = "low 0\noom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(number_after(text, "oom_kill"), Some(2));
        assert_eq!(number_after(text, "oom_kil"), None);
    }
}
