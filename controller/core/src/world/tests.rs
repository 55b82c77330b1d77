use super::*;
use crate::fixtures::{key, node, pod, uid};

/// What a step told, in few words: `-a` went, `+a` came, `a` changed.
fn told(deltas: &[Delta]) -> String {
    let one = |old: bool, new: bool, name: &str| match (old, new) {
        (true, true) => name.to_owned(),
        (false, _) => format!("+{name}"),
        (true, false) => format!("-{name}"),
    };
    let words = deltas.iter().map(|delta| match delta {
        Delta::Node(c) => one(c.old.is_some(), c.new.is_some(), c.either().meta.name.as_str()),
        Delta::Pod(c) => one(c.old.is_some(), c.new.is_some(), c.either().meta.name.as_str()),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn pods_on(world: &World, node: &str) -> String {
    world.pods_on(node).map(|pod| pod.meta.name.as_str()).collect::<Vec<_>>().join(" ")
}

#[test]
fn versions_never_go_back() {
    let mut world = World::new();
    assert_eq!(told(&world.apply_node(node("a").at(5).build())), "+a");
    assert_eq!(told(&world.apply_node(node("a").at(5).build())), "", "seen before");
    assert_eq!(told(&world.apply_node(node("a").at(4).build())), "", "older");
    assert_eq!(told(&world.apply_node(node("a").at(6).build())), "a");
    assert_eq!(told(&world.remove_node(&"a".parse().unwrap(), None, 5)), "", "an older one went");
    assert_eq!(told(&world.remove_node(&"a".parse().unwrap(), None, 7)), "-a");
    assert_eq!(world.node_count(), 0);
}

#[test]
fn what_a_deletion_returned_brings_nobody_back() {
    let mut world = World::new();
    world.apply_pod(pod("p").at(5).build());
    assert_eq!(told(&world.learn_pod(pod("p").at(7).build())), "p", "told before the stream does");
    assert_eq!(told(&world.remove_pod(&key("p"), None, 8)), "-p");
    assert_eq!(told(&world.learn_pod(pod("p").at(8).build())), "", "the stream has told of its end");
    world.apply_node(node("a").at(5).build());
    world.remove_node(&"a".parse().unwrap(), None, 9);
    assert_eq!(told(&world.learn_node(node("a").at(9).build())), "");
    assert_eq!((world.node_count(), world.pod_count()), (0, 0));
}

#[test]
fn what_nodes_say_of_themselves_is_counted() {
    use muster_proto::condition::ConditionStatus::{False, True};

    let mut world = World::new();
    let mut tally = |node: Option<Node>| {
        match node {
            Some(node) => world.apply_node(node),
            None => world.remove_node(&"a".parse().unwrap(), None, 99),
        };
        let Tally { ready, not_ready, unknown } = world.tally();
        (ready, not_ready, unknown)
    };
    assert_eq!(tally(Some(node("a").at(1).build())), (0, 0, 1));
    assert_eq!(tally(Some(node("b").at(2).ready(True).build())), (1, 0, 1));
    assert_eq!(tally(Some(node("a").at(3).ready(False).build())), (1, 1, 0));
    assert_eq!(tally(Some(node("a").identity("other").at(4).ready(True).build())), (2, 0, 0));
    assert_eq!(tally(None), (1, 0, 0));
}

#[test]
fn a_namesake_is_another_record() {
    let mut world = World::new();
    world.apply_node(node("a").at(5).build());
    assert_eq!(told(&world.apply_node(node("a").identity("other").at(9).build())), "-a +a");
    assert_eq!(told(&world.remove_node(&"a".parse().unwrap(), Some(uid("a")), 12)), "", "the first is gone");
    assert_eq!(told(&world.remove_node(&"a".parse().unwrap(), Some(uid("other")), 12)), "-a");
}

#[test]
fn pods_are_found_by_the_node_they_name() {
    let mut world = World::new();
    world.apply_pod(pod("p").at(1).build());
    world.apply_pod(pod("q").on("n").at(2).build());
    assert_eq!(pods_on(&world, "n"), "q");
    world.apply_pod(pod("p").on("n").at(3).build());
    assert_eq!(pods_on(&world, "n"), "p q");
    world.apply_pod(pod("p").identity("other").at(4).build());
    assert_eq!(pods_on(&world, "n"), "q", "the namesake is not bound");
    world.remove_pod(&key("q"), None, 9);
    assert_eq!((pods_on(&world, "n").as_str(), world.pod_count()), ("", 1));
    assert!(world.pods_on.is_empty(), "nothing is kept of a node without pods");
}
