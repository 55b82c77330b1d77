//! The scenarios of the specification, by number.

use super::*;

#[test]
fn s144_the_first_free_block_outside_the_service_range_is_allocated() {
    for (services, expected) in [(&[][..], "127.123.234.0/30"), (&["127.123.234.0/26"], "127.123.234.64/30")]
    {
        let settings = settings(&["127.123.234.0/24"], Some(30), services);
        let harness = Harness::started(settings, vec![node("a")]);
        assert_eq!(harness.of("a"), expected);
        assert_eq!(harness.cidrs.pools()[0].reserved, if services.is_empty() { 0 } else { 16 });
    }
}

/// Four blocks, of which nodes already have the first and third; three more nodes are created.
fn s145() -> Harness {
    let nodes = vec![node("a").cidrs(&["10.10.0.0/24"]), node("c").cidrs(&["10.10.2.0/24"])];
    let mut harness = Harness::started(settings(&["10.10.0.0/22"], None, &[]), nodes);
    for name in ["b", "d", "e"] {
        harness.put(node(name));
        harness.settle();
    }
    harness
}

#[test]
fn s145_a_node_without_a_block_gets_an_event() {
    let mut harness = s145();
    assert_eq!([harness.of("b"), harness.of("d"), harness.of("e")], ["10.10.1.0/24", "10.10.3.0/24", ""]);
    assert_eq!(harness.counts(), [[4, 1, 0]]);
    assert_eq!(harness.events, ["CIDRNotAvailable e"]);
    harness.put(node("f"));
    let event = harness.decide(at(0)).events.remove(0);
    assert_eq!(
        (event.message.as_str(), event.kind, event.involved.uid),
        (
            "Node f status is now: CIDRNotAvailable: all 4 blocks of /24 in 10.10.0.0/22 are taken",
            EventType::Warning,
            Some(uid("f")),
        )
    );
}

#[test]
fn s146_a_released_block_is_allocated_to_the_waiting_node_at_once() {
    let mut harness = s145();
    harness.remove("b");
    harness.settle();
    assert_eq!((harness.of("e").as_str(), harness.counts()), ("10.10.1.0/24", vec![[4, 0, 0]]));
}

#[test]
fn s147_a_released_block_is_not_allocated_next_until_a_restart() {
    let mut harness = Harness::started(settings(&["10.10.0.0/16"], None, &[]), vec![node("n1"), node("n2")]);
    harness.remove("n1");
    harness.put(node("n3"));
    harness.settle();
    assert_eq!([harness.of("n2"), harness.of("n3")], ["10.10.1.0/24", "10.10.2.0/24"]);
    harness.restart();
    harness.put(node("n4"));
    harness.settle();
    assert_eq!(harness.of("n4"), "10.10.0.0/24");
}

#[test]
fn s148_a_node_gets_a_block_of_each_family_in_the_order_of_the_flag() {
    for (clusters, expected) in [
        (["10.0.0.0/16", "fd00::/48"], "10.0.0.0/24 fd00::/64"),
        (["fd00::/48", "10.0.0.0/16"], "fd00::/64 10.0.0.0/24"),
    ] {
        let harness = Harness::started(settings(&clusters, None, &[]), vec![node("a")]);
        assert_eq!(harness.of("a"), expected);
    }
}

#[test]
fn s150_a_node_outside_the_cluster_network_stops_allocation() {
    let nodes = vec![node("in").cidrs(&["10.10.0.0/24"]), node("out").cidrs(&["172.10.0.0/24"]), node("new")];
    let mut harness = Harness::started(settings(&["10.10.0.0/16"], None, &[]), nodes);
    let failure = "node out holds 172.10.0.0/24, which lies outside the cluster network 10.10.0.0/16: \
                   no blocks are given out until it is deleted or the flags fit";
    assert_eq!(harness.cidrs.failure().as_deref(), Some(failure));
    assert_eq!((harness.of("new").as_str(), harness.counts()), ("", vec![[1, 1, 0]]));
    assert_eq!(harness.explain("new"), (ExplanationState::Waiting, format!("N{}.", &failure[1..])));
    harness.put(node("newer"));
    harness.settle();
    assert_eq!(harness.of("newer"), "", "allocation stays stopped");
    harness.remove("out");
    harness.settle();
    assert_eq!((harness.cidrs.failure(), harness.of("new").as_str()), (None, "10.10.1.0/24"));
}

#[test]
fn s150_a_second_network_without_a_second_family_stops_allocation() {
    let nodes = vec![node("a").cidrs(&["10.10.0.0/24", "fd00::/64"]), node("b").cidrs(&["fd00:0:0:1::/64"])];
    let harness = Harness::started(settings(&["10.10.0.0/16"], None, &[]), nodes);
    let failure = "node a holds fd00::/64 too, but --cluster-cidr names no network for it (and 1 more such nodes): \
                   no blocks are given out until it is deleted or the flags fit";
    assert_eq!(harness.cidrs.failure().as_deref(), Some(failure));
}

#[test]
fn s151_fifty_new_nodes_after_a_restart_share_no_block_with_two_hundred_old_ones() {
    let old = (0..200).map(|i| node(&format!("old-{i}"))).collect();
    let mut harness = Harness::started(settings(&["10.10.0.0/16"], None, &[]), old);
    harness.restart();
    for i in 0..50 {
        harness.put(node(&format!("new-{i}")));
    }
    harness.settle();
    let cidrs: BTreeSet<Cidr> = harness.world.nodes().map(|node| node.spec.pod_cidrs[0]).collect();
    assert_eq!((cidrs.len(), harness.counts()), (250, vec![[250, 0, 0]]));
}

#[test]
fn s152_a_block_is_free_when_the_record_is_gone_not_when_its_deletion_began() {
    let mut harness = Harness::started(settings(&["10.10.0.0/24"], None, &[]), vec![node("a")]);
    harness.put(node("a").cidrs(&["10.10.0.0/24"]).deleting());
    harness.put(node("b"));
    harness.settle();
    assert_eq!(harness.of("b"), "");
    harness.remove("a");
    harness.settle();
    assert_eq!(harness.of("b"), "10.10.0.0/24");
}

#[test]
fn s153_a_network_chosen_by_an_administrator_is_kept_and_never_allocated() {
    let mut harness = Harness::started(settings(&["10.10.0.0/21"], None, &[]), vec![]);
    harness.put(node("chosen").cidrs(&["10.10.5.0/24"]));
    for i in 0..8 {
        harness.put(node(&format!("n{i}")));
    }
    harness.settle();
    assert_eq!(harness.of("chosen"), "10.10.5.0/24");
    let given: Vec<String> = (0..8).map(|i| harness.of(&format!("n{i}"))).collect();
    assert_eq!(given[4..], ["10.10.4.0/24", "10.10.6.0/24", "10.10.7.0/24", ""]);
}

#[test]
fn s154_a_node_without_a_block_of_one_family_holds_none_of_the_other() {
    let mut harness = Harness::started(settings(&["10.0.0.0/22", "fd00::/64"], None, &[]), vec![node("a")]);
    harness.put(node("b"));
    harness.settle();
    assert_eq!((harness.of("a").as_str(), harness.of("b").as_str()), ("10.0.0.0/24 fd00::/64", ""));
    assert_eq!(harness.events, ["CIDRNotAvailable b"]);
    assert_eq!(harness.counts(), [[1, 1, 0], [1, 1, 0]]);
    let reason = "The one block of /64 in fd00::/64 is taken; 0 nodes wait before this one for a free block.";
    assert_eq!(harness.explain("b"), (ExplanationState::Waiting, reason.to_owned()));
    harness.remove("a");
    harness.settle();
    assert_eq!(harness.of("b"), "10.0.1.0/24 fd00::/64", "no block of the first family was skipped");
}

#[test]
fn s155_a_network_of_one_block_serves_one_node_at_a_time() {
    let mut harness = Harness::started(settings(&["10.0.0.0/30"], Some(30), &[]), vec![node("a")]);
    harness.put(node("b"));
    harness.settle();
    assert_eq!([harness.of("a"), harness.of("b")], ["10.0.0.0/30", ""]);
    harness.remove("a");
    harness.settle();
    assert_eq!(harness.of("b"), "10.0.0.0/30");
    harness.remove("b");
    harness.put(node("a").identity("again"));
    harness.settle();
    assert_eq!(harness.of("a"), "10.0.0.0/30");
}
