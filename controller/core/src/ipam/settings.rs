//! The networks that nodes get their blocks from, checked and parsed from the flags.

use muster_proto::cidr::{Blocks, BlocksError, Cidr, Family};

/// The flags as they were given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags<'a> {
    /// `--cluster-cidr`
    pub cluster_cidr: &'a [String],
    /// `--node-cidr-mask-size`
    pub node_cidr_mask_size: Option<u8>,
    /// `--node-cidr-mask-size-ipv4`
    pub node_cidr_mask_size_ipv4: Option<u8>,
    /// `--node-cidr-mask-size-ipv6`
    pub node_cidr_mask_size_ipv6: Option<u8>,
    /// `--service-cluster-ip-range`
    pub service_cluster_ip_range: &'a [String],
}

/// The checked networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// One or two, of different families, in the order in which nodes name their blocks.
    pub(super) pools: Vec<Blocks>,
    pub(super) services: Vec<Cidr>,
    /// Ignored values, for the log.
    pub warnings: Vec<String>,
}

/// An invalid flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{flag}: {reason}")]
pub struct FlagError {
    pub flag: &'static str,
    pub reason: String,
}

const CLUSTER: &str = "cluster-cidr";
const MASK: &str = "node-cidr-mask-size";
const MASK_IPV4: &str = "node-cidr-mask-size-ipv4";
const MASK_IPV6: &str = "node-cidr-mask-size-ipv6";
const SERVICE: &str = "service-cluster-ip-range";

const DEFAULT_MASK_IPV4: u8 = 24;
const DEFAULT_MASK_IPV6: u8 = 64;

impl Settings {
    /// # Errors
    /// If the flags do not describe networks and blocks; the error names the flag to change.
    pub fn check(flags: &Flags<'_>) -> Result<Settings, FlagError> {
        let clusters = clusters(flags.cluster_cidr)?;
        check_masks(flags, &clusters)?;
        let pools = clusters.iter().map(|cluster| blocks(flags, *cluster)).collect::<Result<_, _>>()?;
        let (services, warnings) = services(flags.service_cluster_ip_range)?;
        Ok(Settings { pools, services, warnings })
    }
}

fn refuse<T>(flag: &'static str, reason: impl Into<String>) -> Result<T, FlagError> {
    Err(FlagError { flag, reason: reason.into() })
}

fn entries(list: &[String]) -> impl Iterator<Item = &str> {
    list.iter().flat_map(|entry| entry.split(',')).map(str::trim).filter(|entry| !entry.is_empty())
}

fn clusters(list: &[String]) -> Result<Vec<Cidr>, FlagError> {
    let read = |entry: &str| match entry.parse::<Cidr>() {
        Ok(cidr) => Ok(cidr),
        Err(error) => refuse(CLUSTER, format!("`{entry}` {error}")),
    };
    let clusters: Vec<Cidr> = entries(list).map(read).collect::<Result<_, _>>()?;
    match clusters.as_slice() {
        [] => refuse(CLUSTER, "must name the network that nodes get their blocks from"),
        [_] => Ok(clusters),
        [first, second] if first.family() != second.family() => Ok(clusters),
        [first, second] => {
            let family = first.family();
            refuse(
                CLUSTER,
                format!("{first} and {second} are both {family}: one of each family may be given"),
            )
        }
        more => {
            refuse(CLUSTER, format!("{} networks are given, at most one of each family may be", more.len()))
        }
    }
}

/// One network takes the common mask or that of its family; two networks take one mask per family.
fn check_masks(flags: &Flags<'_>, clusters: &[Cidr]) -> Result<(), FlagError> {
    let of_family = [
        (MASK_IPV4, Family::Ipv4, flags.node_cidr_mask_size_ipv4.is_some()),
        (MASK_IPV6, Family::Ipv6, flags.node_cidr_mask_size_ipv6.is_some()),
    ];
    if flags.node_cidr_mask_size.is_some() {
        if clusters.len() > 1 {
            let reason = format!("cannot serve two families: give --{MASK_IPV4} and --{MASK_IPV6} instead");
            return refuse(MASK, reason);
        }
        if let Some((flag, ..)) = of_family.iter().find(|(.., is_given)| *is_given) {
            return refuse(MASK, format!("contradicts --{flag}: give one of them"));
        }
    }
    for (flag, family, is_given) in of_family {
        if is_given && !clusters.iter().any(|cluster| cluster.family() == family) {
            return refuse(flag, format!("is of no use: --{CLUSTER} names no {family} network"));
        }
    }
    Ok(())
}

fn blocks(flags: &Flags<'_>, cluster: Cidr) -> Result<Blocks, FlagError> {
    let (own, of_family, default) = match cluster.family() {
        Family::Ipv4 => (MASK_IPV4, flags.node_cidr_mask_size_ipv4, DEFAULT_MASK_IPV4),
        Family::Ipv6 => (MASK_IPV6, flags.node_cidr_mask_size_ipv6, DEFAULT_MASK_IPV6),
    };
    let flag = if flags.node_cidr_mask_size.is_some() { MASK } else { own };
    let mask = flags.node_cidr_mask_size.or(of_family).unwrap_or(default);
    Blocks::new(cluster, mask).or_else(|error| match error {
        BlocksError::MaskTooLong { .. } => refuse(flag, error.to_string()),
        BlocksError::ClusterTooSmall { .. } | BlocksError::TooManyBlocks { .. } => {
            refuse(CLUSTER, format!("{error} (--{flag})"))
        }
    })
}

/// The ranges, and a warning for each invalid value: another component configures services, so that is no error.
fn services(list: &[String]) -> Result<(Vec<Cidr>, Vec<String>), FlagError> {
    let (mut ranges, mut warnings) = (Vec::new(), Vec::new());
    for (i, entry) in entries(list).enumerate() {
        if i == 2 {
            return refuse(SERVICE, "more than two ranges are given, at most one of each family may be");
        }
        match entry.parse::<Cidr>() {
            Ok(range) => ranges.push(range),
            Err(error) => warnings.push(format!("--{SERVICE}: `{entry}` is ignored: it {error}")),
        }
    }
    if let [first, second] = ranges.as_slice()
        && first.family() == second.family()
    {
        let family = first.family();
        return refuse(
            SERVICE,
            format!("{first} and {second} are both {family}: one of each family may be given"),
        );
    }
    Ok((ranges, warnings))
}

#[cfg(test)]
mod tests;
