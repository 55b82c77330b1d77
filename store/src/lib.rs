//! The store: keeps records, the order they changed in, and serves streams of the changes.
//!
//! [`muster_store_core`] decides; here are I/O and waiting. [`ledger`] is the disk, [`writer`] the one thread that
//! writes, [`watch_feed`] one watcher, [`service`] the calls. A write goes service -> [`queue`] -> [`writer`] -> draft
//! (rules) -> [`ledger`] -> memory -> [`change_log`].

pub mod backup;
pub mod change_log;
pub mod commit_health;
mod commit_span;
pub mod config;
pub mod decision_log;
pub mod durable_dir;
pub mod error;
pub mod heartbeat_streams;
pub mod leadership;
pub mod ledger;
pub mod metrics;
pub mod migrate;
pub mod queue;
pub mod read_index;
pub mod renewal_log;
pub mod repair;
pub mod replica;
pub mod revocations;
pub mod run;
pub mod service;
pub mod store;
pub mod watch_feed;
pub mod writer;

pub use config::Config;
pub use run::{RunError, run};
