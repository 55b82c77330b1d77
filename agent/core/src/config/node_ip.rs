//! `--node-ip`: the addresses that the operator wants the node to report.

use std::net::IpAddr;

use muster_proto::cidr::Family;

/// The addresses an operator asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeIps {
    /// The agent chooses an address.
    #[default]
    Any,
    /// The agent chooses an address, of that family if there is one.
    Default(Family),
    /// This address.
    One(IpAddr),
    /// These two addresses, of different families.
    Two(IpAddr, IpAddr),
}

/// Why a list of addresses cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeIpError {
    #[error("names {0} addresses; give one, or one of each family")]
    TooMany(usize),
    #[error("names two {0} addresses; give one, or one of each family")]
    SameFamily(Family),
    #[error("names two addresses, one of them unspecified; 0.0.0.0 and :: can only stand alone")]
    Unspecified,
}

impl NodeIps {
    /// Parses a comma-separated list. Entries that are not addresses are left out and returned as warnings: a value
    /// that the operator's tooling failed to fill in should not keep a machine from registering.
    pub fn parse(text: &str) -> Result<(NodeIps, Vec<String>), NodeIpError> {
        let (mut addresses, mut warnings) = (Vec::new(), Vec::new());
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            match entry.parse::<IpAddr>() {
                Ok(address) => addresses.push(address.to_canonical()),
                Err(_) => warnings.push(format!("--node-ip: {entry:?} is no address and was left out")),
            }
        }
        let ips = match addresses[..] {
            [] => NodeIps::Any,
            [one] if one.is_unspecified() => NodeIps::Default(family(one)),
            [one] => NodeIps::One(one),
            [first, second] if family(first) == family(second) => {
                return Err(NodeIpError::SameFamily(family(first)));
            }
            [first, second] if first.is_unspecified() || second.is_unspecified() => {
                return Err(NodeIpError::Unspecified);
            }
            [first, second] => NodeIps::Two(first, second),
            _ => return Err(NodeIpError::TooMany(addresses.len())),
        };
        Ok((ips, warnings))
    }

    /// The addresses given, in their order.
    pub fn given(&self) -> Vec<IpAddr> {
        match *self {
            NodeIps::Any | NodeIps::Default(_) => Vec::new(),
            NodeIps::One(one) => vec![one],
            NodeIps::Two(first, second) => vec![first, second],
        }
    }

    /// The preferred family where the agent chooses.
    pub fn preferred(&self) -> Family {
        match *self {
            NodeIps::Any => Family::Ipv4,
            NodeIps::Default(family) => family,
            NodeIps::One(address) | NodeIps::Two(address, _) => family(address),
        }
    }
}

/// The family of an address.
pub fn family(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s054_one_address_of_each_family_or_the_agent_does_not_start() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (text, expected) in [
            ("", Ok((NodeIps::Any, 0))),
            ("10.0.0.5", Ok((NodeIps::One(ip("10.0.0.5")), 0))),
            (" 10.0.0.5 , fd00::5 ", Ok((NodeIps::Two(ip("10.0.0.5"), ip("fd00::5")), 0))),
            ("fd00::5,10.0.0.5", Ok((NodeIps::Two(ip("fd00::5"), ip("10.0.0.5")), 0))),
            ("0.0.0.0", Ok((NodeIps::Default(Family::Ipv4), 0))),
            ("::", Ok((NodeIps::Default(Family::Ipv6), 0))),
            ("::ffff:10.0.0.5", Ok((NodeIps::One(ip("10.0.0.5")), 0))),
            ("nonsense", Ok((NodeIps::Any, 1))),
            ("${IP},10.0.0.5", Ok((NodeIps::One(ip("10.0.0.5")), 1))),
            ("10.0.0.5,10.0.0.6", Err(NodeIpError::SameFamily(Family::Ipv4))),
            ("fd00::5,fd00::6", Err(NodeIpError::SameFamily(Family::Ipv6))),
            ("10.0.0.5,::", Err(NodeIpError::Unspecified)),
            ("0.0.0.0,fd00::5", Err(NodeIpError::Unspecified)),
            ("10.0.0.5,fd00::5,10.0.0.6", Err(NodeIpError::TooMany(3))),
        ] {
            let parsed = NodeIps::parse(text).map(|(ips, warnings)| (ips, warnings.len()));
            assert_eq!(parsed, expected, "{text:?}");
        }
    }
}
