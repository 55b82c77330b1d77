//! Signs approved requests for certificates while this controller leads.
//!
//! A task of its own: it has nothing to do with the nodes' health, and its writes are fenced like all others.

use std::sync::Arc;

use futures_util::StreamExt;
use muster_controller_core::leader_election::Leadership;
use muster_controller_core::signer::{Settled, SigningQueue};
use muster_proto::certificate_request::{CertificateRequest, RequestState};
use muster_proto::watch_event::WatchEvent;
use muster_rpc::clock::SharedClock;
use muster_rpc::shutdown::Shutdown;
use muster_store_client::{ClientError, StoreClient, WatchOptions};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::authority::AuthorityFiles;

/// The metrics of the signer.
#[derive(Clone, Debug, Default)]
pub struct SignerMetrics {
    is_configured: Gauge,
    waiting: Gauge,
    issued: Counter,
    failed: Counter,
}

impl SignerMetrics {
    pub fn register(registry: &mut Registry) -> SignerMetrics {
        let metrics = SignerMetrics::default();
        registry.register(
            "muster_controller_signer_configured",
            "1 if this controller has --signer-cert and --signer-key",
            metrics.is_configured.clone(),
        );
        registry.register(
            "muster_controller_certificate_requests_waiting",
            "Approved requests for certificates that are not signed yet",
            metrics.waiting.clone(),
        );
        registry.register(
            "muster_controller_certificates_issued",
            "Certificates that this controller issued",
            metrics.issued.clone(),
        );
        registry.register(
            "muster_controller_certificates_failed",
            "Attempts to issue a certificate that failed",
            metrics.failed.clone(),
        );
        metrics
    }
}

/// The signer and what it works with.
pub struct Signer {
    /// `None` if another controller signs, or none.
    pub authority: Option<AuthorityFiles>,
    pub client: StoreClient,
    pub leadership: watch::Receiver<Leadership>,
    pub clock: SharedClock,
    pub metrics: SignerMetrics,
    pub shutdown: Shutdown,
}

impl Signer {
    /// Runs until shutdown is requested.
    pub async fn run(mut self) {
        let authority = self.authority.take().map(Arc::new);
        self.metrics.is_configured.set(i64::from(authority.is_some()));
        let approved = WatchOptions {
            field_selector: format!("status.state={}", RequestState::Approved),
            ..WatchOptions::default()
        };
        let mut requests = self.client.watch::<CertificateRequest>(approved);
        let mut queue = SigningQueue::default();
        let mut has_warned = false;
        loop {
            self.metrics.waiting.set(i64::try_from(queue.len()).unwrap_or(i64::MAX));
            let leads = self.leadership.borrow_and_update().leading;
            match &authority {
                Some(authority) if leads => {
                    let due = queue.due(self.clock.mono()).cloned();
                    if let Some(request) = due {
                        let settled = self.sign(authority, &request).await;
                        let jitter = f64::from(uuid::Uuid::new_v4().as_bytes()[0]) / 255.0;
                        queue.settle(&request.meta.name, settled, jitter, self.clock.mono());
                        continue;
                    }
                }
                None if leads && !queue.is_empty() && !has_warned => {
                    has_warned = true;
                    tracing::warn!(
                        waiting = queue.len(),
                        "requests for certificates are approved and wait: this controller has no --signer-cert"
                    );
                }
                _ => {}
            }
            let wake_at = queue.wake_at().filter(|_| leads && authority.is_some());
            let now = self.clock.mono();
            let sleep = async move {
                match wake_at {
                    Some(at) => tokio::time::sleep(at - now).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.shutdown.requested() => return,
                event = requests.next() => match event {
                    Some(WatchEvent::Applied { record }) => queue.observe(record, self.clock.mono()),
                    Some(WatchEvent::Gone { key, .. }) => queue.remove(&key.name),
                    Some(WatchEvent::Synced { .. } | WatchEvent::Lost(_)) => {}
                    None => return,
                },
                changed = self.leadership.changed() => if changed.is_err() { return },
                () = sleep => {}
            }
        }
    }

    /// Signs one request and writes the outcome.
    async fn sign(&self, authority: &Arc<AuthorityFiles>, request: &CertificateRequest) -> Settled {
        let (files, wanted, now) = (Arc::clone(authority), request.clone(), self.clock.wall());
        // The disk may not answer, and signing takes some processor time.
        let signed = tokio::task::spawn_blocking(move || files.sign(&wanted, now)).await;
        let (name, node) = (&request.meta.name, &request.spec.node_name);
        let mut outcome = request.clone();
        match signed {
            Ok(Ok(issued)) => {
                outcome.status.state = RequestState::Issued;
                outcome.status.issued = Some(issued);
            }
            Ok(Err(error)) if error.is_final() => {
                self.metrics.failed.inc();
                tracing::warn!(request = %name, %node, %error, "a certificate is not issued");
                outcome.status.state = RequestState::Failed;
                outcome.status.reason = error.to_string();
            }
            Ok(Err(error)) => {
                self.metrics.failed.inc();
                tracing::error!(request = %name, %node, %error, "a certificate cannot be issued now");
                return Settled::Later;
            }
            Err(_) => return Settled::Later,
        }
        let fence = self.leadership.borrow().fence.clone();
        match self.client.with_fence(fence.as_ref()).update_status(outcome).await {
            Ok(stored) => {
                if let Some(issued) = &stored.status.issued {
                    self.metrics.issued.inc();
                    tracing::info!(
                        request = %name, %node, serial = %issued.serial, not_after = %issued.not_after,
                        "a certificate is issued"
                    );
                }
                Settled::Done
            }
            // Changed, or gone: what the watch delivers next says what to do.
            Err(ClientError::Conflict(reason)) => self.give_up(request, &reason).await,
            Err(ClientError::NotFound(_)) => Settled::Done,
            Err(error) => {
                tracing::warn!(request = %name, %node, %error, "the outcome of a request could not be written");
                Settled::Later
            }
        }
    }

    /// The store did not take the certificate: the request has changed, or its node was revoked meanwhile. The latter
    /// would go on for ever, so the request fails.
    async fn give_up(&self, request: &CertificateRequest, reason: &str) -> Settled {
        let mut outcome = request.clone();
        outcome.status.state = RequestState::Failed;
        outcome.status.reason = reason.to_owned();
        let fence = self.leadership.borrow().fence.clone();
        match self.client.with_fence(fence.as_ref()).update_status(outcome).await {
            Ok(_) | Err(ClientError::Conflict(_) | ClientError::NotFound(_)) => Settled::Done,
            Err(_) => Settled::Later,
        }
    }
}
