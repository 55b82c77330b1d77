//! The ledger in etcd: one store leads and writes, the others follow what it writes.
//!
//! A commit is one transaction that compares the head, the leader's key and the format, and puts the changes, the
//! renewals and the new head. A commit that is too large for one transaction puts changes ahead of the head first, where
//! nobody reads them, and the head last. An answer that is lost is looked up before anybody is told the outcome (`outcome`), and
//! nothing is ever undone. What history no longer needs is deleted after the commit that compacted it, in transactions
//! of deletions alone, which etcd takes even when its space is used up.

mod follow;
mod identity;
mod keys;
mod kv;
mod load;
mod outcome;
mod packs;
mod transfer;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use muster_etcd::requests::{delete, delete_range, get, modified_at, put, read};
use muster_etcd::{EtcdError, pb};
use muster_proto::record::Kind;
use muster_store_core::change::Change;
use muster_store_core::draft::CommitLimits;
use muster_store_core::history::{Commit, Revision, StoredChange};
use muster_store_core::memory::Memory;
use prost::Message;
use tokio::sync::watch;

use self::follow::Pieces;
pub use self::follow::{FollowError, Leader};
pub use self::identity::{Identity, IdentityError, find, prepare};
pub use self::keys::{FormatError, Keys};
use self::keys::{Head, NumberedRenewal, RENEWAL_LEN, Section, Stored};
pub use self::kv::{BlockingClient, Kv};
use self::outcome::Proof;
use self::packs::Packs;
pub use self::transfer::{Import, ImportError};
use super::{Ledger, LedgerError, Space};

/// The most operations of one transaction, and the most bytes unless a single record is larger. etcd's own limits, 128
/// operations and 1.5 MiB, are the operator's to change and cannot be asked for.
const TXN_OPERATIONS: usize = 118;
const TXN_BYTES: usize = 256 * 1024;
/// How long one call may take. A member that defragments its file answers none for seconds.
const DEADLINE: Duration = Duration::from_secs(2);

/// The term of this process as the leader: from its claim of the leader's key until another one may lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// etcd's revision of the claim. It never comes again.
    pub leader_revision: i64,
}

/// The ledger of a process that follows, and leads at times.
pub struct EtcdLedger {
    kv: Arc<dyn Kv>,
    keys: Keys,
    identity: Identity,
    /// Locked while a commit is under way.
    state: Mutex<State>,
    compacted: AtomicU64,
    /// etcd's revision of the last commit.
    etcd_revision: AtomicI64,
    /// Why another process may write by now; `None` while this one leads and nothing speaks for it.
    deposed: watch::Sender<Option<String>>,
    /// Set when the process stops: no further wait for an outcome.
    stopping: AtomicBool,
}

/// What is known of etcd's content.
#[derive(Default)]
struct State {
    /// etcd's revision of this process's claim of the leader's key; 0 while it follows.
    term: i64,
    head: Head,
    /// etcd's revision of the head.
    head_modified: i64,
    packs: Packs,
    /// Keys that nothing needs any more. A change is after the one that it replaced: if a deletion went first, what it
    /// deleted would come back.
    garbage: VecDeque<Bytes>,
    /// Whether there may be changes above the head that this process has to remove.
    is_ahead: bool,
    /// The changes above the head that others wrote, while this process follows.
    pieces: Pieces,
    /// etcd's revision up to which everything is taken in, while this process follows.
    position: i64,
    /// Who leads, as of there.
    leader: Option<Leader>,
}

impl EtcdLedger {
    /// The ledger for a process that follows. Nothing is loaded yet.
    pub fn new(kv: Arc<dyn Kv>, keys: Keys, identity: Identity) -> Self {
        Self {
            kv,
            keys,
            identity,
            state: Mutex::default(),
            compacted: AtomicU64::new(0),
            etcd_revision: AtomicI64::new(0),
            deposed: watch::Sender::new(Some("it follows".to_owned())),
            stopping: AtomicBool::new(false),
        }
    }

    /// This process has claimed the leader's key, and has followed until its own claim: everything that its
    /// predecessors wrote is in memory, since their transactions compare their own claims.
    ///
    /// # Errors
    /// `Deposed` when it has lost the key since, and `Altered` if something was missed after all.
    pub fn lead(&self, term: &Term) -> Result<(), LedgerError> {
        let mut state = self.state();
        let followed = state.head_modified;
        state.term = term.leader_revision;
        self.read_head(&mut state)?;
        if state.head_modified != followed {
            state.term = 0;
            return Err(LedgerError::Altered("the head is not the one that was followed".to_owned()));
        }
        // What a predecessor left above the head is removed before the first commit.
        state.is_ahead = !state.pieces.is_empty();
        state.pieces.clear();
        self.deposed.send_replace(None);
        Ok(())
    }

    /// This process does not lead any more, and its writer has stopped. It follows from its last commit on: if one was
    /// made whose answer was lost, that is the next one.
    pub fn follow(&self) {
        self.depose("it follows");
        let mut state = self.state();
        state.term = 0;
        state.is_ahead = false;
        state.pieces.clear();
        state.position = state.head_modified;
    }

    /// etcd's revision up to which everything is taken in.
    pub fn position(&self) -> i64 {
        self.state().position
    }

    /// All keys: the first possible one, and the one after the last.
    pub fn all_keys(&self) -> (Bytes, Bytes) {
        self.keys.all()
    }

    /// Takes in what happened at some revisions of etcd, in order. `apply` gets each commit, and the last revision that
    /// is compacted with it; it completes the commit and makes it visible.
    ///
    /// # Errors
    /// When this process cannot go on from what it has.
    pub fn take_in(
        &self,
        events: &[pb::Event],
        apply: &mut dyn FnMut(&mut Commit, Revision) -> Result<(), FollowError>,
    ) -> Result<(), FollowError> {
        let revision_of = |event: &pb::Event| event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        let mut state = self.state();
        for together in events.chunk_by(|one, next| revision_of(one) == revision_of(next)) {
            let revision = together.first().map_or(0, revision_of);
            // etcd has sent old changes again after some of its own failures.
            if revision <= state.position {
                continue;
            }
            state.follow(&self.keys, revision, together, apply)?;
            self.compacted.fetch_max(state.head.compacted, Ordering::Relaxed);
            self.etcd_revision.fetch_max(state.head_modified, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Goes on after etcd has compacted the position: possible if nothing but deletions was missed.
    ///
    /// # Errors
    /// When etcd does not answer.
    pub fn skip_compacted(&self) -> Result<bool, LedgerError> {
        let mut state = self.state();
        let Some((revision, leader)) = self.unchanged_since(&state)? else { return Ok(false) };
        (state.position, state.leader) = (revision, leader);
        Ok(true)
    }

    /// Who leads, as of the position.
    pub fn leader(&self) -> Option<Leader> {
        self.state().leader.clone()
    }

    /// Follows why this process must not write any more; `None` while it may.
    pub fn follow_deposed(&self) -> watch::Receiver<Option<String>> {
        self.deposed.subscribe()
    }

    /// This process must not write any more: others have the evidence that it does not lead.
    pub fn depose(&self, reason: &str) {
        self.deposed.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert_with(|| reason.to_owned());
            is_first
        });
    }

    /// The process stops: a commit whose outcome is unknown fails without it.
    pub fn stop_waiting(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// etcd's revision of the last commit.
    pub fn etcd_revision(&self) -> i64 {
        self.etcd_revision.load(Ordering::Relaxed)
    }

    /// The head is this one, as of a revision of etcd.
    fn set_head(&self, state: &mut State, head: Head, modified: i64) {
        self.compacted.fetch_max(head.compacted, Ordering::Relaxed);
        self.etcd_revision.fetch_max(modified, Ordering::Relaxed);
        (state.head, state.head_modified) = (head, modified);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_leading(&self) -> Result<(), LedgerError> {
        match &*self.deposed.borrow() {
            None => Ok(()),
            Some(reason) => Err(LedgerError::Deposed(reason.clone())),
        }
    }

    fn deposed(&self, reason: &str) -> LedgerError {
        self.depose(reason);
        LedgerError::Deposed(reason.to_owned())
    }

    /// Reads the head; a process that leads checks that it still does.
    fn read_head(&self, state: &mut State) -> Result<i64, LedgerError> {
        let reads = [get(self.keys.head()), get(self.keys.leader())].map(read).to_vec();
        let answer = self.kv.txn(pb::TxnRequest { success: reads, ..Default::default() }, DEADLINE)?;
        let revision = answer.revision();
        let [heads, leaders] = two(answer.into_reads());
        if state.term != 0 && leaders.first().map_or(0, |leader| leader.mod_revision) != state.term {
            return Err(self.deposed("another store has the leader's key, or nobody has"));
        }
        state.leader = leaders.first().map(Leader::of);
        let head = heads.first().ok_or_else(|| LedgerError::Altered("there is no key `head`".to_owned()))?;
        let value = Head::decode(&*head.value).map_err(|error| altered(&head.key, &error))?;
        self.set_head(state, value, head.mod_revision);
        Ok(revision)
    }

    /// What must hold for anything to be written.
    fn compares(&self, state: &State) -> Vec<pb::Compare> {
        vec![
            modified_at(self.keys.head(), state.head_modified),
            modified_at(self.keys.leader(), state.term),
            modified_at(self.keys.format(), self.identity.format_revision),
        ]
    }

    fn stored(&self, section: Section, revision: Revision, batch: &Bytes, content: Bytes) -> Put {
        let value = Stored { batch: batch.clone(), content }.encode_to_vec();
        let key = self.keys.numbered(section, revision);
        Put { bytes: key.len() + value.len() + 32, operation: put(key, value) }
    }

    /// The transactions of a commit: those that write changes ahead of the head, then the operations of the one that
    /// moves it, without the head itself.
    fn plan(&self, commit: &Commit, batch: &Bytes, renewals: &[NumberedRenewal]) -> Plan {
        let mut pieces: Vec<Vec<Put>> = Vec::new();
        for (revision, change) in &commit.changes {
            let mut content = Vec::new();
            change.encode(false, &mut content);
            let put = self.stored(Section::Changes, *revision, batch, content.into());
            match pieces.last_mut() {
                Some(piece) if piece.len() < TXN_OPERATIONS && bytes_of(piece) + put.bytes <= TXN_BYTES => {
                    piece.push(put);
                }
                _ => pieces.push(vec![put]),
            }
        }
        let pack = (!renewals.is_empty())
            .then(|| self.stored(Section::Renewals, commit.head, batch, keys::encode_pack(renewals)));
        let pack_bytes = renewals.len() * RENEWAL_LEN;
        let fits = |last: &Vec<Put>| {
            bytes_of(last) + pack_bytes <= TXN_BYTES || (last.len() == 1 && pack_bytes == 0)
        };
        let last = pieces.pop_if(|last| fits(last)).unwrap_or_default();
        let operations = |puts: Vec<Put>| puts.into_iter().map(|put| put.operation).collect();
        Plan {
            ahead: pieces.into_iter().map(operations).collect(),
            last: operations(last.into_iter().chain(pack).collect()),
        }
    }

    /// Writes a commit whose base is the head.
    fn write(&self, state: &mut State, commit: &Commit) -> Result<(), LedgerError> {
        let batch = keys::batch_id();
        let renewals = renewals_of(commit, &state.packs);
        let Plan { ahead, mut last } = self.plan(commit, &batch, &renewals);
        for operations in ahead {
            state.is_ahead = true;
            self.write_ahead(state, &operations)?;
        }
        let head = Head {
            revision: commit.head,
            before: state.head.batch.clone(),
            batch,
            leader: state.term,
            compacted: commit.compaction.as_ref().map_or(state.head.compacted, |it| it.up_to),
            fingerprint: Bytes::copy_from_slice(&commit.fingerprint.encode()),
        };
        last.push(put(self.keys.head(), head.encode_to_vec()));
        let proof = match (commit.changes.first(), renewals.is_empty()) {
            (Some((revision, _)), _) => Proof::Key(self.keys.numbered(Section::Changes, *revision)),
            (None, false) => Proof::Key(self.keys.numbered(Section::Renewals, commit.head)),
            (None, true) => Proof::None,
        };
        let modified = self.write_decided(state, last, &head.batch, &proof)?;
        self.set_head(state, head, modified);
        state.is_ahead = false;
        state.take_in(&self.keys, commit, &renewals);
        Ok(())
    }

    /// Deletes what is not needed, as long as there is at least so much of it. A failure leaves it for later.
    fn trim(&self, state: &mut State, at_least: usize) {
        while state.garbage.len() >= at_least.max(1) {
            let count = state.garbage.len().min(TXN_OPERATIONS);
            let request = pb::TxnRequest {
                compare: vec![modified_at(self.keys.leader(), state.term)],
                success: state.garbage.iter().take(count).cloned().map(delete).collect(),
                ..Default::default()
            };
            match self.kv.txn(request, DEADLINE) {
                Ok(answer) if answer.succeeded => drop(state.garbage.drain(..count)),
                Ok(_) => return self.depose("the leader's key has changed"),
                // Deleting it again does no harm.
                Err(error) => return tracing::debug!(%error, "old history could not be deleted yet"),
            }
        }
    }
}

/// One put and about what it adds to a request.
struct Put {
    bytes: usize,
    operation: pb::RequestOp,
}

/// The transactions of a commit.
struct Plan {
    ahead: Vec<Vec<pb::RequestOp>>,
    last: Vec<pb::RequestOp>,
}

fn bytes_of(puts: &[Put]) -> usize {
    puts.iter().map(|put| put.bytes).sum()
}

/// The renewals that a commit writes: its own, and some that it takes over from old packs.
fn renewals_of(commit: &Commit, packs: &Packs) -> Vec<NumberedRenewal> {
    if commit.renewals.is_empty() {
        return Vec::new();
    }
    let own = commit.renewals.iter().flat_map(|(first, pack)| (*first..).zip(pack.iter().copied()));
    packs.to_fold().into_iter().chain(own).collect()
}

impl State {
    /// Takes in what a commit has written.
    fn take_in(&mut self, keys: &Keys, commit: &Commit, renewals: &[NumberedRenewal]) {
        let written = commit.changes.iter().filter(|(_, change)| change.kind == Kind::Lease);
        let written: HashMap<u32, Revision> = written.map(|(at, change)| (change.lease_id, *at)).collect();
        if !renewals.is_empty() {
            self.packs.add(commit.head, renewals);
        }
        self.packs.release_written(&written);
        for key in self.packs.take_unneeded() {
            self.garbage.push_back(keys.numbered(Section::Renewals, key));
        }
        for revision in commit.compaction.iter().flat_map(|compaction| &compaction.obsolete) {
            self.garbage.push_back(keys.numbered(Section::Changes, *revision));
        }
    }
}

impl Ledger for EtcdLedger {
    fn engine(&self) -> &'static str {
        "etcd"
    }

    fn space(&self) -> Option<io::Result<Space>> {
        None
    }

    fn load(&self, recall: &mut dyn FnMut(Change)) -> Result<Memory, LedgerError> {
        let memory = self.load_proven(recall)?;
        let mut state = self.state();
        if state.term != 0 && !state.pieces.is_empty() {
            state.pieces.clear();
            self.remove_what_is_ahead(&mut state)?;
        }
        Ok(memory)
    }

    fn limits(&self) -> CommitLimits {
        CommitLimits { changes: TXN_OPERATIONS, bytes: TXN_BYTES }
    }

    fn commit(&self, commit: &Commit) -> Result<(), LedgerError> {
        let mut state = self.state();
        self.check_leading()?;
        if commit.base != state.head.revision {
            return Err(LedgerError::Conflict { expected: commit.base, found: state.head.revision });
        }
        if state.is_ahead {
            self.remove_what_is_ahead(&mut state)?;
        }
        self.write(&mut state, commit)?;
        self.trim(&mut state, TXN_OPERATIONS);
        Ok(())
    }

    fn check(&self) -> Result<(), LedgerError> {
        self.check_leading()?;
        self.trim(&mut self.state(), 1);
        let alarms = self.kv.alarms(DEADLINE)?;
        let raised = |wanted| alarms.iter().find(|alarm| alarm.alarm() == wanted);
        if let Some(alarm) = raised(pb::AlarmType::Corrupt) {
            return Err(EtcdError::Corrupt(alarm.to_string()).into());
        }
        if raised(pb::AlarmType::Nospace).is_some() {
            return Err(EtcdError::NoSpace.into());
        }
        Ok(())
    }

    fn confirm(&self) -> Result<(), LedgerError> {
        self.check_leading()?;
        // Only a transaction that compares the leader's key proves that nobody else has written, whatever the clocks say.
        self.read_head(&mut self.state()).map(drop)
    }

    fn recover(&self) -> Result<(), LedgerError> {
        let mut state = self.state();
        self.check_leading()?;
        if state.is_ahead {
            self.remove_what_is_ahead(&mut state)?;
        }
        Ok(())
    }

    fn compacted(&self) -> Revision {
        self.compacted.load(Ordering::Relaxed)
    }

    fn changes_of(
        &self,
        kind: Kind,
        after: Revision,
        until: Revision,
        limit: usize,
    ) -> Result<(Vec<(Revision, StoredChange)>, Revision), LedgerError> {
        self.read_changes(kind, after, until, limit)
    }

    fn version(&self, revision: Revision, _: Revision) -> Result<Option<Bytes>, LedgerError> {
        let found = self.kv.range(get(self.keys.numbered(Section::Changes, revision)), DEADLINE)?;
        found.kvs.first().map(|kv| Ok(load::decode_change(kv)?.record)).transpose()
    }
}

impl EtcdLedger {
    /// Deletes the changes of a commit that was not finished, and moves the head without a revision: what is still under
    /// way of that commit then fails its comparison.
    fn remove_what_is_ahead(&self, state: &mut State) -> Result<(), LedgerError> {
        let first = self.keys.numbered(Section::Changes, state.head.revision + 1);
        let before = state.head.batch.clone();
        let head = Head { batch: keys::batch_id(), before, leader: state.term, ..state.head.clone() };
        let operations = vec![
            delete_range(first, self.keys.end(Section::Changes)),
            put(self.keys.head(), head.encode_to_vec()),
        ];
        let modified = self.write_decided(state, operations, &head.batch, &Proof::None)?;
        self.set_head(state, head, modified);
        state.is_ahead = false;
        Ok(())
    }
}

impl From<EtcdError> for LedgerError {
    /// For calls that write nothing, and for writes that were not done.
    fn from(error: EtcdError) -> Self {
        match error {
            EtcdError::NoSpace => LedgerError::ReadOnly(error.to_string()),
            EtcdError::Corrupt(_) => LedgerError::Altered(error.to_string()),
            _ => LedgerError::Unreachable(error.to_string()),
        }
    }
}

/// The value of a key is not what was written.
fn altered(key: &[u8], reason: &impl ToString) -> LedgerError {
    LedgerError::Altered(format!("{}: {}", String::from_utf8_lossy(key), reason.to_string()))
}

/// The answers to two reads.
fn two(reads: Vec<Vec<pb::KeyValue>>) -> [Vec<pb::KeyValue>; 2] {
    let mut reads = reads.into_iter();
    [reads.next().unwrap_or_default(), reads.next().unwrap_or_default()]
}

#[cfg(test)]
impl EtcdLedger {
    /// The ledger of a process that leads before it has loaded anything.
    fn open(kv: Arc<dyn Kv>, keys: Keys, identity: Identity, term: &Term) -> Result<Self, LedgerError> {
        let ledger = Self::new(kv, keys, identity);
        let mut state = ledger.state();
        state.term = term.leader_revision;
        ledger.read_head(&mut state)?;
        drop(state);
        ledger.deposed.send_replace(None);
        Ok(ledger)
    }
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
