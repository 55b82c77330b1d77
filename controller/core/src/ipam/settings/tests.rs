use super::*;

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|&text| text.to_owned()).collect()
}

/// The settings in one line: networks and masks, then service ranges; or the error.
fn checked(cluster: &[&str], masks: [Option<u8>; 3], services: &[&str]) -> String {
    let flags = Flags {
        cluster_cidr: &texts(cluster),
        node_cidr_mask_size: masks[0],
        node_cidr_mask_size_ipv4: masks[1],
        node_cidr_mask_size_ipv6: masks[2],
        service_cluster_ip_range: &texts(services),
    };
    match Settings::check(&flags) {
        Ok(settings) => {
            let pools = settings.pools.iter().map(|blocks| format!("{}>{}", blocks.cluster(), blocks.mask()));
            pools.chain(settings.services.iter().map(Cidr::to_string)).collect::<Vec<_>>().join(" ")
        }
        Err(error) => error.to_string(),
    }
}

const NONE: [Option<u8>; 3] = [None; 3];

#[test]
fn one_network_or_one_of_each_family_is_accepted() {
    for (cluster, masks, expected) in [
        (&["10.0.0.7/16"][..], NONE, "10.0.0.0/16>24"),
        (&["fd00::/48"], NONE, "fd00::/48>64"),
        (&["10.0.0.0/16"], [Some(26), None, None], "10.0.0.0/16>26"),
        (&["10.0.0.0/16"], [None, Some(26), None], "10.0.0.0/16>26"),
        (&["fd00::/108"], [Some(120), None, None], "fd00::/108>120"),
        (&["10.0.0.0/16", "fd00::/48"], NONE, "10.0.0.0/16>24 fd00::/48>64"),
        (&["fd00::/56,10.0.0.0/16"], [None, Some(25), Some(72)], "fd00::/56>72 10.0.0.0/16>25"),
        (&["10.0.0.0/24"], [Some(24), None, None], "10.0.0.0/24>24"),
        (&["0.0.0.0/0"], [Some(32), None, None], "0.0.0.0/0>32"),
    ] {
        assert_eq!(checked(cluster, masks, &[]), expected, "{cluster:?} {masks:?}");
    }
}

#[test]
fn s149_an_error_names_the_invalid_flag() {
    for (cluster, masks, expected) in [
        (&[][..], NONE, "--cluster-cidr: must name the network that nodes get their blocks from"),
        (&[" "], NONE, "--cluster-cidr: must name the network that nodes get their blocks from"),
        (
            &["10.0.0.0"],
            NONE,
            "--cluster-cidr: `10.0.0.0` must be an address and a prefix length, such as 10.0.0.0/24 or fd00::/64",
        ),
        (
            &["10.0.0.0/16", "10.1.0.0/16"],
            NONE,
            "--cluster-cidr: 10.0.0.0/16 and 10.1.0.0/16 are both IPv4: one of each family may be given",
        ),
        (
            &["10.0.0.0/16", "fd00::/48", "10.1.0.0/16"],
            NONE,
            "--cluster-cidr: 3 networks are given, at most one of each family may be",
        ),
        (
            &["10.0.0.0/24"],
            [Some(16), None, None],
            "--cluster-cidr: 10.0.0.0/24 is smaller than one node block of /16 (--node-cidr-mask-size)",
        ),
        (
            &["fd00::/40"],
            NONE,
            "--cluster-cidr: fd00::/40 would hold more than 2^16 node blocks of /64; \
             give a smaller cluster network or a shorter node mask (--node-cidr-mask-size-ipv6)",
        ),
        (
            &["10.0.0.0/16"],
            [None, Some(33), None],
            "--node-cidr-mask-size-ipv4: a node mask of /33 is longer than an IPv4 address",
        ),
        (
            &["10.0.0.0/16", "fd00::/48"],
            [Some(24), None, None],
            "--node-cidr-mask-size: cannot serve two families: \
             give --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 instead",
        ),
        (
            &["10.0.0.0/16"],
            [Some(24), Some(24), None],
            "--node-cidr-mask-size: contradicts --node-cidr-mask-size-ipv4: give one of them",
        ),
        (
            &["10.0.0.0/16"],
            [None, None, Some(64)],
            "--node-cidr-mask-size-ipv6: is of no use: --cluster-cidr names no IPv6 network",
        ),
    ] {
        assert_eq!(checked(cluster, masks, &[]), expected, "{cluster:?} {masks:?}");
    }
}

#[test]
fn invalid_service_ranges_are_ignored_with_a_warning() {
    let cluster = ["10.0.0.0/16"];
    for (services, expected) in [
        (&["10.0.0.0/20"][..], "10.0.0.0/16>24 10.0.0.0/20"),
        (&["10.96.0.0/12", "fd00::/112"], "10.0.0.0/16>24 10.96.0.0/12 fd00::/112"),
        (&["what", "10.96.0.0/12"], "10.0.0.0/16>24 10.96.0.0/12"),
        (
            &["10.96.0.0/12", "10.112.0.0/12"],
            "--service-cluster-ip-range: 10.96.0.0/12 and 10.112.0.0/12 are both IPv4: \
             one of each family may be given",
        ),
        (
            &["10.96.0.0/12", "fd00::/112", "10.0.0.0/8"],
            "--service-cluster-ip-range: more than two ranges are given, at most one of each family may be",
        ),
    ] {
        assert_eq!(checked(&cluster, NONE, services), expected, "{services:?}");
    }
    let (cluster, services) = (texts(&cluster), texts(&["what"]));
    let flags = Flags { cluster_cidr: &cluster, service_cluster_ip_range: &services, ..Flags::default() };
    assert_eq!(
        Settings::check(&flags).unwrap().warnings,
        ["--service-cluster-ip-range: `what` is ignored: \
             it must be an address and a prefix length, such as 10.0.0.0/24 or fd00::/64"]
    );
}
