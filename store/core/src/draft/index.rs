//! Keeps the writer's look-ups in step with a draft, and the budgets that count its pods.

use std::collections::BTreeSet;
use std::ops::Bound;

use bytes::Bytes;
use muster_proto::budget::DisruptionBudget;
use muster_proto::event::Event;
use muster_proto::meta::Metadata;
use muster_proto::pb;
use muster_proto::pod::Pod;
use muster_proto::record::{Kind, Record};
use prost::Message;

use super::{Draft, Pending, decode};
use crate::error::DraftError;
use crate::heartbeat;
use crate::indexes::Counted;
use crate::namespaced_name::NamespacedName;
use crate::partial_decode;
use crate::rules;

impl Draft<'_> {
    pub(super) fn index_put<R: Record>(
        &mut self,
        key: &NamespacedName,
        record: &R,
        bytes: &Bytes,
        was: Option<&Pending>,
        lease_id: u32,
    ) -> Result<(), DraftError> {
        let kind = R::KIND;
        if matches!(kind, Kind::Pod | Kind::Lease) {
            self.index_owners(key, kind, record.meta(), was);
        }
        match kind {
            Kind::Pod => self.count_pod(key, was, Some(bytes))?,
            Kind::Lease => {
                // A claim holds on while the same holder and incarnation stay.
                let holder =
                    |bytes: &Bytes| pb::Lease::decode(&**bytes).map(|lease| heartbeat::holder(&lease));
                let same = was.is_some_and(|was| holder(&was.record) == holder(bytes));
                let held = self.leases.get(&lease_id).copied().unwrap_or(true);
                self.leases.insert(lease_id, held && same);
            }
            Kind::DisruptionBudget => self.index_budget(key, bytes)?,
            Kind::Event => {
                let event: Event = decode(key, bytes)?;
                let last = event.last_timestamp.unwrap_or(self.now).as_millisecond();
                self.indexes.expire_at(key, last + self.policy.event_ttl_millis);
            }
            Kind::Node => {}
        }
        Ok(())
    }

    pub(super) fn index_remove(
        &mut self,
        key: &NamespacedName,
        was: Option<&Pending>,
        kind: Kind,
    ) -> Result<(), DraftError> {
        // By what was indexed: the last content may name other owners.
        if let Some(was) = was {
            for owner in partial_decode::metadata(&was.record).owner_references {
                self.indexes.disown(&owner.uid, kind, key);
            }
        }
        match kind {
            Kind::Pod => self.count_pod(key, was, None)?,
            Kind::Lease => {
                self.leases.insert(was.map_or(0, |was| was.lease_id), false);
            }
            Kind::DisruptionBudget => {
                self.indexes.remove_budget(key);
                self.unsettled.remove(key);
            }
            Kind::Event => self.indexes.never_expire(key),
            Kind::Node => {}
        }
        Ok(())
    }

    fn index_owners(&mut self, key: &NamespacedName, kind: Kind, meta: &Metadata, was: Option<&Pending>) {
        if let Some(was) = was {
            for owner in partial_decode::metadata(&was.record).owner_references {
                self.indexes.disown(&owner.uid, kind, key);
            }
        }
        for owner in &meta.owner_references {
            self.indexes.own(&owner.kind, &owner.uid, kind, key);
            if owner.kind == "Node" && !self.node_lives(&owner.name, &owner.uid) {
                self.orphans.push((kind, key.clone()));
            }
        }
    }

    pub(super) fn node_lives(&self, name: &str, uid: &str) -> bool {
        let node = self.pending(Kind::Node, &NamespacedName::new("", name));
        node.is_some_and(|node| partial_decode::metadata(&node.record).uid.eq_ignore_ascii_case(uid))
    }

    fn count_pod(
        &mut self,
        key: &NamespacedName,
        was: Option<&Pending>,
        is: Option<&Bytes>,
    ) -> Result<(), DraftError> {
        if !self.indexes.has_budgets(key.namespace()) {
            return Ok(());
        }
        let counted = |bytes: &Bytes| decode::<Pod>(key, bytes).map(|pod| Counted::of(&pod));
        let was = was.map(|was| counted(&was.record)).transpose()?;
        let is = is.map(counted).transpose()?;
        self.unsettled.extend(self.indexes.count(key.namespace(), was.as_ref(), is.as_ref()));
        Ok(())
    }

    fn index_budget(&mut self, key: &NamespacedName, bytes: &Bytes) -> Result<(), DraftError> {
        let budget: DisruptionBudget = decode(key, bytes)?;
        if !self.indexes.counts_by(key, &budget.spec.selector) {
            let pods: Vec<Counted> = self.pods_in(key.namespace())?.iter().map(Counted::of).collect();
            self.indexes.put_budget(key.clone(), budget.spec.selector, pods.into_iter());
        }
        self.unsettled.insert(key.clone());
        Ok(())
    }

    /// The pods of a namespace as the batch has left them: once for each new
    /// budget, never for a pod.
    fn pods_in(&self, namespace: &str) -> Result<Vec<Pod>, DraftError> {
        let start = NamespacedName::start_of(namespace);
        let stored = self.memory.scan(Kind::Pod, Bound::Included(&start)).map(|(key, _)| key);
        let mut keys: BTreeSet<&NamespacedName> =
            stored.take_while(|key| key.namespace() == namespace).collect();
        let touched =
            self.touched.keys().filter(|(kind, key)| *kind == Kind::Pod && key.namespace() == namespace);
        keys.extend(touched.map(|(_, key)| key));
        keys.into_iter().filter_map(|key| self.at::<Pod>(key).transpose()).collect()
    }

    /// The budgets of a namespace, with statuses that count what the batch did.
    pub fn budgets(&mut self, namespace: &str) -> Result<Vec<DisruptionBudget>, DraftError> {
        self.settle_budgets()?;
        let keys: Vec<NamespacedName> = self.indexes.budgets(namespace).map(|(key, _)| key.clone()).collect();
        keys.iter().filter_map(|key| self.at(key).transpose()).collect()
    }

    /// Brings the statuses of budgets up to date with the pods they count.
    pub fn settle_budgets(&mut self) -> Result<(), DraftError> {
        let settled = std::mem::take(&mut self.unsettled).into_iter().map(|key| self.settle_budget(&key));
        // One that cannot be settled must not keep the others from it.
        settled.collect::<Vec<_>>().into_iter().collect()
    }

    fn settle_budget(&mut self, key: &NamespacedName) -> Result<(), DraftError> {
        let Some(tally) = self.indexes.tally(key).cloned() else { return Ok(()) };
        let Some(mut budget) = self.at::<DisruptionBudget>(key)? else { return Ok(()) };
        let generation = budget.meta.generation;
        let status = rules::budget_status(&budget.spec, tally.expected, tally.healthy, generation);
        if budget.status != status {
            budget.status = status;
            self.put(budget)?;
            self.unsettled.remove(key);
        }
        Ok(())
    }
}
