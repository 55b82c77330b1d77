//! Helpers of the integration tests: they build records, start the real parts and call them.
//!
//! [`fixtures`] builds records; [`test_store`] starts a store in this process, on a real socket, without TLS or with
//! mutual TLS; [`api`] calls the store as a given caller, [`rpc_error`] holds the error of a failed call,
//! [`audit_log`] reads what the store logged of it, and [`join`] makes tokens and signing requests.
//!
//! [`store_process`], [`agent_process`] and [`controller_process`] run the real binaries, each as a [`child_process`];
//! [`secure_store`] is a store with mutual TLS, [`single_node`] a store with one agent, [`fleet`] adds a controller.
//! [`muster_process`] runs `muster up` and `muster ui`, [`webdriver`] drives a browser.
//! [`docker`] runs the real images, [`jaeger`] collects traces, [`load`] creates load, [`etcd`] is what the store is
//! compared with and what several stores run on, in a [`network`] that can be cut. [`history`] judges what their clients saw.
//! [`kubectl`] runs the real kubectl, [`usage`] measures what a process takes, and [`tools`] finds the programs that operators use.

pub mod agent_process;
pub mod api;
pub mod audit_log;
pub mod certificate_authority;
pub mod child_process;
pub mod cloud_process;
pub mod controller_process;
pub mod disk;
pub mod docker;
pub mod etcd;
pub mod fixtures;
pub mod fleet;
pub mod history;
pub mod http;
pub mod jaeger;
pub mod join;
pub mod kubectl;
pub mod load;
pub mod markdown_examples;
pub mod muster_process;
pub mod network;
pub mod resource;
pub mod rpc_error;
pub mod secure_store;
pub mod single_node;
pub mod store_process;
pub mod tcp_proxy;
pub mod test_store;
pub mod tools;
pub mod usage;
pub mod webdriver;

use std::future::Future;
use std::time::{Duration, Instant};

use muster_rpc::clock::SystemClock;

pub use api::{Api, Watch};
pub use resource::{Deletion, ListQuery, Page, ReceivedEvent, Resource, WatchQuery};
pub use rpc_error::RpcError;
pub use test_store::TestStore;

/// What takes longer than this has failed. It is less than the 30 s after which store and agent check everything again,
/// so a missing wake-up is not hidden by that check.
pub const TIMEOUT: Duration = Duration::from_secs(25);

/// The pause between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Awaits a future, for at most [`TIMEOUT`]. The future is boxed: a test that makes many calls would otherwise hold all
/// of them in its own future, which has overflowed the stack of a test's thread.
///
/// # Panics
/// When it is not done by then.
pub fn in_time<T>(what: &str, answer: impl Future<Output = T>) -> impl Future<Output = T> {
    within(TIMEOUT, what, Box::pin(answer))
}

/// Awaits a future, for at most that time.
///
/// # Panics
/// When it is not done by then.
pub async fn within<T>(time: Duration, what: &str, answer: impl Future<Output = T>) -> T {
    match tokio::time::timeout(time, answer).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what} did not happen within {time:?}"),
    }
}

/// Polls until `look` returns a value, and returns that value.
///
/// # Panics
/// When it returns none within that time.
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

/// Checks repeatedly, for all of that time, that something holds.
///
/// # Panics
/// When it does not hold at one of the checks.
#[allow(clippy::disallowed_methods, reason = "what runs beside a test runs by the real clock")]
pub async fn holds_for<F>(time: Duration, what: &str, look: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    holds_until(Instant::now() + time, what, look).await;
}

/// Checks repeatedly, until that moment, that something holds. A check that ends later does not count: on a busy
/// machine its answer may come from after that moment.
///
/// # Panics
/// When it does not hold at one of the checks.
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
        assert!(held, "no longer true: {what}");
        tokio::time::sleep(POLL_INTERVAL * 4).await;
    }
}

/// The Unix time in seconds, from the same clock as a store in this process.
pub fn now_seconds() -> i64 {
    SystemClock::shared().wall().as_second()
}
