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
use muster_rpc::clock::Mono;

use crate::change::{Change, SharedChange};
use crate::leases::Renewal;
use crate::ledger::{Revision, StoredRenewal};
use crate::memory::{Memory, renewed_lease};

/// How many renewals are held: some seconds of a large fleet.
const HELD: usize = 64 * 1024;
/// How many are told at once: a watcher that lags must not take much memory.
const AT_ONCE: usize = 1024;

struct Note {
    revision: Revision,
    renewal: StoredRenewal,
    published: Mono,
    /// Made when the first watcher asks, then shared. `None` when the lease was
    /// written or deleted since: that change tells the rest.
    change: OnceLock<Option<SharedChange>>,
}

#[derive(Default)]
struct Held {
    notes: VecDeque<Arc<Note>>,
    /// Every renewal after this revision is here.
    since: Revision,
}

/// The newest renewals.
#[derive(Default)]
pub struct RenewalLog {
    held: RwLock<Held>,
}

impl RenewalLog {
    /// A log of what comes after `head`.
    pub fn new(head: Revision) -> Self {
        Self { held: RwLock::new(Held { since: head, ..Default::default() }) }
    }

    /// Takes in a pack that is durable.
    pub fn publish(&self, first: Revision, pack: &[StoredRenewal], published: Mono) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        for (revision, renewal) in (first..).zip(pack) {
            let note = Note { revision, renewal: *renewal, published, change: OnceLock::new() };
            held.notes.push_back(Arc::new(note));
        }
        while held.notes.len() > HELD {
            if let Some(oldest) = held.notes.pop_front() {
                held.since = oldest.revision;
            }
        }
    }

    /// Renewals in `(after, up_to]` as changes of their leases, in order and not
    /// more than fit a few frames, and the revision up to which there are no
    /// others. Of those that are no longer here, the newest of each lease.
    pub fn read(&self, after: Revision, up_to: Revision, memory: &Memory) -> (Vec<SharedChange>, Revision) {
        let Some(notes) = self.notes(after, up_to) else { return newest(after, up_to, memory) };
        let up_to = if notes.len() == AT_ONCE { notes[AT_ONCE - 1].revision } else { up_to };
        let made = notes.iter().filter_map(|note| note.change.get_or_init(|| note.change(memory)).clone());
        (made.collect(), up_to)
    }

    fn notes(&self, after: Revision, up_to: Revision) -> Option<Vec<Arc<Note>>> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        if after < held.since {
            return None;
        }
        let from = held.notes.partition_point(|note| note.revision <= after);
        let wanted = held.notes.range(from..).take_while(|note| note.revision <= up_to);
        Some(wanted.take(AT_ONCE).cloned().collect())
    }
}

/// The newest renewal of each lease, for a watcher that missed the others.
fn newest(after: Revision, up_to: Revision, memory: &Memory) -> (Vec<SharedChange>, Revision) {
    let renewed = memory.scan(Kind::Lease, Bound::Unbounded).filter_map(|(_, current)| {
        let renewal = memory.leases.newest(current.lease_id)?;
        let wanted = renewal.revision > after && renewal.revision <= up_to;
        wanted.then_some((renewal.revision, current.lease_id, renewal))
    });
    let mut renewed: Vec<_> = renewed.collect();
    renewed.sort_unstable_by_key(|(revision, ..)| *revision);
    let cut = renewed.len() > AT_ONCE;
    renewed.truncate(AT_ONCE);
    let up_to = renewed.last().filter(|_| cut).map_or(up_to, |(revision, ..)| *revision);
    (renewed.iter().filter_map(|(_, id, renewal)| change(memory, *id, renewal)).collect(), up_to)
}

impl Note {
    fn change(&self, memory: &Memory) -> Option<SharedChange> {
        let renewal = Renewal {
            revision: self.revision,
            at_micros: self.renewal.at_micros,
            status_digest: self.renewal.status_digest,
            status_age_millis: self.renewal.status_age_millis,
        };
        let change = change(memory, self.renewal.lease_id, &renewal)?;
        change.publish_at(self.published);
        Some(change)
    }
}

fn change(memory: &Memory, lease_id: u32, renewal: &Renewal) -> Option<SharedChange> {
    let key = memory.leases.key(lease_id)?;
    let lease = memory.get(Kind::Lease, key).filter(|lease| lease.revision < renewal.revision)?;
    let record = renewed_lease(&lease.record, renewal);
    let previous = Some(lease.record.clone());
    let (kind, key) = (Kind::Lease, key.clone());
    Some(Arc::new(Change::new(kind, renewal.revision, key, false, record, previous, String::new())))
}
