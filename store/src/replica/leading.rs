//! Leading: the writer runs, and this process takes writes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::{Ended, Loaded, Replica};
use crate::commit_health;
use crate::leadership::{Holding, compact_etcd};
use crate::ledger::LedgerError;
use crate::ledger::etcd::EtcdLedger;
use crate::run::{RunError, supervise_writer};

/// How long a leader that stops may take to finish the writes that it has taken.
const HAND_OVER: Duration = Duration::from_secs(3);

/// How a term ended.
pub(super) enum Led {
    /// Another process may lead.
    Deposed(String),
    Ended(Ended),
}

impl Replica {
    /// Leads until another process may, or this one stops. The records are as of this process's own claim.
    pub(super) async fn lead(&self, loaded: &Loaded, mut holding: Holding) -> Result<Led, RunError> {
        let Loaded { ledger, store, end } = loaded;
        let (leading, term) = (Arc::clone(ledger), holding.term.clone());
        let led = tokio::task::spawn_blocking(move || leading.lead(&term)).await;
        match led.map_err(std::io::Error::other)? {
            Ok(()) => {}
            Err(LedgerError::Altered(reason)) => {
                holding.resign().await;
                return Ok(Led::Ended(Ended::Reload(reason)));
            }
            Err(error) => {
                holding.resign().await;
                ledger.follow();
                return Ok(Led::Deposed(error.to_string()));
            }
        }
        let writing = Arc::clone(store);
        let started = tokio::task::spawn_blocking(move || writing.start_writer()).await;
        let mut writer = supervise_writer(started.map_err(std::io::Error::other)??, self.shutdown.clone())?;
        let term_end = end.child();
        let (commits, clock) = (Arc::clone(store.commit_health()), Arc::clone(&self.clock));
        tokio::spawn(commit_health::follow(commits, clock, self.conditions.etcd.clone(), term_end.clone()));
        self.switch.lead(self.services(loaded, &term_end).routes(), holding.confirmed.clone());
        self.conditions.leader.set(Ok(()));
        self.metrics.leader.set(1);
        self.metrics.behind.set(0);
        tracing::info!(revision = store.log().head(), "muster-store is ready: it leads");

        let mut deposed = ledger.follow_deposed();
        let reason = tokio::select! {
            reason = holding.ended() => Some(reason),
            reason = async { deposed.wait_for(Option::is_some).await.ok().and_then(|it| it.clone()) } => {
                Some(reason.unwrap_or_default())
            }
            () = compact_for_ever(&self.candidate.client, ledger) => None,
            () = self.shutdown.requested() => None,
        };
        if let Some(reason) = &reason {
            ledger.depose(reason);
        }
        // No write comes in from here on; those that are queued are finished, or refused if another process may lead.
        self.switch.follow(None);
        store.stop_leading();
        let finished = match timeout(HAND_OVER, &mut writer).await {
            Ok(finished) => finished,
            // A commit waits for etcd. A process that stops does not; one that goes on has nothing to follow until then.
            Err(_) => {
                if self.shutdown.is_requested() {
                    ledger.stop_waiting();
                }
                tokio::select! {
                    finished = &mut writer => finished,
                    () = self.shutdown.requested() => {
                        ledger.stop_waiting();
                        writer.await
                    }
                }
            }
        };
        // Agents go to the store that leads next.
        term_end.trigger();
        self.metrics.leader.set(0);
        self.metrics.writable.set(1);
        if !matches!(finished, Ok(Ok(()))) {
            return Err(std::io::Error::other("the writer ended with a panic").into());
        }
        ledger.follow();
        // Everything that was taken is decided: the next leader may begin at once.
        holding.resign().await;
        Ok(reason.map_or(Led::Ended(Ended::Stopping), Led::Deposed))
    }
}

/// Compacts etcd as long as that is permitted.
async fn compact_for_ever(client: &muster_etcd::Client, ledger: &EtcdLedger) {
    compact_etcd(client, ledger).await;
    std::future::pending::<()>().await;
}
