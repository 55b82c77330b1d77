//! The client library of the store.
//!
//! - [`client`]: [`StoreClient`], typed calls on domain types, always with a deadline. [`resource`] implements the
//!   generic calls for each kind, [`options`] are the options of calls, [`endpoints`] the addresses and connections of
//!   the stores, `store_identity` refuses addresses of unrelated stores. `joining` has the calls about certificates,
//!   `revocations` keeps a server in step with those that are revoked.
//! - [`error`]: why a call failed, and whether a retry can help.
//! - [`session`]: the pure state machine of a watch: list, resume or list again. [`watch`] runs a session over the
//!   network; [`cache`] holds the records that its events add up to; `latest_version` finds the newest change of a
//!   kind.

pub mod cache;
pub mod client;
mod decisions;
pub mod endpoints;
pub mod error;
mod joining;
mod latest_version;
pub mod options;
pub mod resource;
mod revocations;
pub mod session;
mod store_identity;
pub mod watch;

#[cfg(test)]
mod fake_store;
#[cfg(test)]
mod fixtures;

pub use cache::Cache;
pub use client::{Renewal, StoreClient};
pub use endpoints::{EndpointError, StoreEndpoints, Transport};
pub use error::{ClientError, is_for_another_store};
pub use options::{DeleteOptions, EvictOptions, List, ListOptions, Preconditions, Unreadable, VersionMatch};
pub use resource::{HasStatus, Named, Resource, Stored};
pub use revocations::follow_revocations;
pub use watch::{Watch, WatchOptions};
