//! Updates the writer's indexes for each record that a draft writes or deletes.

use bytes::Bytes;
use muster_proto::event::Event;
use muster_proto::meta::Metadata;
use muster_proto::pb;
use muster_proto::record::Kind;
use prost::Message;

use super::{Draft, DraftRecord, decode};
use crate::error::DraftError;
use crate::heartbeat;
use crate::namespaced_name::NamespacedName;
use crate::partial_decode;

impl Draft<'_> {
    pub(super) fn index_put(
        &mut self,
        kind: Kind,
        key: &NamespacedName,
        meta: &Metadata,
        bytes: &Bytes,
        was: Option<&DraftRecord>,
        lease_id: u32,
    ) -> Result<(), DraftError> {
        if matches!(kind, Kind::Pod | Kind::Lease) {
            self.index_owners(key, kind, meta, was);
        }
        match kind {
            Kind::Pod => self.count_pod(key, was, Some(bytes))?,
            Kind::Lease => {
                // Claims stay valid while the holder and its incarnation stay the same.
                let holder = |bytes: &Bytes| {
                    pb::Lease::decode(&**bytes).map(|lease| heartbeat::holder_instance(&lease))
                };
                let same_holder = was.is_some_and(|was| holder(&was.record) == holder(bytes));
                let valid = self.claims_valid.get(&lease_id).copied().unwrap_or(true);
                self.claims_valid.insert(lease_id, valid && same_holder);
            }
            Kind::Event => {
                let event: Event = decode(key, bytes)?;
                let last = event.last_timestamp.unwrap_or(self.now).as_millisecond();
                let expires = last + self.policy.event_ttl_millis;
                self.indexes.events.put(key, expires, &event.source_host, bytes.len());
                if !event.source_host.is_empty() {
                    self.recording_hosts.insert(event.source_host);
                }
            }
            Kind::JoinToken | Kind::CertificateRequest | Kind::Revocation => {
                self.indexes.joining.put(kind, key, bytes);
            }
            Kind::PriorityClass => self.indexes.put_priority_class(key, bytes),
            Kind::Node | Kind::DisruptionBudget => {}
        }
        Ok(())
    }

    pub(super) fn index_remove(
        &mut self,
        key: &NamespacedName,
        was: Option<&DraftRecord>,
        kind: Kind,
    ) -> Result<(), DraftError> {
        // The owners that were indexed: the deletion's last content may name others.
        if let Some(was) = was {
            for owner in partial_decode::metadata(&was.record).owner_references {
                self.indexes.remove_owner(&owner.uid, kind, key);
            }
        }
        match kind {
            Kind::Pod => self.count_pod(key, was, None)?,
            Kind::Lease => {
                self.claims_valid.insert(was.map_or(0, |was| was.lease_id), false);
            }
            Kind::DisruptionBudget => {
                self.indexes.remove_budget(key);
                self.stale_budgets.remove(key);
            }
            Kind::Event => self.indexes.events.remove(key),
            Kind::JoinToken | Kind::CertificateRequest | Kind::Revocation => {
                self.indexes.joining.remove(kind, key);
            }
            Kind::PriorityClass => self.indexes.remove_priority_class(key),
            Kind::Node => {}
        }
        Ok(())
    }

    fn index_owners(&mut self, key: &NamespacedName, kind: Kind, meta: &Metadata, was: Option<&DraftRecord>) {
        if let Some(was) = was {
            for owner in partial_decode::metadata(&was.record).owner_references {
                self.indexes.remove_owner(&owner.uid, kind, key);
            }
        }
        for owner in &meta.owner_references {
            self.indexes.add_owner(&owner.kind, &owner.uid, kind, key);
            if owner.kind == "Node" && !self.node_exists(&owner.name, &owner.uid) {
                self.orphans.push((kind, key.clone()));
            }
        }
    }

    pub(super) fn node_exists(&self, name: &str, uid: &str) -> bool {
        let node = self.lookup(Kind::Node, &NamespacedName::new("", name));
        node.is_some_and(|node| partial_decode::metadata(&node.record).uid.eq_ignore_ascii_case(uid))
    }
}
