//! The store's decisions, without I/O, clock or waiting.
//!
//! [`rules`] turn a record and a request into the next record or a refusal, [`authz`] decides which caller may do what,
//! [`heartbeat`] which agent may renew a node's lease. [`memory`] holds every current record and is a fold of
//! [`history`]; [`lease_table`] and [`indexes`] are further folds. A [`draft`] is a commit under construction: requests
//! are evaluated in order on top of memory. [`list_page`] reads lists from memory, [`change`] encodes watch events, and
//! [`selectors`] decide which records and events a list or watch returns. [`lanes`] and [`fair_queue`] decide which request
//! is evaluated next, [`limits`] how much is kept.

pub mod authz;
pub mod change;
pub mod decision_filter;
pub mod draft;
pub mod error;
pub mod fair_queue;
pub mod fingerprint;
pub mod heartbeat;
pub mod history;
pub mod indexes;
pub mod lanes;
pub mod lease_table;
pub mod limits;
pub mod list_page;
pub mod memory;
pub mod namespaced_name;
pub mod partial_decode;
pub mod rules;
pub mod selectors;
