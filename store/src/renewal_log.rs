//! The newest renewals, in memory, for watchers of leases.
//!
//! Renewals are many and old ones are of little use, so they are not part of the ledger's history of changes. A watcher
//! that is behind this log, or resumes from before a restart, gets the newest renewal of each lease instead of every
//! renewal.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use muster_proto::record::Kind;
use muster_proto::time::Mono;

use muster_store_core::change::{Change, SharedChange};
use muster_store_core::history::{Revision, StoredRenewal};
use muster_store_core::lease_table::Renewal;
use muster_store_core::memory::{Memory, lease_with_renewal};

/// How many renewals are kept: some seconds of a large fleet.
const MAX_RENEWALS: usize = 64 * 1024;
/// How many renewals one read returns: a watcher that lags must not use much memory.
const MAX_READ: usize = 1024;

struct LoggedRenewal {
    revision: Revision,
    renewal: StoredRenewal,
    published: Mono,
    /// Made for the first watcher that reads it, then shared. `None` if the lease was written or deleted after the
    /// renewal: watchers get that change instead.
    change: OnceLock<Option<SharedChange>>,
}

#[derive(Default)]
struct RecentRenewals {
    renewals: VecDeque<Arc<LoggedRenewal>>,
    /// Every renewal after this revision is in `renewals`.
    complete_after: Revision,
}

/// The newest renewals.
#[derive(Default)]
pub struct RenewalLog {
    recent: RwLock<RecentRenewals>,
}

impl RenewalLog {
    /// An empty log of the renewals after `head`.
    pub fn new(head: Revision) -> Self {
        Self { recent: RwLock::new(RecentRenewals { complete_after: head, ..Default::default() }) }
    }

    /// Appends a durable pack.
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

    /// Renewals in `(after, up_to]` as changes of their leases, in order and at most a few frames of them, and the
    /// revision up to which there are no others. For renewals that are no longer in the log, the newest one of each
    /// lease; `catch_up` holds those that are still to be returned.
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

/// The newest renewal of each lease, for a watcher that is behind the log. They are collected in one scan of all leases
/// and returned over several reads.
#[derive(Debug, Default)]
pub struct RenewalCatchUp {
    /// Revision and lease number, in order.
    renewals: VecDeque<(Revision, u32)>,
    /// The revision up to which `renewals` is complete.
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
            // A lease that was renewed again since then comes with its later renewal.
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
            previous_record: None,
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
    fn a_watcher_behind_the_log_gets_the_newest_renewal_of_each_lease_once() {
        let mut memory = memory();
        let (log, mut catch_up) = (RenewalLog::new(memory.head()), RenewalCatchUp::default());
        let (mut taken, mut cursor) = (Vec::new(), 0);
        for round in 0.. {
            let head = memory.head();
            let (changes, up_to) = log.read(cursor, head, &mut catch_up, &memory);
            assert!(up_to > cursor, "each read makes progress");
            taken.extend(changes.iter().map(|change| (change.revision, change.key.name().to_owned())));
            cursor = up_to;
            if round == 0 {
                // A lease whose renewal is not returned yet is renewed again.
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
        assert_eq!(
            taken.last().unwrap().0,
            memory.head(),
            "the lease that was renewed again comes with its newest renewal"
        );
    }
}
