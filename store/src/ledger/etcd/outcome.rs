//! What became of a transaction.
//!
//! A transaction whose answer is lost was done, or was not, or will still be. Its comparison with the head decides:
//! exactly one transaction can follow a head. So the same one is sent again until one of them is answered, and what
//! follows the head tells whose it was. While this process leads that takes a moment; when it does not any more, the
//! transaction can never be done later, and what is in etcd tells whether it was.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use muster_etcd::requests::{get, read};
use muster_etcd::{EtcdError, pb};
use prost::Message;

use super::keys::{Head, Stored};
use super::{DEADLINE, EtcdLedger, State};
use crate::ledger::LedgerError;

/// The first wait for the outcome of a transaction that gave no answer; each further one is twice as long, up to
/// [`DEADLINE`]. An election of etcd lets calls hang, and a new one is answered at once when it is over.
const FIRST_DEADLINE: Duration = Duration::from_millis(300);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// What tells that a commit was done after another store wrote on top of it.
pub(super) enum Proof {
    /// The commit puts this key, with its id.
    Key(Bytes),
    /// Nobody waits for the answer.
    None,
}

/// What etcd shows of a transaction that gave no answer.
enum Seen {
    /// It was done, at this revision of etcd.
    Done(i64),
    /// It was not, and it can still be.
    Open,
    /// Another store leads. It was done before that, or not and never will be.
    Deposed { done: Option<bool> },
}

impl EtcdLedger {
    /// Sends the transaction that moves the head, until its outcome is known. Returns etcd's revision of it.
    pub(super) fn write_decided(
        &self,
        state: &State,
        operations: Vec<pb::RequestOp>,
        batch: &Bytes,
        proof: &Proof,
    ) -> Result<i64, LedgerError> {
        let request =
            pb::TxnRequest { compare: self.compares(state), success: operations, ..Default::default() };
        let mut deadline = DEADLINE;
        // Whether an earlier attempt may still be done.
        let mut is_pending = false;
        loop {
            let mut has_failed_comparison = false;
            let refused = match self.kv.txn(request.clone(), deadline) {
                Ok(answer) if answer.succeeded => return Ok(answer.revision()),
                Ok(_) => {
                    has_failed_comparison = true;
                    None
                }
                Err(error @ EtcdError::Unknown(_)) => {
                    is_pending = true;
                    tracing::debug!(%error, "the outcome of a commit is looked up");
                    None
                }
                // etcd may have written before it noticed that there is no space; it had decided when it answered.
                Err(EtcdError::NoSpace) => Some(EtcdError::NoSpace),
                Err(error) if !is_pending => return Err(error.into()),
                Err(error) => Some(error),
            };
            deadline = if deadline == DEADLINE { FIRST_DEADLINE } else { (deadline * 2).min(DEADLINE) };
            match self.look(state, batch, proof, &mut deadline)? {
                Seen::Done(revision) => return Ok(revision),
                // Neither the head nor the leader's key has changed.
                Seen::Open if has_failed_comparison => {
                    return Err(self.deposed("a newer version of Muster has changed the format"));
                }
                Seen::Open => {}
                Seen::Deposed { done } => {
                    let deposed = self.deposed("another store leads, or nobody does");
                    return match done {
                        Some(true) => Ok(state.head_modified),
                        Some(false) => Err(deposed),
                        None => Err(unreachable_text(
                            "another store leads by now, and whether the last commit was done cannot be told any more",
                        )),
                    };
                }
            }
            match refused {
                Some(error) if !is_pending => return Err(error.into()),
                _ => self.pause()?,
            }
        }
    }

    /// Writes changes above the head. Doing it twice does no harm.
    pub(super) fn write_ahead(&self, state: &State, operations: &[pb::RequestOp]) -> Result<(), LedgerError> {
        let request = pb::TxnRequest {
            compare: self.compares(state),
            success: operations.to_vec(),
            ..Default::default()
        };
        loop {
            match self.kv.txn(request.clone(), DEADLINE) {
                Ok(answer) if answer.succeeded => return Ok(()),
                Ok(_) => return Err(self.deposed("the head or the leader's key has changed")),
                Err(EtcdError::Unknown(_)) => self.pause()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads what follows the head, until there is an answer.
    fn look(
        &self,
        state: &State,
        batch: &Bytes,
        proof: &Proof,
        deadline: &mut Duration,
    ) -> Result<Seen, LedgerError> {
        let mut keys = vec![self.keys.head(), self.keys.leader()];
        if let Proof::Key(key) = proof {
            keys.push(key.clone());
        }
        let reads = keys.into_iter().map(|key| read(get(key))).collect();
        let request = pb::TxnRequest { success: reads, ..Default::default() };
        loop {
            match self.kv.txn(request.clone(), *deadline) {
                Ok(answer) => return Ok(self.judge(state, batch, answer)),
                Err(error) if error.is_passing() => {
                    tracing::debug!(%error, "the outcome of a commit cannot be looked up yet");
                    *deadline = (*deadline * 2).min(DEADLINE);
                    self.pause()?;
                }
                Err(error) => {
                    self.depose("the outcome of a commit is not known, and all is read again");
                    return Err(unreachable_text(&error.to_string()));
                }
            }
        }
    }

    fn judge(&self, state: &State, batch: &Bytes, answer: pb::TxnResponse) -> Seen {
        let mut reads = answer.into_reads().into_iter().map(|keys| keys.into_iter().next());
        let mut next = || reads.next().flatten();
        let (head, leader, proof) = (next(), next(), next());
        let modified = head.as_ref().map_or(0, |head| head.mod_revision);
        let leads = leader.is_some_and(|leader| leader.mod_revision == state.term);
        let head = head.and_then(|head| Head::decode(&*head.value).ok()).unwrap_or_default();
        if head.batch == *batch {
            return Seen::Done(modified);
        }
        if modified == state.head_modified {
            return if leads { Seen::Open } else { Seen::Deposed { done: Some(false) } };
        }
        if head.before == *batch {
            return Seen::Deposed { done: Some(true) };
        }
        let proof = proof.and_then(|proof| Stored::decode(&*proof.value).ok());
        Seen::Deposed { done: proof.map(|proof| proof.batch == *batch) }
    }

    fn pause(&self) -> Result<(), LedgerError> {
        if self.stopping.load(Ordering::Relaxed) {
            self.depose("the store stops");
            return Err(unreachable_text("the store stops, and the outcome of its last commit is not known"));
        }
        self.kv.pause(PAUSE);
        Ok(())
    }
}

fn unreachable_text(reason: &str) -> LedgerError {
    LedgerError::Unreachable(reason.to_owned())
}
