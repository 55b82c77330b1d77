//! Which packs of renewals are still needed: those that hold the newest renewal of some lease.
//!
//! Each commit with renewals adds a pack. A pack that holds no newest renewal any more can be deleted. Leases that are
//! no longer renewed would keep old packs of many renewals alive for one of them, so such packs are folded: a later
//! commit writes their newest renewals again, in its own pack.

use std::collections::{BTreeMap, HashMap};

use muster_store_core::history::Revision;

use super::keys::NumberedRenewal;

/// How many renewals that are not the newest may be stored, beside as many as are the newest.
const SLACK: usize = 16 * 1024;
/// How many renewals one commit writes again at most.
const MAX_FOLDED: usize = 4096;

#[derive(Debug, Default)]
struct Pack {
    /// The leases of its renewals.
    leases: Vec<u32>,
    /// How many of these renewals are the newest of their lease.
    live: usize,
}

/// All packs by their key, and where each lease's newest renewal is.
#[derive(Debug, Default)]
pub(super) struct Packs {
    packs: BTreeMap<Revision, Pack>,
    newest: HashMap<u32, (Revision, NumberedRenewal)>,
    stored: usize,
    /// Packs that held no newest renewal at some time.
    idle: Vec<Revision>,
}

impl Packs {
    /// Adds a pack, whose renewals become the newest of their leases.
    pub(super) fn add(&mut self, pack: Revision, renewals: &[NumberedRenewal]) {
        let leases = renewals.iter().map(|(_, renewal)| renewal.lease_id).collect();
        self.packs.insert(pack, Pack { leases, live: 0 });
        self.stored += renewals.len();
        for numbered in renewals {
            let (revision, renewal) = *numbered;
            if self.newest.get(&renewal.lease_id).is_some_and(|(_, (known, _))| *known > revision) {
                continue;
            }
            self.release(renewal.lease_id);
            self.newest.insert(renewal.lease_id, (pack, *numbered));
            if let Some(pack) = self.packs.get_mut(&pack) {
                pack.live += 1;
            }
        }
        self.idle.push(pack);
    }

    /// The lease's renewals so far are not needed.
    fn release(&mut self, lease_id: u32) {
        if let Some((key, _)) = self.newest.remove(&lease_id)
            && let Some(pack) = self.packs.get_mut(&key)
        {
            pack.live -= 1;
            if pack.live == 0 {
                self.idle.push(key);
            }
        }
    }

    /// These leases were written or deleted at these revisions: their renewals up to there are not needed.
    pub(super) fn release_written(&mut self, written: &HashMap<u32, Revision>) {
        for (lease_id, at) in written {
            if self.newest.get(lease_id).is_some_and(|(_, (revision, _))| revision < at) {
                self.release(*lease_id);
            }
        }
    }

    /// Keeps only the leases for which this holds; for those that were deleted before the packs were loaded.
    pub(super) fn retain(&mut self, is_newest: impl Fn(u32, Revision) -> bool) {
        let stale: Vec<u32> = self
            .newest
            .iter()
            .filter(|(lease_id, (_, (revision, _)))| !is_newest(**lease_id, *revision))
            .map(|(lease_id, _)| *lease_id)
            .collect();
        stale.into_iter().for_each(|lease_id| self.release(lease_id));
    }

    /// Removes the packs that are not needed any more, and returns their keys.
    pub(super) fn take_unneeded(&mut self) -> Vec<Revision> {
        let mut unneeded = Vec::new();
        for key in std::mem::take(&mut self.idle) {
            if self.packs.get(&key).is_some_and(|pack| pack.live == 0)
                && let Some(pack) = self.packs.remove(&key)
            {
                self.stored -= pack.leases.len();
                unneeded.push(key);
            }
        }
        unneeded
    }

    /// The renewals that the next pack should take over from packs that hold little else that is needed.
    pub(super) fn to_fold(&self) -> Vec<NumberedRenewal> {
        let mut folded = Vec::new();
        if self.stored <= 2 * self.newest.len() + SLACK {
            return folded;
        }
        for (key, pack) in &self.packs {
            if 2 * pack.live > pack.leases.len() || folded.len() + pack.live > MAX_FOLDED {
                continue;
            }
            let newest = pack.leases.iter().filter_map(|lease_id| self.newest.get(lease_id));
            folded.extend(newest.filter(|(in_pack, _)| in_pack == key).map(|(_, numbered)| *numbered));
        }
        // A lease that is twice in a pack was found twice.
        folded.sort_unstable_by_key(|(revision, _)| *revision);
        folded.dedup_by_key(|(revision, _)| *revision);
        folded
    }
}

#[cfg(test)]
mod tests {
    use muster_store_core::history::StoredRenewal;

    use super::*;

    fn of(lease_id: u32, revision: Revision) -> NumberedRenewal {
        (revision, StoredRenewal { lease_id, status_age_millis: 0, status_digest: 0, at_micros: 0 })
    }

    #[test]
    fn a_pack_is_needed_while_it_holds_the_newest_renewal_of_a_lease() {
        let mut packs = Packs::default();
        packs.add(2, &[of(1, 1), of(2, 2)]);
        packs.add(3, &[of(1, 3)]);
        assert!(packs.take_unneeded().is_empty());
        packs.add(4, &[of(2, 4)]);
        assert_eq!(packs.take_unneeded(), [2]);
        packs.release_written(&[(1, 5), (2, 1)].into());
        assert_eq!(packs.take_unneeded(), [3], "the lease was written or deleted");
        packs.add(9, &[of(2, 8), of(2, 9)]);
        assert_eq!(packs.take_unneeded(), [4], "a lease twice in one pack");
        packs.retain(|lease_id, revision| (lease_id, revision) != (2, 9));
        assert_eq!(packs.take_unneeded(), [9]);
        assert_eq!(packs.stored, 0);
    }

    #[test]
    fn what_is_stored_stays_bounded_when_some_leases_are_never_renewed_again() {
        let mut packs = Packs::default();
        let (mut revision, mut most) = (0, 0);
        // In each round one lease more falls silent; 99 others are renewed.
        for round in 0..3000 {
            let mut renewals = packs.to_fold();
            let renewing = (round..round + 100).map(|lease_id| {
                revision += 1;
                of(lease_id, revision)
            });
            renewals.extend(renewing);
            packs.add(revision, &renewals);
            packs.take_unneeded();
            most = most.max(packs.stored);
            assert_eq!(packs.newest.len(), round as usize + 100, "no newest renewal is lost");
        }
        assert!(most <= 2 * 3100 + SLACK + MAX_FOLDED, "{most} renewals were stored");
        let live: usize = packs.packs.values().map(|pack| pack.live).sum();
        assert_eq!(live, packs.newest.len());
    }
}
