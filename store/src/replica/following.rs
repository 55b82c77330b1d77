//! Following: what etcd's watch shows is applied, and the leader's key is claimed when nobody has it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use muster_etcd::{EtcdError, Watch, WatchAnswer};
use muster_proto::time::Mono;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::{Ended, Loaded, Replica};
use crate::leadership::Holding;
use crate::ledger::etcd::{FollowError, Leader};

/// How long etcd may take to begin a watch.
const DEADLINE: Duration = Duration::from_secs(2);
/// How often etcd is asked whether the watch is alive.
const ASK: Duration = Duration::from_secs(1);
/// A watch that says nothing for so long is left for one at another member.
const SILENT: Duration = Duration::from_secs(3);
/// The wait before a watch that ended is begun again.
const AGAIN: Duration = Duration::from_millis(100);
/// A store that has won the key, and does not catch up within this time, leaves it to others.
const CATCH_UP: Duration = Duration::from_secs(10);
/// More changes at once are applied beside the other work of this thread.
const MANY: usize = 64;

/// How following ended.
pub(super) enum Followed {
    /// This process has the leader's key, and has applied everything before its claim.
    Won(Holding),
    Ended(Ended),
}

/// The way to the leader's key.
#[derive(Default)]
struct Candidacy {
    claiming: Option<JoinHandle<Result<Option<Holding>, EtcdError>>>,
    /// Claimed, and since when.
    holding: Option<(Holding, Mono)>,
    has_failed: bool,
}

/// Why one watch is over.
enum WatchEnd {
    Broken(EtcdError),
    Followed(Followed),
}

impl Replica {
    /// Follows until this process wins the leader's key or has to stop. Without `may_lead` it goes on for ever.
    pub(super) async fn follow(&self, loaded: &Loaded, may_lead: bool) -> Followed {
        let mut candidacy = Candidacy::default();
        let mut heard = self.clock.mono();
        loop {
            let start = loaded.ledger.position() + 1;
            let opening = self.candidate.client.watch(loaded.ledger.all_keys(), start, DEADLINE);
            let opened = tokio::select! {
                opened = opening => opened,
                () = self.shutdown.requested(), if may_lead => return self.stopping(candidacy).await,
            };
            let broken = match opened {
                // Its history ends before what was applied here: it was restored, and other changes may have these
                // revisions now.
                Ok((_, revision)) if revision + 1 < start => {
                    let reason = "etcd has gone back to an earlier state".to_owned();
                    return Followed::Ended(Ended::Reload(reason));
                }
                Ok((watch, _)) => {
                    heard = self.clock.mono();
                    self.in_step(loaded);
                    match self.follow_watch(loaded, watch, &mut candidacy, &mut heard, may_lead).await {
                        WatchEnd::Followed(Followed::Ended(Ended::Stopping)) => {
                            return self.stopping(candidacy).await;
                        }
                        WatchEnd::Followed(followed) => return followed,
                        WatchEnd::Broken(error) => error,
                    }
                }
                Err(error) => error,
            };
            if broken == EtcdError::Compacted
                && let Err(reason) = self.skip_compacted(loaded).await
            {
                return Followed::Ended(Ended::Reload(reason));
            }
            tracing::debug!(error = %broken, "etcd's watch is begun again");
            if self.clock.mono() - heard > SILENT {
                self.conditions.records.set(Err(format!("etcd's watch cannot be followed: {broken}")));
                self.conditions.etcd.set(Err(broken.to_string()));
            }
            sleep(AGAIN).await;
        }
    }

    /// A process that stops claims nothing any more.
    async fn stopping(&self, mut candidacy: Candidacy) -> Followed {
        if let Some((holding, _)) = candidacy.holding.take() {
            holding.resign().await;
        }
        Followed::Ended(Ended::Stopping)
    }

    /// What was missed is known not to matter, or the reason why everything must be loaded again.
    async fn skip_compacted(&self, loaded: &Loaded) -> Result<(), String> {
        let ledger = Arc::clone(&loaded.ledger);
        match tokio::task::spawn_blocking(move || ledger.skip_compacted()).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err("etcd has compacted changes that this store has not seen".to_owned()),
            // It is asked again after the next attempt.
            Ok(Err(error)) => {
                tracing::debug!(%error, "etcd cannot be asked what was missed");
                Ok(())
            }
            Err(panicked) => Err(panicked.to_string()),
        }
    }

    async fn follow_watch(
        &self,
        loaded: &Loaded,
        mut watch: Watch,
        candidacy: &mut Candidacy,
        heard: &mut Mono,
        may_lead: bool,
    ) -> WatchEnd {
        let mut ticks = interval(ASK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if may_lead && let Some(holding) = self.take_part(loaded, candidacy).await {
                return WatchEnd::Followed(Followed::Won(holding));
            }
            let claiming: OptionFuture<_> = candidacy.claiming.as_mut().into();
            let ended: OptionFuture<_> =
                candidacy.holding.as_mut().map(|(holding, _)| holding.ended()).into();
            tokio::select! {
                () = self.shutdown.requested(), if may_lead => {
                    return WatchEnd::Followed(Followed::Ended(Ended::Stopping));
                }
                answer = watch.next() => {
                    *heard = self.clock.mono();
                    match answer {
                        Ok(WatchAnswer::Alive) => self.in_step(loaded),
                        Ok(WatchAnswer::Events(events)) => {
                            let apply = || self.apply(loaded, &events);
                            let applied = if events.len() > MANY { block_in_place(apply) } else { apply() };
                            if let Err(error) = applied {
                                return WatchEnd::Followed(Followed::Ended(Ended::Reload(error.to_string())));
                            }
                            self.in_step(loaded);
                        }
                        Err(error) => return WatchEnd::Broken(error),
                    }
                }
                _ = ticks.tick() => {
                    if self.clock.mono() - *heard > SILENT {
                        self.candidate.client.avoid_member();
                        return WatchEnd::Broken(EtcdError::Unknown("it says nothing".to_owned()));
                    }
                    watch.ask();
                    self.measure(loaded);
                }
                Some(claimed) = claiming => {
                    candidacy.claiming = None;
                    candidacy.has_failed = !matches!(claimed, Ok(Ok(Some(_))));
                    match claimed {
                        Ok(Ok(Some(holding))) => candidacy.holding = Some((holding, self.clock.mono())),
                        Ok(Ok(None)) => {}
                        Ok(Err(error)) => {
                            tracing::debug!(%error, "the leader's key could not be claimed");
                            self.conditions.leader.set(Err(format!("no store leads: {error}")));
                        }
                        Err(error) => tracing::error!(%error, "a claim of the leader's key panicked"),
                    }
                }
                Some(reason) = ended => {
                    tracing::info!(reason, "the leader's key was lost before this store led");
                    candidacy.holding = None;
                }
            }
        }
    }

    /// Claims the leader's key if nobody has it. Returns it once this process has applied everything before its claim.
    ///
    /// The watch shows the claim after everything that was written before it, and predecessors write nothing later:
    /// their transactions compare their own claims.
    async fn take_part(&self, loaded: &Loaded, candidacy: &mut Candidacy) -> Option<Holding> {
        let leader = loaded.ledger.leader();
        if let Some((holding, since)) = candidacy.holding.take() {
            let is_shown = |leader: &Leader| leader.revision == holding.term.leader_revision;
            if leader.as_ref().is_some_and(is_shown) {
                return Some(holding);
            }
            if self.clock.mono() - since > CATCH_UP {
                tracing::warn!("this store cannot catch up with etcd, and leaves it to another one to lead");
                holding.resign().await;
                candidacy.has_failed = true;
            } else {
                candidacy.holding = Some((holding, since));
            }
        } else if leader.is_none() && candidacy.claiming.is_none() {
            let (candidate, is_first) = (Arc::clone(&self.candidate), !candidacy.has_failed);
            candidacy.claiming = Some(tokio::spawn(async move {
                candidate.wait(is_first).await;
                candidate.claim().await
            }));
        }
        None
    }

    /// Observes how far behind etcd this store is.
    fn measure(&self, loaded: &Loaded) {
        let (reads, log, behind) =
            (self.reads.clone(), Arc::clone(loaded.store.log()), self.metrics.behind.clone());
        tokio::spawn(async move {
            if let Ok(head) = reads.head().await {
                behind.set(head.saturating_sub(log.head()) as i64);
            }
        });
    }

    fn apply(&self, loaded: &Loaded, events: &[muster_etcd::pb::Event]) -> Result<(), FollowError> {
        loaded.ledger.take_in(events, &mut |commit, compacted| {
            let revision = commit.head;
            let replicated = loaded.store.replicate(commit, compacted);
            replicated.map_err(|difference| FollowError::Mismatch { revision, difference })
        })
    }

    /// The watch is alive, and everything that it has shown is applied.
    fn in_step(&self, loaded: &Loaded) {
        self.conditions.records.set(Ok(()));
        self.conditions.etcd.set(Ok(()));
        let leader = loaded.ledger.leader();
        self.conditions.leader.set(leader.as_ref().map(drop).ok_or_else(|| "no store leads".to_owned()));
        self.switch.follow(leader);
    }
}
