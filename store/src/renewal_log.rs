//! The newest renewals, in memory, for those who watch leases.
//!
//! A renewal's history is worth little and there is a lot of it, so it is not in
//! the ledger's history of changes. A watcher that falls behind what is here, or
//! comes from before a restart, hears the newest renewal of each lease instead
//! of every one.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use muster_proto::record::Kind;
use muster_proto::time::Mono;

use muster_store_core::change::{Change, SharedChange};
use muster_store_core::history::{Revision, StoredRenewal};
use muster_store_core::lease_table::Renewal;
use muster_store_core::memory::{Memory, lease_with_renewal};

/// How many renewals are recent: some seconds of a large fleet.
const MAX_RENEWALS: usize = 64 * 1024;
/// How many are taken at once: a watcher that lags must not take much memory.
const MAX_READ: usize = 1024;

struct LoggedRenewal {
    revision: Revision,
    renewal: StoredRenewal,
    published: Mono,
    /// Made when the first watcher asks, then shared. `None` when the lease was
    /// written or deleted complete_after: that change tells the rest.
    change: OnceLock<Option<SharedChange>>,
}

#[derive(Default)]
struct RecentRenewals {
    renewals: VecDeque<Arc<LoggedRenewal>>,
    /// Every renewal after this revision is here.
    complete_after: Revision,
}

/// The newest renewals.
#[derive(Default)]
pub struct RenewalLog {
    recent: RwLock<RecentRenewals>,
}

impl RenewalLog {
    /// A log of what comes after `head`.
    pub fn new(head: Revision) -> Self {
        Self { recent: RwLock::new(RecentRenewals { complete_after: head, ..Default::default() }) }
    }

    /// Takes in a pack that is durable.
    pub fn publish(&self, first: Revision, pack: &[StoredRenewal], published: Mono) {
        let mut recent = self.recent.write().unwrap_or_else(PoisonError::into_inner);
        for (revision, renewal) in (first..).zip(pack) {
            let logged = LoggedRenewal { revision, renewal: *renewal, published, change: OnceLock::new() };
            recent.renewals.push_back(Arc::new(logged));
        }
        while recent.renewals.len() > MAX_RENEWALS {
            if let Some(oldest) = recent.renewals.pop_front() {
                recent.complete_after = oldest.revision;
            }
        }
    }

    /// Renewals in `(after, up_to]` as changes of their leases, in order and not
    /// more than fit a few frames, and the revision up to which there are no
    /// others. Of those that are no longer here, the newest of each lease:
    /// `missed` keeps what of these is still to be taken.
    pub fn read(
        &self,
        after: Revision,
        up_to: Revision,
        catch_up: &mut RenewalCatchUp,
        memory: &Memory,
    ) -> (Vec<SharedChange>, Revision) {
        if after < catch_up.up_to {
            return catch_up.take(up_to, memory);
        }
        let Some(renewals) = self.renewals(after, up_to) else {
            *catch_up = RenewalCatchUp::after(after, memory);
            return catch_up.take(up_to, memory);
        };
        let up_to = if renewals.len() == MAX_READ { renewals[MAX_READ - 1].revision } else { up_to };
        let made =
            renewals.iter().filter_map(|logged| logged.change.get_or_init(|| logged.change(memory)).clone());
        (made.collect(), up_to)
    }

    fn renewals(&self, after: Revision, up_to: Revision) -> Option<Vec<Arc<LoggedRenewal>>> {
        let recent = self.recent.read().unwrap_or_else(PoisonError::into_inner);
        if after < recent.complete_after {
            return None;
        }
        let from = recent.renewals.partition_point(|logged| logged.revision <= after);
        let wanted = recent.renewals.range(from..).take_while(|logged| logged.revision <= up_to);
        Some(wanted.take(MAX_READ).cloned().collect())
    }
}

/// The newest renewals of leases, for a watcher that missed the others: it is taken
/// them by and by, and all leases are looked through but once.
#[derive(Debug, Default)]
pub struct RenewalCatchUp {
    /// Revision and lease, in order.
    renewals: VecDeque<(Revision, u32)>,
    /// There are no others up to here.
    up_to: Revision,
}

impl RenewalCatchUp {
    fn after(after: Revision, memory: &Memory) -> Self {
        let renewed = memory.scan(Kind::Lease, Bound::Unbounded).filter_map(|(_, current)| {
            let renewal = memory.leases.newest(current.lease_id)?;
            (renewal.revision > after).then_some((renewal.revision, current.lease_id))
        });
        let mut renewals: Vec<_> = renewed.collect();
        renewals.sort_unstable();
        Self { renewals: renewals.into(), up_to: memory.head() }
    }

    fn take(&mut self, up_to: Revision, memory: &Memory) -> (Vec<SharedChange>, Revision) {
        let due = self.renewals.partition_point(|(revision, _)| *revision <= up_to).min(MAX_READ);
        let taken: Vec<_> = self.renewals.drain(..due).collect();
        let up_to = match taken.last() {
            Some((last, _)) if due == MAX_READ => *last,
            _ => up_to.min(self.up_to),
        };
        let changes = taken.into_iter().filter_map(|(revision, id)| {
            // One that was renewed complete_after is taken of then.
            let renewal = memory.leases.newest(id).filter(|newest| newest.revision == revision)?;
            change(memory, id, &renewal)
        });
        (changes.collect(), up_to)
    }
}

impl LoggedRenewal {
    fn change(&self, memory: &Memory) -> Option<SharedChange> {
        let renewal = Renewal {
            revision: self.revision,
            at_micros: self.renewal.at_micros,
            status_digest: self.renewal.status_digest,
            status_age_millis: self.renewal.status_age_millis,
        };
        let change = change(memory, self.renewal.lease_id, &renewal)?;
        change.set_published(self.published);
        Some(change)
    }
}

fn change(memory: &Memory, lease_id: u32, renewal: &Renewal) -> Option<SharedChange> {
    let key = memory.leases.key(lease_id)?;
    let lease = memory.get(Kind::Lease, key).filter(|lease| lease.revision < renewal.revision)?;
    let record = lease_with_renewal(&lease.record, renewal);
    let previous = Some(lease.record.clone());
    let (kind, key) = (Kind::Lease, key.clone());
    Some(Arc::new(Change::new(kind, renewal.revision, key, false, record, previous, String::new())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use muster_store_core::history::{Commit, StoredChange};

    const LEASES: u32 = 2 * MAX_READ as u32 + 100;

    fn renewal(lease_id: u32) -> StoredRenewal {
        StoredRenewal { lease_id, status_age_millis: 0, status_digest: 0, at_micros: 1 }
    }

    /// A lease for each number, and a renewal of each.
    fn memory() -> Memory {
        let lease = |id: u32| StoredChange {
            kind: Kind::Lease,
            namespace: "ns".into(),
            name: format!("l{id}"),
            record: Bytes::new(),
            deleted: false,
            previous: 0,
            at_millis: 0,
            traceparent: String::new(),
            lease_id: id,
        };
        let mut memory = Memory::default();
        let (leases, head) = (u64::from(LEASES), 2 * u64::from(LEASES));
        let changes = (0..LEASES).map(|id| (1 + u64::from(id), lease(id))).collect();
        let renewals = vec![(leases + 1, (0..LEASES).map(renewal).collect())];
        memory.apply_commit(&Commit { base: 0, head, changes, renewals, ..Default::default() });
        memory
    }

    #[test]
    fn a_watcher_that_missed_renewals_hears_the_newest_of_each_lease_once() {
        let mut memory = memory();
        let (log, mut catch_up) = (RenewalLog::new(memory.head()), RenewalCatchUp::default());
        let (mut taken, mut cursor) = (Vec::new(), 0);
        for round in 0.. {
            let head = memory.head();
            let (changes, up_to) = log.read(cursor, head, &mut catch_up, &memory);
            assert!(up_to > cursor, "it comes on");
            taken.extend(changes.iter().map(|change| (change.revision, change.key.name().to_owned())));
            cursor = up_to;
            if round == 0 {
                // One that is yet to be taken of renews once more.
                let again = vec![(head + 1, vec![renewal(LEASES - 1)])];
                log.publish(head + 1, &again[0].1, Mono::default());
                memory.apply_commit(&Commit {
                    base: head,
                    head: head + 1,
                    renewals: again,
                    ..Default::default()
                });
            }
            if cursor == memory.head() {
                break;
            }
        }
        assert!(taken.is_sorted_by(|one, next| one.0 < next.0), "in order");
        let mut names: Vec<_> = taken.iter().map(|(_, name)| name.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!((taken.len(), names.len()), (LEASES as usize, LEASES as usize));
        assert_eq!(taken.last().unwrap().0, memory.head(), "the one that renewed again, at its newest");
    }
}
