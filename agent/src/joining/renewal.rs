//! Renews the agent's certificate in time, with a new key each time.

use jiff::Timestamp;
use muster_agent_core::certificate_schedule::Life;
use muster_proto::label::Labels;
use muster_proto::name::Name;
use muster_rpc::clock::SharedClock;
use muster_rpc::pki::CertificateFacts;
use muster_rpc::readiness::Condition;
use muster_rpc::shutdown::Shutdown;
use muster_rpc::tls::Credentials;
use muster_store_client::StoreClient;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::time::Duration;

use super::credential_set::CredentialDir;
use super::jitter;
use super::request::{NodeRequest, RequestError, new_key};

/// The longest sleep: a wall clock that was set must not make the agent miss its renewal.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The metrics of renewals.
#[derive(Clone, Debug, Default)]
pub struct RenewalMetrics {
    renewed: Counter,
    failures: Counter,
    is_failing: Gauge,
}

impl RenewalMetrics {
    pub fn register(registry: &mut Registry) -> RenewalMetrics {
        let metrics = RenewalMetrics::default();
        let agent = registry.sub_registry_with_prefix("muster_agent_certificate");
        agent.register("renewals", "Renewals of this agent's certificate", metrics.renewed.clone());
        agent.register("renewal_failures", "Attempts to renew it that failed", metrics.failures.clone());
        agent.register("renewal_failing", "1 since the last attempt failed", metrics.is_failing.clone());
        metrics
    }
}

/// Renews the certificate of an agent that has joined.
pub struct CertificateRenewal {
    pub directory: CredentialDir,
    /// What the agent's connections use; read again after each renewal.
    pub credentials: Credentials,
    pub node: Name,
    pub labels: Labels,
    pub client: StoreClient,
    pub clock: SharedClock,
    pub metrics: RenewalMetrics,
    pub readiness: Condition,
    pub shutdown: Shutdown,
}

/// Why a renewal failed.
#[derive(Debug, thiserror::Error)]
enum RenewalError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("--state-dir: cannot keep the certificate: {0}")]
    State(#[from] std::io::Error),
    #[error("the certificate in --state-dir cannot be read")]
    Unreadable,
}

impl CertificateRenewal {
    /// Runs until shutdown is requested.
    pub async fn run(self) {
        tokio::select! {
            () = self.renew_forever() => {}
            () = self.shutdown.requested() => {}
        }
    }

    async fn renew_forever(&self) {
        let mut failures = 0;
        self.readiness.set(Ok(()));
        loop {
            let life = match self.life() {
                Ok(life) => life,
                Err(error) => {
                    self.report(&error, None);
                    tokio::time::sleep(LONGEST_SLEEP).await;
                    continue;
                }
            };
            if failures == 0 {
                self.sleep_until(life.renew_at(jitter())).await;
            } else {
                tokio::time::sleep(life.retry_after(failures, jitter())).await;
            }
            match self.renew().await {
                Ok(serial) => {
                    failures = 0;
                    self.metrics.renewed.inc();
                    self.metrics.is_failing.set(0);
                    self.readiness.set(Ok(()));
                    tracing::info!(serial, "the certificate was renewed");
                }
                Err(error) => {
                    failures += 1;
                    self.report(&error, Some(life));
                }
            }
        }
    }

    fn report(&self, error: &RenewalError, life: Option<Life>) {
        self.metrics.failures.inc();
        self.metrics.is_failing.set(1);
        tracing::warn!(%error, "the certificate could not be renewed; it is tried again");
        let is_ending = life.is_none_or(|life| life.is_ending(self.clock.wall()));
        if is_ending {
            let ends = life.map(|life| format!(" and ends at {}", life.ends)).unwrap_or_default();
            self.readiness.set(Err(format!("the certificate could not be renewed{ends}: {error}")));
        }
    }

    fn life(&self) -> Result<Life, RenewalError> {
        let found = CertificateFacts::read_pem(&self.directory.certificate()?);
        let own = found.and_then(|found| found.into_iter().next()).ok_or(RenewalError::Unreadable)?.0;
        Ok(Life { begins: own.not_before, ends: own.not_after })
    }

    async fn sleep_until(&self, moment: Timestamp) {
        loop {
            let left = Duration::try_from(moment.duration_since(self.clock.wall())).unwrap_or_default();
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
        }
    }

    /// Asks for a certificate with a new key, and takes over the store's authorities with it. Returns its serial number.
    async fn renew(&self) -> Result<String, RenewalError> {
        let key = new_key().map_err(|error| RequestError::Key(error.to_string()))?;
        let request = NodeRequest::new(&self.node, &self.labels, key, String::new())?;
        let (serial, set) = request.wait(&self.client).await?;
        let (directory, name) = (self.directory.clone(), serial.clone());
        let stored = tokio::task::spawn_blocking(move || directory.replace(&name, &set)).await;
        stored.map_err(std::io::Error::other)??;
        if let Err(error) = self.credentials.reload() {
            tracing::warn!(%error, "the renewed certificate is not in use yet");
        }
        Ok(serial)
    }
}
