//! The machine the agent runs on.

use std::fs;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use muster_agent_core::resources::topology::cpus::Layout;

use super::{Filesystem, Hardware, HugePages, Machine, Network, Pids, System, architecture, parse, routes};

/// A Linux machine, seen through its files.
#[derive(Clone, Debug)]
pub struct LinuxMachine {
    /// Where the root of the files is: `/`, or where a container sees the machine's.
    root: PathBuf,
}

impl LinuxMachine {
    /// This machine.
    pub fn new() -> LinuxMachine {
        LinuxMachine::at("/")
    }

    /// The machine whose files lie under `root`. Filesystems and interfaces are those of the caller all the same.
    pub fn at(root: impl Into<PathBuf>) -> LinuxMachine {
        LinuxMachine { root: root.into() }
    }

    fn read(&self, path: &str) -> io::Result<String> {
        let path = self.root.join(path);
        fs::read_to_string(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    /// The first of the files that says anything.
    fn first_of(&self, paths: &[&str]) -> Option<String> {
        let said = paths.iter().filter_map(|path| self.read(path).ok());
        said.map(|text| text.trim().to_owned()).find(|text| !text.is_empty())
    }

    fn number<T>(&self, path: &str, parse: impl Fn(&str) -> Option<T>) -> io::Result<T> {
        parse(&self.read(path)?).ok_or_else(|| self.not_understood(path))
    }

    fn not_understood(&self, path: &str) -> io::Error {
        let text = format!("{} does not say what it used to say", self.root.join(path).display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    }

    /// Cores the kernel uses. A control group may allow the agent itself fewer; pods are not in that group.
    fn cores(&self) -> io::Result<u32> {
        self.number("sys/devices/system/cpu/online", parse::list_length).or_else(|_| {
            self.number("proc/cpuinfo", |text| {
                let cores = text.lines().filter(|line| line.starts_with("processor")).count();
                u32::try_from(cores).ok().filter(|&cores| cores > 0)
            })
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

    /// The interfaces that default routes lead through, IPv4's first.
    fn default_interfaces(&self) -> Vec<(bool, String)> {
        let name = |file, find: fn(&str) -> Option<&str>| find(&self.read(file).ok()?).map(str::to_owned);
        let ipv4 = name("proc/net/route", routes::default_ipv4).map(|interface| (true, interface));
        let ipv6 = name("proc/net/ipv6_route", routes::default_ipv6).map(|interface| (false, interface));
        ipv4.into_iter().chain(ipv6).collect()
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
        const MEMINFO: &str = "proc/meminfo";
        let meminfo = self.read(MEMINFO)?;
        let memory = parse::meminfo(&meminfo, "MemTotal").ok_or_else(|| self.not_understood(MEMINFO))?;
        Ok(Hardware {
            cores: self.cores()?,
            memory_bytes: memory,
            swap_bytes: parse::meminfo(&meminfo, "SwapTotal").unwrap_or(0),
            huge_pages: self.huge_pages(),
            numa_nodes: self.number("sys/devices/system/node/online", parse::list_length).unwrap_or(1),
        })
    }

    fn processors(&self) -> io::Result<Layout> {
        const NODES: &str = "sys/devices/system/node";
        let cpus = |path: &str| self.number(path, parse::list);
        // Kernels without NUMA do not have that file, and all is one node.
        let nodes = cpus(&format!("{NODES}/online")).unwrap_or_default();
        if nodes.is_empty() {
            return Ok(Layout::from([(0, cpus("sys/devices/system/cpu/online")?)]));
        }
        nodes.into_iter().map(|node| Ok((node, cpus(&format!("{NODES}/node{node}/cpulist"))?))).collect()
    }

    fn memory_available(&self) -> io::Result<u64> {
        self.number("proc/meminfo", |text| parse::meminfo(text, "MemAvailable"))
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
        // Whichever is reached first ends the making of threads.
        let max =
            self.number("proc/sys/kernel/threads-max", plain_number).map_or(pid_max, |max| max.min(pid_max));
        Ok(Pids { max, used: self.number("proc/loadavg", parse::threads)? })
    }

    fn network(&self) -> io::Result<Network> {
        let interfaces = if_addrs::get_if_addrs()?;
        let local = interfaces.iter().map(|interface| interface.ip().to_canonical()).collect();
        let through = self.default_interfaces();
        let of_family = |(is_ipv4, name): &(bool, String)| {
            let named =
                interfaces.iter().filter(|interface| interface.name == *name).map(if_addrs::Interface::ip);
            named.filter(|address| address.is_ipv4() == *is_ipv4).collect::<Vec<IpAddr>>()
        };
        Ok(Network { local, default_route: through.iter().flat_map(of_family).collect() })
    }

    fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let mut addresses: Vec<IpAddr> = Vec::new();
        // The port is of no interest; the resolver's interface wants one.
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

    /// A machine made of files.
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

    #[test]
    fn processors_lie_on_numa_nodes_or_on_one() {
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
    fn facts_are_read_off_the_kernels_files() {
        let (_root, machine) = machine(&[
            ("proc/meminfo", "MemTotal: 16384 kB\nMemAvailable: 8192 kB\nSwapTotal: 4096 kB\n"),
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
    fn what_cannot_be_read_is_an_error_or_empty_but_never_a_guess() {
        let (_root, machine) = machine(&[("proc/loadavg", "nonsense"), ("proc/sys/kernel/pid_max", "9\n")]);
        assert!(machine.hardware().unwrap_err().to_string().contains("proc/meminfo"));
        assert!(machine.pids().unwrap_err().to_string().ends_with("does not say what it used to say"));
        let expected = System {
            os_image: "Linux".to_owned(),
            operating_system: std::env::consts::OS.to_owned(),
            architecture: architecture(std::env::consts::ARCH).to_owned(),
            ..System::default()
        };
        assert_eq!(machine.system(), expected);
    }

    #[test]
    fn cores_are_counted_one_by_one_where_the_kernel_gives_no_list() {
        let (_root, machine) = machine(&[
            ("proc/meminfo", "MemTotal: 1 kB\n"),
            ("proc/cpuinfo", "processor\t: 0\nx\nprocessor\t: 1\n"),
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
