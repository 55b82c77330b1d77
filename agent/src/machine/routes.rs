//! Which interfaces the default routes lead through, from /proc/net.

/// Routes that are there and usable.
const UP: u32 = 0x1;
/// Routes that say "no way".
const REJECT: u32 = 0x200;

/// The interface of the IPv4 default route of the lowest metric, from /proc/net/route.
pub(super) fn default_ipv4(text: &str) -> Option<&str> {
    let routes = text.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [interface, destination, _, flags, _, _, metric, mask, ..] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        // Metrics are decimal here and hexadecimal in the file for IPv6.
        let metric: u32 = metric.parse().ok()?;
        let is_default = destination == "00000000" && mask == "00000000" && usable(flags);
        is_default.then_some((metric, interface))
    });
    // Of equals the first, as the kernel takes it.
    routes.min_by_key(|(metric, _)| *metric).map(|(_, interface)| interface)
}

/// The interface of the IPv6 default route of the lowest metric, from /proc/net/ipv6_route.
pub(super) fn default_ipv6(text: &str) -> Option<&str> {
    let routes = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [destination, prefix, _, _, _, metric, _, _, flags, interface] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags, 16).ok()?;
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
    use super::*;

    const HEADER: &str =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";

    #[test]
    fn the_ipv4_default_route_of_the_lowest_metric_is_taken() {
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
            // Half of everything, as some tunnels have it, is not the default.
            (vec![line("tun0", "00000000", "0001", 0, "00000080")], None),
            (vec!["nonsense\n".to_owned()], None),
            (vec![], None),
        ] {
            let text = format!("{HEADER}{}", lines.concat());
            assert_eq!(default_ipv4(&text), expected, "{text}");
        }
        assert_eq!(default_ipv4(""), None);
    }

    #[test]
    fn the_ipv6_default_route_never_leads_through_the_loopback() {
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
