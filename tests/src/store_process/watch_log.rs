//! Watchers that record the events they receive, to compare them with the acknowledged writes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use muster_grpc::lease_service_client::LeaseServiceClient;
use muster_grpc::node_service_client::NodeServiceClient;
use muster_grpc::pod_service_client::PodServiceClient;
use muster_proto::pb;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::write_log::{Change, Kind, RecordKey, RecordState, WriteLog, lease_state, node_state, pod_state};

/// One event that a watcher received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedChange {
    pub key: RecordKey,
    pub event_type: String,
    pub seen: RecordState,
}

/// The events that a watcher received so far, in order.
pub type WatchLog = Arc<Mutex<Vec<WatchedChange>>>;

macro_rules! follow {
    ($(#[$doc:meta])* $name:ident, $kind:expr, $client:ident, $watch:ident($request:ident), $record:ident, $see:ident) => {
        $(#[$doc])*
        pub async fn $name(urls: String, after: u64, log: WatchLog) {
            let mut last = after;
            for url in urls.split(',').cycle() {
                let mut client = $client::new(super::channel(url)).max_decoding_message_size(64 << 20);
                let request = pb::$request { resource_version: last, allow_bookmarks: true, ..Default::default() };
                let ended = match client.$watch(request).await {
                    Err(status) => status,
                    Ok(stream) => {
                        let mut stream = stream.into_inner();
                        loop {
                            match stream.message().await {
                                Ok(Some(frame)) => {
                                    for event in frame.events {
                                        let record = event.$record.unwrap_or_default();
                                        let seen = $see(&record);
                                        if event.r#type == "BOOKMARK" {
                                            assert!(seen.version >= last, "a bookmark has an older version");
                                            last = seen.version;
                                            continue;
                                        }
                                        assert!(seen.version > last, "{} came after {last}", seen.version);
                                        last = seen.version;
                                        let key = ($kind, record.metadata.unwrap_or_default().name);
                                        let change = WatchedChange { key, event_type: event.r#type, seen };
                                        log.lock().expect("no holder of the lock panics").push(change);
                                    }
                                }
                                Ok(None) => break Status::unavailable("the stream ended"),
                                Err(status) => break status,
                            }
                        }
                    }
                };
                check_interruption(&ended, last);
                // The store is being restarted.
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
    };
}

follow!(
    /// Watches nodes at one of these stores, separated by commas. After each interruption it resumes from the last
    /// version it received, at the next.
    follow_nodes, Kind::Node, NodeServiceClient, watch_nodes(WatchNodesRequest), node, node_state
);
follow!(
    /// Watches pods in the same way.
    follow_pods, Kind::Pod, PodServiceClient, watch_pods(WatchPodsRequest), pod, pod_state
);
follow!(
    /// Watches leases in the same way.
    follow_leases, Kind::Lease, LeaseServiceClient, watch_leases(WatchLeasesRequest), lease, lease_state
);

/// A watch may break, but the store must be able to resume it.
fn check_interruption(status: &Status, last: u64) {
    let details = status.get_error_details();
    let reason = details.error_info().map_or("", |info| info.reason.as_str());
    assert_ne!(reason, "RESOURCE_VERSION_TOO_LARGE", "received {last}, which was not durable: {status:?}");
    assert_ne!(status.code(), Code::OutOfRange, "history after {last} is gone: {status:?}");
}

/// Checks that a watcher of a kind received every change once and in order. Returns the number of changes.
pub fn check_watch_log(kind: Kind, log: &[WatchedChange], logs: &[&WriteLog]) -> usize {
    let mut received: BTreeMap<&RecordKey, Vec<&WatchedChange>> = BTreeMap::new();
    for event in log {
        received.entry(&event.key).or_default().push(event);
    }
    let mut expected: BTreeMap<&RecordKey, Vec<&Change>> = BTreeMap::new();
    for (key, change) in logs.iter().flat_map(|log| log.changes()).filter(|(key, _)| key.0 == kind) {
        expected.entry(key).or_default().push(change);
    }
    let mut count = 0;
    for (key, expected) in &expected {
        let received = received.remove(*key).unwrap_or_default();
        let mut exists = false;
        for (step, change) in expected.iter().enumerate() {
            let event = received
                .get(step)
                .unwrap_or_else(|| panic!("{key:?}: {change:?} was not received, after {step} others"));
            let event_type = match (&change.value, exists) {
                (None, _) => "DELETED",
                (Some(_), false) => "ADDED",
                (Some(_), true) => "MODIFIED",
            };
            exists = change.value.is_some();
            let same = event.event_type == event_type
                && change.version.is_none_or(|version| version == event.seen.version)
                && change.value.as_ref().is_none_or(|value| *value == event.seen.value);
            assert!(
                same,
                "{key:?}, step {step}: {change:?} ({event_type}) was written, received was {event:?}"
            );
        }
        assert_eq!(
            received.len(),
            expected.len(),
            "{key:?}: more events than changes: {:?}",
            &received[expected.len()..]
        );
        count += expected.len();
    }
    assert!(received.is_empty(), "events of records that no writer wrote: {:?}", received.keys());
    count
}

/// The records after all events of a watcher were applied.
pub fn fold(log: &[WatchedChange]) -> BTreeMap<RecordKey, RecordState> {
    let mut all = BTreeMap::new();
    for event in log {
        if event.event_type == "DELETED" {
            all.remove(&event.key);
        } else {
            all.insert(event.key.clone(), event.seen.clone());
        }
    }
    all
}
