//! Networks: a [`Cidr`] is an address range, [`Blocks`] divides one into equal blocks for nodes.
//!
//! Host bits are masked off when a network is parsed, so two texts for one network give the same value. Block i of a
//! cluster network starts at base | i << (bits - mask), in both families.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::IpNet;

/// An IPv4 or IPv6 network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr(IpNet);

/// The IP family of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Ipv4,
    Ipv6,
}

/// Why a text is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    #[error("must be an address and a prefix length, such as 10.0.0.0/24 or fd00::/64")]
    NoPrefix,
    #[error("must have an IPv4 or IPv6 address before '/'")]
    Address,
    #[error("must have a prefix length from 0 to {max} after '/'")]
    Prefix { max: u8 },
}

impl Cidr {
    /// The network of that prefix length around the address; `None` if the length exceeds the address.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        IpNet::new(address, prefix).ok().map(Self::from)
    }

    /// The first address.
    pub fn address(&self) -> IpAddr {
        self.0.addr()
    }

    pub fn prefix(&self) -> u8 {
        self.0.prefix_len()
    }

    pub fn family(&self) -> Family {
        match self.0 {
            IpNet::V4(_) => Family::Ipv4,
            IpNet::V6(_) => Family::Ipv6,
        }
    }

    /// Whether `other` lies wholly inside, or is the same network.
    pub fn contains(&self, other: &Cidr) -> bool {
        self.0.contains(&other.0)
    }

    /// Whether the two share an address; networks do so only when one contains the other.
    pub fn overlaps(&self, other: &Cidr) -> bool {
        self.contains(other) || other.contains(self)
    }

    /// The first address as a number in the high bits, so that prefixes of both families can be compared.
    fn start(&self) -> u128 {
        match self.0 {
            IpNet::V4(net) => u128::from(u32::from(net.addr())) << 96,
            IpNet::V6(net) => net.addr().into(),
        }
    }
}

impl From<IpNet> for Cidr {
    fn from(net: IpNet) -> Self {
        Self(net.trunc())
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let (address, prefix) = text.split_once('/').ok_or(CidrError::NoPrefix)?;
        let address: IpAddr = address.parse().map_err(|_| CidrError::Address)?;
        let wrong_prefix = || CidrError::Prefix { max: if address.is_ipv4() { 32 } else { 128 } };
        // Plain digits only: the number parser alone would let "+24" and "024" through.
        if !prefix.bytes().all(|byte| byte.is_ascii_digit()) || (prefix.len() > 1 && prefix.starts_with('0'))
        {
            return Err(wrong_prefix());
        }
        prefix.parse().ok().and_then(|prefix| Self::new(address, prefix)).ok_or_else(wrong_prefix)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Family {
    /// How many bits an address has.
    pub fn bits(self) -> u8 {
        match self {
            Self::Ipv4 => 32,
            Self::Ipv6 => 128,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// A cluster network that is divided into equal blocks, one for each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    cluster: Cidr,
    mask: u8,
}

/// Why a network cannot be divided into such blocks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlocksError {
    #[error("a node mask of /{mask} is longer than an {family} address")]
    MaskTooLong { mask: u8, family: Family },
    #[error("{cluster} is smaller than one node block of /{mask}")]
    ClusterTooSmall { cluster: Cidr, mask: u8 },
    #[error(
        "{cluster} would hold more than 2^{} node blocks of /{mask}; \
         give a smaller cluster network or a shorter node mask",
        Blocks::MAX_IPV6_BITS
    )]
    TooManyBlocks { cluster: Cidr, mask: u8 },
}

impl Blocks {
    /// How many bits may number the blocks of an IPv6 network; IPv4 has no limit but its 32.
    pub const MAX_IPV6_BITS: u8 = 16;

    pub fn new(cluster: Cidr, mask: u8) -> Result<Self, BlocksError> {
        let family = cluster.family();
        if mask > family.bits() {
            return Err(BlocksError::MaskTooLong { mask, family });
        }
        let Some(bits) = mask.checked_sub(cluster.prefix()) else {
            return Err(BlocksError::ClusterTooSmall { cluster, mask });
        };
        if family == Family::Ipv6 && bits > Self::MAX_IPV6_BITS {
            return Err(BlocksError::TooManyBlocks { cluster, mask });
        }
        Ok(Self { cluster, mask })
    }

    pub fn cluster(&self) -> Cidr {
        self.cluster
    }

    /// The prefix length of each block.
    pub fn mask(&self) -> u8 {
        self.mask
    }

    /// How many blocks there are: at least one, 2^32 at most.
    pub fn count(&self) -> u64 {
        1 << (self.mask - self.cluster.prefix())
    }

    /// Block `i`, counted from the start of the cluster network; `None` past the last.
    pub fn nth(&self, i: u64) -> Option<Cidr> {
        if i >= self.count() {
            return None;
        }
        // A /0 block is the whole family: there is one, and nothing to shift by.
        let offset = u128::from(i).checked_shl(128 - u32::from(self.mask)).unwrap_or(0);
        let start = self.cluster.start() | offset;
        let address = match self.cluster.family() {
            Family::Ipv4 => Ipv4Addr::from((start >> 96) as u32).into(),
            Family::Ipv6 => Ipv6Addr::from(start).into(),
        };
        Cidr::new(address, self.mask)
    }

    /// The number of a network that is exactly one of the blocks.
    pub fn index_of(&self, block: &Cidr) -> Option<u64> {
        if block.prefix() != self.mask || !self.cluster.contains(block) {
            return None;
        }
        Some(self.number(block.start()))
    }

    /// The numbers of all blocks that share an address with `net`; `None` if it lies outside.
    pub fn touched_by(&self, net: &Cidr) -> Option<RangeInclusive<u64>> {
        if net.contains(&self.cluster) {
            return Some(0..=self.count() - 1);
        }
        if !self.cluster.contains(net) {
            return None;
        }
        let first = self.number(net.start());
        let spanned = 1 << self.mask.saturating_sub(net.prefix());
        Some(first..=first + (spanned - 1))
    }

    /// The number of the block that holds an address of the cluster network.
    fn number(&self, start: u128) -> u64 {
        let offset = start ^ self.cluster.start();
        let number = offset.checked_shr(128 - u32::from(self.mask)).unwrap_or(0);
        u64::try_from(number).expect("a cluster network holds 2^32 blocks at most")
    }
}

#[cfg(test)]
mod tests;
