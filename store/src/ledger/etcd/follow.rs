//! Following what another store writes: etcd's changes of one revision become a commit, or a piece of one.
//!
//! A commit that takes several transactions puts its changes ahead of the head; they wait here until the head comes.
//! Each head names the one before it, so a change that etcd did not send is noticed at the next head at the latest.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use muster_etcd::pb;
use muster_etcd::pb::mvccpb::event::EventType;
use muster_store_core::history::{Commit, Revision, StoredChange, StoredRenewal};
use prost::Message;

use super::keys::{Head, Keys, NumberedRenewal, Section, Stored};
use super::{State, altered, load};
use crate::ledger::LedgerError;

/// The holder of the leader's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    pub address: String,
    /// etcd's revision of its claim.
    pub revision: i64,
}

/// Why this process cannot go on with what it has in memory: it must load everything again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FollowError {
    #[error(
        "a commit of another store was missed: the head at revision {revision} does not follow the last one"
    )]
    Gap { revision: Revision },
    #[error("at revision {revision} {difference}")]
    Mismatch { revision: Revision, difference: String },
    #[error("the format was changed, by a newer version of Muster or by somebody else")]
    Format,
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Changes whose head has not come yet, with the id of their commit.
#[derive(Debug, Default)]
pub(super) struct Pieces(BTreeMap<Revision, (Bytes, StoredChange)>);

/// What happened at one revision of etcd.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) head: Option<Head>,
    /// The renewals beside the head.
    pub(super) renewals: Vec<NumberedRenewal>,
    /// Of the leader's key: another holder, or none.
    pub(super) leader: Option<Option<Leader>>,
    /// Keys that are not needed any more.
    pub(super) deleted: Vec<Bytes>,
    pub(super) is_format_changed: bool,
}

impl Pieces {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn forget_up_to(&mut self, revision: Revision) {
        self.0 = self.0.split_off(&revision.saturating_add(1));
    }

    /// Takes in one change above the head.
    pub(super) fn put(&mut self, revision: Revision, kv: &pb::KeyValue) -> Result<(), LedgerError> {
        let stored = Stored::decode(&*kv.value).map_err(|error| altered(&kv.key, &error))?;
        let change = StoredChange::decode(&stored.content).map_err(|error| altered(&kv.key, &error))?;
        self.0.insert(revision, (stored.batch, change));
        Ok(())
    }

    /// Takes in the changes of one revision of etcd. Keys that this version does not know are left alone.
    pub(super) fn see(&mut self, keys: &Keys, events: &[pb::Event]) -> Result<Seen, LedgerError> {
        let mut seen = Seen::default();
        for event in events {
            let Some(kv) = &event.kv else { continue };
            let is_put = event.r#type() == EventType::Put;
            if let Some(revision) = keys.revision(Section::Changes, &kv.key) {
                if is_put {
                    self.put(revision, kv)?;
                } else {
                    // A commit that was not finished is removed, or history that is not needed.
                    self.0.remove(&revision);
                    seen.deleted.push(kv.key.clone());
                }
            } else if keys.revision(Section::Renewals, &kv.key).is_some() {
                if is_put {
                    seen.renewals = load::decode_renewals(kv)?;
                } else {
                    seen.deleted.push(kv.key.clone());
                }
            } else if kv.key == keys.head() {
                // A head that was deleted has nothing that could follow.
                let head = Head::decode(&*kv.value).map_err(|error| altered(&kv.key, &error))?;
                seen.head = Some(head);
            } else if kv.key == keys.leader() {
                seen.leader = Some(is_put.then(|| Leader::of(kv)));
            } else if kv.key == keys.format() {
                seen.is_format_changed = true;
            }
        }
        Ok(seen)
    }

    /// The commit of a head that follows another one. Its compaction is left to who knows the history.
    fn commit(
        &mut self,
        before: &Head,
        head: &Head,
        renewals: &[NumberedRenewal],
    ) -> Result<Commit, FollowError> {
        let gap = FollowError::Gap { revision: head.revision };
        if head.before != before.batch || head.revision < before.revision {
            return Err(gap);
        }
        let later = self.0.split_off(&head.revision.saturating_add(1));
        let own = std::mem::replace(&mut self.0, later);
        // A piece of another commit was replaced or removed before these revisions were used again.
        let changes = own
            .into_iter()
            .filter(|(revision, (batch, _))| *revision > before.revision && *batch == head.batch)
            .map(|(revision, (_, change))| (revision, change));
        Ok(Commit {
            base: before.revision,
            head: head.revision,
            changes: changes.collect(),
            renewals: runs(renewals, before.revision),
            compaction: None,
            uses_reserve: false,
            fingerprint: head.fingerprint().ok_or(gap)?,
        })
    }
}

impl Leader {
    pub(super) fn of(kv: &pb::KeyValue) -> Self {
        Self { address: String::from_utf8_lossy(&kv.value).into_owned(), revision: kv.mod_revision }
    }
}

/// The renewals after a revision, as packs of consecutive ones. The others were taken over from older packs.
fn runs(renewals: &[NumberedRenewal], after: Revision) -> Vec<(Revision, Vec<StoredRenewal>)> {
    let mut runs: Vec<(Revision, Vec<StoredRenewal>)> = Vec::new();
    for (revision, renewal) in renewals.iter().filter(|(revision, _)| *revision > after) {
        match runs.last_mut() {
            Some((first, run)) if *first + run.len() as u64 == *revision => run.push(*renewal),
            _ => runs.push((*revision, vec![*renewal])),
        }
    }
    runs
}

impl State {
    /// Applies what happened at one revision of etcd. A commit is passed on before it counts; what `apply` refuses does
    /// not count. `apply` sets the commit's compaction.
    pub(super) fn follow(
        &mut self,
        keys: &Keys,
        revision: i64,
        events: &[pb::Event],
        apply: &mut dyn FnMut(&mut Commit, Revision) -> Result<(), FollowError>,
    ) -> Result<(), FollowError> {
        let Seen { head, renewals, leader, deleted, is_format_changed } = self.pieces.see(keys, events)?;
        if is_format_changed {
            return Err(FollowError::Format);
        }
        match head {
            // A leader whose last answer was lost resumes before its own last commit, which it has applied.
            Some(head) if head.batch == self.head.batch => {
                self.pieces.forget_up_to(head.revision);
                self.head_modified = revision;
            }
            Some(head) => {
                let mut commit = self.pieces.commit(&self.head, &head, &renewals)?;
                apply(&mut commit, head.compacted)?;
                (self.head, self.head_modified) = (head, revision);
                self.take_in(keys, &commit, &renewals);
            }
            None => {}
        }
        self.forget_deleted(deleted.into_iter().collect());
        if let Some(leader) = leader {
            self.leader = leader;
        }
        self.position = revision;
        Ok(())
    }

    /// These keys are deleted already.
    fn forget_deleted(&mut self, mut deleted: HashSet<Bytes>) {
        // Mostly in the order in which everybody notes what is not needed; a leader that has loaded has another one.
        while self.garbage.front().is_some_and(|oldest| deleted.remove(oldest)) {
            self.garbage.pop_front();
        }
        if !deleted.is_empty() {
            self.garbage.retain(|key| !deleted.contains(key));
        }
    }
}

#[cfg(test)]
mod tests;
