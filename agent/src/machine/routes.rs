//! The interfaces of the default routes, from /proc/net.

use procfs::net::RouteEntry;

/// RTF_UP: the route is usable.
const UP: u32 = 0x1;
/// RTF_REJECT: the route refuses what it matches.
const REJECT: u32 = 0x200;

/// The interface of the IPv4 default route with the lowest metric; of equal ones the first, as the kernel chooses.
pub(super) fn default_ipv4(routes: Vec<RouteEntry>) -> Option<String> {
    let is_default = |route: &RouteEntry| {
        route.destination.is_unspecified() && route.mask.is_unspecified() && usable(route.flags.into())
    };
    let defaults = routes.into_iter().filter(is_default);
    defaults.min_by_key(|route| route.metrics).map(|route| route.iface)
}

/// The interface of the IPv6 default route with the lowest metric, from /proc/net/ipv6_route, for which `procfs` has
/// no parser.
pub(super) fn default_ipv6(text: &str) -> Option<&str> {
    let routes = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [destination, prefix, _, _, _, metric, _, _, flags, interface] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        // Hexadecimal, unlike the metrics of IPv4 routes.
        let metric = u32::from_str_radix(metric, 16).ok()?;
        let anything = prefix == "00" && destination.bytes().all(|digit| digit == b'0');
        (anything && usable(flags) && interface != "lo").then_some((metric, interface))
    });
    routes.min_by_key(|(metric, _)| *metric).map(|(_, interface)| interface)
}

fn usable(flags: u32) -> bool {
    flags & UP != 0 && flags & REJECT == 0
}

#[cfg(test)]
mod tests {
    use procfs::FromRead;
    use procfs::net::RouteEntries;

    use super::*;

    fn interface(text: &str) -> Option<String> {
        RouteEntries::from_read(text.as_bytes()).ok().and_then(|RouteEntries(routes)| default_ipv4(routes))
    }

    const HEADER: &str =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";

    #[test]
    fn the_ipv4_default_route_with_the_lowest_metric_is_chosen() {
        let line = |interface: &str, destination: &str, flags: &str, metric: u32, mask: &str| {
            format!("{interface}\t{destination}\t010200C0\t{flags}\t0\t0\t{metric}\t{mask}\t0\t0\t0\n")
        };
        let any =
            |interface: &str, flags: &str, metric| line(interface, "00000000", flags, metric, "00000000");
        for (lines, expected) in [
            (vec![any("eth0", "0003", 0)], Some("eth0")),
            (vec![any("eth0", "0003", 600), any("eth1", "0003", 100)], Some("eth1")),
            (vec![any("eth0", "0003", 100), any("eth1", "0003", 100)], Some("eth0")),
            (vec![any("eth0", "0200", 0), any("eth1", "0003", 100)], Some("eth1")),
            (vec![line("eth0", "000200C0", "0001", 0, "00FFFFFF")], None),
            // A route to half of all addresses, as some tunnels set up, is not the default route.
            (vec![line("tun0", "00000000", "0001", 0, "00000080")], None),
            (vec!["nonsense\n".to_owned()], None),
            (vec![], None),
        ] {
            let text = format!("{HEADER}{}", lines.concat());
            assert_eq!(interface(&text).as_deref(), expected, "{text}");
        }
        assert_eq!(interface(""), None);
    }

    #[test]
    fn the_ipv6_default_route_is_never_on_the_loopback_interface() {
        let zero = "0".repeat(32);
        let line = |destination: &str, prefix: &str, metric: &str, flags: &str, interface: &str| {
            format!(
                "{destination} {prefix} {zero} 00 fd000000000000000000000000000001 {metric} 00000001 00000000 \
                 {flags}     {interface}\n"
            )
        };
        let network = "fd000000000000000000000000000000";
        for (lines, expected) in [
            (vec![line(&zero, "00", "00000400", "00000003", "eth0")], Some("eth0")),
            (vec![line(&zero, "00", "ffffffff", "00200200", "lo")], None),
            (vec![line(&zero, "00", "00000400", "00000203", "eth0")], None),
            (vec![line(network, "40", "00000100", "00000001", "eth0")], None),
            (
                vec![
                    line(&zero, "00", "00000400", "00000003", "eth0"),
                    line(&zero, "00", "00000100", "00000003", "eth1"),
                ],
                Some("eth1"),
            ),
        ] {
            let text = lines.concat();
            assert_eq!(default_ipv6(&text), expected, "{text}");
        }
    }
}
