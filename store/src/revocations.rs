//! Keeps the certificates that the store's own server refuses in step with the records.

use std::ops::Bound;
use std::sync::Arc;

use muster_proto::pb;
use muster_proto::record::Kind;
use muster_proto::revocation::Revocation;
use muster_rpc::shutdown::Shutdown;
use muster_rpc::tls::{Revocations, RevokedCertificates};
use prost::Message;

use crate::store::Store;

/// Sets the present revocations, and follows them until the shutdown is requested. The records are read again as a whole
/// when one of them changes: administrators revoke now and then, and each revocation must be looked up by servers anyway.
pub fn follow(store: &Arc<Store>, revocations: Revocations, shutdown: Shutdown) {
    let mut changes = store.log().subscribe(Kind::Revocation, None);
    revocations.set(present(store));
    let store = Arc::downgrade(store);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = changes.changed() => {}
                () = shutdown.requested() => return,
            }
            // A stopped store must not be kept alive by those who watch it.
            let Some(store) = store.upgrade() else { return };
            changes.mark_read();
            revocations.set(present(&store));
        }
    });
}

fn present(store: &Store) -> Vec<RevokedCertificates> {
    let memory = store.read();
    let records = memory.scan(Kind::Revocation, Bound::Unbounded);
    let decoded = records.filter_map(|(_, current)| pb::Revocation::decode(&*current.record).ok());
    let revocations = decoded.filter_map(|record| Revocation::try_from(record).ok());
    revocations.flat_map(|revocation| RevokedCertificates::of(&revocation)).collect()
}
