//! What gives a controller the right to act: an election, or the word of the operator that there is no other.

use muster_rpc::clock::SharedClock;
use muster_rpc::shutdown::Shutdown;
use muster_store_client::StoreClient;
use tokio::sync::watch;

mod elector;

pub use elector::{ElectionSettings, Leader, Leadership, Refusals, SettingsError};

/// The right to act, as it stands.
pub struct Office {
    /// Who we are to the other controllers.
    pub identity: String,
    pub leadership: watch::Receiver<Leadership>,
    /// Whether any controller leads, this one or another.
    pub has_leader: watch::Receiver<bool>,
    /// Whom to tell that the store refused us; `None` without an election.
    pub refusals: Option<Refusals>,
    race: Race,
}

enum Race {
    Run {
        leader: Leader,
        end: Shutdown,
    },
    /// Kept, so that who listens does not take its end for a change.
    Unopposed {
        _leads: watch::Sender<Leadership>,
        _has_leader: watch::Sender<bool>,
    },
}

impl Office {
    /// Begins to compete, or to act at once where nobody else is to be expected.
    ///
    /// # Errors
    /// When the settings do not fit together.
    pub fn seek(
        election: Option<ElectionSettings>,
        client: &StoreClient,
        clock: &SharedClock,
    ) -> Result<Office, SettingsError> {
        let Some(settings) = election else {
            let identity = "the only controller".to_owned();
            let unopposed = Leadership { leading: true, holder: identity.clone(), fence: None };
            let (leads, leadership) = watch::channel(unopposed);
            let (keeps, has_leader) = watch::channel(true);
            let race = Race::Unopposed { _leads: leads, _has_leader: keeps };
            return Ok(Office { identity, leadership, has_leader, refusals: None, race });
        };
        let (identity, end) = (settings.identity.clone(), Shutdown::new());
        let leader = Leader::start(client, settings, clock.clone(), end.clone())?;
        let (leadership, refusals) = (leader.leadership(), Some(leader.refusals()));
        let has_leader = leader.has_leader();
        Ok(Office { identity, leadership, has_leader, refusals, race: Race::Run { leader, end } })
    }

    /// Gives the right back, so that another need not wait for it to run out. Nothing may act on it any more.
    ///
    /// # Errors
    /// When the race ended in another way.
    pub async fn leave(self) -> Result<(), tokio::task::JoinError> {
        match self.race {
            Race::Run { leader, end } => {
                end.trigger();
                leader.stopped().await
            }
            Race::Unopposed { .. } => Ok(()),
        }
    }
}
