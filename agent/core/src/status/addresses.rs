//! The addresses that the node reports.

use std::net::IpAddr;

use muster_proto::node::{AddressType, NodeAddress};

use super::Settings;
use crate::config::{Cloud, NodeConfig, NodeIps, family};
use crate::machine::Network;

/// The addresses that the node's name resolves to. Empty if the resolver was not asked, or does not know the name.
pub type Lookup = Vec<IpAddr>;

/// Why the node's addresses are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("the machine's interfaces cannot be read")]
    Unreadable,
    #[error("--node-ip: {address} {reason}")]
    Unusable { address: IpAddr, reason: &'static str },
    #[error(
        "--node-ip is not given, the node's name resolves to no address of this machine, and there is no \
         default route"
    )]
    None,
}

/// Whether the resolver has to be asked for the node's name. It may be slow, so only if its answer matters.
pub fn needs_lookup(settings: &Settings) -> bool {
    settings.node.ips.given().is_empty()
        && settings.node.cloud == Cloud::None
        && settings.name.as_str().parse::<IpAddr>().is_err()
}

/// The addresses to report.
pub fn addresses(
    previous: &[NodeAddress],
    settings: &Settings,
    network: Option<&Network>,
    lookup: &[IpAddr],
) -> Result<Vec<NodeAddress>, AddressError> {
    let given = settings.node.ips.given();
    let hostname = NodeAddress { kind: AddressType::Hostname, address: settings.name.to_string() };
    if settings.node.cloud == Cloud::External {
        if !previous.is_empty() {
            return Ok(previous.to_vec());
        }
        if given.is_empty() {
            // The cloud plug-in knows which address other machines can use; until it sets one there is none.
            return Ok(vec![hostname]);
        }
    }
    let network = network.ok_or(AddressError::Unreadable)?;
    for &address in &given {
        check(address, network).map_err(|reason| AddressError::Unusable { address, reason })?;
    }
    let internal = if given.is_empty() { vec![found(settings, network, lookup)?] } else { given };
    let internal = internal
        .into_iter()
        .map(|address| NodeAddress { kind: AddressType::InternalIp, address: address.to_string() });
    Ok(internal.chain([hostname]).collect())
}

/// The annotation that tells the cloud plug-in which address the operator wants.
pub fn provided_node_ip(node: &NodeConfig) -> Option<String> {
    let given = node.ips.given();
    if node.cloud != Cloud::External || given.is_empty() {
        return None;
    }
    Some(given.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

/// The address of a node for which the operator set none.
fn found(settings: &Settings, network: &Network, lookup: &[IpAddr]) -> Result<IpAddr, AddressError> {
    if let Ok(address) = settings.name.as_str().parse() {
        return Ok(address);
    }
    let usable = |candidates: &[IpAddr]| {
        let mut usable = candidates.iter().copied().filter(|&address| check(address, network).is_ok());
        preferred(&settings.node.ips, &mut usable)
    };
    usable(lookup).or_else(|| usable(&network.default_route)).ok_or(AddressError::None)
}

/// The first of the preferred family, or else the first.
fn preferred(ips: &NodeIps, candidates: &mut dyn Iterator<Item = IpAddr>) -> Option<IpAddr> {
    let mut fallback = None;
    for address in candidates {
        if family(address) == ips.preferred() {
            return Some(address);
        }
        fallback = fallback.or(Some(address));
    }
    fallback
}

/// Whether other machines could reach this machine at the address.
fn check(address: IpAddr, network: &Network) -> Result<(), &'static str> {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    if address.is_loopback() {
        Err("is a loopback address")
    } else if address.is_multicast() {
        Err("is a multicast address")
    } else if link_local {
        Err("is a link-local address")
    } else if address.is_unspecified() {
        Err("is the unspecified address")
    } else if !network.local.contains(&address) {
        Err("is not on an interface of this machine")
    } else {
        Ok(())
    }
}
