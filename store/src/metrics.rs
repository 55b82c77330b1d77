//! All metrics of the store: names, units and help texts.

use muster_rpc::exemplar::{Latency, latency};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::ledger::embedded::BackgroundMetrics;

/// The store's metrics.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub commits: Counter,
    pub failed_commits: Counter,
    pub changes: Counter,
    pub renewals: Counter,
    pub batch: Histogram,
    pub flush: Latency,
    pub watch_lag: Latency,
    pub watch_replays: Counter,
    pub queued: Gauge,
    pub queued_bytes: Gauge,
    pub abandoned: Counter,
    pub panics: Counter,
    pub events_dropped: Counter,
    pub watchers: Gauge,
    pub heartbeats: Gauge,
    pub contested_heartbeats: Counter,
    pub revision: Gauge,
    pub writable: Gauge,
    pub leader: Gauge,
    pub behind: Gauge,
    pub background: BackgroundMetrics,
}

impl Metrics {
    /// Registers everything below `muster_store_`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            commits: Counter::default(),
            failed_commits: Counter::default(),
            changes: Counter::default(),
            renewals: Counter::default(),
            batch: Histogram::new(exponential_buckets(1.0, 2.0, 13)),
            flush: latency(),
            watch_lag: latency(),
            watch_replays: Counter::default(),
            queued: Gauge::default(),
            queued_bytes: Gauge::default(),
            abandoned: Counter::default(),
            panics: Counter::default(),
            events_dropped: Counter::default(),
            watchers: Gauge::default(),
            heartbeats: Gauge::default(),
            contested_heartbeats: Counter::default(),
            revision: Gauge::default(),
            writable: Gauge::default(),
            leader: Gauge::default(),
            behind: Gauge::default(),
            background: BackgroundMetrics::default(),
        };
        let store = registry.sub_registry_with_prefix("muster_store");
        store.register("commits", "Commits made durable", metrics.commits.clone());
        store.register(
            "commits_failed",
            "Commits that failed or that the disk could not take",
            metrics.failed_commits.clone(),
        );
        store.register("changes", "Changes committed, without lease renewals", metrics.changes.clone());
        store.register("renewals", "Lease renewals committed", metrics.renewals.clone());
        store.register("commit_requests", "Requests per commit", metrics.batch.clone());
        store.register_with_unit(
            "commit",
            "Time to make a commit durable",
            Unit::Seconds,
            metrics.flush.clone(),
        );
        store.register_with_unit(
            "watch_lag",
            "Time from a commit until its change was sent to a watcher",
            Unit::Seconds,
            metrics.watch_lag.clone(),
        );
        store.register(
            "watch_replays",
            "Reads of the ledger for watchers that are behind the changes kept in memory",
            metrics.watch_replays.clone(),
        );
        store.register("queued_requests", "Requests waiting for the next commit", metrics.queued.clone());
        store.register_with_unit(
            "queued",
            "The size of the writes that wait for the next commit",
            Unit::Bytes,
            metrics.queued_bytes.clone(),
        );
        store.register(
            "abandoned_requests",
            "Writes that were not evaluated because their caller was gone",
            metrics.abandoned.clone(),
        );
        store.register(
            "panicked_requests",
            "Writes that failed by a panic; each discards its batch",
            metrics.panics.clone(),
        );
        store.register(
            "events_dropped",
            "Events deleted before they expired, because there were too many",
            metrics.events_dropped.clone(),
        );
        store.register("watch_streams", "Open watches", metrics.watchers.clone());
        store.register("heartbeat_streams", "Open heartbeat streams", metrics.heartbeats.clone());
        store.register(
            "heartbeat_streams_contested",
            "Heartbeat streams that replaced one of the same agent incarnation for at least the fourth time in a lease \
             duration: a sign of a cloned machine",
            metrics.contested_heartbeats.clone(),
        );
        store.register("revision", "The newest revision", metrics.revision.clone());
        store.register(
            "writable",
            "1 while the disk, or etcd, accepts writes, otherwise 0",
            metrics.writable.clone(),
        );
        store.register(
            "leader",
            "1 while this store leads; without --engine etcd, always",
            metrics.leader.clone(),
        );
        store.register(
            "behind_revisions",
            "Revisions that other stores have committed and this one has not applied; without --engine etcd, none",
            metrics.behind.clone(),
        );
        register_background(store, &metrics.background);
        metrics.writable.set(1);
        metrics.leader.set(1);
        metrics
    }
}

fn register_background(store: &mut Registry, metrics: &BackgroundMetrics) {
    store.register("checkpoints", "Checkpoints written", metrics.checkpoints.clone());
    store.register(
        "checkpoints_failed",
        "Checkpoints that could not be written",
        metrics.failed_checkpoints.clone(),
    );
    store.register_with_unit(
        "checkpoint_lag",
        "Journal that the newest checkpoint does not contain",
        Unit::Bytes,
        metrics.behind_bytes.clone(),
    );
    store.register_with_unit(
        "scrubbed",
        "Stored bytes that were read again to find damage",
        Unit::Bytes,
        metrics.scrubbed_bytes.clone(),
    );
    store.register("scrubs", "Times that all files were read and found undamaged", metrics.scrubs.clone());
    store.register("damage_found", "Times that reading all files found damage", metrics.damage_found.clone());
}
