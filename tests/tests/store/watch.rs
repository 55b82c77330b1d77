//! Lists and watches: events, their order and where they start (scenarios 18-22, 29).

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

use std::time::Duration;

use futures_util::StreamExt;
use muster_proto::key::Key;
use muster_proto::pb;
use muster_proto::watch_event::WatchEvent;
use muster_proto::wellknown::annotation::INITIAL_EVENTS_END;
use muster_rpc::clock::SystemClock;
use muster_store_client::{DeleteOptions, ListOptions, WatchOptions};
use muster_tests::fixtures::*;
use muster_tests::{
    Api, ListQuery, ReceivedEvent, Resource, TIMEOUT, TestStore, WatchQuery, eventually, in_time,
};
use tonic::Code;

/// Flags of a store that removes history as soon as possible.
const NO_HISTORY: [&str; 2] = ["--history-min-age=0", "--history-min-changes=0"];

fn from(version: u64) -> WatchQuery {
    WatchQuery { version, ..Default::default() }
}

#[tokio::test]
async fn s018_a_watch_sends_every_write_once_and_in_order() {
    let store = TestStore::start().await;
    let api = store.api();
    api.create(node("before")).await.unwrap();
    let v = api.revision().await;
    let mut live = api.watch::<pb::Node>(from(v)).await.unwrap();

    let a = api.create(node("a")).await.unwrap();
    let b = api.update(a.clone().label("zone", "b")).await.unwrap();
    let c = api.delete::<pb::Node>("a").await.unwrap();
    assert_eq!([a.version(), b.version(), c.version()], [v + 1, v + 2, v + 3]);
    let mut resumed = api.watch::<pb::Node>(from(v)).await.unwrap();
    // Writes of other kinds take versions too, but are not sent on this watch.
    api.create(pod("p")).await.unwrap();
    let last = api.create(node("last")).await.unwrap();

    let expected = [
        format!("ADDED a {}", v + 1),
        format!("MODIFIED a {}", v + 2),
        format!("DELETED a {}", v + 3),
        format!("ADDED last {}", last.version()),
    ];
    assert_eq!(live.summaries(4).await, expected, "live");
    let history = resumed.take(4).await;
    assert_eq!(history.iter().map(ReceivedEvent::summary).collect::<Vec<_>>(), expected, "and from history");
    assert_eq!(history[0].record, a, "each event has the record of its version");
    assert_eq!(history[1].record, b);
    assert_eq!(
        history[2].record.metadata.as_ref().unwrap().labels["zone"],
        "b",
        "a deletion has the last content"
    );

    let mut later = api.watch::<pb::Node>(from(v + 2)).await.unwrap();
    assert_eq!(later.summaries(2).await, expected[2..], "from the middle");
}

#[tokio::test]
async fn s018_a_watch_without_a_version_starts_with_the_current_records() {
    let store = TestStore::start().await;
    let api = store.api();
    let a = api.create(node("a")).await.unwrap();
    let b = api.create(node("b")).await.unwrap();
    let a = api.update(a.label("zone", "a")).await.unwrap();
    let mut watch = api.watch::<pb::Node>(from(0)).await.unwrap();
    let mut received = watch.summaries(2).await;
    received.sort();
    assert_eq!(received, [format!("ADDED a {}", a.version()), format!("ADDED b {}", b.version())]);
    let c = api.create(node("c")).await.unwrap();
    assert_eq!(watch.summaries(1).await, [format!("ADDED c {}", c.version())]);
}

#[tokio::test]
async fn s019_a_selected_node_is_added_when_it_starts_to_match_and_deleted_when_it_stops() {
    let store = TestStore::start().await;
    let api = store.api();
    let created = api.create(node("n")).await.unwrap();
    let zone_a = WatchQuery { labels: "zone=a", ..from(created.version()) };
    let mut watch = api.watch::<pb::Node>(zone_a.clone()).await.unwrap();

    let gained = api.update(created.label("zone", "a")).await.unwrap();
    let modified = api.update(gained.clone().label("x", "y")).await.unwrap();
    let lost = api.update(modified.clone().without_label("zone").label("x", "z")).await.unwrap();
    api.update(lost.clone().label("x", "unseen")).await.unwrap();
    let back = api.update(lost.clone().at(0).label("zone", "a")).await.unwrap();
    let deleted = api.delete::<pb::Node>("n").await.unwrap();

    for (name, mut watch) in [("live", watch.take(5).await), ("resumed", resumed(&api, zone_a).await)] {
        let received: Vec<_> = watch.iter().map(ReceivedEvent::summary).collect();
        let expected = [
            format!("ADDED n {}", gained.version()),
            format!("MODIFIED n {}", modified.version()),
            format!("DELETED n {}", lost.version()),
            format!("ADDED n {}", back.version()),
            format!("DELETED n {}", deleted.version()),
        ];
        assert_eq!(received, expected, "{name}");
        let left = watch.remove(2).record;
        assert_eq!(
            left,
            modified.clone().at(lost.version()),
            "{name}: the content before it stopped matching"
        );
    }
}

async fn resumed(api: &Api, follow: WatchQuery) -> Vec<ReceivedEvent<pb::Node>> {
    api.watch(follow).await.unwrap().take(5).await
}

#[tokio::test]
async fn s019_a_watch_by_node_name_sends_only_the_pods_of_that_node() {
    let store = TestStore::start().await;
    let api = store.api();
    let v = api.create(node("n1")).await.unwrap().version();
    let mine = WatchQuery { fields: "spec.nodeName=n1", ..from(v) };
    let mut watch = api.watch::<pb::Pod>(mine.clone()).await.unwrap();
    api.create(pod("other").on("n2")).await.unwrap();
    api.create(pod("mine")).await.unwrap();
    let bound = api.bind("default/mine", "n1", Default::default()).await.unwrap();
    let running = api.update_status(bound.clone().running("True")).await.unwrap();
    api.create(pod("third").on("n2")).await.unwrap();
    let gone = muster_tests::Deletion { grace: Some(0), ..Default::default() };
    let gone = api.delete_with::<pb::Pod>("default/mine", gone).await.unwrap();
    let expected = [
        format!("ADDED mine {}", bound.version()),
        format!("MODIFIED mine {}", running.version()),
        format!("DELETED mine {}", gone.version()),
    ];
    assert_eq!(watch.summaries(3).await, expected);
    assert_eq!(api.watch::<pb::Pod>(mine).await.unwrap().summaries(3).await, expected, "and from history");
}

#[tokio::test]
async fn s019_a_watch_of_unscheduled_pods_sends_a_deletion_when_a_pod_is_bound() {
    let store = TestStore::start().await;
    let api = store.api();
    let v = api.create(pod("placed").on("n1")).await.unwrap().version();
    let waiting = WatchQuery { fields: "spec.nodeName=", ..from(v) };
    let mut watch = api.watch::<pb::Pod>(waiting.clone()).await.unwrap();
    let created = api.create(pod("new")).await.unwrap();
    let bound = api.bind("default/new", "n1", Default::default()).await.unwrap();
    let left = api.create(pod("left")).await.unwrap();
    let expected = [
        format!("ADDED new {}", created.version()),
        format!("DELETED new {}", bound.version()),
        format!("ADDED left {}", left.version()),
    ];
    assert_eq!(watch.summaries(3).await, expected);
    assert_eq!(api.watch::<pb::Pod>(waiting).await.unwrap().summaries(3).await, expected, "and from history");
    let without = ListQuery { fields: "spec.nodeName=", ..Default::default() };
    assert_eq!(api.list::<pb::Pod>(without).await.unwrap().records, [left]);
}

#[tokio::test]
async fn s020_a_watch_older_than_history_is_expired_and_a_new_list_works() {
    let store = TestStore::with_flags(&NO_HISTORY).await;
    let api = store.api();
    let first = api.create(node("a")).await.unwrap();
    let mut changed = first.clone();
    for value in ["b", "c", "d"] {
        changed = api.update(changed.label("zone", value)).await.unwrap();
    }
    // The writer removes history at its next maintenance.
    let error = eventually(TIMEOUT, "history is removed", || async {
        let opened = api.watch::<pb::Node>(from(first.version())).await;
        match opened {
            Err(status) => Some(muster_tests::RpcError::from(&status)),
            Ok(_) => None,
        }
    })
    .await;
    error.is(Code::OutOfRange, "EXPIRED").mentions("Expired").mentions("list again");

    let page = api.list::<pb::Node>(ListQuery::default()).await.unwrap();
    assert_eq!(page.records, [changed.clone()]);
    let mut watch = api.watch::<pb::Node>(from(page.version)).await.unwrap();
    let last = api.update(changed.label("zone", "e")).await.unwrap();
    assert_eq!(watch.summaries(1).await, [format!("MODIFIED a {}", last.version())]);
}

#[tokio::test]
async fn s020_an_exact_list_older_than_history_is_expired() {
    let store = TestStore::with_flags(&NO_HISTORY).await;
    let api = store.api();
    let first = api.create(node("a")).await.unwrap();
    let second = api.update(first.clone().label("zone", "b")).await.unwrap();
    api.update(second.label("zone", "c")).await.unwrap();
    let exactly = ListQuery { version: first.version(), version_match: "Exact", ..Default::default() };
    let error = eventually(TIMEOUT, "history is removed", || async {
        let listed = api.list::<pb::Node>(exactly.clone()).await;
        listed.err().map(|status| muster_tests::RpcError::from(&status))
    })
    .await;
    error.is(Code::OutOfRange, "EXPIRED");
    let at_least = ListQuery { version: first.version(), ..Default::default() };
    assert_eq!(api.list::<pb::Node>(at_least).await.unwrap().version, api.revision().await);
}

#[tokio::test]
async fn old_history_is_removed_even_without_writes() {
    let store = TestStore::with_flags(&NO_HISTORY).await;
    let api = store.api();
    let first = api.create(node("a")).await.unwrap();
    api.create(node("b")).await.unwrap();
    // A creation has no older record to remove, but it is a change in history too.
    let exactly = ListQuery { version: first.version(), version_match: "Exact", ..Default::default() };
    let error = eventually(TIMEOUT, "history is removed", || async {
        let listed = api.list::<pb::Node>(exactly.clone()).await;
        listed.err().map(|status| muster_tests::RpcError::from(&status))
    })
    .await;
    error.is(Code::OutOfRange, "EXPIRED");
}

#[tokio::test]
async fn s021_a_watch_can_start_with_the_current_records_and_a_bookmark_after_them() {
    let store = TestStore::start().await;
    let api = store.api();
    let a = api.create(node("a")).await.unwrap();
    let b = api.create(node("b")).await.unwrap();
    api.create(pod("p")).await.unwrap();
    let head = api.revision().await;
    let asked = WatchQuery { initial_events: true, version_match: "NotOlderThan", ..Default::default() };
    for version in [0, b.version()] {
        let mut watch = api.watch::<pb::Node>(WatchQuery { version, ..asked.clone() }).await.unwrap();
        let initial = watch.take(3).await;
        assert_eq!(initial[0], ReceivedEvent { kind: "ADDED".to_owned(), record: a.clone() });
        assert_eq!(initial[1], ReceivedEvent { kind: "ADDED".to_owned(), record: b.clone() });
        let end = &initial[2];
        assert_eq!(end.kind, "BOOKMARK");
        let metadata = end.record.metadata.clone().unwrap();
        assert_eq!(metadata.annotations[INITIAL_EVENTS_END], "true");
        assert_eq!((metadata.resource_version, metadata.name.as_str()), (head, ""));
        assert_eq!((&end.record.spec, &end.record.status), (&None, &None), "a bookmark has only a version");
    }
    let mut watch = api.watch::<pb::Node>(asked.clone()).await.unwrap();
    watch.take(3).await;
    let c = api.create(node("c")).await.unwrap();
    assert_eq!(watch.summaries(1).await, [format!("ADDED c {}", c.version())], "then live");

    for (initial_events, version_match) in
        [(true, ""), (true, "Exact"), (false, "NotOlderThan"), (false, "Exact"), (true, "exactly")]
    {
        let wrong = WatchQuery { initial_events, version_match, ..Default::default() };
        let error = api.expect_error(api.watch::<pb::Node>(wrong)).await;
        error.is(Code::InvalidArgument, "INVALID");
        assert!(error.fields.iter().all(|field| field == "resourceVersionMatch"), "{error:?}");
    }
}

#[tokio::test]
async fn a_watch_ends_after_its_timeout_with_a_last_bookmark() {
    let store = TestStore::start().await;
    let api = store.api();
    let a = api.create(node("a")).await.unwrap();
    let asked = WatchQuery { seconds: 5, bookmarks: true, ..from(a.version()) };
    let mut watch = api.watch::<pb::Node>(asked.clone()).await.unwrap();
    let mut plain = api.watch::<pb::Node>(WatchQuery { bookmarks: false, ..asked }).await.unwrap();
    // A pod does not wake a watch of nodes.
    api.create(pod("p")).await.unwrap();
    assert_eq!(watch.summaries(1).await, [format!("BOOKMARK  {}", api.revision().await)]);
    assert_eq!(watch.end().await, None);
    assert_eq!(plain.end().await, None);
}

#[tokio::test]
async fn s022_a_version_that_the_store_has_not_reached_is_refused_after_a_wait() {
    let store = TestStore::start().await;
    let api = store.api();
    let future = api.revision().await + 1_000_000;
    let clock = SystemClock::shared();
    for version_match in ["", "Exact"] {
        let started = clock.mono();
        let query = ListQuery { version: future, version_match, ..Default::default() };
        let error = api.expect_error(api.list::<pb::Node>(query)).await;
        error.is(Code::Unavailable, "RESOURCE_VERSION_TOO_LARGE").mentions("ResourceVersionTooLarge");
        assert_eq!(error.retry_after, Some(Duration::from_secs(1)));
        let waited = clock.mono() - started;
        let expected = Duration::from_millis(2_500)..Duration::from_secs(20);
        assert!(expected.contains(&waited), "{version_match}: answered after {waited:?}");
    }
    let error = api.expect_error(api.watch::<pb::Node>(from(future))).await;
    error.is(Code::Unavailable, "RESOURCE_VERSION_TOO_LARGE");

    // A version that is reached during the wait is answered.
    let soon = ListQuery { version: api.revision().await + 1, ..Default::default() };
    let listing = api.list::<pb::Node>(soon.clone());
    let (listed, created) = tokio::join!(listing, api.create(node("a")));
    let listed = listed.unwrap();
    assert_eq!((listed.version, listed.records), (soon.version, vec![created.unwrap()]));
}

#[tokio::test]
async fn s029_a_restart_loses_nothing_and_reuses_no_version() {
    let store = TestStore::start().await;
    let api = store.api();
    let start = api.revision().await;
    let mut middle = 0;
    for i in 0..50 {
        let created = api.create(node(&format!("n{i:02}"))).await.unwrap();
        api.update(created.label("round", "two")).await.unwrap();
        if i == 20 {
            middle = api.revision().await;
        }
    }
    api.delete::<pb::Node>("n00").await.unwrap();
    api.create(pod("p").on("n1")).await.unwrap();
    let before = api.list::<pb::Node>(ListQuery::default()).await.unwrap();
    let pods = api.list::<pb::Pod>(ListQuery::default()).await.unwrap();
    assert_eq!(before.version, start + 102);
    let received = api.watch::<pb::Node>(from(middle)).await.unwrap().take(59).await;

    let store = store.restart().await;
    let api = store.api();
    let after = api.list::<pb::Node>(ListQuery::default()).await.unwrap();
    assert_eq!(after, before, "the same records at the same version");
    assert_eq!(api.list::<pb::Pod>(ListQuery::default()).await.unwrap(), pods);
    let then = ListQuery { version: middle, version_match: "Exact", ..Default::default() };
    assert_eq!(api.list::<pb::Node>(then).await.unwrap().records.len(), 21, "history can be read too");

    let mut watch = api.watch::<pb::Node>(from(middle)).await.unwrap();
    let next = api.create(node("next")).await.unwrap();
    assert_eq!(next.version(), before.version + 1);
    let resumed = watch.take(60).await;
    assert_eq!(resumed[..59], received, "the same events as before the restart");
    assert_eq!(store.replays_from_disk(), 0, "the events are in memory since the start");
    assert_eq!(resumed[59].summary(), format!("ADDED next {}", next.version()));
}

#[tokio::test]
async fn a_watch_ends_without_an_error_when_the_store_stops() {
    let store = TestStore::start().await;
    let api = store.api();
    let a = api.create(node("a")).await.unwrap();
    let follow = WatchQuery { bookmarks: true, ..from(a.version()) };
    let mut watch = api.watch::<pb::Node>(follow).await.unwrap();
    drop(api);
    let (end, _) = tokio::join!(
        async {
            let last = watch.summaries(1).await;
            (last, watch.end().await)
        },
        store.stop()
    );
    assert_eq!(
        end,
        (vec![format!("BOOKMARK  {}", a.version())], None),
        "a last bookmark, then the end without an error"
    );
}

#[tokio::test]
async fn the_store_client_lists_and_watches() {
    type Node = muster_proto::node::Node;
    let store = TestStore::start().await;
    let client = store.client();
    let a: Node = client.create(node("a").try_into().unwrap()).await.unwrap();
    let mut watch = client.watch::<Node>(WatchOptions::default());
    let mut next = async || in_time("the next event", watch.next()).await.unwrap();
    assert!(matches!(next().await, WatchEvent::Applied { record } if record == a));
    let version = a.meta.resource_version;
    assert!(matches!(next().await, WatchEvent::Synced { revision } if revision == version));

    let b: Node = client.create(node("b").try_into().unwrap()).await.unwrap();
    assert!(matches!(next().await, WatchEvent::Applied { record } if record == b));
    let gone: Node = client.delete(&Key::of(&b), DeleteOptions::default()).await.unwrap();
    let version = gone.meta.resource_version;
    let event = next().await;
    assert!(
        matches!(&event, WatchEvent::Gone { key, uid, revision, .. }
        if *key == Key::of(&b) && *uid == b.meta.uid && *revision == version),
        "{event:?}"
    );
    assert_eq!(client.list::<Node>(ListOptions::default()).await.unwrap().records, [a]);
}
