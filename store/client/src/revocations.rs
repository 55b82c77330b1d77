//! Keeps the certificates that a server refuses in step with the store's records.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use muster_proto::name::Name;
use muster_proto::revocation::Revocation;
use muster_proto::watch_event::WatchEvent;
use muster_rpc::shutdown::Shutdown;
use muster_rpc::tls::{Revocations, RevokedCertificates};

use crate::client::StoreClient;
use crate::watch::WatchOptions;

/// Follows the revocations in the store until the shutdown is requested. While the store cannot be reached, those that
/// are known stay.
pub async fn follow_revocations(client: StoreClient, revocations: Revocations, shutdown: Shutdown) {
    let mut watch = client.watch::<Revocation>(WatchOptions::default());
    let mut known: BTreeMap<Name, Vec<RevokedCertificates>> = BTreeMap::new();
    let mut is_synced = false;
    loop {
        let event = tokio::select! {
            event = watch.next() => event,
            () = shutdown.requested() => return,
        };
        match event {
            Some(WatchEvent::Applied { record }) => {
                known.insert(record.meta.name.clone(), RevokedCertificates::of(&record));
            }
            Some(WatchEvent::Gone { key, .. }) => {
                known.remove(&key.name);
            }
            Some(WatchEvent::Synced { .. }) => is_synced = true,
            // A list takes effect as a whole.
            Some(WatchEvent::Lost(_)) => is_synced = false,
            None => return,
        }
        if is_synced {
            revocations.set(known.values().flatten().cloned().collect());
        }
    }
}
