//! The ledger: how history is stored in an engine. It is the same for every engine.
//!
//! A change is one value under its revision. The newest change of a record is also the record itself, so a write is one
//! value and nothing is stored twice. Consecutive renewals of leases are packed into one value, and folded into the
//! leases' own values later. Keys sort by revision.

use std::sync::Arc;

use bytes::Bytes;
use muster_proto::record::Kind;

use muster_store_core::change::Change;
use muster_store_core::history::{Commit, Revision, StoredChange, StoredRenewal};
use muster_store_core::memory::Memory;

use crate::engine::{Compare, Engine, EngineError, Transaction};

const HEAD: &[u8] = b"m/head";
const COMPACTED: &[u8] = b"m/compacted";
const CHANGES: u8 = b'v';
const RENEWALS: u8 = b'w';

/// How much is read at once while loading or replaying, and written at once while importing.
const CHUNK: usize = 1024;
const CHUNK_BYTES: usize = 4 << 20;

/// History in an engine.
#[derive(Clone)]
pub struct Ledger {
    engine: Arc<dyn Engine>,
}

impl Ledger {
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        Self { engine }
    }

    /// The newest revision; 0 in a new store.
    pub fn head(&self) -> Result<Revision, EngineError> {
        self.number(HEAD)
    }

    /// The revision up to which history is compacted.
    pub fn compacted(&self) -> Result<Revision, EngineError> {
        self.number(COMPACTED)
    }

    /// Reads every record back. `recall` gets each change that history still holds.
    pub fn load(&self, mut recall: impl FnMut(Change)) -> Result<Memory, EngineError> {
        let mut memory = Memory::with_history_after(self.compacted()?);
        self.each_change(0, |revision, change| {
            memory.load_change(revision, &change).map(&mut recall);
            Ok(())
        })?;
        self.each_pack(|first, pack| {
            memory.load_pack(first, &pack);
            Ok(())
        })?;
        memory.finish_loading(self.head()?).map_err(EngineError::Damaged)?;
        Ok(memory)
    }

    fn number(&self, key: &[u8]) -> Result<u64, EngineError> {
        match self.engine.get(key)? {
            None => Ok(0),
            Some(value) => match <[u8; 8]>::try_from(&*value) {
                Ok(bytes) => Ok(u64::from_be_bytes(bytes)),
                Err(_) => Err(EngineError::Damaged(format!("{} is not a number", key.escape_ascii()))),
            },
        }
    }

    /// Writes a commit; durable when it returns.
    pub fn commit(&self, commit: &Commit) -> Result<(), EngineError> {
        let mut transaction = Transaction::default();
        let was = (commit.base > 0).then(|| number(commit.base));
        // Two stores on one engine must not both continue the same history.
        transaction.compare.push(Compare { key: HEAD.to_vec(), expected: was });
        transaction.puts.push((HEAD.to_vec(), number(commit.head)));
        if let Some(compaction) = &commit.compaction {
            transaction.puts.push((COMPACTED.to_vec(), number(compaction.up_to)));
            transaction.deletes.extend(compaction.obsolete.iter().map(|r| revision_key(CHANGES, *r)));
        }
        for (revision, change) in commit.changes.iter().chain(&commit.folds) {
            transaction.puts.push((revision_key(CHANGES, *revision), change.encode()));
        }
        for (first, pack) in &commit.renewals {
            transaction.puts.push((revision_key(RENEWALS, *first), StoredRenewal::encode_pack(pack)));
        }
        transaction.deletes.extend(commit.retired.iter().map(|r| revision_key(RENEWALS, *r)));
        self.engine.transact(&transaction)
    }

    /// Fills an empty engine with the records as of `head`, without their history.
    pub fn import(&self, changes: &[(Revision, StoredChange)], head: Revision) -> Result<(), EngineError> {
        let mut some = Transaction::default();
        let mut bytes = 0;
        for (revision, change) in changes {
            let value = change.encode();
            bytes += value.len();
            some.puts.push((revision_key(CHANGES, *revision), value));
            if some.puts.len() >= CHUNK || bytes >= CHUNK_BYTES {
                self.engine.transact(&std::mem::take(&mut some))?;
                bytes = 0;
            }
        }
        self.engine.transact(&some)?;
        let puts = vec![(HEAD.to_vec(), number(head)), (COMPACTED.to_vec(), number(head))];
        self.engine.transact(&Transaction { puts, ..Default::default() })
    }

    /// Whether a commit could be written now.
    pub fn check(&self) -> Result<(), EngineError> {
        self.engine.check()
    }

    /// Makes a commit that changes nothing, to find out whether the disk takes one.
    pub fn probe(&self, head: Revision) -> Result<(), EngineError> {
        let mut transaction = Transaction::default();
        let was = (head > 0).then(|| number(head));
        transaction.compare.push(Compare { key: HEAD.to_vec(), expected: was });
        transaction.puts.push((COMPACTED.to_vec(), number(self.compacted()?)));
        self.engine.transact(&transaction)
    }

    /// Recovers after a failure, with history ending at `head`.
    ///
    /// What a failed commit may have left behind `head` was neither acknowledged nor seen by a watcher, so it is removed.
    pub fn recover(&self, head: Revision) -> Result<(), EngineError> {
        self.engine.recover()?;
        let found = self.head()?;
        if found == head {
            return Ok(());
        }
        if found < head {
            let lost =
                format!("they end at revision {found}, and {head} was acknowledged: restart the store");
            return Err(EngineError::Damaged(lost));
        }
        let mut undo = Transaction::default();
        undo.compare.push(Compare { key: HEAD.to_vec(), expected: Some(number(found)) });
        for prefix in [CHANGES, RENEWALS] {
            let from = revision_key(prefix, head + 1);
            let beyond = self.engine.range(&from, &[prefix + 1], usize::MAX, usize::MAX)?;
            undo.deletes.extend(beyond.into_iter().map(|(key, _)| key));
        }
        if head > 0 {
            undo.puts.push((HEAD.to_vec(), number(head)));
        } else {
            undo.deletes.push(HEAD.to_vec());
        }
        self.engine.transact(&undo)
    }

    /// One change, if it is still kept.
    pub fn change(&self, revision: Revision) -> Result<Option<StoredChange>, EngineError> {
        let value = self.engine.get(&revision_key(CHANGES, revision))?;
        value.map(|value| decode_change(revision, value)).transpose()
    }

    /// Calls `each` with every kept change after `after`, in order.
    pub fn each_change(
        &self,
        after: Revision,
        mut each: impl FnMut(Revision, StoredChange) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        self.each_pair(CHANGES, after, |revision, value| each(revision, decode_change(revision, value)?))
    }

    /// At most `limit` changes of one kind after `after` and up to `until`, in order, and the revision up to which there
    /// are no others.
    pub fn changes_of(
        &self,
        kind: Kind,
        after: Revision,
        until: Revision,
        limit: usize,
    ) -> Result<(Vec<(Revision, StoredChange)>, Revision), EngineError> {
        let mut found = Vec::new();
        let mut from = after;
        loop {
            let to = revision_key(CHANGES, until.saturating_add(1));
            let pairs = self.engine.range(&revision_key(CHANGES, from + 1), &to, CHUNK, CHUNK_BYTES)?;
            if pairs.is_empty() {
                return Ok((found, until.max(after)));
            }
            for (key, value) in pairs {
                from = revision_of(&key)?;
                let change = decode_change(from, value)?;
                if change.kind == kind {
                    found.push((from, change));
                    if found.len() == limit {
                        return Ok((found, from));
                    }
                }
            }
        }
    }

    /// Calls `each` with every pack of renewals, in order.
    pub fn each_pack(
        &self,
        mut each: impl FnMut(Revision, Vec<StoredRenewal>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        self.each_pair(RENEWALS, 0, |first, value| {
            each(first, StoredRenewal::decode_pack(first, &value).map_err(EngineError::Damaged)?)
        })
    }

    fn each_pair(
        &self,
        prefix: u8,
        after: Revision,
        mut each: impl FnMut(Revision, Bytes) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut from = after;
        loop {
            let pairs =
                self.engine.range(&revision_key(prefix, from + 1), &[prefix + 1], CHUNK, CHUNK_BYTES)?;
            if pairs.is_empty() {
                return Ok(());
            }
            for (key, value) in pairs {
                from = revision_of(&key)?;
                each(from, value)?;
            }
        }
    }
}

fn decode_change(revision: Revision, value: Bytes) -> Result<StoredChange, EngineError> {
    StoredChange::decode(value)
        .map_err(|reason| EngineError::Damaged(format!("revision {revision}: {reason}")))
}

fn number(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

fn revision_key(prefix: u8, revision: Revision) -> Vec<u8> {
    let mut key = Vec::with_capacity(9);
    key.push(prefix);
    key.extend_from_slice(&revision.to_be_bytes());
    key
}

fn revision_of(key: &[u8]) -> Result<Revision, EngineError> {
    match key.split_first_chunk::<1>().map(|(_, rest)| <[u8; 8]>::try_from(rest)) {
        Some(Ok(bytes)) => Ok(u64::from_be_bytes(bytes)),
        _ => Err(EngineError::Damaged(format!("the key {} is not a revision", key.escape_ascii()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sled::SledEngine;

    #[test]
    fn history_beyond_the_head_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let engine = Arc::new(SledEngine::open(directory.path(), 1 << 20).unwrap());
        let ledger = Ledger::new(engine.clone());
        let change = |revision: Revision| StoredChange {
            kind: Kind::Node,
            namespace: String::new(),
            name: "a".to_owned(),
            record: Bytes::new(),
            deleted: false,
            previous: revision - 1,
            at_millis: 0,
            traceparent: String::new(),
            lease_id: 0,
        };
        let changes = (1..=3).map(|revision| (revision, change(revision))).collect();
        ledger.commit(&Commit { head: 3, changes, ..Default::default() }).unwrap();
        assert_eq!(ledger.load(|_| ()).unwrap().head(), 3);
        let deletes = vec![HEAD.to_vec()];
        engine.transact(&Transaction { deletes, ..Default::default() }).unwrap();
        let refused = ledger.load(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("end at revision 0, and hold changes up to 3"), "{refused}");
    }
}
