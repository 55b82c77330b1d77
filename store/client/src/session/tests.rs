use std::time::Duration;

use super::*;
use crate::fixtures::{node, uid};
use muster_proto::node::Node;

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

fn at(millis: u64) -> Mono {
    Mono::since_origin(Duration::from_millis(millis))
}

fn key(name: &str) -> Key {
    Key::of(&node(name, 0))
}

fn listed(nodes: &[(&str, u64)], revision: u64) -> Outcome<Node> {
    let records = nodes.iter().map(|(name, version)| node(name, *version)).collect();
    Outcome::Listed { records, unreadable: Vec::new(), revision }
}

fn put(name: &str, version: u64) -> Change<Node> {
    Change::Put { record: node(name, version) }
}

fn delete(name: &str, version: u64) -> Change<Node> {
    let last = Some(node(name, version));
    Change::Delete { key: key(name), version, last, traceparent: Some("t".into()) }
}

fn changes<const N: usize>(changes: [Change<Node>; N]) -> Outcome<Node> {
    Outcome::Changes(changes.into())
}

fn bookmark(version: u64) -> Change<Node> {
    Change::Bookmark { version }
}

fn failure(kind: WatchFailureKind) -> WatchFailure {
    WatchFailure { kind, retry_after: None, message: "why".into() }
}

fn failed(kind: WatchFailureKind) -> Outcome<Node> {
    Outcome::Failed(failure(kind))
}

fn synced(revision: u64) -> String {
    format!("synced {revision}")
}

#[test]
fn the_existing_records_of_a_store_that_was_empty_come_in_any_order() {
    let mut session = Session::new(BACKOFF);
    let mut observe = |outcome: Outcome<Node>| -> Vec<String> {
        session.observe(outcome, at(0), 0.0).iter().map(word).collect()
    };
    assert_eq!(observe(listed(&[], 0)), ["synced 0"]);
    assert_eq!(observe(Outcome::Opened), [""; 0]);
    // Ordered by name, as in a list; the record written first comes last.
    assert_eq!(observe(changes([put("a", 9), put("b", 3)])), ["a at 9", "b at 3"]);
    assert_eq!(observe(failed(WatchFailureKind::Unreachable)), ["lost: Unreachable"]);
    let again = session.ask(at(1_000_000));
    assert_eq!(again, Ask::List, "who was cut off half way cannot know what went meanwhile");
    let mut observe = |outcome: Outcome<Node>| -> Vec<String> {
        session.observe(outcome, at(1_000_000), 0.0).iter().map(word).collect()
    };
    assert_eq!(observe(listed(&[("b", 3), ("c", 1)], 10)), ["a gone at 10", "c at 1", "synced 10"]);
    assert_eq!(session.ask(at(1_000_000)), Ask::Watch { after: 10 });
}

#[test]
fn after_the_existing_records_versions_only_grow() {
    let mut session = Session::new(BACKOFF);
    let mut observe = |outcome: Outcome<Node>| -> Vec<String> {
        session.observe(outcome, at(0), 0.0).iter().map(word).collect()
    };
    observe(listed(&[], 0));
    observe(Outcome::Opened);
    let present = changes([put("a", 9), put("b", 3), put("c", 1), bookmark(9), put("a", 10), put("b", 8)]);
    assert_eq!(observe(present), ["a at 9", "b at 3", "c at 1", "a at 10"]);
    assert_eq!(session.ask(at(0)), Ask::Watch { after: 10 });
}

#[test]
fn with_progress_bookmarks_are_reported() {
    for (progress, quiet) in [(false, vec![]), (true, vec![synced(9)])] {
        let mut session = Session::new(BACKOFF).with_progress(progress);
        let mut observe = |outcome: Outcome<Node>| -> Vec<String> {
            session.observe(outcome, at(0), 0.0).iter().map(word).collect()
        };
        observe(listed(&[("a", 3)], 5));
        observe(Outcome::Opened);
        assert_eq!(observe(changes([put("a", 7)])), ["a at 7"], "a change says it by itself");
        assert_eq!(observe(changes([bookmark(9)])), quiet);
        assert_eq!(observe(changes([bookmark(8)])), [""; 0], "it never goes back");
    }
}

/// An event as a short text, for the tables below.
fn word(event: &WatchEvent<Node>) -> String {
    match event {
        WatchEvent::Synced { revision } => synced(*revision),
        WatchEvent::Applied { record } => format!("{} at {}", record.meta.name, record.meta.resource_version),
        WatchEvent::Gone { key, revision, last, .. } => {
            let last = if last.is_some() { " with content" } else { "" };
            format!("{key} gone at {revision}{last}")
        }
        WatchEvent::Lost(failure) => format!("lost: {:?}", failure.kind),
    }
}

/// A session after these outcomes, one every millisecond from 1 on.
fn after(outcome: impl IntoIterator<Item = Outcome<Node>>) -> Session {
    let mut session = Session::new(BACKOFF);
    for (i, outcome) in outcome.into_iter().enumerate() {
        session.observe(outcome, at(i as u64 + 1), 0.0);
    }
    session
}

/// In each state: what each outcome leads to.
#[test]
fn every_transition() {
    use WatchFailureKind::*;
    let listing = || after([]);
    let listing_again = || after([failed(Unreachable)]);
    let to_watch = || after([listed(&[("a", 3)], 5)]);
    let watching = || after([listed(&[("a", 3)], 5), Outcome::Opened, changes([put("b", 6)])]);
    let idle = || after([listed(&[("a", 3)], 5), Outcome::Opened]);
    let lost = || {
        let before = [listed(&[("a", 3)], 5), Outcome::Opened, changes([put("b", 6)])];
        after(before.into_iter().chain([failed(Unreachable)]))
    };
    let list = Ask::List;
    let watch = |after| Ask::Watch { after };
    let wait = |millis: u64| Ask::Wait { until: at(1_000 + millis) };

    type Row = (&'static str, Session, Outcome<Node>, Vec<&'static str>, Ask);
    let table: Vec<Row> = vec![
        ("listing, listed", listing(), listed(&[("a", 3)], 5), vec!["a at 3", "synced 5"], watch(5)),
        ("listing, an empty list", listing(), listed(&[], 5), vec!["synced 5"], watch(5)),
        ("listing, failed", listing(), failed(Unreachable), vec!["lost: Unreachable"], wait(100)),
        ("listing, refused", listing(), failed(Refused), vec!["lost: Refused"], wait(100)),
        ("listing, a page expired", listing(), failed(Expired), vec!["lost: Expired"], wait(100)),
        (
            "listing again, failed again",
            listing_again(),
            failed(Unreachable),
            vec!["lost: Unreachable"],
            wait(200),
        ),
        ("listing again, listed", listing_again(), listed(&[], 5), vec!["synced 5"], watch(5)),
        ("listed, opened", to_watch(), Outcome::Opened, vec![], watch(5)),
        ("listed, not opened", to_watch(), failed(Unreachable), vec!["lost: Unreachable"], wait(100)),
        ("listed, already expired: no hurry", to_watch(), failed(Expired), vec!["lost: Expired"], wait(100)),
        ("watching, a change", watching(), changes([put("a", 7)]), vec!["a at 7"], watch(7)),
        (
            "watching, a deletion",
            watching(),
            changes([delete("a", 7)]),
            vec!["a gone at 7 with content"],
            watch(7),
        ),
        ("watching, a bookmark", watching(), changes([bookmark(9)]), vec![], watch(9)),
        ("watching, a bookmark of the past", watching(), changes([bookmark(2)]), vec![], watch(6)),
        ("watching, a change", watching(), changes([put("b", 6)]), vec![], watch(6)),
        ("watching, what the list had", watching(), changes([put("a", 3)]), vec![], watch(6)),
        (
            "watching, a deletion of an unknown record",
            watching(),
            changes([delete("z", 7)]),
            vec![],
            watch(7),
        ),
        ("watching, ended in peace", watching(), Outcome::Ended, vec![], watch(6)),
        ("watching, broken", watching(), failed(Unreachable), vec!["lost: Unreachable"], wait(100)),
        ("watching, expired", watching(), failed(Expired), vec!["lost: Expired"], list),
        ("idle, ended at once", idle(), Outcome::Ended, vec!["lost: Unreachable"], wait(100)),
        ("lost, opened", lost(), Outcome::Opened, vec!["synced 6"], watch(6)),
        ("lost, failed again", lost(), failed(Unreachable), vec!["lost: Unreachable"], wait(200)),
        ("lost, expired", lost(), failed(Expired), vec!["lost: Expired"], list),
        ("lost, ahead of the store", lost(), failed(FutureVersion), vec!["lost: FutureVersion"], wait(200)),
        (
            "lost, listed later with an older version: the store was restored",
            after([
                listed(&[("a", 3)], 5),
                Outcome::Opened,
                changes([put("b", 6), put("a", 7)]),
                failed(Expired),
            ]),
            listed(&[("a", 3), ("b", 6)], 90),
            vec!["a gone at 90", "a at 3", "synced 90"],
            watch(90),
        ),
        ("lost, changes from nowhere", lost(), changes([put("c", 9)]), vec![], watch(6)),
    ];
    for (what, mut session, outcome, expected, ask) in table {
        let events = session.observe(outcome, at(1_000), 0.0);
        assert_eq!(events.iter().map(word).collect::<Vec<_>>(), expected, "{what}");
        assert_eq!(session.ask(at(1_000)), ask, "{what}");
    }
}

#[test]
fn a_retry_is_due_when_its_wait_is_over() {
    let cut_off = after([failed(WatchFailureKind::Unreachable)]);
    assert_eq!(cut_off.ask(at(100)), Ask::Wait { until: at(101) });
    assert_eq!(cut_off.ask(at(101)), Ask::List);
    let lost = after([listed(&[], 5), failed(WatchFailureKind::Unreachable)]);
    assert_eq!(lost.ask(at(101)), Ask::Wait { until: at(102) });
    assert_eq!(lost.ask(at(102)), Ask::Watch { after: 5 });
}

#[test]
fn the_store_may_ask_for_a_longer_wait_and_jitter_shortens_ours() {
    for (retry_after, jitter, expected) in
        [(None, 0.0, 100), (None, 1.0, 50), (Some(1_000), 1.0, 1_000), (Some(7), 0.0, 100)]
    {
        let mut session = Session::new(BACKOFF);
        let retry_after = retry_after.map(Duration::from_millis);
        let failure = WatchFailure { retry_after, ..failure(WatchFailureKind::Unreachable) };
        session.observe::<Node>(Outcome::Failed(failure), at(0), jitter);
        assert_eq!(session.ask(at(0)), Ask::Wait { until: at(expected) }, "{retry_after:?}, {jitter}");
    }
}

#[test]
fn waits_grow_until_a_stream_works() {
    let mut session = after([listed(&[], 5)]);
    let mut wait = |outcome: Outcome<Node>, now| {
        session.observe(outcome, at(now), 0.0);
        match session.ask(at(now)) {
            Ask::Wait { until } => (until - at(now)).as_millis(),
            _ => 0,
        }
    };
    assert_eq!(wait(failed(WatchFailureKind::Unreachable), 1_000), 100);
    assert_eq!(wait(failed(WatchFailureKind::Unreachable), 2_000), 200);
    assert_eq!(wait(Outcome::Opened, 3_000), 0);
    assert_eq!(wait(Outcome::Ended, 3_001), 400, "opening alone proves nothing: it would be a busy loop");
    assert_eq!(wait(Outcome::Opened, 4_000), 0);
    assert_eq!(wait(Outcome::Ended, 14_000), 0, "a quiet stream that lasted was a good one");
    assert_eq!(wait(failed(WatchFailureKind::Unreachable), 15_000), 100);
    assert_eq!(wait(Outcome::Opened, 16_000), 0);
    assert_eq!(wait(changes([bookmark(6)]), 16_001), 0);
    assert_eq!(
        wait(failed(WatchFailureKind::Unreachable), 16_002),
        100,
        "so was a watch that delivered something"
    );
}

#[test]
fn a_relist_reports_changed_and_vanished_records_and_no_others() {
    let before = [listed(&[("a", 1), ("b", 2), ("c", 3), ("d", 4)], 5), Outcome::Opened];
    let mut session =
        after(before.into_iter().chain([changes([put("e", 6)]), failed(WatchFailureKind::Expired)]));
    assert_eq!(session.ask(at(100)), Ask::List);

    let mut another_d = node("d", 12);
    another_d.meta.uid = Some(uid(99));
    let records = vec![node("b", 2), node("c", 9), another_d, node("f", 11)];
    let events =
        session.observe(Outcome::Listed { records, unreadable: vec![key("e")], revision: 20 }, at(100), 0.0);
    assert_eq!(
        events.iter().map(word).collect::<Vec<_>>(),
        ["a gone at 20", "d gone at 20", "c at 9", "d at 12", "f at 11", "synced 20"],
        "b is as it was, e cannot be read but is there, d is another d"
    );
    assert!(matches!(&events[1], WatchEvent::Gone { uid: gone, .. } if *gone == Some(uid(b'd'))));
    assert_eq!(session.ask(at(100)), Ask::Watch { after: 20 });

    session.observe::<Node>(Outcome::Opened, at(101), 0.0);
    let events = session.observe(changes([delete("e", 21)]), at(102), 0.0);
    assert_eq!(events.iter().map(word).collect::<Vec<_>>(), ["e gone at 21 with content"]);
}

#[test]
fn no_version_is_reported_twice_even_if_a_store_repeats_it() {
    let mut session = after([listed(&[("a", 3)], 5), Outcome::Opened]);
    let batch =
        [put("a", 4), put("a", 6), put("b", 6), put("a", 6), delete("b", 7), put("b", 6), delete("b", 7)];
    let events = session.observe(changes(batch), at(10), 0.0);
    assert_eq!(
        events.iter().map(word).collect::<Vec<_>>(),
        ["a at 6", "b at 6", "b gone at 7 with content"],
        "one revision may write several records"
    );
    assert_eq!(session.ask(at(10)), Ask::Watch { after: 7 });
}

#[test]
fn a_list_that_keeps_expiring_is_retried_with_backoff() {
    let mut session = after([listed(&[], 5), Outcome::Opened, changes([put("a", 6)])]);
    let mut now = 1_000;
    for expected in [0, 200, 400, 800] {
        session.observe::<Node>(failed(WatchFailureKind::Expired), at(now), 0.0);
        let until = at(now + expected);
        let ask = if expected == 0 { Ask::List } else { Ask::Wait { until } };
        assert_eq!(session.ask(at(now)), ask);
        now += expected;
        assert_eq!(session.ask(at(now)), Ask::List);
        session.observe(listed(&[("a", 6)], now), at(now), 0.0);
    }
}

#[test]
fn a_store_that_was_restored_is_listed_and_reported_again() {
    let mut session = after([listed(&[("a", 3), ("b", 4)], 5), Outcome::Opened, changes([put("a", 9)])]);
    for _ in 0..2 {
        session.observe::<Node>(failed(WatchFailureKind::FutureVersion), at(10), 0.0);
        assert_eq!(session.ask(at(60_000)), Ask::Watch { after: 9 }, "it may only be behind");
    }
    session.observe::<Node>(failed(WatchFailureKind::FutureVersion), at(10), 0.0);
    assert_eq!(session.ask(at(60_000)), Ask::List);
    let events = session.observe(listed(&[("a", 3), ("b", 4)], 6), at(60_000), 0.0);
    assert_eq!(
        events.iter().map(word).collect::<Vec<_>>(),
        ["a gone at 9", "b gone at 6", "a at 3", "b at 4", "synced 6"]
    );
    assert_eq!(session.ask(at(60_000)), Ask::Watch { after: 6 });
}
