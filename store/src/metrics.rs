//! All metrics of the store: names, units and help texts.

use muster_rpc::exemplar::{Latency, latency};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

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
    pub watchers: Gauge,
    pub heartbeats: Gauge,
    pub revision: Gauge,
    pub writable: Gauge,
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
            watchers: Gauge::default(),
            heartbeats: Gauge::default(),
            revision: Gauge::default(),
            writable: Gauge::default(),
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
        store.register("watch_streams", "Open watches", metrics.watchers.clone());
        store.register("heartbeat_streams", "Open heartbeat streams", metrics.heartbeats.clone());
        store.register("revision", "The newest revision", metrics.revision.clone());
        store.register("writable", "1 while the disk accepts writes, otherwise 0", metrics.writable.clone());
        metrics.writable.set(1);
        metrics
    }
}
