use super::*;
use crate::fixtures::node;
use muster_proto::node::Node;
use muster_proto::watch_event::WatchFailure;
use muster_proto::watch_event::WatchFailureKind;

fn applied(name: &str, version: u64) -> WatchEvent<Node> {
    WatchEvent::Applied { record: node(name, version) }
}

fn gone(name: &str, revision: u64) -> WatchEvent<Node> {
    let key = Key::of(&node(name, 0));
    WatchEvent::Gone { key, uid: None, revision, last: None, traceparent: None }
}

fn synced(revision: u64) -> WatchEvent<Node> {
    WatchEvent::Synced { revision }
}

fn lost() -> WatchEvent<Node> {
    let failure =
        WatchFailure { kind: WatchFailureKind::Unreachable, retry_after: None, message: String::new() };
    WatchEvent::Lost(failure)
}

fn after(events: impl IntoIterator<Item = WatchEvent<Node>>) -> Cache<Node> {
    let mut cache = Cache::new();
    for event in events {
        cache.observe(event);
    }
    cache
}

fn content(cache: &Cache<Node>) -> Vec<(&str, u64)> {
    cache.iter().map(|node| (node.meta.name.as_str(), node.meta.resource_version)).collect()
}

#[test]
fn a_cache_holds_the_records_after_all_events() {
    for (what, events, expected, revision) in [
        ("nothing is there before the first list is whole", vec![applied("a", 1)], vec![], 0),
        ("a list", vec![applied("b", 2), applied("a", 1), synced(9)], vec![("a", 1), ("b", 2)], 9),
        ("a change", vec![applied("a", 1), synced(9), applied("a", 10)], vec![("a", 10)], 10),
        ("a deletion", vec![applied("a", 1), synced(9), gone("a", 10)], vec![], 10),
        ("a loss changes nothing", vec![applied("a", 1), synced(9), lost()], vec![("a", 1)], 9),
        (
            "a relist that is not whole changes nothing",
            vec![applied("a", 1), synced(9), lost(), gone("a", 20), applied("b", 15)],
            vec![("a", 1)],
            9,
        ),
        (
            "a relist swaps in whole",
            vec![applied("a", 1), synced(9), lost(), gone("a", 20), applied("b", 15), synced(20)],
            vec![("b", 15)],
            20,
        ),
        (
            "a resume without a relist",
            vec![applied("a", 1), synced(9), lost(), synced(9), applied("b", 10)],
            vec![("a", 1), ("b", 10)],
            10,
        ),
        (
            "an older version is no news",
            vec![synced(9), applied("a", 12), applied("a", 11)],
            vec![("a", 12)],
            12,
        ),
        (
            "a store put back to an older state",
            vec![applied("a", 8), synced(9), lost(), gone("a", 8), applied("a", 3), synced(5)],
            vec![("a", 3)],
            5,
        ),
    ] {
        let cache = after(events);
        assert_eq!(content(&cache), expected, "{what}");
        assert_eq!(cache.revision(), revision, "{what}");
    }
}

#[test]
fn our_own_writes_may_be_ahead_of_the_watch_and_never_go_back() {
    let mut cache = after([applied("a", 1), applied("b", 2), synced(9)]);
    assert!(cache.apply(node("a", 12)));
    assert!(!cache.apply(node("a", 11)), "we hold a newer one");
    cache.observe(applied("a", 10));
    assert_eq!(content(&cache), [("a", 12), ("b", 2)], "the watch is still behind our write");
    cache.observe(gone("a", 11));
    assert_eq!(content(&cache), [("a", 12), ("b", 2)], "what was deleted is the one before ours");
    cache.observe(gone("b", 13));
    assert!(!cache.apply(node("b", 13)), "the watch has passed it by: it is gone");
    assert_eq!(content(&cache), [("a", 12)]);
}

#[test]
fn a_cache_says_whether_it_is_up_to_date() {
    let mut cache = Cache::<Node>::new();
    assert!(!cache.is_synced());
    cache.observe(synced(1));
    assert!(cache.is_synced() && cache.is_empty());
    cache.observe(lost());
    assert!(!cache.is_synced());
    assert_eq!((cache.len(), cache.get(&Key::node("a".parse().unwrap()))), (0, None));
}
