//! The task that competes for the lease: it watches the lease, and writes what [`Election`] decides.
//!
//! The event loop follows [`Elector::leadership`], sends the fence with its writes, and reports to [`Refusals`] each write
//! that the store refused because of the fence.

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

use muster_controller_core::leader_election::{AttemptFailure, Election, Step};
pub use muster_controller_core::leader_election::{ElectionSettings, Leadership, SettingsError};
use muster_proto::time::Now;

/// The first pause after the watch of the lease broke.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The wait when only an event can change the next step.
const LONG_WAIT: Duration = Duration::from_secs(3600);

/// A running candidate for the lease.
#[derive(Debug)]
pub struct Elector {
    leadership: watch::Receiver<Leadership>,
    has_leader: watch::Receiver<bool>,
    refusals: Refusals,
    task: JoinHandle<()>,
}

impl Elector {
    /// Starts to compete for the lease. On `shutdown` the lease is released, so that another controller need not wait
    /// until it expires. Trigger it only when nothing acts on the leadership any more.
    ///
    /// # Errors
    /// When the settings contradict each other.
    pub fn start(
        client: &StoreClient,
        settings: ElectionSettings,
        clock: SharedClock,
        shutdown: Shutdown,
    ) -> Result<Elector, SettingsError> {
        let election = Election::new(settings)?;
        let (leadership_sender, leadership) = watch::channel(election.leadership());
        let (has_leader_sender, has_leader) = watch::channel(false);
        let (refused_sender, refused) = watch::channel(None);
        // Writes of the lease are guarded by its version, not by the fence.
        let client = client.with_fence(None);
        let task = ElectionTask {
            client,
            clock,
            election,
            cache: Cache::new(),
            leadership: leadership_sender,
            has_leader: has_leader_sender,
            refused,
        };
        let task = tokio::spawn(task.run(shutdown));
        Ok(Elector { leadership, has_leader, refusals: Refusals(refused_sender), task })
    }

    /// Which controller leads, now and after each change.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// Whether any controller holds a live lease, now and after each change.
    pub fn has_leader(&self) -> watch::Receiver<bool> {
        self.has_leader.clone()
    }

    /// Takes reports of refused writes.
    pub fn refusals(&self) -> Refusals {
        self.refusals.clone()
    }

    /// Returns when the lease has been released.
    ///
    /// # Errors
    /// When the task panicked.
    pub async fn stopped(self) -> Result<(), tokio::task::JoinError> {
        self.task.await
    }
}

/// Takes reports of writes that the store refused because of their fence.
#[derive(Clone, Debug)]
pub struct Refusals(watch::Sender<Option<Fence>>);

impl Refusals {
    /// Reports that a write with this fence was refused: this controller does not lead any more.
    pub fn report(&self, fence: &Fence) {
        self.0.send_replace(Some(fence.clone()));
    }
}

struct ElectionTask {
    client: StoreClient,
    clock: SharedClock,
    election: Election,
    /// The lease as of the watch and our own writes.
    cache: Cache<Lease>,
    leadership: watch::Sender<Leadership>,
    has_leader: watch::Sender<bool>,
    refused: watch::Receiver<Option<Fence>>,
}

impl ElectionTask {
    async fn run(mut self, shutdown: Shutdown) {
        let mut leases = self.watch_lease();
        while !shutdown.is_requested() {
            match self.election.next(self.now()) {
                Step::TryAcquire(lease) => self.acquire(*lease).await,
                Step::Renew => self.renew().await,
                Step::StepDown { why } => {
                    tracing::warn!(%why, "this controller has stopped leading");
                    self.election.stepped_down(self.clock.mono());
                }
                Step::Wait { until } => {
                    let wait = until.map_or(LONG_WAIT, |at| at - self.clock.mono());
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
                            self.observe_lease();
                        }
                    }
                }
            }
            self.publish();
        }
        self.release().await;
    }

    fn watch_lease(&self) -> Watch<Lease> {
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

    /// Passes the lease to the election. While the watch is not synced the cache is out of date and is not passed.
    fn observe_lease(&mut self) {
        if self.cache.is_synced() {
            let lease = self.cache.get(&self.election.settings().key());
            self.election.observe(lease, self.clock.mono());
        }
    }

    /// Publishes the leadership if it has changed.
    fn publish(&self) {
        let has_leader = self.election.has_leader(self.clock.mono());
        self.has_leader.send_if_modified(|known| std::mem::replace(known, has_leader) != has_leader);
        let leadership = self.election.leadership();
        self.leadership.send_if_modified(|published| {
            let changed = *published != leadership;
            if changed {
                tracing::info!(leading = leadership.leading, leader = %leadership.holder, "the leadership has changed");
                *published = leadership;
            }
            changed
        });
    }

    async fn acquire(&mut self, wanted: Lease) {
        let requested_at = self.clock.mono();
        // Half of the deadline: a request that hangs leaves time for another one.
        let client = self.client.with_deadline(self.election.settings().renew_deadline / 2);
        let written = match wanted.meta.resource_version {
            0 => client.create(wanted).await,
            _ => client.update(wanted).await,
        };
        match written {
            Ok(lease) => {
                self.election.acquired(&lease, requested_at);
                self.cache.apply(lease);
            }
            Err(error) => self.failed("acquire", error),
        }
    }

    async fn renew(&mut self) {
        let requested_at = self.clock.mono();
        let settings = self.election.settings();
        let deadline = (settings.renew_deadline / 2).min(self.election.time_left(requested_at));
        let renewed = self.client.with_deadline(deadline).renew(&settings.key(), &settings.identity).await;
        match renewed {
            Ok(renewal) => self.election.renewed(renewal.resource_version, requested_at),
            Err(error) => self.failed("renew", error),
        }
    }

    fn failed(&mut self, attempt: &str, error: ClientError) {
        let failure = match error {
            ClientError::Conflict(why) | ClientError::NotFound(why) | ClientError::AlreadyExists(why) => {
                tracing::debug!(attempt, %why, "another controller has the lease");
                AttemptFailure::Lost(why)
            }
            error => {
                tracing::warn!(attempt, %error, "the lease could not be written");
                AttemptFailure::Later
            }
        };
        self.election.attempt_failed(failure, self.clock.mono());
    }

    /// Releases the lease if this controller holds it. Nothing acts on the leadership any more.
    async fn release(mut self) {
        let lease = self.election.release();
        self.election.stepped_down(self.clock.mono());
        self.publish();
        let Some(lease) = lease else { return };
        let client = self.client.with_deadline(self.election.settings().retry_period);
        match client.update(lease).await {
            Ok(_) => tracing::info!("the lease is released"),
            Err(error) => tracing::warn!(%error, "the lease could not be released and has to expire"),
        }
    }
}
