//! Watchers that write down what they were told, to be compared with what happened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use muster_grpc::lease_service_client::LeaseServiceClient;
use muster_grpc::node_service_client::NodeServiceClient;
use muster_grpc::pod_service_client::PodServiceClient;
use muster_proto::pb;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::write_log::{Change, Journal, Key, Kind, Seen, see_lease, see_node, see_pod};

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub key: Key,
    pub sort: String,
    pub seen: Seen,
}

/// What a watcher was told so far, in order.
pub type Tale = Arc<Mutex<Vec<Told>>>;

macro_rules! follow {
    ($(#[$doc:meta])* $name:ident, $kind:expr, $client:ident, $watch:ident($request:ident), $record:ident, $see:ident) => {
        $(#[$doc])*
        pub async fn $name(url: String, after: u64, tale: Tale) {
            let mut last = after;
            loop {
                let mut client = $client::new(super::channel(&url)).max_decoding_message_size(64 << 20);
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
                                            assert!(seen.version >= last, "a bookmark goes back");
                                            last = seen.version;
                                            continue;
                                        }
                                        assert!(seen.version > last, "{} came after {last}", seen.version);
                                        last = seen.version;
                                        let key = ($kind, record.metadata.unwrap_or_default().name);
                                        let told = Told { key, sort: event.r#type, seen };
                                        tale.lock().expect("nobody panics with it").push(told);
                                    }
                                }
                                Ok(None) => break Status::unavailable("the stream ended"),
                                Err(status) => break status,
                            }
                        }
                    }
                };
                check_interruption(&ended, last);
                // The store is being started again.
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
    };
}

follow!(
    /// Follows nodes across every loss of the store, from its last version on.
    follow_nodes, Kind::Node, NodeServiceClient, watch_nodes(WatchNodesRequest), node, see_node
);
follow!(
    /// Follows pods likewise.
    follow_pods, Kind::Pod, PodServiceClient, watch_pods(WatchPodsRequest), pod, see_pod
);
follow!(
    /// Follows leases likewise.
    follow_leases, Kind::Lease, LeaseServiceClient, watch_leases(WatchLeasesRequest), lease, see_lease
);

/// A watcher loses the store, never its place in history.
fn check_interruption(status: &Status, last: u64) {
    let details = status.get_error_details();
    let reason = details.error_info().map_or("", |info| info.reason.as_str());
    assert_ne!(reason, "RESOURCE_VERSION_TOO_LARGE", "told of {last}, which is not durable: {status:?}");
    assert_ne!(status.code(), Code::OutOfRange, "history after {last} is gone: {status:?}");
}

/// Compares what watchers of a kind were told with what happened: every change
/// once, in order, none left out. Returns how many.
pub fn check_tale(kind: Kind, tale: &[Told], journals: &[&Journal]) -> usize {
    let mut told: BTreeMap<&Key, Vec<&Told>> = BTreeMap::new();
    for event in tale {
        told.entry(&event.key).or_default().push(event);
    }
    let mut expected: BTreeMap<&Key, Vec<&Change>> = BTreeMap::new();
    for (key, change) in
        journals.iter().flat_map(|journal| journal.changes()).filter(|(key, _)| key.0 == kind)
    {
        expected.entry(key).or_default().push(change);
    }
    let mut count = 0;
    for (key, expected) in &expected {
        let told = told.remove(*key).unwrap_or_default();
        let mut exists = false;
        for (step, change) in expected.iter().enumerate() {
            let event = told
                .get(step)
                .unwrap_or_else(|| panic!("{key:?}: {change:?} was not told, after {step} others"));
            let sort = match (&change.mark, exists) {
                (None, _) => "DELETED",
                (Some(_), false) => "ADDED",
                (Some(_), true) => "MODIFIED",
            };
            exists = change.mark.is_some();
            let same = event.sort == sort
                && change.version.is_none_or(|version| version == event.seen.version)
                && change.mark.as_ref().is_none_or(|mark| *mark == event.seen.mark);
            assert!(same, "{key:?}, step {step}: {change:?} ({sort}) happened, told was {event:?}");
        }
        assert_eq!(
            told.len(),
            expected.len(),
            "{key:?}: more was told than happened: {:?}",
            &told[expected.len()..]
        );
        count += expected.len();
    }
    assert!(told.is_empty(), "told of records that nobody wrote: {:?}", told.keys());
    count
}

/// What a watcher makes of what it was told.
pub fn fold(tale: &[Told]) -> BTreeMap<Key, Seen> {
    let mut all = BTreeMap::new();
    for event in tale {
        if event.sort == "DELETED" {
            all.remove(&event.key);
        } else {
            all.insert(event.key.clone(), event.seen.clone());
        }
    }
    all
}
