//! A program that uses client-go as controllers do: `tests/client-go`.

#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

use std::process::Command;
use std::time::Duration;

use muster_proto::pb;
use muster_tests::fixtures::*;
use muster_tests::tools::{output_of, tool};
use muster_tests::within;

use crate::world;

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_informer_gets_a_thousand_nodes_and_two_candidates_elect_by_a_lease() {
    let (store, _) = world().await;
    let api = store.api();
    for i in 0..1000 {
        api.create(node(&format!("n{i:04}"))).await.unwrap();
    }
    let url = store.kubernetes_url();
    let running = tokio::task::spawn_blocking(move || output_of(Command::new(tool("client-go")).arg(url)));
    let output = within(Duration::from_secs(300), "the end of the program", running).await.unwrap();
    assert_eq!(output, "nodes 1000\nchanged true\nleads one\nleads two\ntransitions 1\n");
    let lease = api.get::<pb::Lease>("default/election").await.unwrap().spec.unwrap();
    assert!(lease.acquire_time.is_some() && lease.renew_time.is_some(), "{lease:?}");
}
