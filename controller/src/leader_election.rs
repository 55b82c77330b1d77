//! The right to act: elected by a lease, or assumed where the operator turned the election off.
//!
//! [`muster_controller_core::leader_election`] decides, [`Elector`] is the task that watches and writes the lease, and
//! [`LeaderElection`] is what the rest of the controller sees in both cases.

use muster_rpc::clock::SharedClock;
use muster_rpc::shutdown::Shutdown;
use muster_store_client::StoreClient;
use tokio::sync::watch;

mod elector;

pub use elector::{ElectionSettings, Elector, Leadership, Refusals, SettingsError};

/// Whether this controller leads, now and later.
pub struct LeaderElection {
    /// This controller's identity in the lease.
    pub identity: String,
    pub leadership: watch::Receiver<Leadership>,
    /// Whether any controller leads, this one or another.
    pub has_leader: watch::Receiver<bool>,
    /// Takes reports of writes that the store refused because of their fence; `None` without an election.
    pub refusals: Option<Refusals>,
    mode: Mode,
}

enum Mode {
    Elected {
        elector: Elector,
        stop: Shutdown,
    },
    /// The senders are kept: a receiver would take their end for a change.
    Sole {
        _leadership: watch::Sender<Leadership>,
        _has_leader: watch::Sender<bool>,
    },
}

impl LeaderElection {
    /// Starts to compete for the lease. Without settings this controller leads at once: there is no other.
    ///
    /// # Errors
    /// When the settings contradict each other.
    pub fn start(
        settings: Option<ElectionSettings>,
        client: &StoreClient,
        clock: &SharedClock,
    ) -> Result<LeaderElection, SettingsError> {
        let Some(settings) = settings else { return Ok(LeaderElection::sole()) };
        let (identity, stop) = (settings.identity.clone(), Shutdown::new());
        let elector = Elector::start(client, settings, clock.clone(), stop.clone())?;
        let (leadership, refusals) = (elector.leadership(), Some(elector.refusals()));
        let has_leader = elector.has_leader();
        Ok(LeaderElection {
            identity,
            leadership,
            has_leader,
            refusals,
            mode: Mode::Elected { elector, stop },
        })
    }

    fn sole() -> LeaderElection {
        let identity = "the only controller".to_owned();
        let leading = Leadership { leading: true, holder: identity.clone(), fence: None };
        let (leadership_sender, leadership) = watch::channel(leading);
        let (has_leader_sender, has_leader) = watch::channel(true);
        let mode = Mode::Sole { _leadership: leadership_sender, _has_leader: has_leader_sender };
        LeaderElection { identity, leadership, has_leader, refusals: None, mode }
    }

    /// Releases the lease, so that another controller need not wait until it expires. Call this when nothing acts on
    /// the leadership any more.
    ///
    /// # Errors
    /// When the elector's task panicked.
    pub async fn stop(self) -> Result<(), tokio::task::JoinError> {
        match self.mode {
            Mode::Elected { elector, stop } => {
                stop.trigger();
                elector.stopped().await
            }
            Mode::Sole { .. } => Ok(()),
        }
    }
}
