//! What decides in the store, without I/O, clock or waiting.
//!
//! [`rules`] turn a record and a request into the next record or a refusal, [`authz`] says which caller may do what,
//! [`heartbeat`] which agent may renew a node's lease. [`memory`] holds every current record and is a fold of
//! [`history`]; [`lease_table`] and [`indexes`] are further folds. A [`draft`] is a commit in the making: requests are
//! evaluated one after the other on top of memory. [`list_page`] reads lists out of memory, [`change`] is what watchers
//! see.

pub mod authz;
pub mod change;
pub mod draft;
pub mod error;
pub mod heartbeat;
pub mod history;
pub mod indexes;
pub mod lease_table;
pub mod list_page;
pub mod memory;
pub mod namespaced_name;
pub mod partial_decode;
pub mod rules;
pub mod selectors;
