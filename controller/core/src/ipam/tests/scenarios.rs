//! The scenarios of the specification, by number.

use super::*;

#[test]
fn s144_the_first_free_block_is_given_and_services_keep_theirs() {
    for (services, expected) in [(&[][..], "127.123.234.0/30"), (&["127.123.234.0/26"], "127.123.234.64/30")]
    {
        let settings = settings(&["127.123.234.0/24"], Some(30), services);
        let fleet = Fleet::started(settings, vec![node("a")]);
        assert_eq!(fleet.of("a"), expected);
        assert_eq!(fleet.cidrs.pools()[0].reserved, if services.is_empty() { 0 } else { 16 });
    }
}

/// Four blocks, of which nodes already have the first and third; three more nodes come.
fn s145() -> Fleet {
    let nodes = vec![node("a").cidrs(&["10.10.0.0/24"]), node("c").cidrs(&["10.10.2.0/24"])];
    let mut fleet = Fleet::started(settings(&["10.10.0.0/22"], None, &[]), nodes);
    for name in ["b", "d", "e"] {
        fleet.put(node(name));
        fleet.settle();
    }
    fleet
}

#[test]
fn s145_a_node_too_many_is_told_that_there_is_no_block() {
    let mut fleet = s145();
    assert_eq!([fleet.of("b"), fleet.of("d"), fleet.of("e")], ["10.10.1.0/24", "10.10.3.0/24", ""]);
    assert_eq!(fleet.counts(), [[4, 1, 0]]);
    assert_eq!(fleet.told, ["CIDRNotAvailable e"]);
    fleet.put(node("f"));
    let told = fleet.decide(at(0)).events.remove(0);
    assert_eq!(
        (told.message.as_str(), told.kind, told.involved.uid),
        (
            "Node f status is now: CIDRNotAvailable: all 4 blocks of /24 in 10.10.0.0/22 are taken",
            EventType::Warning,
            Some(uid("f")),
        )
    );
}

#[test]
fn s146_a_release_serves_the_node_that_waits_at_once() {
    let mut fleet = s145();
    fleet.remove("b");
    fleet.settle();
    assert_eq!((fleet.of("e").as_str(), fleet.counts()), ("10.10.1.0/24", vec![[4, 0, 0]]));
}

#[test]
fn s147_a_freed_block_is_not_the_next_until_a_restart() {
    let mut fleet = Fleet::started(settings(&["10.10.0.0/16"], None, &[]), vec![node("n1"), node("n2")]);
    fleet.remove("n1");
    fleet.put(node("n3"));
    fleet.settle();
    assert_eq!([fleet.of("n2"), fleet.of("n3")], ["10.10.1.0/24", "10.10.2.0/24"]);
    fleet.restart();
    fleet.put(node("n4"));
    fleet.settle();
    assert_eq!(fleet.of("n4"), "10.10.0.0/24");
}

#[test]
fn s148_each_family_gives_a_block_in_the_order_of_the_flag() {
    for (clusters, expected) in [
        (["10.0.0.0/16", "fd00::/48"], "10.0.0.0/24 fd00::/64"),
        (["fd00::/48", "10.0.0.0/16"], "fd00::/64 10.0.0.0/24"),
    ] {
        let fleet = Fleet::started(settings(&clusters, None, &[]), vec![node("a")]);
        assert_eq!(fleet.of("a"), expected);
    }
}

#[test]
fn s150_a_node_outside_the_cluster_network_stops_the_giving_and_nothing_else() {
    let nodes = vec![node("in").cidrs(&["10.10.0.0/24"]), node("out").cidrs(&["172.10.0.0/24"]), node("new")];
    let mut fleet = Fleet::started(settings(&["10.10.0.0/16"], None, &[]), nodes);
    let failure = "node out holds 172.10.0.0/24, which lies outside the cluster network 10.10.0.0/16: \
                   no blocks are given out until it is deleted or the flags fit";
    assert_eq!(fleet.cidrs.failure().as_deref(), Some(failure));
    assert_eq!((fleet.of("new").as_str(), fleet.counts()), ("", vec![[1, 1, 0]]));
    assert_eq!(fleet.explain("new"), (ExplanationState::Waiting, format!("N{}.", &failure[1..])));
    fleet.put(node("newer"));
    fleet.settle();
    assert_eq!(fleet.of("newer"), "", "it stays so");
    fleet.remove("out");
    fleet.settle();
    assert_eq!((fleet.cidrs.failure(), fleet.of("new").as_str()), (None, "10.10.1.0/24"));
}

#[test]
fn s150_a_second_network_without_a_second_family_stops_the_giving() {
    let nodes = vec![node("a").cidrs(&["10.10.0.0/24", "fd00::/64"]), node("b").cidrs(&["fd00:0:0:1::/64"])];
    let fleet = Fleet::started(settings(&["10.10.0.0/16"], None, &[]), nodes);
    let failure = "node a holds fd00::/64 too, but --cluster-cidr names no network for it (and 1 more such nodes): \
                   no blocks are given out until it is deleted or the flags fit";
    assert_eq!(fleet.cidrs.failure().as_deref(), Some(failure));
}

#[test]
fn s151_fifty_new_nodes_after_a_restart_share_no_block_with_two_hundred_old_ones() {
    let old = (0..200).map(|i| node(&format!("old-{i}"))).collect();
    let mut fleet = Fleet::started(settings(&["10.10.0.0/16"], None, &[]), old);
    fleet.restart();
    for i in 0..50 {
        fleet.put(node(&format!("new-{i}")));
    }
    fleet.settle();
    let cidrs: BTreeSet<Cidr> = fleet.world.nodes().map(|node| node.spec.pod_cidrs[0]).collect();
    assert_eq!((cidrs.len(), fleet.counts()), (250, vec![[250, 0, 0]]));
}

#[test]
fn s152_a_block_is_free_when_the_record_is_gone_not_when_its_deletion_began() {
    let mut fleet = Fleet::started(settings(&["10.10.0.0/24"], None, &[]), vec![node("a")]);
    fleet.put(node("a").cidrs(&["10.10.0.0/24"]).deleting());
    fleet.put(node("b"));
    fleet.settle();
    assert_eq!(fleet.of("b"), "");
    fleet.remove("a");
    fleet.settle();
    assert_eq!(fleet.of("b"), "10.10.0.0/24");
}

#[test]
fn s153_what_an_administrator_chose_is_kept_and_given_to_nobody_else() {
    let mut fleet = Fleet::started(settings(&["10.10.0.0/21"], None, &[]), vec![]);
    fleet.put(node("chosen").cidrs(&["10.10.5.0/24"]));
    for i in 0..8 {
        fleet.put(node(&format!("n{i}")));
    }
    fleet.settle();
    assert_eq!(fleet.of("chosen"), "10.10.5.0/24");
    let given: Vec<String> = (0..8).map(|i| fleet.of(&format!("n{i}"))).collect();
    assert_eq!(given[4..], ["10.10.4.0/24", "10.10.6.0/24", "10.10.7.0/24", ""]);
}

#[test]
fn s154_a_node_that_lacks_one_family_holds_nothing_of_the_other() {
    let mut fleet = Fleet::started(settings(&["10.0.0.0/22", "fd00::/64"], None, &[]), vec![node("a")]);
    fleet.put(node("b"));
    fleet.settle();
    assert_eq!((fleet.of("a").as_str(), fleet.of("b").as_str()), ("10.0.0.0/24 fd00::/64", ""));
    assert_eq!(fleet.told, ["CIDRNotAvailable b"]);
    assert_eq!(fleet.counts(), [[1, 1, 0], [1, 1, 0]]);
    let reason = "The one block of /64 in fd00::/64 is taken; 0 nodes wait before this one for a free block.";
    assert_eq!(fleet.explain("b"), (ExplanationState::Waiting, reason.to_owned()));
    fleet.remove("a");
    fleet.settle();
    assert_eq!(fleet.of("b"), "10.0.1.0/24 fd00::/64", "no block of the first family was skipped");
}

#[test]
fn s155_a_network_of_one_block_serves_one_node_at_a_time() {
    let mut fleet = Fleet::started(settings(&["10.0.0.0/30"], Some(30), &[]), vec![node("a")]);
    fleet.put(node("b"));
    fleet.settle();
    assert_eq!([fleet.of("a"), fleet.of("b")], ["10.0.0.0/30", ""]);
    fleet.remove("a");
    fleet.settle();
    assert_eq!(fleet.of("b"), "10.0.0.0/30");
    fleet.remove("b");
    fleet.put(node("a").identity("again"));
    fleet.settle();
    assert_eq!(fleet.of("a"), "10.0.0.0/30");
}
