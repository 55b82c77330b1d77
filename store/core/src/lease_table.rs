//! The newest renewal of every lease.
//!
//! A renewal does not change its lease's record: it is a few bytes under the lease's number.

use std::collections::BTreeSet;

use crate::heartbeat;
use crate::history::{Revision, StoredRenewal};
use crate::namespaced_name::NamespacedName;

/// A lease's newest renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal {
    pub revision: Revision,
    pub at_micros: i64,
    pub status_digest: u64,
    pub status_age_millis: u32,
}

/// Proof that a client held a lease. A renewal with this claim is refused once the lease has another holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    pub lease_id: u32,
    /// Changes whenever another holder or incarnation acquires the lease.
    pub epoch: u32,
}

#[derive(Debug, Clone)]
struct Entry {
    key: NamespacedName,
    epoch: u32,
    holder: Box<str>,
    newest: Option<Renewal>,
}

/// All leases by their number (`lease_id`).
#[derive(Debug, Clone, Default)]
pub struct LeaseTable {
    entries: Vec<Option<Entry>>,
    free: BTreeSet<u32>,
    epochs: u32,
}

impl LeaseTable {
    /// The number of the next new lease, when `taken` new leases precede it in the same commit.
    pub fn next_id(&self, taken: usize) -> u32 {
        let reused = self.free.iter().nth(taken).copied();
        reused.unwrap_or_else(|| (self.entries.len() + taken - self.free.len()) as u32)
    }

    /// Records a written lease: its own renewal time is now the newest.
    pub fn put(&mut self, id: u32, key: NamespacedName, holder: &str) {
        let index = id as usize;
        while self.entries.len() <= index {
            self.free.insert(self.entries.len() as u32);
            self.entries.push(None);
        }
        match &mut self.entries[index] {
            Some(entry) => {
                if *entry.holder != *holder {
                    self.epochs += 1;
                    entry.epoch = self.epochs;
                    entry.holder = holder.into();
                }
                entry.newest = None;
            }
            vacant => {
                // A reused number starts a new epoch, so that claims on its former lease stay invalid.
                self.epochs += 1;
                let (epoch, holder) = (self.epochs, holder.into());
                *vacant = Some(Entry { key, epoch, holder, newest: None });
                self.free.remove(&id);
            }
        }
    }

    /// Removes a deleted lease and frees its number.
    pub fn remove(&mut self, id: u32) {
        if let Some(entry) = self.entries.get_mut(id as usize)
            && entry.take().is_some()
        {
            self.free.insert(id);
        }
    }

    pub fn key(&self, id: u32) -> Option<&NamespacedName> {
        self.entry(id).map(|entry| &entry.key)
    }

    pub fn newest(&self, id: u32) -> Option<Renewal> {
        self.entry(id).and_then(|entry| entry.newest)
    }

    /// The holder of the lease, without the incarnation.
    pub fn holder(&self, id: u32) -> Option<&str> {
        self.entry(id).map(|entry| entry.holder.split_once('\0').map_or(&*entry.holder, |(holder, _)| holder))
    }

    /// Whether this holder in this incarnation holds the lease.
    pub fn is_held_by(&self, id: u32, holder: &str, incarnation: &str) -> bool {
        self.entry(id)
            .is_some_and(|entry| *entry.holder == *heartbeat::join_holder_instance(holder, incarnation))
    }

    pub fn claim(&self, id: u32) -> Option<Claim> {
        self.entry(id).map(|entry| Claim { lease_id: id, epoch: entry.epoch })
    }

    fn entry(&self, id: u32) -> Option<&Entry> {
        self.entries.get(id as usize).and_then(Option::as_ref)
    }

    /// Applies consecutive renewals. `base` gives the revision of a lease's last write. `replaced` is called with each
    /// lease that has a new renewal, and the renewal that it replaces.
    ///
    /// A renewal older than the newest known one, or than the lease's last write, is ignored.
    pub fn apply_renewals(
        &mut self,
        first: Revision,
        pack: &[StoredRenewal],
        base: impl Fn(&NamespacedName) -> Revision,
        mut replaced: impl FnMut(u32, Option<Renewal>, Renewal),
    ) {
        for (revision, renewal) in (first..).zip(pack) {
            let Some(Some(entry)) = self.entries.get_mut(renewal.lease_id as usize) else { continue };
            let known = entry.newest.map_or_else(|| base(&entry.key), |newest| newest.revision);
            if revision > known {
                let renewed = renewal.at(revision);
                replaced(renewal.lease_id, entry.newest.replace(renewed), renewed);
            }
        }
    }

    /// Every lease's newest renewal, if it was renewed since it was written.
    pub fn renewals(&self) -> impl Iterator<Item = (u32, Renewal)> + '_ {
        let numbered = (0..).zip(&self.entries);
        numbered.filter_map(|(id, entry)| Some((id, entry.as_ref()?.newest?)))
    }
}

impl StoredRenewal {
    /// The renewal, made at a revision.
    pub fn at(&self, revision: Revision) -> Renewal {
        Renewal {
            revision,
            at_micros: self.at_micros,
            status_digest: self.status_digest,
            status_age_millis: self.status_age_millis,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renewal(lease_id: u32, at_micros: i64) -> StoredRenewal {
        StoredRenewal { lease_id, status_age_millis: 0, status_digest: 0, at_micros }
    }

    fn table(leases: u32) -> LeaseTable {
        let mut table = LeaseTable::default();
        for i in 0..leases {
            let id = table.next_id(0);
            table.put(id, NamespacedName::new("ns", &format!("n{i}")), "holder");
        }
        table
    }

    #[test]
    fn lease_numbers_are_dense_and_reused() {
        let mut table = table(3);
        table.remove(1);
        assert_eq!((table.next_id(0), table.next_id(1), table.next_id(2)), (1, 3, 4));
    }

    #[test]
    fn the_newest_renewal_wins_and_older_ones_are_ignored() {
        let mut table = table(2);
        table.apply_renewals(10, &[renewal(0, 100), renewal(1, 101), renewal(0, 102)], |_| 5, |_, _, _| ());
        assert_eq!(table.newest(0).unwrap().revision, 12);
        assert_eq!(table.newest(1).unwrap().at_micros, 101);
        table.apply_renewals(3, &[renewal(0, 1)], |_| 5, |_, _, _| ());
        assert_eq!(table.newest(0).unwrap().revision, 12, "a pack loaded again changes nothing");
        table.put(0, NamespacedName::new("ns", "n0"), "holder");
        assert_eq!(table.newest(0), None, "the written lease is newer than the renewal");
        table.apply_renewals(10, &[renewal(0, 100)], |_| 20, |_, _, _| ());
        assert_eq!(table.newest(0), None, "the lease was written after that renewal");
    }

    #[test]
    fn a_claim_is_invalid_once_the_holder_changes() {
        let mut table = table(1);
        let claim = table.claim(0);
        table.put(0, NamespacedName::new("ns", "n0"), "holder");
        assert_eq!(table.claim(0), claim);
        table.put(0, NamespacedName::new("ns", "n0"), "other");
        let other = table.claim(0);
        assert_ne!(other, claim);
        table.remove(0);
        assert_eq!(table.claim(0), None);
        table.put(0, NamespacedName::new("ns", "another"), "other");
        assert_ne!(table.claim(0), other, "the number is reused, the claim is not");
    }
}
