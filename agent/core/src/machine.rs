//! What the machine is and has, as facts that the shell reads and the decisions use.

use std::net::IpAddr;

/// What the machine is. A fact that cannot be read is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct System {
    pub machine_id: String,
    /// From the firmware, which only root may read, or else the machine id.
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel_version: String,
    pub os_image: String,
    /// Such as `linux`.
    pub operating_system: String,
    /// Such as `amd64` or `arm64`.
    pub architecture: String,
}

/// What the machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    pub cores: u32,
    pub memory_bytes: u64,
    pub swap_bytes: u64,
    /// Every page size that the kernel supports, also those with no pages.
    pub huge_pages: Vec<HugePages>,
    /// At least one.
    pub numa_nodes: u32,
}

/// Memory reserved in pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HugePages {
    pub page_bytes: u64,
    pub count: u64,
}

impl HugePages {
    pub fn bytes(&self) -> u64 {
        self.page_bytes.saturating_mul(self.count)
    }
}

/// How full a filesystem is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filesystem {
    pub capacity_bytes: u64,
    /// What is left to users other than root.
    pub available_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// How many processes and threads there may be, and are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pids {
    pub max: u64,
    pub used: u64,
}

/// The machine's own addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// The addresses of all interfaces.
    pub local: Vec<IpAddr>,
    /// The addresses of the interfaces of the default routes, IPv4 first.
    pub default_route: Vec<IpAddr>,
}

/// The architecture as Kubernetes spells it, from Rust's name for it.
pub fn architecture(arch: &str) -> &str {
    match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "powerpc64" => "ppc64",
        "loongarch64" => "loong64",
        other => other,
    }
}
