use proptest::prelude::*;

use super::*;

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap_or_else(|error| panic!("{text} {error}"))
}

fn blocks(cluster: &str, mask: u8) -> Blocks {
    Blocks::new(cidr(cluster), mask).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_network_is_an_address_and_a_prefix_with_host_bits_masked_off() {
    for (text, expected) in [
        ("10.0.0.0/24", Ok("10.0.0.0/24")),
        ("10.0.0.77/24", Ok("10.0.0.0/24")),
        ("0.0.0.0/0", Ok("0.0.0.0/0")),
        ("1.2.3.4/32", Ok("1.2.3.4/32")),
        ("FD00:0::1/64", Ok("fd00::/64")),
        ("::/0", Ok("::/0")),
        ("10.0.0.0", Err(CidrError::NoPrefix)),
        ("", Err(CidrError::NoPrefix)),
        ("/24", Err(CidrError::Address)),
        ("10.0.0/24", Err(CidrError::Address)),
        ("10.0.0.256/24", Err(CidrError::Address)),
        ("010.0.0.0/24", Err(CidrError::Address)),
        (" 10.0.0.0/24", Err(CidrError::Address)),
        ("10.0.0.0/33", Err(CidrError::Prefix { max: 32 })),
        ("10.0.0.0/", Err(CidrError::Prefix { max: 32 })),
        ("10.0.0.0/+8", Err(CidrError::Prefix { max: 32 })),
        ("10.0.0.0/024", Err(CidrError::Prefix { max: 32 })),
        ("10.0.0.0/24/8", Err(CidrError::Prefix { max: 32 })),
        ("fd00::/129", Err(CidrError::Prefix { max: 128 })),
        ("fd00::/999", Err(CidrError::Prefix { max: 128 })),
    ] {
        let shown = text.parse::<Cidr>().map(|cidr| cidr.to_string());
        assert_eq!(shown, expected.map(str::to_owned), "{text:?}");
    }
}

#[test]
fn networks_overlap_when_one_contains_the_other() {
    for (a, b, contains, overlaps) in [
        ("10.0.0.0/16", "10.0.5.0/24", true, true),
        ("10.0.5.0/24", "10.0.0.0/16", false, true),
        ("10.0.0.0/24", "10.0.0.0/24", true, true),
        ("10.0.0.0/24", "10.0.1.0/24", false, false),
        ("0.0.0.0/0", "::/0", false, false),
        ("fd00::/48", "fd00:0:0:1::/64", true, true),
    ] {
        assert_eq!(cidr(a).contains(&cidr(b)), contains, "{a} contains {b}");
        assert_eq!(cidr(a).overlaps(&cidr(b)), overlaps, "{a} overlaps {b}");
    }
}

#[test]
fn blocks_are_counted_from_the_start_of_the_cluster_network() {
    for (cluster, mask, count, i, expected) in [
        ("10.0.0.0/16", 24, 256, 0, Some("10.0.0.0/24")),
        ("10.0.0.0/16", 24, 256, 1, Some("10.0.1.0/24")),
        ("10.0.0.0/16", 24, 256, 255, Some("10.0.255.0/24")),
        ("10.0.0.0/16", 24, 256, 256, None),
        ("10.0.0.9/16", 24, 256, 2, Some("10.0.2.0/24")),
        ("127.123.234.0/24", 30, 64, 16, Some("127.123.234.64/30")),
        ("10.0.0.0/30", 30, 1, 0, Some("10.0.0.0/30")),
        ("10.0.0.0/30", 30, 1, 1, None),
        ("0.0.0.0/0", 0, 1, 0, Some("0.0.0.0/0")),
        ("0.0.0.0/0", 32, 1 << 32, (1 << 32) - 1, Some("255.255.255.255/32")),
        ("fd00::/48", 64, 65_536, 0, Some("fd00::/64")),
        ("fd00::/48", 64, 65_536, 1, Some("fd00:0:0:1::/64")),
        ("fd00::/48", 64, 65_536, 65_535, Some("fd00:0:0:ffff::/64")),
        ("fd00::/48", 64, 65_536, 65_536, None),
        ("fd00::/112", 128, 65_536, 258, Some("fd00::102/128")),
        ("::/0", 0, 1, 0, Some("::/0")),
        ("fd00::/60", 72, 4096, 257, Some("fd00:0:0:1:100::/72")),
    ] {
        let blocks = blocks(cluster, mask);
        assert_eq!(blocks.count(), count, "{cluster} in /{mask}");
        assert_eq!(blocks.nth(i), expected.map(cidr), "block {i} of {cluster} in /{mask}");
        if let Some(block) = expected {
            assert_eq!(blocks.index_of(&cidr(block)), Some(i), "{block} in {cluster}");
        }
    }
}

#[test]
fn only_a_whole_block_of_this_cluster_has_a_number() {
    let blocks = blocks("10.0.0.0/16", 24);
    for other in ["10.1.0.0/24", "10.0.1.0/25", "10.0.0.0/16", "fd00::/24"] {
        assert_eq!(blocks.index_of(&cidr(other)), None, "{other}");
    }
}

#[test]
fn a_network_overlaps_every_block_that_it_shares_an_address_with() {
    for (cluster, mask, net, expected) in [
        ("10.0.0.0/16", 24, "10.0.3.0/24", Some(3..=3)),
        ("10.0.0.0/16", 24, "10.0.3.128/26", Some(3..=3)),
        ("10.0.0.0/16", 24, "10.0.4.0/22", Some(4..=7)),
        ("10.0.0.0/16", 24, "10.0.0.0/16", Some(0..=255)),
        ("10.0.0.0/16", 24, "10.0.0.0/8", Some(0..=255)),
        ("10.0.0.0/16", 24, "10.1.0.0/24", None),
        ("10.0.0.0/16", 24, "::/0", None),
        ("fd00::/48", 64, "fd00:0:0:10::/60", Some(16..=31)),
        ("0.0.0.0/0", 32, "0.0.0.0/0", Some(0..=u64::from(u32::MAX))),
    ] {
        assert_eq!(blocks(cluster, mask).touched_by(&cidr(net)), expected, "{net} in {cluster}");
    }
}

#[test]
fn a_mask_that_does_not_fit_is_refused_by_name() {
    for (cluster, mask, reason) in [
        ("10.0.0.0/24", 16, "10.0.0.0/24 is smaller than one node block of /16"),
        ("10.0.0.0/24", 33, "a node mask of /33 is longer than an IPv4 address"),
        (
            "fd00::/40",
            64,
            "fd00::/40 would hold more than 2^16 node blocks of /64; \
             give a smaller cluster network or a shorter node mask",
        ),
    ] {
        let error = Blocks::new(cidr(cluster), mask).expect_err(reason);
        assert_eq!(error.to_string(), reason);
    }
}

proptest! {
    #[test]
    fn every_block_lies_inside_and_knows_its_number(
        address: u128, v6: bool, prefix in 0u8..=128, extra in 0u8..=16, seed: u64,
    ) {
        let (address, bits): (IpAddr, u8) = if v6 {
            (Ipv6Addr::from(address).into(), 128)
        } else {
            (Ipv4Addr::from(address as u32).into(), 32)
        };
        let prefix = prefix.min(bits);
        let cluster = Cidr::new(address, prefix).unwrap();
        let blocks = Blocks::new(cluster, (prefix + extra).min(bits)).unwrap();
        let i = seed % blocks.count();
        let block = blocks.nth(i).unwrap();
        prop_assert!(cluster.contains(&block));
        prop_assert_eq!(blocks.index_of(&block), Some(i));
        prop_assert_eq!(blocks.touched_by(&block), Some(i..=i));
        prop_assert_eq!(block.to_string().parse(), Ok(block));
    }
}
