//! PROOF: the words that scenarios are written in, and the real store they are told to.
//!
//! [`fixtures`] builds records; [`cluster`] starts a store on a real socket, in this process, plain or with mutual TLS;
//! [`api`] calls it as somebody, and [`error`] is what a call that was refused says, checked to have left no trace.
//!
//! [`process`], [`agent_process`] and [`controller_process`] run the real binaries, each as a [`child`]; an [`cluster`]
//! is a store with one agent. [`docker`] runs the real images, [`jaeger`] collects their traces, [`load`] keeps them
//! busy, and [`tools`] finds the programs that operators call them with.

pub mod agent_process;
pub mod api;
pub mod certificate_authority;
pub mod child_process;
pub mod cloud_process;
pub mod controller_process;
pub mod disk;
pub mod docker;
pub mod fixtures;
pub mod fleet;
pub mod http;
pub mod jaeger;
pub mod load;
pub mod markdown_examples;
pub mod resource;
pub mod rpc_error;
pub mod single_node;
pub mod store_process;
pub mod tcp_proxy;
pub mod test_store;
pub mod tools;

use std::future::Future;
use std::time::{Duration, Instant};

use muster_rpc::clock::SystemClock;

pub use api::{Api, Watch};
pub use resource::{Deletion, ListQuery, Page, ReceivedEvent, Resource, WatchQuery};
pub use rpc_error::RpcError;
pub use test_store::TestStore;

/// Whatever takes longer than this has failed. It is less than the 30 s after which store and agent look after
/// everything anyhow: what they were to be woken for does not pass for done because of that.
pub const TIMEOUT: Duration = Duration::from_secs(25);

/// How long a condition that is not met yet is left alone before it is looked at again.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The answer, which must come before patience runs out.
///
/// # Panics
/// When it does not.
pub async fn in_time<T>(what: &str, answer: impl Future<Output = T>) -> T {
    within(TIMEOUT, what, answer).await
}

/// The answer, which must come within that time.
///
/// # Panics
/// When it does not.
pub async fn within<T>(time: Duration, what: &str, answer: impl Future<Output = T>) -> T {
    match tokio::time::timeout(time, answer).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what} did not happen within {time:?}"),
    }
}

/// Looks again and again until there is something to see.
///
/// # Panics
/// When there is nothing within that time.
pub async fn eventually<T, F>(time: Duration, what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let looking = async {
        loop {
            match look().await {
                Some(seen) => break seen,
                None => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    };
    within(time, what, looking).await
}

/// Looks again and again, for all of that time, and finds that something holds.
///
/// # Panics
/// When it once does not.
#[allow(clippy::disallowed_methods, reason = "what runs beside a test runs by the real clock")]
pub async fn holds_for<F>(time: Duration, what: &str, look: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    holds_until(Instant::now() + time, what, look).await;
}

/// Looks again and again up to that moment, and finds that something holds. A look that ends later tells nothing: on a
/// busy machine it may be of another time.
///
/// # Panics
/// When it once does not.
#[allow(clippy::disallowed_methods, reason = "what runs beside a test runs by the real clock")]
pub async fn holds_until<F>(end: Instant, what: &str, mut look: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    loop {
        let held = look().await;
        if Instant::now() >= end {
            return;
        }
        assert!(held, "no longer so: {what}");
        tokio::time::sleep(POLL_INTERVAL * 4).await;
    }
}

/// Now, in seconds since 1970, by the clock that the store in this process has too.
pub fn now_seconds() -> i64 {
    SystemClock::shared().wall().as_second()
}
