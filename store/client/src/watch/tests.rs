use super::*;
use crate::cache::Cache;
use crate::endpoints::StoreEndpoints;
use crate::fake_store::{Answer, Asked, Fake, PATIENCE, bookmark, frame};
use crate::fixtures::node;
use muster_proto::ERROR_DOMAIN;
use muster_proto::node::Node;
use muster_proto::pb;
use std::collections::HashMap;
use std::net::SocketAddr;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tonic::Code;
use tonic_types::{ErrorDetails, StatusExt};

/// Retries almost at once.
fn eager() -> WatchOptions {
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));
    WatchOptions { backoff, ..WatchOptions::default() }
}

fn expired() -> Answer {
    let details = ErrorDetails::with_error_info("EXPIRED", ERROR_DOMAIN, HashMap::new());
    Answer::Refuse(Status::with_error_details(Code::OutOfRange, "history starts at 15", details))
}

/// The next event as a short text.
async fn next(watch: &mut Watch<Node>) -> String {
    match next_event(watch).await {
        WatchEvent::Synced { revision } => format!("synced {revision}"),
        WatchEvent::Applied { record } => {
            let meta = record.meta;
            format!("{} at {}", meta.name, meta.resource_version)
        }
        WatchEvent::Gone { key, revision, traceparent, .. } => {
            format!("{key} gone at {revision} by {}", traceparent.unwrap_or("list".into()))
        }
        WatchEvent::Lost(failure) => format!("lost: {:?}", failure.kind),
    }
}

async fn next_event(watch: &mut Watch<Node>) -> WatchEvent<Node> {
    tokio::time::timeout(PATIENCE, watch.next()).await.expect("an event in time").expect("a watch never ends")
}

async fn expect<const N: usize>(watch: &mut Watch<Node>, events: [&str; N]) {
    for (i, expected) in events.into_iter().enumerate() {
        assert_eq!(next(watch).await, expected, "event {i}");
    }
}

/// Polls the watch, which must have no event, until the store receives this request.
async fn quiet_until_asked(watch: &mut Watch<Node>, fake: &mut Fake, expected: &Asked) {
    let asked = async { while fake.next_asked().await != *expected {} };
    tokio::select! {
        event = watch.next() => panic!("nothing was to come: {event:?}"),
        () = asked => {}
    }
}

fn asked_list() -> Asked {
    Asked::List(pb::ListNodesRequest { page_size: 500, ..Default::default() })
}

#[tokio::test]
async fn a_watch_lists_watches_and_resumes_where_a_stream_ended() {
    let mut fake = Fake::start([
        Answer::nodes(&[node("a", 3)], 5),
        Answer::Frames(vec![frame(&[("ADDED", node("b", 6)), ("MODIFIED", node("a", 7))]), bookmark(9)]),
        Answer::Open(vec![frame(&[("MODIFIED", node("a", 7)), ("DELETED", node("b", 10))])]),
    ])
    .await;
    let mut watch = fake.client().watch::<Node>(eager());
    expect(&mut watch, ["a at 3", "synced 5", "b at 6", "a at 7"]).await;
    // The end of a stream is no event, and its changes are not reported again.
    expect(&mut watch, ["b gone at 10 by trace-10"]).await;
    assert_eq!(fake.all_asked(), [asked_list(), Asked::watch_after(5), Asked::watch_after(9)]);
}

#[tokio::test]
async fn a_broken_stream_is_a_loss_and_resumes_after_the_last_change() {
    let mut fake = Fake::start([
        Answer::nodes(&[], 5),
        Answer::Frames(vec![frame(&[("ADDED", node("a", 6))]), Err(Status::unavailable("stopping"))]),
        Answer::Refuse(Status::unavailable("starting")),
        Answer::Open(vec![frame(&[("MODIFIED", node("a", 7))])]),
    ])
    .await;
    let mut watch = fake.client().watch::<Node>(eager());
    expect(&mut watch, ["synced 5", "a at 6", "lost: Unreachable", "lost: Unreachable"]).await;
    expect(&mut watch, ["synced 6", "a at 7"]).await;
    let watches = [5, 6, 6].map(Asked::watch_after);
    assert_eq!(fake.next_asked().await, asked_list());
    assert_eq!(fake.all_asked(), watches);
}

#[tokio::test]
async fn an_expired_watch_lists_again_and_reports_vanished_records() {
    let mut fake = Fake::start([
        Answer::nodes(&[node("a", 3), node("b", 4), node("c", 5)], 5),
        Answer::Frames(vec![bookmark(6)]),
        expired(),
        Answer::nodes(&[node("a", 3), node("c", 18), node("d", 19)], 20),
        Answer::Open(vec![frame(&[("ADDED", node("e", 21))])]),
    ])
    .await;
    let mut watch = fake.client().watch::<Node>(eager());
    let mut cache = Cache::new();
    for _ in 0..10 {
        cache.observe(next_event(&mut watch).await);
    }
    let held: Vec<_> =
        cache.iter().map(|node| (node.meta.name.as_str(), node.meta.resource_version)).collect();
    assert_eq!(held, [("a", 3), ("c", 18), ("d", 19), ("e", 21)]);
    let asked =
        [asked_list(), Asked::watch_after(5), Asked::watch_after(6), asked_list(), Asked::watch_after(20)];
    assert_eq!(fake.all_asked(), asked);
}

#[tokio::test]
async fn a_relist_reports_only_what_is_new() {
    let fake = Fake::start([
        Answer::nodes(&[node("a", 3), node("b", 4)], 5),
        Answer::Frames(vec![bookmark(6)]),
        expired(),
        Answer::nodes(&[node("a", 3), node("c", 18)], 20),
        Answer::Open(vec![]),
    ])
    .await;
    let mut watch = fake.client().watch::<Node>(eager());
    expect(&mut watch, ["a at 3", "b at 4", "synced 5", "lost: Expired"]).await;
    expect(&mut watch, ["b gone at 20 by list", "c at 18", "synced 20"]).await;
}

#[tokio::test]
async fn selectors_stay_the_same_at_every_resume_and_relist() {
    let mut fake = Fake::start([
        Answer::nodes(&[], 5),
        Answer::Frames(vec![bookmark(6)]),
        expired(),
        Answer::nodes(&[], 20),
        Answer::Open(vec![frame(&[("ADDED", node("a", 21))])]),
    ])
    .await;
    let (label_selector, field_selector) = ("zone=x".to_owned(), "spec.unschedulable=true".to_owned());
    let options = WatchOptions { label_selector, field_selector, page_size: 7, ..eager() };
    let mut watch = fake.client().watch::<Node>(options);
    expect(&mut watch, ["synced 5", "lost: Expired", "synced 20", "a at 21"]).await;
    for asked in fake.all_asked() {
        let (labels, fields) = match asked {
            Asked::List(list) => {
                assert_eq!(list.page_size, 7);
                (list.label_selector, list.field_selector)
            }
            Asked::Watch(watch) => (watch.label_selector, watch.field_selector),
            other => panic!("not asked for: {other:?}"),
        };
        assert_eq!((labels.as_str(), fields.as_str()), ("zone=x", "spec.unschedulable=true"));
    }
}

#[tokio::test]
async fn an_unreadable_change_is_skipped() {
    let mut broken = pb::Node::from(node("b", 6));
    broken.spec.get_or_insert_default().pod_cidrs.push("nonsense".into());
    let event =
        |kind: &str, node| pb::NodeWatchEvent { r#type: kind.into(), node: Some(node), ..Default::default() };
    let changes =
        vec![event("ADDED", broken.clone()), event("NOVELTY", broken), event("ADDED", node("c", 7).into())];
    let mut fake = Fake::start([
        Answer::nodes(&[], 5),
        Answer::Frames(vec![Ok(WatchFrame::of(changes))]),
        Answer::Open(vec![]),
    ])
    .await;
    let mut watch = fake.client().watch::<Node>(eager());
    expect(&mut watch, ["synced 5", "c at 7"]).await;
    assert!(watch.next().now_or_never().is_none());
    let resumed = async { while fake.next_asked().await != Asked::watch_after(7) {} };
    tokio::select! {
        event = watch.next() => panic!("nothing more was to come: {event:?}"),
        () = resumed => {}
    }
}

#[tokio::test]
async fn a_next_that_is_dropped_before_it_completes_loses_nothing() {
    let fake = Fake::start([Answer::nodes(&[node("a", 3)], 5), Answer::Open(vec![])]).await;
    let mut watch = fake.client().watch::<Node>(eager());
    let mut received = Vec::new();
    while received.len() < 2 {
        match watch.next().now_or_never() {
            Some(event) => received.push(event.unwrap()),
            None => tokio::task::yield_now().await,
        }
    }
    let applied = WatchEvent::Applied { record: node("a", 3) };
    assert_eq!(received, [applied, WatchEvent::Synced { revision: 5 }]);
}

#[tokio::test]
async fn a_watch_resumes_with_another_store_when_its_own_dies() {
    let mut first = Fake::start([Answer::nodes(&[node("a", 3)], 5), Answer::Open(vec![])]).await;
    let mut second = Fake::start([Answer::Open(vec![frame(&[("MODIFIED", node("a", 6))])])]).await;
    let road = Road::to(first.address).await;
    let urls = [road.address, second.address].map(|address| format!("http://{address}"));
    let client = StoreClient::connect(StoreEndpoints::new(urls)).unwrap();
    let mut watch = client.watch::<Node>(eager());
    expect(&mut watch, ["a at 3", "synced 5"]).await;
    quiet_until_asked(&mut watch, &mut first, &Asked::watch_after(5)).await;
    road.state.send(Traffic::Closed).unwrap();
    let mut last = next(&mut watch).await;
    while last == "lost: Unreachable" {
        last = next(&mut watch).await;
    }
    assert_eq!(last, "synced 5");
    expect(&mut watch, ["a at 6"]).await;
    assert_eq!(second.next_asked().await, Asked::watch_after(5));
}

#[tokio::test]
async fn a_watch_lists_again_when_its_only_address_leads_to_another_store() {
    let one = Fake::start_as(Some("1"), [Answer::nodes(&[node("a", 3)], 5), Answer::Open(vec![])]).await;
    // The other store has the session's revision, too, and would continue after it.
    let other = Fake::start_as(
        Some("2"),
        [
            Answer::Open(vec![frame(&[("ADDED", node("c", 6))])]),
            Answer::nodes(&[node("b", 2)], 5),
            Answer::Open(vec![]),
        ],
    )
    .await;
    let road = Road::to(one.address).await;
    let client = StoreClient::connect(StoreEndpoints::new([road.address.to_string()])).unwrap();
    let mut watch = client.watch::<Node>(eager());
    expect(&mut watch, ["a at 3", "synced 5"]).await;
    road.lead_to(other.address);
    let mut last = next(&mut watch).await;
    while last == "lost: Unreachable" {
        last = next(&mut watch).await;
    }
    assert_eq!(last, "lost: Expired");
    expect(&mut watch, ["a gone at 5 by list", "b at 2", "synced 5"]).await;
}

#[tokio::test]
async fn a_watch_does_not_resume_with_an_unrelated_store_at_another_address() {
    let mut one = Fake::start_as(
        Some("1"),
        [
            Answer::nodes(&[node("a", 3)], 5),
            Answer::Frames(vec![frame(&[("MODIFIED", node("a", 6))]), Err(Status::unavailable("stopping"))]),
            Answer::Open(vec![frame(&[("MODIFIED", node("a", 7))])]),
        ],
    )
    .await;
    let mut other = Fake::start_as(Some("2"), [Answer::Open(vec![frame(&[("ADDED", node("c", 9))])])]).await;
    let urls = [one.address, other.address].map(|address| format!("http://{address}"));
    let client = StoreClient::connect(StoreEndpoints::new(urls)).unwrap();
    let mut watch = client.watch::<Node>(eager());
    expect(&mut watch, ["a at 3", "synced 5", "a at 6"]).await;
    client.redial();
    expect(&mut watch, ["lost: Unreachable", "synced 6", "a at 7"]).await;
    assert_eq!(one.all_asked().last(), Some(&Asked::watch_after(6)));
    assert_eq!(other.all_asked(), []);
}

#[tokio::test]
async fn a_connection_that_delivers_nothing_is_detected_and_replaced() {
    let mut fake = Fake::start([
        Answer::nodes(&[], 5),
        Answer::Open(vec![frame(&[("ADDED", node("a", 6))])]),
        Answer::Open(vec![frame(&[("MODIFIED", node("a", 7))])]),
    ])
    .await;
    let road = Road::to(fake.address).await;
    let endpoints = StoreEndpoints {
        keepalive_interval: Duration::from_millis(100),
        // Long enough that a busy machine does not look like a dead one.
        keepalive_timeout: Duration::from_secs(3),
        ..StoreEndpoints::new([road.address.to_string()])
    };
    let mut watch = StoreClient::connect(endpoints).unwrap().watch::<Node>(eager());
    expect(&mut watch, ["synced 5", "a at 6"]).await;
    road.state.send(Traffic::Frozen).unwrap();
    expect(&mut watch, ["lost: Unreachable"]).await;
    road.state.send(Traffic::Flowing).unwrap();
    let mut last = next(&mut watch).await;
    while last == "lost: Unreachable" {
        last = next(&mut watch).await;
    }
    assert_eq!(last, "synced 6");
    expect(&mut watch, ["a at 7"]).await;
    assert_eq!(fake.all_asked().last(), Some(&Asked::watch_after(6)));
}

/// A proxy to a store that can be closed, or frozen: then its connections stay open and carry no data.
struct Road {
    address: SocketAddr,
    state: watch::Sender<Traffic>,
    store: watch::Sender<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Traffic {
    Flowing,
    Frozen,
    Closed,
}

impl Road {
    async fn to(store: SocketAddr) -> Road {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, mut traffic) = watch::channel(Traffic::Flowing);
        let (store, destination) = watch::channel(store);
        tokio::spawn(async move {
            while *traffic.borrow() != Traffic::Closed {
                tokio::select! {
                    _ = traffic.changed() => {}
                    Ok((socket, _)) = listener.accept() => drop(tokio::spawn(travel(socket, destination.clone(), traffic.clone()))),
                }
            }
        });
        Road { address, state, store }
    }

    /// Ends the connections; new ones lead to another store.
    fn lead_to(&self, store: SocketAddr) {
        self.store.send(store).unwrap();
    }
}

async fn travel(
    mut near: TcpStream,
    mut store: watch::Receiver<SocketAddr>,
    mut traffic: watch::Receiver<Traffic>,
) {
    let address = *store.borrow_and_update();
    let mut far = TcpStream::connect(address).await.unwrap();
    let stopped = tokio::select! {
        biased;
        stopped = traffic.wait_for(|traffic| *traffic != Traffic::Flowing) => *stopped.unwrap(),
        _ = store.changed() => return,
        _ = copy_bidirectional(&mut near, &mut far) => return,
    };
    if stopped == Traffic::Frozen {
        // Keep both ends open and do nothing, as with an unplugged cable.
        std::future::pending::<()>().await;
    }
}
