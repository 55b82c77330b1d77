//! One controller acts at a time: whoever holds the lease.
//!
//! The core decides; here is the waiting, the calling and the telling. Whoever acts listens to
//! [`Leader::leadership`], gives its writes the fence, and tells [`Refusals`] when the store refuses one because of it.

use std::time::Duration;

use futures_util::StreamExt;
use muster_proto::backoff::Backoff;
use muster_proto::fence::Fence;
use muster_proto::lease::Lease;
use muster_rpc::clock::SharedClock;
use muster_rpc::shutdown::Shutdown;
use muster_store_client::{Cache, ClientError, StoreClient, Watch, WatchOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use muster_controller_core::leader_election::{Election, Setback, Step};
pub use muster_controller_core::leader_election::{ElectionSettings, Leadership, SettingsError};
use muster_proto::time::Now;

/// The first pause after the lease is lost from sight.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// When nothing is to be done before there is news.
const LONG: Duration = Duration::from_secs(3600);

/// A competitor that runs.
#[derive(Debug)]
pub struct Leader {
    leadership: watch::Receiver<Leadership>,
    has_leader: watch::Receiver<bool>,
    refusals: Refusals,
    task: JoinHandle<()>,
}

impl Leader {
    /// Starts to compete, until the shutdown is asked for; then the lease is given back, so that another need not wait
    /// for it to run out. Ask for it only when nothing acts on our leadership any more.
    ///
    /// # Errors
    /// When the settings do not fit together.
    pub fn start(
        client: &StoreClient,
        settings: ElectionSettings,
        clock: SharedClock,
        shutdown: Shutdown,
    ) -> Result<Leader, SettingsError> {
        let election = Election::new(settings)?;
        let (told, leadership) = watch::channel(election.leadership());
        let (tell_has_leader, has_leader) = watch::channel(false);
        let (tell_refused, refused) = watch::channel(None);
        // The lease itself is written by its version, whoever holds it.
        let client = client.with_fence(None);
        let race =
            Race { client, clock, election, cache: Cache::new(), told, has_leader: tell_has_leader, refused };
        let task = tokio::spawn(race.run(shutdown));
        Ok(Leader { leadership, has_leader, refusals: Refusals(tell_refused), task })
    }

    /// Who leads, now and whenever that changes.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// Whether any controller holds a live lease, now and whenever that changes.
    pub fn has_leader(&self) -> watch::Receiver<bool> {
        self.has_leader.clone()
    }

    /// Where to tell of refused writes.
    pub fn refusals(&self) -> Refusals {
        self.refusals.clone()
    }

    /// Returns when the lease has been given back.
    ///
    /// # Errors
    /// When the task ended in another way.
    pub async fn stopped(self) -> Result<(), tokio::task::JoinError> {
        self.task.await
    }
}

/// Where to tell of writes that the store refused because of their fence.
#[derive(Clone, Debug)]
pub struct Refusals(watch::Sender<Option<Fence>>);

impl Refusals {
    /// A write with that fence was refused: we do not lead, whatever we believe.
    pub fn tell(&self, fence: &Fence) {
        self.0.send_replace(Some(fence.clone()));
    }
}

/// A competitor at work.
struct Race {
    client: StoreClient,
    clock: SharedClock,
    election: Election,
    /// The lease, as the watch and our own writes have shown it.
    cache: Cache<Lease>,
    told: watch::Sender<Leadership>,
    has_leader: watch::Sender<bool>,
    refused: watch::Receiver<Option<Fence>>,
}

impl Race {
    async fn run(mut self, shutdown: Shutdown) {
        let mut leases = self.follow();
        while !shutdown.is_requested() {
            match self.election.next(self.now()) {
                Step::TryAcquire(lease) => self.acquire(*lease).await,
                Step::Renew => self.renew().await,
                Step::StepDown { why } => {
                    tracing::warn!(%why, "this controller does not lead any more");
                    self.election.stepped_down(self.clock.mono());
                }
                Step::Wait { until } => {
                    let wait = until.map_or(LONG, |at| at - self.clock.mono());
                    tokio::select! {
                        () = shutdown.requested() => {}
                        () = sleep(wait) => {}
                        Ok(()) = self.refused.changed() => {
                            if let Some(fence) = &*self.refused.borrow_and_update() {
                                self.election.refused(fence);
                            }
                        }
                        Some(event) = leases.next() => {
                            self.cache.observe(event);
                            self.look();
                        }
                    }
                }
            }
            self.tell();
        }
        self.release().await;
    }

    fn follow(&self) -> Watch<Lease> {
        let settings = self.election.settings();
        self.client.watch(WatchOptions {
            namespace: Some(settings.namespace.clone()),
            field_selector: format!("metadata.name={}", settings.name),
            backoff: Backoff::new(FIRST_PAUSE.min(settings.retry_period), settings.retry_period),
            ..WatchOptions::default()
        })
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    /// Shows the election what is known of the lease. Out of sight it says nothing.
    fn look(&mut self) {
        if self.cache.is_synced() {
            let lease = self.cache.get(&self.election.settings().key());
            self.election.observe(lease, self.clock.mono());
        }
    }

    fn tell(&self) {
        let has_leader = self.election.has_leader(self.clock.mono());
        self.has_leader.send_if_modified(|known| std::mem::replace(known, has_leader) != has_leader);
        let leadership = self.election.leadership();
        self.told.send_if_modified(|told| {
            let changed = *told != leadership;
            if changed {
                tracing::info!(leading = leadership.leading, leader = %leadership.holder, "leadership");
                *told = leadership;
            }
            changed
        });
    }

    async fn acquire(&mut self, wanted: Lease) {
        let asked_at = self.clock.mono();
        // So that an attempt that hangs leaves time for another one.
        let client = self.client.with_deadline(self.election.settings().renew_deadline / 2);
        let written = match wanted.meta.resource_version {
            0 => client.create(wanted).await,
            _ => client.update(wanted).await,
        };
        match written {
            Ok(lease) => {
                self.election.acquired(&lease, asked_at);
                self.cache.apply(lease);
            }
            Err(error) => self.set_back("take", error),
        }
    }

    async fn renew(&mut self) {
        let asked_at = self.clock.mono();
        let settings = self.election.settings();
        let deadline = (settings.renew_deadline / 2).min(self.election.time_left(asked_at));
        let renewed = self.client.with_deadline(deadline).renew(&settings.key(), &settings.identity).await;
        match renewed {
            Ok(renewal) => self.election.renewed(renewal.resource_version, asked_at),
            Err(error) => self.set_back("renew", error),
        }
    }

    fn set_back(&mut self, what: &str, error: ClientError) {
        let setback = match error {
            ClientError::Conflict(why) | ClientError::NotFound(why) | ClientError::AlreadyExists(why) => {
                tracing::debug!(what, %why, "the lease is another's");
                Setback::Lost(why)
            }
            error => {
                tracing::warn!(what, %error, "the lease could not be written");
                Setback::Later
            }
        };
        self.election.set_back(setback, self.clock.mono());
    }

    /// Gives the lease back, if it is ours; nobody acts on it any more.
    async fn release(mut self) {
        let lease = self.election.release();
        self.election.stepped_down(self.clock.mono());
        self.tell();
        let Some(lease) = lease else { return };
        let client = self.client.with_deadline(self.election.settings().retry_period);
        match client.update(lease).await {
            Ok(_) => tracing::info!("the lease is given back"),
            Err(error) => tracing::warn!(%error, "the lease could not be given back and has to run out"),
        }
    }
}
