//! The Kubernetes API of the store, by the real kubectl.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

mod access;
mod client_go;
mod drain;
mod information;
mod reading;
mod rights;
mod writing;

use muster_tests::TestStore;
use muster_tests::kubectl::{Kubectl, LISTEN};

/// A store without TLS, and kubectl for its administrator.
async fn world() -> (TestStore, Kubectl) {
    let store = TestStore::with_flags(&[LISTEN]).await;
    let kubectl = Kubectl::of(&store);
    (store, kubectl)
}

/// A store with TLS, and kubectl for its administrator.
async fn secure_world() -> (TestStore, Kubectl) {
    let store = TestStore::secure_with_flags(&[LISTEN]).await;
    let kubectl = Kubectl::of_caller(&store, "eva", "muster:admins");
    (store, kubectl)
}

/// The words of a line.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}
