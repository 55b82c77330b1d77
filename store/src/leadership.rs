//! Which of several stores leads: the one that holds a key of etcd, which is bound to a lease.
//!
//! The key elects; it does not exclude. A process that was stopped for a while may believe that it leads, so every write
//! compares the key (`ledger::etcd`). Leadership ends by evidence only: etcd says that the lease has ended, or a
//! comparison fails. While etcd itself elects a leader nobody can be renewed and nobody else can win.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_etcd::requests::{get, modified_at, put_with_lease, read};
use muster_etcd::{Client, EtcdError, pb};
use muster_proto::time::Mono;
use muster_rpc::clock::SharedClock;
use tokio::time::sleep;

use crate::ledger::etcd::{EtcdLedger, Identity, Keys, Term};

/// How long a lease should last. etcd grants no less than one and a half of its election timeouts: 2 s by default.
const LEASE_SECONDS: i64 = 2;
/// How often the lease is prolonged, and how long that may take.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
const KEEP_ALIVE_DEADLINE: Duration = Duration::from_millis(400);
/// How often a store that stands by looks whether the key is free.
const LOOK: Duration = Duration::from_millis(200);
const DEADLINE: Duration = Duration::from_secs(2);
/// How often etcd's own history is dropped, up to where it was the time before.
const COMPACT: Duration = Duration::from_secs(60);

/// A store that may lead.
pub struct Candidate {
    pub client: Arc<Client>,
    pub keys: Keys,
    pub identity: Identity,
    /// What others are told to ask while this one leads.
    pub address: String,
    pub clock: SharedClock,
}

/// What a look at the leader's key found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// This store leads from now on.
    Won(Reign),
    /// The store at this address leads.
    Led(String),
    /// Another one was faster, or etcd's answer was lost.
    Nobody,
}

/// The lease of a leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reign {
    pub term: Term,
    pub lease: i64,
    /// How long the lease lasts without a keepalive.
    pub lasts: Duration,
    /// From when on: it was asked for then.
    pub since: Mono,
}

impl Candidate {
    /// Looks at the leader's key and claims it if it is free.
    ///
    /// # Errors
    /// When etcd does not answer or refuses.
    pub async fn look(&self) -> Result<Found, EtcdError> {
        let found = self.client.range(get(self.keys.leader()), DEADLINE).await?;
        if let Some(leader) = found.kvs.first() {
            return Ok(Found::Led(String::from_utf8_lossy(&leader.value).into_owned()));
        }
        let since = self.clock.mono();
        let (lease, lasts) = self.client.grant(LEASE_SECONDS, DEADLINE).await?;
        let claimed = self.claim(lease).await;
        match claimed {
            Ok(Some(leader_revision)) => {
                let term = Term { leader_revision };
                Ok(Found::Won(Reign { term, lease, lasts, since }))
            }
            // If the claim is done after all, the end of its lease ends it too.
            other => {
                self.resign(lease).await;
                other.map(|_| Found::Nobody)
            }
        }
    }

    /// Puts the key if there is none. Returns etcd's revision of it.
    async fn claim(&self, lease: i64) -> Result<Option<i64>, EtcdError> {
        let request = pb::TxnRequest {
            compare: vec![
                modified_at(self.keys.leader(), 0),
                modified_at(self.keys.format(), self.identity.format_revision),
            ],
            success: vec![put_with_lease(self.keys.leader(), self.address.clone(), lease)],
            failure: vec![read(get(self.keys.leader()))],
        };
        let answer = self.client.txn(request, DEADLINE).await?;
        Ok(answer.succeeded.then(|| answer.revision()))
    }

    /// Waits before the next look.
    pub async fn wait(&self) {
        sleep(LOOK).await;
    }

    /// Ends the lease, so that another store need not wait for its end.
    pub async fn resign(&self, lease: i64) {
        if let Err(error) = self.client.revoke(lease, DEADLINE).await {
            tracing::debug!(%error, "the lease could not be ended; it ends by itself");
        }
    }
}

/// When the lease was last known to hold.
#[derive(Clone)]
pub struct Confirmed {
    clock: SharedClock,
    lasts: Duration,
    at: Arc<Mutex<Mono>>,
}

impl Confirmed {
    /// A lease that was asked for at `at`.
    pub fn new(clock: SharedClock, lasts: Duration, at: Mono) -> Self {
        Self { clock, lasts, at: Arc::new(Mutex::new(at)) }
    }

    fn confirm(&self, at: Mono) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// Whether nobody else can lead yet, by the length of the lease. After a pause of this process others may have
    /// written, and what it has in memory may be out of date.
    pub fn is_current(&self) -> bool {
        let at = *self.at.lock().unwrap_or_else(PoisonError::into_inner);
        self.clock.mono() - at < self.lasts
    }
}

/// Prolongs the lease until etcd says that it has ended.
pub async fn keep_alive(client: &Client, lease: i64, confirmed: &Confirmed) -> String {
    loop {
        let sent = confirmed.clock.mono();
        match client.keep_alive(lease, KEEP_ALIVE_DEADLINE).await {
            Ok(1..) => confirmed.confirm(sent),
            Ok(_) => return "its lease in etcd has ended".to_owned(),
            Err(error) => tracing::debug!(%error, "the lease in etcd could not be prolonged yet"),
        }
        sleep(KEEP_ALIVE).await;
    }
}

/// Drops etcd's own history now and then: Muster keeps its history in keys of its own.
pub async fn compact_etcd(client: &Client, ledger: &EtcdLedger) {
    loop {
        let revision = ledger.etcd_revision();
        sleep(COMPACT).await;
        match client.compact(revision, DEADLINE).await {
            // Somebody else has, or there is nothing new.
            Ok(()) | Err(EtcdError::Compacted) => {}
            Err(EtcdError::NotPermitted(reason)) => {
                tracing::warn!(
                    reason,
                    "etcd must be compacted by somebody else, such as its own --auto-compaction-retention"
                );
                return;
            }
            Err(error) => tracing::debug!(%error, "etcd could not be compacted yet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_rpc::clock::{Clock, ManualClock};

    use super::*;

    #[test]
    fn a_lease_counts_from_the_last_keepalive_that_was_answered() {
        let clock = Arc::new(ManualClock::default());
        let confirmed = Confirmed::new(clock.clone(), Duration::from_secs(2), clock.mono());
        clock.advance(Duration::from_millis(1999));
        assert!(confirmed.is_current());
        clock.advance(Duration::from_millis(1));
        assert!(!confirmed.is_current(), "another store may have taken over");
        confirmed.confirm(clock.mono());
        clock.advance(Duration::from_millis(1999));
        assert!(confirmed.is_current());
    }
}
