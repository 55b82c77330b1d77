//! Moving a whole store into etcd or out of it, while no store runs on either side.
//!
//! Who moves a store holds the leader's key, so that no store writes meanwhile. Into etcd, everything but the key `format` is
//! written first, beside a mark that says so. Then all of it is read back. The last transaction puts `format` and removes
//! the mark; without `format` no store uses what is there, so an interrupted move counts for nothing, and the next one
//! begins again.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_etcd::requests::{delete, delete_range, get, modified_at, put, range, read};
use muster_etcd::{EtcdError, pb};
use muster_proto::record::Kind;
use muster_store_core::history::{Revision, StoredChange, StoredRenewal};
use muster_store_core::memory::{CurrentRecord, Memory};
use muster_store_core::namespaced_name::NamespacedName;
use prost::Message;
use uuid::Uuid;

use super::keys::{self, Head, Keys, NumberedRenewal, Section, Stored, format_value, parse_format};
use super::kv::Kv;
use super::{DEADLINE, EtcdLedger, Identity, Put, TXN_BYTES, TXN_OPERATIONS, Term, bytes_of, two};
use crate::ledger::LedgerError;

/// How many renewals one key holds: the packs of commits are of this size under load.
const PACK: usize = 4096;
/// How often a call without an answer is repeated, and the wait before that.
const ATTEMPTS: usize = 60;
const PAUSE: Duration = Duration::from_millis(500);
/// Removing what an earlier migration left may take a while.
const PATIENT: Duration = Duration::from_secs(10);

/// Why a store could not be moved into etcd. None of it counts.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("{0}")]
    Etcd(#[from] EtcdError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("there are keys below the prefix already, such as {0}")]
    NotEmpty(String),
    #[error("another process has taken the leader's key or has begun a migration of its own")]
    Superseded,
}

/// A store that is being moved into etcd.
pub struct Import {
    kv: Arc<dyn Kv>,
    keys: Keys,
    term: Term,
    /// etcd's revision of the mark.
    mark: i64,
}

impl Import {
    /// Marks a prefix that is empty, or removes what an earlier migration has left there.
    ///
    /// # Errors
    /// When there is anything else.
    pub fn begin(kv: Arc<dyn Kv>, keys: Keys, term: Term) -> Result<Self, ImportError> {
        let (from, to) = keys.all();
        // One of them may be the leader's key.
        let some = pb::RangeRequest { keys_only: true, ..range(from, to, 2) };
        let answer = kv.txn(
            pb::TxnRequest { success: vec![read(some), read(get(keys.migration()))], ..Default::default() },
            DEADLINE,
        )?;
        let [some, mark] = two(answer.into_reads());
        let other = some.iter().find(|kv| kv.key != keys.leader());
        if let (Some(other), true) = (other, mark.is_empty()) {
            return Err(ImportError::NotEmpty(String::from_utf8_lossy(&other.key).into_owned()));
        }
        let mut import = Self { kv, keys, term, mark: mark.first().map_or(0, |mark| mark.mod_revision) };
        let sections = [Section::Changes, Section::Renewals];
        let mut operations: Vec<pb::RequestOp> = sections
            .map(|section| delete_range(import.keys.numbered(section, 0), import.keys.end(section)))
            .into();
        operations.push(delete(import.keys.head()));
        operations.push(put(import.keys.migration(), "all below this prefix is being moved here\n"));
        let mut compare = import.compares();
        compare.push(modified_at(import.keys.format(), 0));
        let request = pb::TxnRequest { compare, success: operations, ..Default::default() };
        // Sent once: if it is done later, the mark has another revision than the one that is compared from now on.
        let answer = import.kv.txn(request, PATIENT)?;
        if !answer.succeeded {
            return Err(ImportError::Superseded);
        }
        import.mark = answer.revision();
        Ok(import)
    }

    /// Writes all records and renewals, and a head that continues at a revision.
    ///
    /// # Errors
    /// When etcd does not take all of it.
    pub fn write(&self, memory: &Memory, head: Revision) -> Result<(), ImportError> {
        let batch = keys::batch_id();
        let mut piece: Vec<Put> = Vec::new();
        let mut write = |put: Put| -> Result<(), ImportError> {
            let is_full = piece.len() == TXN_OPERATIONS || bytes_of(&piece) + put.bytes > TXN_BYTES;
            if is_full && !piece.is_empty() {
                self.send(std::mem::take(&mut piece))?;
            }
            piece.push(put);
            Ok(())
        };
        for kind in Kind::ALL {
            for (key, current) in memory.scan(kind, Bound::Unbounded) {
                let mut content = Vec::new();
                change_of(kind, key, current).encode(false, &mut content);
                write(self.stored(Section::Changes, current.revision, &batch, content.into()))?;
            }
        }
        for pack in numbered_renewals(memory).chunks(PACK) {
            let last = pack.last().map_or(0, |(revision, _)| *revision);
            write(self.stored(Section::Renewals, last, &batch, keys::encode_pack(pack)))?;
        }
        let head = Head {
            revision: head,
            batch: batch.clone(),
            before: Bytes::new(),
            leader: self.term.leader_revision,
            compacted: head,
            fingerprint: Bytes::copy_from_slice(&memory.fingerprint().encode()),
        };
        let value = head.encode_to_vec();
        write(Put { bytes: value.len(), operation: put(self.keys.head(), value) })?;
        self.send(piece)
    }

    /// Reads everything that was written, and proves it as a store does that starts.
    ///
    /// # Errors
    /// When it is not what was written.
    pub fn read_back(&self, store: Uuid) -> Result<Memory, LedgerError> {
        let identity = Identity { store, format_revision: 0 };
        let (kv, keys) = (Arc::clone(&self.kv), self.keys.clone());
        EtcdLedger::holding(kv, keys, identity, &self.term).read_all()
    }

    /// Lets all of it count, as the store with this id.
    ///
    /// # Errors
    /// When it does not count. Only after [`EtcdError::Unknown`] it may count all the same.
    pub fn complete(self, store: Uuid) -> Result<(), ImportError> {
        let mut compare = self.compares();
        compare.push(modified_at(self.keys.format(), 0));
        let operations = vec![put(self.keys.format(), format_value(store)), delete(self.keys.migration())];
        let request =
            pb::TxnRequest { compare, success: operations, failure: vec![read(get(self.keys.format()))] };
        let answer = self.repeated(&request)?;
        // An attempt whose answer was lost may have been done: then the next one finds it.
        let found = answer.succeeded || {
            let format = answer.into_reads().into_iter().flatten().next();
            format.is_some_and(|format| parse_format(&format.value) == Ok(store))
        };
        if found { Ok(()) } else { Err(ImportError::Superseded) }
    }

    fn stored(&self, section: Section, revision: Revision, batch: &Bytes, content: Bytes) -> Put {
        let value = Stored { batch: batch.clone(), content }.encode_to_vec();
        let key = self.keys.numbered(section, revision);
        Put { bytes: key.len() + value.len() + 32, operation: put(key, value) }
    }

    fn compares(&self) -> Vec<pb::Compare> {
        vec![
            modified_at(self.keys.leader(), self.term.leader_revision),
            modified_at(self.keys.migration(), self.mark),
        ]
    }

    /// Writes what may be written twice.
    fn send(&self, puts: Vec<Put>) -> Result<(), ImportError> {
        let success = puts.into_iter().map(|put| put.operation).collect();
        let request = pb::TxnRequest { compare: self.compares(), success, ..Default::default() };
        if self.repeated(&request)?.succeeded { Ok(()) } else { Err(ImportError::Superseded) }
    }

    fn repeated(&self, request: &pb::TxnRequest) -> Result<pb::TxnResponse, EtcdError> {
        let mut attempt = 1;
        loop {
            match self.kv.txn(request.clone(), PATIENT) {
                Err(error) if error.is_passing() && attempt < ATTEMPTS => self.kv.pause(PAUSE),
                answer => return answer,
            }
            attempt += 1;
        }
    }
}

impl EtcdLedger {
    /// The ledger for a process that has the leader's key, so that nothing is written, and only reads.
    pub fn holding(kv: Arc<dyn Kv>, keys: Keys, identity: Identity, term: &Term) -> Self {
        let ledger = Self::new(kv, keys, identity);
        ledger.state().term = term.leader_revision;
        ledger
    }

    /// Reads and proves all records, and changes nothing.
    ///
    /// # Errors
    /// When they are not what was written.
    pub fn read_all(&self) -> Result<Memory, LedgerError> {
        self.load_proven(&mut |_| ())
    }

    /// Reads where history ends now.
    ///
    /// # Errors
    /// `Deposed` when another process may have written since this one has the leader's key.
    pub fn read_revision(&self) -> Result<Revision, LedgerError> {
        let mut state = self.state();
        self.read_head(&mut state)?;
        Ok(state.head.revision)
    }
}

/// The record as its only change.
fn change_of(kind: Kind, key: &NamespacedName, current: &CurrentRecord) -> StoredChange {
    StoredChange {
        kind,
        namespace: key.namespace().to_owned(),
        name: key.name().to_owned(),
        record: current.record.clone(),
        deleted: false,
        previous: 0,
        previous_record: None,
        at_millis: 0,
        traceparent: String::new(),
        lease_id: current.lease_id,
    }
}

/// The newest renewal of each lease, by revision.
fn numbered_renewals(memory: &Memory) -> Vec<NumberedRenewal> {
    let renewals = memory.leases.renewals().map(|(lease_id, renewal)| {
        let stored = StoredRenewal {
            lease_id,
            status_age_millis: renewal.status_age_millis,
            status_digest: renewal.status_digest,
            at_micros: renewal.at_micros,
        };
        (renewal.revision, stored)
    });
    let mut renewals: Vec<NumberedRenewal> = renewals.collect();
    renewals.sort_unstable_by_key(|(revision, _)| *revision);
    renewals
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeEtcd, Fault};
    use super::super::{IdentityError, prepare};
    use super::*;
    use crate::ledger::conformance::{Step, TestWriter, delete as remove, put as write};

    fn keys() -> Keys {
        Keys::below("/muster").unwrap()
    }

    fn claim(etcd: &FakeEtcd) -> Term {
        etcd.delete(keys().leader());
        Term { leader_revision: etcd.put(keys().leader(), "a migration") }
    }

    fn begin(etcd: &Arc<FakeEtcd>) -> Result<Import, ImportError> {
        Import::begin(etcd.clone(), keys(), claim(etcd))
    }

    /// A store with records, large ones and deleted ones among them, leases and renewals.
    fn source() -> Memory {
        let etcd = Arc::new(FakeEtcd::default());
        let identity = prepare(&*etcd, &keys()).unwrap();
        let ledger = EtcdLedger::open(etcd.clone(), keys(), identity, &claim(&etcd)).unwrap();
        let mut writer = TestWriter::on(ledger);
        for number in 0..300 {
            writer.commit(&[write(&format!("n{number}"), number * 40)]).unwrap();
        }
        let lease = |name: &str| Step::PutLease { name: name.to_owned() };
        let renew = |name: &str| Step::Renew { name: name.to_owned() };
        writer.commit(&[write("large", 250_000), remove("n7"), lease("a"), lease("b"), lease("c")]).unwrap();
        writer.commit(&[renew("a"), renew("b"), renew("a"), write("n8", 1)]).unwrap();
        writer.ledger.read_all().unwrap()
    }

    #[test]
    fn what_is_moved_is_what_a_store_loads_afterwards_and_it_goes_on_from_there() {
        let (memory, etcd, id) = (source(), Arc::new(FakeEtcd::default()), Uuid::new_v4());
        let head = memory.head() + 1000;
        let import = begin(&etcd).unwrap();
        import.write(&memory, head).unwrap();
        assert_eq!(import.read_back(id).unwrap().fingerprint(), memory.fingerprint());
        import.complete(id).unwrap();

        let identity = prepare(&*etcd, &keys()).unwrap();
        assert_eq!(identity.store, id);
        let ledger = EtcdLedger::open(etcd.clone(), keys(), identity, &claim(&etcd)).unwrap();
        let mut writer = TestWriter::on(ledger);
        {
            let loaded = writer.memory.read().unwrap();
            assert_eq!((loaded.head(), loaded.compacted()), (head, head));
            assert_eq!(loaded.fingerprint(), memory.fingerprint());
            assert_eq!(numbered_renewals(&loaded), numbered_renewals(&memory));
        }
        writer.commit(&[write("n8", 2), remove("n9"), Step::Renew { name: "a".into() }]).unwrap();
        let kept = writer.memory.read().unwrap().fingerprint();
        assert_eq!(writer.ledger.read_all().unwrap().fingerprint(), kept);
    }

    #[test]
    fn a_move_that_ends_before_its_last_step_counts_for_nothing_and_can_be_done_again() {
        let (memory, id) = (source(), Uuid::new_v4());
        for has_written in [false, true] {
            let etcd = Arc::new(FakeEtcd::default());
            let first = begin(&etcd).unwrap();
            if has_written {
                first.write(&memory, 5000).unwrap();
                // From another source: it must not remain.
                etcd.put(keys().numbered(Section::Changes, 4999), "left");
            }
            let refused = prepare(&*etcd, &keys()).unwrap_err();
            assert!(matches!(refused, IdentityError::Unfinished { .. }), "{refused}");
            let second = begin(&etcd).unwrap();
            let superseded = first.write(&memory, 5000);
            assert!(matches!(superseded, Err(ImportError::Superseded)), "{superseded:?}");
            second.write(&memory, 6000).unwrap();
            assert_eq!(second.read_back(id).unwrap().fingerprint(), memory.fingerprint());
            assert!(matches!(first.complete(id), Err(ImportError::Superseded)));
            second.complete(id).unwrap();
            assert_eq!(prepare(&*etcd, &keys()).unwrap().store, id);
            assert!(!etcd.keys().contains(&"/muster/migration".to_owned()));
        }
    }

    #[test]
    fn a_prefix_with_anything_else_below_it_is_left_alone() {
        let etcd = Arc::new(FakeEtcd::default());
        prepare(&*etcd, &keys()).unwrap();
        let before = etcd.keys();
        assert!(matches!(begin(&etcd), Err(ImportError::NotEmpty(key)) if key == "/muster/format"));
        etcd.delete(keys().leader());
        assert_eq!(etcd.keys(), before);
    }

    #[test]
    fn lost_answers_are_asked_for_again() {
        let (memory, id) = (source(), Uuid::new_v4());
        let etcd = Arc::new(FakeEtcd::default());
        let import = begin(&etcd).unwrap();
        etcd.inject([Fault::LostAnswer, Fault::LostRequest, Fault::Pass, Fault::LostAnswer]);
        import.write(&memory, 5000).unwrap();
        assert_eq!(import.read_back(id).unwrap().fingerprint(), memory.fingerprint());
        etcd.inject([Fault::LostRequest, Fault::LostAnswer]);
        import.complete(id).unwrap();
        assert_eq!(prepare(&*etcd, &keys()).unwrap().store, id);
    }
}
