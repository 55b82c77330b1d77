//! What the machine is and has, as facts that the shell reads and the decisions use.

use std::net::IpAddr;

/// What the machine is. What cannot be found out is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct System {
    pub machine_id: String,
    /// From the firmware, or else the machine's id: only root may read it.
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
    /// Every size the machine knows, also those it has none of.
    pub huge_pages: Vec<HugePages>,
    /// At least one.
    pub numa_nodes: u32,
}

/// Memory set aside in pages of one size.
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
    /// What is left to users who are not root.
    pub available_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// How many processes and threads there may be and are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pids {
    pub max: u64,
    pub used: u64,
}

/// The machine's own addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// All of all interfaces.
    pub local: Vec<IpAddr>,
    /// Those of the interfaces that default routes lead through, IPv4 first.
    pub default_route: Vec<IpAddr>,
}

/// The architecture as Kubernetes spells it, from how Rust does.
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
