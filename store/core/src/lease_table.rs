//! The newest renewal of every lease, and the stored packs of renewals.
//!
//! A renewal does not change its lease's stored value: it is 24 bytes in the pack of its commit. The oldest pack is
//! retired (deleted) once there are several times more stored renewals than leases. By then almost all of its renewals
//! are superseded; a lease whose newest renewal is still in the pack gets that renewal folded into its stored value.

use std::collections::{BTreeSet, VecDeque};

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
    /// The first revision of the pack that holds `newest`; 0 once it is folded into the lease.
    pack: Revision,
}

#[derive(Debug, Clone)]
struct Pack {
    first: Revision,
    leases: Box<[u32]>,
}

/// All leases by their number (`lease_id`).
#[derive(Debug, Clone, Default)]
pub struct LeaseTable {
    entries: Vec<Option<Entry>>,
    free: BTreeSet<u32>,
    live: usize,
    epochs: u32,
    packs: VecDeque<Pack>,
    logged: usize,
}

/// The oldest pack is retired when more renewals are stored than this: so many per lease, and a fixed number besides,
/// which is what counts in a small fleet.
const MAX_LOGGED_PER_LEASE: usize = 4;
const MAX_LOGGED_BASE: usize = 16 * 1024;

impl LeaseTable {
    /// The number of the next new lease, when `taken` new leases precede it in the same commit.
    pub fn next_id(&self, taken: usize) -> u32 {
        let reused = self.free.iter().nth(taken).copied();
        reused.unwrap_or_else(|| (self.entries.len() + taken - self.free.len()) as u32)
    }

    /// Records a written lease: its own renewal time is now the newest. `folded` is the renewal that was folded into
    /// the stored value after the write, if any.
    pub fn put(&mut self, id: u32, key: NamespacedName, holder: &str, folded: Option<Renewal>) {
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
                entry.newest = folded;
                entry.pack = 0;
            }
            vacant => {
                // A reused number starts a new epoch, so that claims on its former lease stay invalid.
                self.epochs += 1;
                let (epoch, holder) = (self.epochs, holder.into());
                *vacant = Some(Entry { key, epoch, holder, newest: folded, pack: 0 });
                self.free.remove(&id);
                self.live += 1;
            }
        }
    }

    /// Removes a deleted lease and frees its number.
    pub fn remove(&mut self, id: u32) {
        if let Some(entry) = self.entries.get_mut(id as usize)
            && entry.take().is_some()
        {
            self.live -= 1;
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

    /// Applies a pack that was committed, or loaded at the start. `base` gives the revision of a lease's last write.
    ///
    /// A renewal older than the newest known one, or than the lease's last write, is ignored, so packs can be loaded
    /// again after some of their renewals were folded.
    pub fn apply_renewals(
        &mut self,
        first: Revision,
        pack: &[StoredRenewal],
        base: impl Fn(&NamespacedName) -> Revision,
    ) {
        for (revision, renewal) in (first..).zip(pack) {
            let Some(Some(entry)) = self.entries.get_mut(renewal.lease_id as usize) else { continue };
            let known = entry.newest.map_or_else(|| base(&entry.key), |newest| newest.revision);
            if revision > known {
                entry.newest = Some(Renewal {
                    revision,
                    at_micros: renewal.at_micros,
                    status_digest: renewal.status_digest,
                    status_age_millis: renewal.status_age_millis,
                });
                entry.pack = first;
            }
        }
        self.logged += pack.len();
        self.packs.push_back(Pack { first, leases: pack.iter().map(|r| r.lease_id).collect() });
    }

    /// The oldest pack but for the first `skip`, if it is due to be retired, with the leases that must be folded first.
    pub fn retirable(&self, skip: usize) -> Option<(Revision, Vec<u32>)> {
        let skipped: usize = self.packs.iter().take(skip).map(|pack| pack.leases.len()).sum();
        if self.logged - skipped <= self.live * MAX_LOGGED_PER_LEASE + MAX_LOGGED_BASE {
            return None;
        }
        let pack = self.packs.get(skip)?;
        let mut fold: Vec<u32> = pack
            .leases
            .iter()
            .copied()
            .filter(|id| self.entry(*id).is_some_and(|entry| entry.pack == pack.first))
            .collect();
        fold.sort_unstable();
        fold.dedup();
        Some((pack.first, fold))
    }

    /// Removes the oldest pack; its leases have been folded.
    pub fn remove_pack(&mut self, first: Revision) {
        if self.packs.front().is_some_and(|pack| pack.first == first)
            && let Some(pack) = self.packs.pop_front()
        {
            self.logged -= pack.leases.len();
            for id in pack.leases {
                if let Some(Some(entry)) = self.entries.get_mut(id as usize)
                    && entry.pack == first
                {
                    entry.pack = 0;
                }
            }
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
            table.put(id, NamespacedName::new("ns", &format!("n{i}")), "holder", None);
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
        table.apply_renewals(10, &[renewal(0, 100), renewal(1, 101), renewal(0, 102)], |_| 5);
        assert_eq!(table.newest(0).unwrap().revision, 12);
        assert_eq!(table.newest(1).unwrap().at_micros, 101);
        table.apply_renewals(3, &[renewal(0, 1)], |_| 5);
        assert_eq!(table.newest(0).unwrap().revision, 12, "a pack loaded again changes nothing");
        table.put(0, NamespacedName::new("ns", "n0"), "holder", None);
        assert_eq!(table.newest(0), None, "the written lease is newer than the renewal");
        table.apply_renewals(10, &[renewal(0, 100)], |_| 20);
        assert_eq!(table.newest(0), None, "the lease was written after that renewal");
    }

    #[test]
    fn a_claim_is_invalid_once_the_holder_changes() {
        let mut table = table(1);
        let claim = table.claim(0);
        table.put(0, NamespacedName::new("ns", "n0"), "holder", None);
        assert_eq!(table.claim(0), claim);
        table.put(0, NamespacedName::new("ns", "n0"), "other", None);
        let other = table.claim(0);
        assert_ne!(other, claim);
        table.remove(0);
        assert_eq!(table.claim(0), None);
        table.put(0, NamespacedName::new("ns", "another"), "other", None);
        assert_ne!(table.claim(0), other, "the number is reused, the claim is not");
    }

    #[test]
    fn only_leases_that_stopped_renewing_are_folded_when_a_pack_is_retired() {
        let mut table = table(2);
        assert_eq!(table.retirable(0), None);
        let busy: Vec<_> = (0..MAX_LOGGED_BASE as i64).map(|i| renewal(0, i)).collect();
        table.apply_renewals(10, &[renewal(0, 1), renewal(1, 1)], |_| 1);
        table.apply_renewals(12, &busy, |_| 1);
        assert_eq!(table.retirable(0), None, "eight more are allowed for two leases");
        table.apply_renewals(20_000, &busy[..10], |_| 1);
        assert_eq!(table.retirable(0), Some((10, vec![1])));
        table.remove_pack(10);
        assert_eq!(table.logged, MAX_LOGGED_BASE + 10);
        assert_eq!(table.newest(1).unwrap().at_micros, 1, "still known after its pack is removed");
    }
}
