//! How the other parts of Muster read, write and follow the store.
//!
//! - [`client`]: [`StoreClient`], typed calls: domain in, domain out, a deadline always set. [`resource`] is what each
//!   kind adds to make the generic calls work, [`options`] what a call may say, [`endpoints`] where the stores are.
//! - [`error`]: what the store answered when it did not answer with a record, and whether to try again.
//! - [`session`]: pure: what to ask next (list, resume, relist) given what just happened. [`watch`] drives a session
//!   over the network; [`cache`] is what its events add up to; `newest` says how far there is to go.

pub mod cache;
pub mod client;
pub mod endpoints;
pub mod error;
mod latest_version;
pub mod options;
pub mod resource;
pub mod session;
pub mod watch;

#[cfg(test)]
mod fake_store;
#[cfg(test)]
mod fixtures;

pub use cache::Cache;
pub use client::{Renewal, StoreClient};
pub use endpoints::{EndpointError, StoreEndpoints, Transport};
pub use error::ClientError;
pub use options::{DeleteOptions, EvictOptions, List, ListOptions, Preconditions, Unreadable, VersionMatch};
pub use resource::{HasStatus, Resource, Stored};
pub use watch::{Watch, WatchOptions};
