use super::*;
use crate::fixtures::uid;

fn pool(cluster: &str, mask: u8, services: &[&str]) -> CidrPool {
    let services: Vec<Cidr> = services.iter().map(|range| range.parse().unwrap()).collect();
    CidrPool::new(Blocks::new(cluster.parse().unwrap(), mask).unwrap(), &services)
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn take(pool: &mut CidrPool, holder: &str) -> String {
    pool.allocate(uid(holder)).map_or("none".to_owned(), |cidr| cidr.to_string())
}

#[test]
fn a_released_block_is_used_again_after_all_others() {
    let mut pool = pool("10.0.0.0/30", 32, &[]);
    assert_eq!([take(&mut pool, "a"), take(&mut pool, "b")], ["10.0.0.0/32", "10.0.0.1/32"]);
    pool.release(&cidr("10.0.0.0/32"), uid("a"));
    let rest = [take(&mut pool, "c"), take(&mut pool, "d"), take(&mut pool, "e"), take(&mut pool, "f")];
    assert_eq!(rest, ["10.0.0.2/32", "10.0.0.3/32", "10.0.0.0/32", "none"]);
}

#[test]
fn a_network_of_another_size_occupies_every_block_it_overlaps() {
    for (cidr, used) in [
        ("10.0.0.0/24", 1),
        ("10.0.3.128/25", 1),
        ("10.0.2.0/23", 2),
        ("10.0.0.0/22", 4),
        ("10.0.0.0/8", 4),
        ("0.0.0.0/0", 4),
    ] {
        let mut pool = pool("10.0.0.0/22", 24, &[]);
        pool.occupy(&cidr.parse().unwrap(), uid("a")).unwrap();
        assert_eq!((pool.used(), pool.is_full()), (used, used == 4), "{cidr}");
        pool.release(&cidr.parse().unwrap(), uid("a"));
        assert_eq!(pool.used(), 0, "{cidr}");
    }
    let outside = pool("10.0.0.0/22", 24, &[]).occupy(&cidr("10.0.4.0/24"), uid("a")).unwrap_err();
    assert_eq!(outside.to_string(), "10.0.4.0/24, which lies outside the cluster network 10.0.0.0/22");
}

#[test]
fn a_block_is_free_when_its_last_holder_is_gone() {
    let mut pool = pool("10.0.0.0/30", 31, &[]);
    let block = cidr("10.0.0.0/31");
    for holder in ["a", "b", "a"] {
        pool.occupy(&block, uid(holder)).unwrap();
    }
    assert_eq!((pool.used(), pool.conflicts()), (1, 1));
    pool.release(&block, uid("a"));
    assert_eq!((pool.used(), pool.conflicts()), (1, 0));
    pool.release(&block, uid("a"));
    assert_eq!(pool.used(), 1, "a second release takes nothing from b");
    pool.release(&block, uid("b"));
    assert_eq!((pool.used(), pool.allocate(uid("c"))), (0, Some(block)));
}

#[test]
fn blocks_that_overlap_services_are_never_allocated() {
    for (services, reserved, first) in [
        (vec![], 0, "10.0.0.0/24"),
        (vec!["10.0.0.0/26"], 1, "10.0.1.0/24"),
        (vec!["10.0.0.0/23"], 2, "10.0.2.0/24"),
        (vec!["10.0.1.7/32"], 1, "10.0.0.0/24"),
        (vec!["10.0.0.0/8"], 4, "none"),
        (vec!["10.9.0.0/24", "fd00::/64"], 0, "10.0.0.0/24"),
    ] {
        let mut pool = pool("10.0.0.0/22", 24, &services);
        assert_eq!((pool.reserved(), pool.used()), (reserved, 0), "{services:?}");
        assert_eq!(take(&mut pool, "a"), first, "{services:?}");
    }
    let mut pool = pool("10.0.0.0/23", 24, &["10.0.0.0/24"]);
    pool.occupy(&cidr("10.0.0.0/24"), uid("a")).unwrap();
    pool.release(&cidr("10.0.0.0/24"), uid("a"));
    assert_eq!(
        [take(&mut pool, "b"), take(&mut pool, "c")],
        ["10.0.1.0/24", "none"],
        "a's block stays reserved"
    );
}

#[test]
fn the_last_block_costs_no_more_visits_than_the_first() {
    let mut pool = pool("10.0.0.0/8", 24, &[]);
    let mut most = 0;
    for i in 0..pool.count() {
        let before = pool.tree.visits.get();
        assert_eq!(pool.allocate(uid(&i.to_string())), pool.blocks.nth(i));
        most = most.max(pool.tree.visits.get() - before);
    }
    assert_eq!((pool.used(), pool.is_full()), (65_536, true));
    // 16 levels: at most twice that to find it, from the pointer and from the start, and two a level to count it.
    assert!(most <= 6 * 17, "{most} visits");

    let before = pool.tree.visits.get();
    pool.release(&cidr("10.77.0.0/24"), uid(&(77 * 256).to_string()));
    assert_eq!(take(&mut pool, "late"), "10.77.0.0/24");
    assert!(pool.tree.visits.get() - before <= 10 * 17, "the one free block of 65,536 is found at once");
}
