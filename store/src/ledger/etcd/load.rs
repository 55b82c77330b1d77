//! Reading history: all of it at a start, and parts of it for lists and watches of the past.
//!
//! Every read is of one revision of etcd, page by page. Pages have an end, since etcd counts the keys of a whole range
//! for each page of it.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use muster_etcd::requests::{get, range, read};
use muster_etcd::{EtcdError, pb};
use muster_proto::record::Kind;
use muster_store_core::change::Change;
use muster_store_core::history::{Revision, StoredChange};
use muster_store_core::memory::Memory;
use prost::Message;

use super::follow::Leader;
use super::keys::{self, Head, NumberedRenewal, Section, Stored};
use super::packs::Packs;
use super::{DEADLINE, EtcdLedger, State, altered};
use crate::ledger::LedgerError;

/// How many keys one page has at most, and how many revisions the first page spans.
const PAGE: i64 = 1000;
const FIRST_SPAN: Revision = 1024;
/// How many records are read in one transaction. Each has up to 1.5 MB.
const READS: usize = 32;
/// How many changes above the head are read at once.
const PIECES: i64 = 32;
/// How often a read is begun again because etcd's history of its revision went in the meantime.
const ATTEMPTS: usize = 5;
/// A page of large records takes a while.
const PAGE_DEADLINE: std::time::Duration = std::time::Duration::from_secs(10);

/// Why a read ended.
enum ReadError {
    /// Begin again, with a new revision of etcd.
    Compacted,
    Failed(LedgerError),
}

impl From<EtcdError> for ReadError {
    fn from(error: EtcdError) -> Self {
        match error {
            EtcdError::Compacted => ReadError::Compacted,
            other => ReadError::Failed(other.into()),
        }
    }
}

impl From<LedgerError> for ReadError {
    fn from(error: LedgerError) -> Self {
        ReadError::Failed(error)
    }
}

/// Begins a read again while etcd compacts its revision.
fn repeated<T>(mut attempt: impl FnMut() -> Result<T, ReadError>) -> Result<T, LedgerError> {
    for _ in 0..ATTEMPTS {
        match attempt() {
            Ok(found) => return Ok(found),
            Err(ReadError::Compacted) => {}
            Err(ReadError::Failed(error)) => return Err(error),
        }
    }
    Err(LedgerError::Unreachable("etcd is compacted faster than it can be read".to_owned()))
}

impl EtcdLedger {
    /// Reads all records, proves them by the head, and passes on each change that is not compacted.
    pub(super) fn load_proven(&self, recall: &mut dyn FnMut(Change)) -> Result<Memory, LedgerError> {
        // What is passed on cannot be taken back, so that a second attempt must not pass it on again.
        let mut recalled = 0;
        repeated(|| self.try_load(&mut recalled, recall))
    }

    fn try_load(&self, recalled: &mut Revision, recall: &mut dyn FnMut(Change)) -> Result<Memory, ReadError> {
        let mut state = self.state();
        let at = self.read_head(&mut state)?;
        let Head { revision: head, compacted, .. } = state.head;
        let mut memory = Memory::at(0, compacted);
        // The newest change of each record, and those that are replaced or are deletions: compacted, they are garbage.
        let mut replaced = Vec::new();
        self.scan(Section::Changes, 1, head, at, |revision, kv| {
            let change = decode_change(kv)?;
            if change.previous > 0 && revision <= compacted {
                replaced.push(change.previous);
            }
            if change.deleted && revision <= compacted {
                replaced.push(revision);
            }
            let change = memory.load_change(revision, change);
            if revision > compacted && revision > *recalled {
                *recalled = revision;
                recall(change);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let mut packs = Packs::default();
        self.scan(Section::Renewals, 1, head, at, |pack, kv| {
            let renewals = decode_renewals(kv)?;
            for (revision, renewal) in &renewals {
                memory.load_renewal(renewal, *revision);
            }
            packs.add(pack, &renewals);
            Ok(ControlFlow::Continue(()))
        })?;
        memory.finish_loading(head, compacted);
        let wanted = state.head.fingerprint();
        let wanted = wanted.ok_or_else(|| LedgerError::Altered("`head` has no proof".to_owned()))?;
        if let Some(difference) = wanted.difference(&memory.fingerprint()) {
            return Err(LedgerError::Altered(format!("at revision {head} {difference}")).into());
        }
        packs.retain(|lease_id, at| memory.leases.newest(lease_id).is_some_and(|it| it.revision == at));
        replaced.sort_unstable();
        state.garbage = replaced.iter().map(|it| self.keys.numbered(Section::Changes, *it)).collect();
        let unneeded = packs.take_unneeded();
        state.garbage.extend(unneeded.iter().map(|it| self.keys.numbered(Section::Renewals, *it)));
        state.packs = packs;
        self.load_pieces(&mut state, at)?;
        state.position = at;
        Ok(memory)
    }

    /// Reads the changes above the head: those of a commit that is being written, or that was not finished.
    fn load_pieces(&self, state: &mut State, at: i64) -> Result<(), ReadError> {
        state.pieces.clear();
        let mut next = state.head.revision + 1;
        loop {
            let from = self.keys.numbered(Section::Changes, next);
            let above = range(from, self.keys.end(Section::Changes), PIECES);
            let page = self.kv.range(pb::RangeRequest { revision: at, ..above }, PAGE_DEADLINE)?;
            for kv in &page.kvs {
                let revision = self.keys.revision(Section::Changes, &kv.key);
                let revision = revision.ok_or_else(|| altered(&kv.key, &"it is not a key of Muster"))?;
                state.pieces.put(revision, kv)?;
                next = revision + 1;
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    /// Whether nothing has happened since the last change that was followed, except that old history was deleted. If
    /// so, etcd's revision of this answer.
    pub(super) fn unchanged_since(
        &self,
        state: &State,
    ) -> Result<Option<(i64, Option<Leader>)>, LedgerError> {
        let above = range(
            self.keys.numbered(Section::Changes, state.head.revision + 1),
            self.keys.end(Section::Changes),
            1,
        );
        let above = pb::RangeRequest { keys_only: true, ..above };
        let reads =
            [get(self.keys.head()), get(self.keys.format()), above, get(self.keys.leader())].map(read);
        let answer =
            self.kv.txn(pb::TxnRequest { success: reads.to_vec(), ..Default::default() }, DEADLINE)?;
        let revision = answer.revision();
        let mut reads = answer.into_reads().into_iter().map(|kvs| kvs.into_iter().next());
        let mut next = || reads.next().flatten();
        let (head, format, above, leader) = (next(), next(), next(), next());
        let modified = |kv: Option<pb::KeyValue>| kv.map_or(0, |kv| kv.mod_revision);
        let is_unchanged = modified(head) == state.head_modified
            && modified(format) == self.identity.format_revision
            // Of a commit that is being written some pieces may have been missed.
            && above.is_none()
            && state.pieces.is_empty();
        Ok(is_unchanged.then(|| (revision, leader.as_ref().map(Leader::of))))
    }

    /// Reads the keys of a section from one revision up to another, in order, at one revision of etcd.
    fn scan(
        &self,
        section: Section,
        from: Revision,
        until: Revision,
        at: i64,
        mut each: impl FnMut(Revision, &pb::KeyValue) -> Result<ControlFlow<()>, LedgerError>,
    ) -> Result<(), ReadError> {
        let (mut next, mut span, mut limit) = (from, FIRST_SPAN, PAGE);
        while next <= until {
            let end = next.saturating_add(span).min(until.saturating_add(1));
            let (first, last) = (self.keys.numbered(section, next), self.keys.numbered(section, end));
            let request = pb::RangeRequest { revision: at, ..range(first, last, limit) };
            let page = match self.kv.range(request, PAGE_DEADLINE) {
                Err(EtcdError::TooLarge(_)) if limit > 1 => {
                    limit /= 2;
                    continue;
                }
                page => page?,
            };
            let found = page.kvs.len();
            for kv in &page.kvs {
                let revision = self.keys.revision(section, &kv.key);
                let revision = revision.ok_or_else(|| altered(&kv.key, &"it is not a key of Muster"))?;
                if each(revision, kv)?.is_break() {
                    return Ok(());
                }
                next = revision + 1;
            }
            if !page.more {
                next = end;
                // Old history is sparse.
                if (found as i64) < limit / 2 {
                    span = span.saturating_mul(2);
                }
            }
        }
        Ok(())
    }

    pub(super) fn read_changes(
        &self,
        kind: Kind,
        after: Revision,
        until: Revision,
        limit: usize,
    ) -> Result<(Vec<(Revision, StoredChange)>, Revision), LedgerError> {
        repeated(|| self.try_read_changes(kind, after, until, limit))
    }

    fn try_read_changes(
        &self,
        kind: Kind,
        after: Revision,
        until: Revision,
        limit: usize,
    ) -> Result<(Vec<(Revision, StoredChange)>, Revision), ReadError> {
        // The head of the same moment: another store may lead by now, and may have compacted what is read here.
        let head = self.kv.range(get(self.keys.head()), DEADLINE)?;
        let at = head.revision();
        if let Some(head) = head.kvs.first().and_then(|head| Head::decode(&*head.value).ok()) {
            self.compacted.fetch_max(head.compacted, Ordering::Relaxed);
        }
        let mut found = Vec::new();
        let mut up_to = until;
        self.scan(Section::Changes, after + 1, until, at, |revision, kv| {
            let change = decode_change(kv)?;
            if change.kind == kind {
                found.push((revision, change));
            }
            if found.len() < limit {
                return Ok(ControlFlow::Continue(()));
            }
            up_to = revision;
            Ok(ControlFlow::Break(()))
        })?;
        self.fill_previous(&mut found, at)?;
        Ok((found, up_to))
    }

    /// Reads the records that these changes replaced.
    fn fill_previous(&self, changes: &mut [(Revision, StoredChange)], at: i64) -> Result<(), ReadError> {
        let mut replacing: Vec<&mut StoredChange> =
            changes.iter_mut().map(|(_, change)| change).filter(|change| change.previous > 0).collect();
        for some in replacing.chunks_mut(READS) {
            let reads = some.iter().map(|change| {
                let key = self.keys.numbered(Section::Changes, change.previous);
                read(pb::RangeRequest { revision: at, ..get(key) })
            });
            let request = pb::TxnRequest { success: reads.collect(), ..Default::default() };
            let answers = self.kv.txn(request, PAGE_DEADLINE)?.into_reads();
            for (change, kvs) in some.iter_mut().zip(answers) {
                let previous = kvs.first().map(decode_change).transpose()?;
                change.previous_record = previous.map(|previous| previous.record);
            }
        }
        Ok(())
    }
}

/// The renewals in the value of a key.
pub(super) fn decode_renewals(kv: &pb::KeyValue) -> Result<Vec<NumberedRenewal>, LedgerError> {
    let stored = Stored::decode(&*kv.value).map_err(|error| altered(&kv.key, &error))?;
    keys::decode_pack(&stored.content).map_err(|error| altered(&kv.key, &error))
}

/// The change in the value of a key.
pub(super) fn decode_change(kv: &pb::KeyValue) -> Result<StoredChange, LedgerError> {
    let stored = Stored::decode(&*kv.value).map_err(|error| altered(&kv.key, &error))?;
    StoredChange::decode(&stored.content).map_err(|error| altered(&kv.key, &error))
}
