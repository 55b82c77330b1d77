use super::*;
use crate::fixtures::{key, node, pod, uid};

/// The changes of a step: `-a` was removed, `+a` was added, `a` was updated.
fn summary(deltas: &[Delta]) -> String {
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
    assert_eq!(summary(&world.apply_node(node("a").at(5).build())), "+a");
    assert_eq!(summary(&world.apply_node(node("a").at(5).build())), "", "the same version");
    assert_eq!(summary(&world.apply_node(node("a").at(4).build())), "", "older");
    assert_eq!(summary(&world.apply_node(node("a").at(6).build())), "a");
    assert_eq!(summary(&world.remove_node(&"a".parse().unwrap(), None, 5)), "", "the deletion is older");
    assert_eq!(summary(&world.remove_node(&"a".parse().unwrap(), None, 7)), "-a");
    assert_eq!(world.node_count(), 0);
}

#[test]
fn the_record_that_a_deletion_returned_does_not_bring_it_back() {
    let mut world = World::new();
    world.apply_pod(pod("p").at(5).build());
    assert_eq!(
        summary(&world.apply_written_pod(pod("p").at(7).build())),
        "p",
        "before the watch delivers it"
    );
    assert_eq!(summary(&world.remove_pod(&key("p"), None, 8)), "-p");
    assert_eq!(
        summary(&world.apply_written_pod(pod("p").at(8).build())),
        "",
        "the watch has delivered its deletion"
    );
    world.apply_node(node("a").at(5).build());
    world.remove_node(&"a".parse().unwrap(), None, 9);
    assert_eq!(summary(&world.apply_written_node(node("a").at(9).build())), "");
    assert_eq!((world.node_count(), world.pod_count()), (0, 0));
}

#[test]
fn nodes_are_counted_by_their_ready_condition() {
    use muster_proto::condition::ConditionStatus::{False, True};

    let mut world = World::new();
    let mut counts = |node: Option<Node>| {
        match node {
            Some(node) => world.apply_node(node),
            None => world.remove_node(&"a".parse().unwrap(), None, 99),
        };
        let ReadyCounts { ready, not_ready, unknown } = world.ready_counts();
        (ready, not_ready, unknown)
    };
    assert_eq!(counts(Some(node("a").at(1).build())), (0, 0, 1));
    assert_eq!(counts(Some(node("b").at(2).ready(True).build())), (1, 0, 1));
    assert_eq!(counts(Some(node("a").at(3).ready(False).build())), (1, 1, 0));
    assert_eq!(counts(Some(node("a").identity("other").at(4).ready(True).build())), (2, 0, 0));
    assert_eq!(counts(None), (1, 0, 0));
}

#[test]
fn a_record_of_the_same_name_with_another_uid_is_another_record() {
    let mut world = World::new();
    world.apply_node(node("a").at(5).build());
    assert_eq!(summary(&world.apply_node(node("a").identity("other").at(9).build())), "-a +a");
    assert_eq!(
        summary(&world.remove_node(&"a".parse().unwrap(), Some(uid("a")), 12)),
        "",
        "the first was removed before"
    );
    assert_eq!(summary(&world.remove_node(&"a".parse().unwrap(), Some(uid("other")), 12)), "-a");
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
    assert_eq!(pods_on(&world, "n"), "q", "the new pod of that name is not bound");
    world.remove_pod(&key("q"), None, 9);
    assert_eq!((pods_on(&world, "n").as_str(), world.pod_count()), ("", 1));
    assert!(world.pods_on.is_empty(), "no entry is left for a node without pods");
}
