//! Which of several stores leads: the one that holds a key of etcd, which is bound to a lease.
//!
//! The key elects; it does not exclude. A process that was stopped for a while may believe that it leads, so every write
//! compares the key (`ledger::etcd`). Leadership ends by evidence only: etcd says that the lease has ended, or a
//! comparison fails. While etcd itself elects a leader nobody can be renewed and nobody else can win.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_etcd::requests::{modified_at, put_with_lease};
use muster_etcd::{Client, EtcdError, pb};
use muster_proto::time::Mono;
use muster_rpc::clock::SharedClock;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use uuid::Uuid;

use crate::ledger::etcd::{EtcdLedger, Identity, Keys, Term};

/// How long a lease should last. etcd grants no less than one and a half of its election timeouts: 2 s by default.
const LEASE_SECONDS: i64 = 2;
/// How often the lease is prolonged, and how long that may take.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
const KEEP_ALIVE_DEADLINE: Duration = Duration::from_millis(400);
/// When the key has gone, stores claim it within this time.
const JITTER: Duration = Duration::from_millis(50);
/// The wait after a claim that failed.
const AGAIN: Duration = Duration::from_millis(200);
const DEADLINE: Duration = Duration::from_secs(2);
/// How often etcd's own history is dropped, up to where it was the time before.
const COMPACT: Duration = Duration::from_secs(60);

/// A store that may lead.
pub struct Candidate {
    pub client: Arc<Client>,
    pub keys: Keys,
    pub identity: Identity,
    /// Where others reach this store while it leads.
    pub address: String,
    pub clock: SharedClock,
}

/// The leader's key, held. The lease is prolonged until this is dropped.
pub struct Holding {
    pub term: Term,
    pub confirmed: Confirmed,
    lease: i64,
    client: Arc<Client>,
    /// Ends with the reason for which the lease has ended.
    prolonging: JoinHandle<String>,
}

impl Candidate {
    /// Claims the leader's key. `None` if another store has it.
    ///
    /// # Errors
    /// When etcd does not answer or refuses.
    pub async fn claim(&self) -> Result<Option<Holding>, EtcdError> {
        let since = self.clock.mono();
        let (lease, lasts) = self.client.grant(LEASE_SECONDS, DEADLINE).await?;
        match self.put_key(lease).await {
            Ok(Some(leader_revision)) => {
                let confirmed = Confirmed::new(Arc::clone(&self.clock), lasts, since);
                let (client, following) = (Arc::clone(&self.client), confirmed.clone());
                let prolonging = tokio::spawn(async move { keep_alive(&client, lease, &following).await });
                let client = Arc::clone(&self.client);
                Ok(Some(Holding { term: Term { leader_revision }, confirmed, lease, client, prolonging }))
            }
            // If the claim is done after all, the end of its lease ends it too.
            other => {
                end(&self.client, lease).await;
                other.map(|_| None)
            }
        }
    }

    /// Puts the key if there is none. Returns etcd's revision of it.
    async fn put_key(&self, lease: i64) -> Result<Option<i64>, EtcdError> {
        let request = pb::TxnRequest {
            compare: vec![
                modified_at(self.keys.leader(), 0),
                modified_at(self.keys.format(), self.identity.format_revision),
            ],
            success: vec![put_with_lease(self.keys.leader(), self.address.clone(), lease)],
            ..Default::default()
        };
        let answer = self.client.txn(request, DEADLINE).await?;
        Ok(answer.succeeded.then(|| answer.revision()))
    }

    /// Waits before the next claim: stores that see the key go at the same moment do not all claim it at once, and one
    /// that was refused asks again later.
    pub async fn wait(&self, is_first: bool) {
        let random = u32::from(Uuid::new_v4().as_bytes()[0]);
        sleep(if is_first { JITTER * random / 256 } else { AGAIN }).await;
    }
}

impl Holding {
    /// Returns when etcd says that the lease has ended, and why.
    pub async fn ended(&mut self) -> String {
        (&mut self.prolonging).await.unwrap_or_else(|error| error.to_string())
    }

    /// Ends the lease, so that another store need not wait for its end.
    pub async fn resign(self) {
        end(&self.client, self.lease).await;
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.prolonging.abort();
    }
}

async fn end(client: &Client, lease: i64) {
    if let Err(error) = client.revoke(lease, DEADLINE).await {
        tracing::debug!(%error, "the lease could not be ended; it ends by itself");
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

    /// Whether nobody else can lead yet, by the length of the lease. Nothing relies on it: a leader that cannot reach etcd
    /// refuses writes early instead of letting them wait.
    pub fn is_current(&self) -> bool {
        let at = *self.at.lock().unwrap_or_else(PoisonError::into_inner);
        self.clock.mono() - at < self.lasts
    }
}

/// Prolongs the lease until etcd says that it has ended.
async fn keep_alive(client: &Client, lease: i64, confirmed: &Confirmed) -> String {
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
