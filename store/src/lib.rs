//! MEMORY: remembers records and the order they changed in, and tells.
//!
//! Pure: [`authz`], [`rules`], [`heartbeat`] decide; [`memory`], [`leases`] and
//! [`indexes`] are folds. Shells: [`engine`] is the disk, [`writer`] the one
//! thread that writes, [`feed`] a watcher, [`service`] the calls. A write goes
//! service → queue → writer → draft (rules) → ledger (engine) → memory → log.

pub mod authz;
pub mod backup;
pub mod change;
mod commit_span;
pub mod config;
pub mod draft;
pub mod engine;
pub mod error;
pub mod feed;
pub mod heartbeat;
pub mod indexes;
pub mod key;
pub mod leases;
pub mod ledger;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod page;
mod peek;
pub mod queue;
pub mod renewals;
pub mod rules;
pub mod run;
pub mod service;
pub mod store;
pub mod writer;

pub use config::Config;
pub use run::{RunError, run};
