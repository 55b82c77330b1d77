//! The machine the agent runs on.
//!
//! The `procfs` crate parses what lies in /proc. What lies in /sys and /etc, single numbers and IPv6 routes are parsed
//! here: the crate has no parsers for them, or reads them from `/` only.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use muster_agent_core::resources::topology::cpus::Layout;
use procfs::net::RouteEntries;
use procfs::{CpuInfo, FromRead, LoadAverage, Meminfo};

use super::{Filesystem, Hardware, HugePages, Machine, Network, Pids, System, architecture, parse, routes};

/// A Linux machine, read through its files.
#[derive(Clone, Debug)]
pub struct LinuxMachine {
    /// The root of the files: `/`, or the path at which a container sees the machine's root.
    root: PathBuf,
}

impl LinuxMachine {
    /// This machine.
    pub fn new() -> LinuxMachine {
        LinuxMachine::at("/")
    }

    /// The machine whose files lie under `root`. Filesystems and interfaces are still those of the caller.
    pub fn at(root: impl Into<PathBuf>) -> LinuxMachine {
        LinuxMachine { root: root.into() }
    }

    fn read(&self, path: &str) -> io::Result<String> {
        let path = self.root.join(path);
        fs::read_to_string(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    /// Parses a file of /proc.
    fn proc<T: FromRead>(&self, path: &str) -> io::Result<T> {
        let file = self.root.join(path);
        let open = File::open(&file)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))?;
        T::from_read(open).map_err(|_| self.not_understood(path))
    }

    /// The content of the first of the files that exists and is not empty.
    fn first_of(&self, paths: &[&str]) -> Option<String> {
        let found = paths.iter().filter_map(|path| self.read(path).ok());
        found.map(|text| text.trim().to_owned()).find(|text| !text.is_empty())
    }

    fn number<T>(&self, path: &str, parse: impl Fn(&str) -> Option<T>) -> io::Result<T> {
        parse(&self.read(path)?).ok_or_else(|| self.not_understood(path))
    }

    fn not_understood(&self, path: &str) -> io::Error {
        let text = format!("{} does not have the expected format", self.root.join(path).display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    }

    /// Cores the kernel uses. A control group may allow the agent itself fewer; pods are not in that group.
    fn cores(&self) -> io::Result<u32> {
        self.number("sys/devices/system/cpu/online", parse::list_length).or_else(|_| {
            let cores = self.proc::<CpuInfo>("proc/cpuinfo")?.num_cores();
            u32::try_from(cores)
                .ok()
                .filter(|&cores| cores > 0)
                .ok_or_else(|| self.not_understood("proc/cpuinfo"))
        })
    }

    /// Machines without huge pages have no such directory.
    fn huge_pages(&self) -> Vec<HugePages> {
        const DIRECTORY: &str = "sys/kernel/mm/hugepages";
        let Ok(entries) = fs::read_dir(self.root.join(DIRECTORY)) else { return Vec::new() };
        let mut sizes: Vec<HugePages> = entries
            .filter_map(|entry| {
                let name = entry.ok()?.file_name().into_string().ok()?;
                let page_bytes = parse::huge_page_size(&name)?;
                let count = self.number(&format!("{DIRECTORY}/{name}/nr_hugepages"), plain_number).ok()?;
                Some(HugePages { page_bytes, count })
            })
            .collect();
        sizes.sort_unstable();
        sizes
    }

    /// The interfaces of the default routes, IPv4 first; `true` is IPv4.
    fn default_interfaces(&self) -> Vec<(bool, String)> {
        let ipv4 = self.proc::<RouteEntries>("proc/net/route").ok();
        let ipv4 = ipv4.and_then(|RouteEntries(routes)| routes::default_ipv4(routes));
        let ipv6 = self.read("proc/net/ipv6_route").ok();
        let ipv6 = ipv6.and_then(|text| routes::default_ipv6(&text).map(str::to_owned));
        let ipv4 = ipv4.map(|interface| (true, interface));
        ipv4.into_iter().chain(ipv6.map(|interface| (false, interface))).collect()
    }
}

impl Default for LinuxMachine {
    fn default() -> LinuxMachine {
        LinuxMachine::new()
    }
}

impl Machine for LinuxMachine {
    fn system(&self) -> System {
        let machine_id = self.first_of(&["etc/machine-id", "var/lib/dbus/machine-id"]).unwrap_or_default();
        let system_uuid = self.first_of(&[
            "sys/class/dmi/id/product_uuid",
            "proc/device-tree/system-id",
            "sys/hypervisor/uuid",
        ]);
        let release = self.first_of(&["etc/os-release", "usr/lib/os-release"]).unwrap_or_default();
        System {
            system_uuid: system_uuid.unwrap_or_else(|| machine_id.clone()),
            machine_id,
            boot_id: self.first_of(&["proc/sys/kernel/random/boot_id"]).unwrap_or_default(),
            kernel_version: self.first_of(&["proc/sys/kernel/osrelease"]).unwrap_or_default(),
            os_image: parse::os_release(&release, "PRETTY_NAME").unwrap_or_else(|| "Linux".to_owned()),
            operating_system: std::env::consts::OS.to_owned(),
            architecture: architecture(std::env::consts::ARCH).to_owned(),
        }
    }

    fn hardware(&self) -> io::Result<Hardware> {
        let memory: Meminfo = self.proc("proc/meminfo")?;
        Ok(Hardware {
            cores: self.cores()?,
            memory_bytes: memory.mem_total,
            swap_bytes: memory.swap_total,
            huge_pages: self.huge_pages(),
            numa_nodes: self.number("sys/devices/system/node/online", parse::list_length).unwrap_or(1),
        })
    }

    fn processors(&self) -> io::Result<Layout> {
        const NODES: &str = "sys/devices/system/node";
        let cpus = |path: &str| self.number(path, parse::list);
        // Kernels without NUMA do not have that file: the whole machine is one node.
        let nodes = cpus(&format!("{NODES}/online")).unwrap_or_default();
        if nodes.is_empty() {
            return Ok(Layout::from([(0, cpus("sys/devices/system/cpu/online")?)]));
        }
        nodes.into_iter().map(|node| Ok((node, cpus(&format!("{NODES}/node{node}/cpulist"))?))).collect()
    }

    fn memory_available(&self) -> io::Result<u64> {
        const MEMINFO: &str = "proc/meminfo";
        self.proc::<Meminfo>(MEMINFO)?.mem_available.ok_or_else(|| self.not_understood(MEMINFO))
    }

    fn filesystem(&self, path: &Path) -> io::Result<Filesystem> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Filesystem {
            capacity_bytes: found.f_blocks.saturating_mul(found.f_frsize),
            available_bytes: found.f_bavail.saturating_mul(found.f_frsize),
            inodes: found.f_files,
            inodes_free: found.f_ffree,
        })
    }

    fn pids(&self) -> io::Result<Pids> {
        let pid_max = self.number("proc/sys/kernel/pid_max", plain_number)?;
        // No more threads can be created once the lower of the two limits is reached.
        let max =
            self.number("proc/sys/kernel/threads-max", plain_number).map_or(pid_max, |max| max.min(pid_max));
        let load: LoadAverage = self.proc("proc/loadavg")?;
        Ok(Pids { max, used: load.max.into() })
    }

    fn network(&self) -> io::Result<Network> {
        let interfaces = if_addrs::get_if_addrs()?;
        let local = interfaces.iter().map(|interface| interface.ip().to_canonical()).collect();
        let default_interfaces = self.default_interfaces();
        let of_family = |(is_ipv4, name): &(bool, String)| {
            let named =
                interfaces.iter().filter(|interface| interface.name == *name).map(if_addrs::Interface::ip);
            named.filter(|address| address.is_ipv4() == *is_ipv4).collect::<Vec<IpAddr>>()
        };
        Ok(Network { local, default_route: default_interfaces.iter().flat_map(of_family).collect() })
    }

    fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let mut addresses: Vec<IpAddr> = Vec::new();
        // The resolver's interface takes a port, which does not matter here.
        for found in (name, 0).to_socket_addrs()? {
            let address = found.ip().to_canonical();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(addresses)
    }

    fn hostname(&self) -> io::Result<String> {
        Ok(self.read("proc/sys/kernel/hostname")?.trim().to_owned())
    }
}

fn plain_number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose files have these contents.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, LinuxMachine) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let machine = LinuxMachine::at(root.path());
        (root, machine)
    }

    /// What the kernel always has in /proc/meminfo, with these amounts in KiB.
    fn meminfo(total: u64, available: u64, swap: u64) -> String {
        let mut text = format!("MemTotal: {total} kB\nMemAvailable: {available} kB\nSwapTotal: {swap} kB\n");
        for name in [
            "MemFree",
            "Buffers",
            "Cached",
            "SwapCached",
            "Active",
            "Inactive",
            "SwapFree",
            "Dirty",
            "Writeback",
            "Mapped",
            "Slab",
            "Committed_AS",
            "VmallocTotal",
            "VmallocUsed",
            "VmallocChunk",
        ] {
            text.push_str(&format!("{name}: 0 kB\n"));
        }
        text
    }

    #[test]
    fn processors_are_listed_by_numa_node_and_a_machine_without_numa_has_one() {
        const ONLINE: (&str, &str) = ("sys/devices/system/cpu/online", "0-3\n");
        let (_root, flat) = machine(&[ONLINE]);
        assert_eq!(flat.processors().unwrap(), Layout::from([(0, vec![0, 1, 2, 3])]));
        let (_root, numa) = machine(&[
            ONLINE,
            ("sys/devices/system/node/online", "0,2-3\n"),
            ("sys/devices/system/node/node0/cpulist", "0,2\n"),
            ("sys/devices/system/node/node2/cpulist", "1,3\n"),
            ("sys/devices/system/node/node3/cpulist", "\n"),
        ]);
        let expected = Layout::from([(0, vec![0, 2]), (2, vec![1, 3]), (3, vec![])]);
        assert_eq!(numa.processors().unwrap(), expected);
    }

    #[test]
    fn facts_are_read_from_the_kernels_files() {
        let (_root, machine) = machine(&[
            ("proc/meminfo", &meminfo(16_384, 8_192, 4_096)),
            ("sys/devices/system/cpu/online", "0-3\n"),
            ("sys/devices/system/node/online", "0-1\n"),
            ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "1\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n"),
            ("proc/sys/kernel/pid_max", "4194304\n"),
            ("proc/sys/kernel/threads-max", "192699\n"),
            ("proc/loadavg", "0.00 0.01 0.05 1/321 999\n"),
            ("proc/sys/kernel/hostname", "web-1\n"),
            ("proc/sys/kernel/osrelease", "6.18.0\n"),
            ("proc/sys/kernel/random/boot_id", "b00t\n"),
            ("etc/machine-id", "m1\n"),
            ("etc/os-release", "PRETTY_NAME=\"Debian GNU/Linux 12\"\n"),
        ]);
        let page = |page_bytes, count| HugePages { page_bytes, count };
        assert_eq!(
            machine.hardware().unwrap(),
            Hardware {
                cores: 4,
                memory_bytes: 16 << 20,
                swap_bytes: 4 << 20,
                huge_pages: vec![page(2 << 20, 0), page(1 << 30, 1)],
                numa_nodes: 2,
            }
        );
        assert_eq!(machine.memory_available().unwrap(), 8 << 20);
        assert_eq!(machine.pids().unwrap(), Pids { max: 192_699, used: 321 });
        assert_eq!(machine.hostname().unwrap(), "web-1");
        let system = machine.system();
        assert_eq!((system.machine_id.as_str(), system.system_uuid.as_str()), ("m1", "m1"));
        assert_eq!((system.boot_id.as_str(), system.kernel_version.as_str()), ("b00t", "6.18.0"));
        assert_eq!(system.os_image, "Debian GNU/Linux 12");
    }

    #[test]
    fn a_fact_that_cannot_be_read_is_an_error_or_empty_but_never_a_guess() {
        let (_root, machine) = machine(&[("proc/loadavg", "nonsense"), ("proc/sys/kernel/pid_max", "9\n")]);
        assert!(machine.hardware().unwrap_err().to_string().contains("proc/meminfo"));
        assert!(machine.pids().unwrap_err().to_string().ends_with("does not have the expected format"));
        let expected = System {
            os_image: "Linux".to_owned(),
            operating_system: std::env::consts::OS.to_owned(),
            architecture: architecture(std::env::consts::ARCH).to_owned(),
            ..System::default()
        };
        assert_eq!(machine.system(), expected);
    }

    #[test]
    fn cores_are_counted_in_cpuinfo_where_the_kernel_gives_no_list() {
        let (_root, machine) = machine(&[
            ("proc/meminfo", &meminfo(1, 0, 0)),
            ("proc/cpuinfo", "processor\t: 0\ncpu MHz\t: 1\n\nprocessor\t: 1\ncpu MHz\t: 1\n"),
        ]);
        let hardware = machine.hardware().unwrap();
        assert_eq!((hardware.cores, hardware.numa_nodes, hardware.swap_bytes), (2, 1, 0));
    }

    #[test]
    fn this_machine_can_be_read() {
        let machine = LinuxMachine::new();
        let hardware = machine.hardware().unwrap();
        assert!(hardware.cores > 0 && hardware.memory_bytes > 0);
        assert!(machine.memory_available().unwrap() <= hardware.memory_bytes);
        let filesystem = machine.filesystem(Path::new("/")).unwrap();
        assert!(filesystem.available_bytes <= filesystem.capacity_bytes && filesystem.capacity_bytes > 0);
        let network = machine.network().unwrap();
        assert!(network.default_route.iter().all(|address| network.local.contains(address)));
        assert_eq!(machine.lookup("127.0.0.1").unwrap(), [IpAddr::from([127, 0, 0, 1])]);
        assert!(!machine.hostname().unwrap().is_empty());
    }

    #[test]
    fn architectures_are_spelled_as_image_builders_do() {
        for (rust, expected) in
            [("x86_64", "amd64"), ("aarch64", "arm64"), ("arm", "arm"), ("s390x", "s390x")]
        {
            assert_eq!(architecture(rust), expected);
        }
    }
}
