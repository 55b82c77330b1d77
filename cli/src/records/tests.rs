use super::*;
use std::ffi::OsString;
use std::sync::atomic::{AtomicUsize, Ordering};

use muster_proto::pb;
use muster_rpc::config::parse_with_config;
use muster_rpc::shutdown::Shutdown;
use tokio::runtime::Handle;

use crate::connection::{ConnectionFlags, resolve_without_file};

#[tokio::test(flavor = "multi_thread")]
async fn a_change_keeps_the_concurrent_change_of_another_client() {
    let (home, shutdown) = (tempfile::tempdir().unwrap(), Shutdown::new());
    let data = format!("--data-dir={}", home.path().display());
    let arguments = ["muster-store", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", &data];
    let flags: muster_store::config::Flags = parse_with_config(arguments.map(OsString::from)).unwrap();
    let running = muster_store::run::start((&flags).try_into().unwrap(), shutdown.clone()).await.unwrap();
    let flags = ConnectionFlags {
        store: vec![running.address.to_string()],
        request_timeout: std::time::Duration::from_secs(60),
        ..Default::default()
    };
    let store = resolve_without_file(&flags).store().unwrap();
    let metadata = pb::Metadata { name: "a".to_owned(), ..Default::default() };
    let node = Node::try_from(pb::Node { metadata: Some(metadata), ..Default::default() }).unwrap();
    let node = store.client.create(node).await.unwrap();
    let key = Key::of(&node);

    let edits = AtomicUsize::new(0);
    let edit = |node: &mut Node| {
        if edits.fetch_add(1, Ordering::Relaxed) == 0 {
            let mut other_change = node.clone();
            other_change.meta.labels.insert("other_change".to_owned(), String::new());
            tokio::task::block_in_place(|| Handle::current().block_on(store.client.update(other_change)))
                .unwrap();
        }
        node.meta.labels.insert("own_change".to_owned(), String::new());
        Ok(())
    };
    assert_eq!(change(&store, &key, DryRunFlags::default(), edit).await.unwrap(), Changed::Yes);
    assert_eq!(edits.load(Ordering::Relaxed), 2);
    let stored: Node = store.client.get(&key).await.unwrap();
    let labels: Vec<&str> = stored.meta.labels.keys().map(String::as_str).collect();
    assert_eq!(labels, ["other_change", "own_change"]);
    assert_eq!(
        change(&store, &key, DryRunFlags::default(), |_: &mut Node| Ok(())).await.unwrap(),
        Changed::No
    );
    shutdown.trigger();
}
