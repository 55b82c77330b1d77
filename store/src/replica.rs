//! A store on etcd: one of several processes leads, loads the present and serves; the others stand by.
//!
//! A process that stands by answers calls with the address of the one that leads, and looks at the leader's key. When it
//! wins the key it loads everything from etcd and serves, as a store does after a restart. When it loses the key it ends
//! its streams, forgets what it has in memory, and stands by again.

mod switch;

use std::sync::Arc;
use std::time::Duration;

use muster_etcd::Client;
use muster_rpc::audit::AuditLog;
use muster_rpc::clock::{SharedClock, SystemClock};
use muster_rpc::http::serve_http;
use muster_rpc::readiness::{Condition, Readiness};
use muster_rpc::server::{Server, Stopped, bind};
use muster_rpc::shutdown::Shutdown;
use muster_rpc::tls::{self, Revocations};
use prometheus_client::registry::Registry;
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

use self::switch::Switch;
use crate::commit_health;
use crate::config::{Config, EtcdConfig};
use crate::leadership::{Candidate, Confirmed, Found, Reign, compact_etcd, keep_alive};
use crate::ledger::LedgerError;
use crate::ledger::etcd::{BlockingClient, EtcdLedger, Identity, Kv, Term, prepare};
use crate::metrics::Metrics;
use crate::revocations;
use crate::run::{RunError, supervise_writer};
use crate::service::{HEARTBEAT, NAMES, OPEN_TO_ANONYMOUS, Services};
use crate::store::Store;

/// The wait before something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What all terms of a process share.
struct Replica {
    config: Config,
    candidate: Candidate,
    kv: Arc<dyn Kv>,
    clock: SharedClock,
    metrics: Metrics,
    switch: Switch,
    /// As of the last term of this process.
    revocations: Revocations,
    leads: Condition,
    etcd: Condition,
    shutdown: Shutdown,
    /// True when no call is in flight any more and none comes.
    drained: watch::Receiver<bool>,
}

/// Runs a store on etcd until shutdown is requested.
///
/// # Errors
/// When it cannot start: an address is taken, or the prefix in etcd is somebody else's. While etcd cannot be reached it
/// waits.
pub async fn run(config: Config, etcd: EtcdConfig, shutdown: Shutdown) -> Result<(), RunError> {
    let http = bind("--http-listen", config.http_listen).await?;
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    metrics.leader.set(0);
    let clock = SystemClock::shared();
    let audit = AuditLog::open(&config.audit, &clock, &mut registry)?;
    tls::follow(&config.security, None, &mut registry, Arc::clone(&clock), &shutdown);
    let revocations = Revocations::default();
    let server = Server::new(config.server.clone(), config.security.clone(), shutdown.clone());
    let server = server.metered(&mut registry).audited(audit.clone());
    let server = server.revocations(revocations.clone()).open_to_anonymous(&OPEN_TO_ANONYMOUS);
    let readiness = Readiness::new(NAMES);
    let leads = readiness.condition("leader", "not elected yet", &NAMES);
    let reachable = readiness.condition("etcd", "not reached yet", &[HEARTBEAT]);
    let client = Arc::new(Client::new(&etcd.endpoints, &etcd.tls)?);
    tracing::info!(http = %http.address(), etcd = etcd.endpoints.join(","), prefix = etcd.prefix, "muster-store is starting");
    if let Some(warning) = config.security.warning() {
        tracing::warn!("{warning}");
    }
    tokio::spawn(serve_http(http, Arc::new(registry), readiness.clone(), shutdown.clone()));

    let kv: Arc<dyn Kv> = Arc::new(BlockingClient::new(Arc::clone(&client)));
    let Some(identity) = identify(&kv, &etcd, &reachable, &shutdown).await? else {
        return Ok(());
    };
    // Only now: clients go to another store while this one has no identity to show.
    let listener = bind("--listen", config.listen).await?;
    let address = etcd.advertise.clone().unwrap_or_else(|| listener.address().to_string());
    tracing::info!(grpc = %listener.address(), advertised = address, store_id = %identity.store, "muster-store stands by");
    let switch = Switch::new();
    let (ended, drained) = watch::channel(false);
    let serving = {
        let server = server.identified(&identity.store.to_string());
        let serving = server.serve(listener, switch.routes(), muster_proto::DESCRIPTORS, readiness);
        tokio::spawn(async move {
            let stopped = serving.await;
            ended.send_replace(true);
            stopped
        })
    };
    let keys = etcd.keys.clone();
    let candidate = Candidate { client, keys, identity, address, clock: Arc::clone(&clock) };
    let replica = Replica {
        config,
        candidate,
        kv,
        clock,
        metrics,
        switch,
        revocations,
        leads,
        etcd: reachable,
        shutdown,
        drained,
    };
    let ran = replica.run().await;
    // Also when it cannot go on: what it still serves must end.
    replica.shutdown.trigger();
    if serving.await.map_err(std::io::Error::other)?? == Stopped::Aborted {
        tracing::warn!("connections were still open after the grace period and were closed");
    }
    if let Some(audit) = audit {
        audit.close().await;
    }
    ran?;
    tracing::info!("muster-store has stopped");
    Ok(())
}

/// Finds out whose keys the prefix holds; waits until etcd says so. `None` if shutdown is requested meanwhile.
async fn identify(
    kv: &Arc<dyn Kv>,
    etcd: &EtcdConfig,
    reachable: &Condition,
    shutdown: &Shutdown,
) -> Result<Option<Identity>, RunError> {
    let mut is_told = false;
    while !shutdown.is_requested() {
        let (kv, keys) = (Arc::clone(kv), etcd.keys.clone());
        let prepared = tokio::task::spawn_blocking(move || prepare(&*kv, &keys));
        match prepared.await.map_err(std::io::Error::other)? {
            Ok(identity) => return Ok(Some(identity)),
            Err(error) if error.is_passing() => {
                reachable.set(Err(error.to_string()));
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(%error, "etcd cannot be used yet; trying again");
                }
            }
            Err(error) => return Err(error.into()),
        }
        tokio::select! {
            () = shutdown.requested() => {}
            () = sleep(RETRY) => {}
        }
    }
    Ok(None)
}

/// How a term ended.
enum TermEnd {
    /// Another process may lead.
    Deposed(String),
    /// What is in etcd could not be loaded.
    NotLoaded(String),
    /// The process stops.
    Stopping,
}

impl Replica {
    async fn run(&self) -> Result<(), RunError> {
        while !self.shutdown.is_requested() {
            let Some(reign) = self.stand_by().await else { break };
            let lease = reign.lease;
            let end = self.lead(reign).await;
            self.metrics.leader.set(0);
            self.metrics.writable.set(1);
            self.switch.stand_by(None);
            self.candidate.resign(lease).await;
            match end? {
                TermEnd::Stopping => break,
                TermEnd::NotLoaded(reason) => {
                    self.leads.set(Err(format!("it cannot lead: {reason}")));
                    sleep(RETRY).await;
                }
                TermEnd::Deposed(reason) => {
                    self.leads.set(Err(format!("it does not lead any more: {reason}")));
                    tracing::warn!(reason, "muster-store stands by again");
                }
            }
        }
        Ok(())
    }

    /// Waits until this process leads; `None` if it stops.
    async fn stand_by(&self) -> Option<Reign> {
        let mut is_told = false;
        loop {
            let found = tokio::select! {
                () = self.shutdown.requested() => return None,
                found = self.candidate.look() => found,
            };
            let leader = match found {
                Ok(Found::Won(reign)) => {
                    // The shutdown may have come while the key was claimed; then `lead` ends at once.
                    self.etcd.set(Ok(()));
                    return Some(reign);
                }
                Ok(Found::Led(leader)) => Ok(Some(leader)),
                Ok(Found::Nobody) => Ok(None),
                Err(error) => Err(error.to_string()),
            };
            // Callers before probes: who reads that another store leads can also ask which one.
            self.switch.stand_by(leader.as_ref().ok().cloned().flatten());
            match &leader {
                Ok(Some(leader)) => self.leads.set(Err(format!("it stands by; {leader} leads"))),
                Ok(None) => self.leads.set(Err("it stands by; no store leads".to_owned())),
                Err(_) => self.leads.set(Err("it stands by".to_owned())),
            }
            if let Err(error) = &leader
                && !std::mem::replace(&mut is_told, true)
            {
                tracing::warn!(error, "etcd cannot be used at the moment; trying again");
            }
            self.etcd.set(leader.map(drop));
            self.candidate.wait().await;
        }
    }

    /// Loads the present and serves it, until another process may lead or this one stops.
    async fn lead(&self, reign: Reign) -> Result<TermEnd, RunError> {
        let Reign { term, lease, lasts, since } = reign;
        let confirmed = Confirmed::new(Arc::clone(&self.clock), lasts, since);
        let client = Arc::clone(&self.candidate.client);
        let lease_ended = keep_alive(&client, lease, &confirmed);
        tokio::pin!(lease_ended);
        let opening = self.open(term);
        tokio::pin!(opening);
        let opened = tokio::select! {
            opened = &mut opening => opened?,
            reason = &mut lease_ended => {
                // What was loaded in vain must not go on beside the next term.
                if let Ok((ledger, store, writer)) = opening.await? {
                    ledger.depose(&reason);
                    let writer = supervise_writer(writer, self.shutdown.clone())?;
                    let _ = self.finish(false, &self.shutdown.child(), &ledger, &store, writer).await;
                }
                return Ok(TermEnd::Deposed(reason));
            }
        };
        let (ledger, store, writer) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                tracing::error!(%error, "the history in etcd could not be loaded; trying again");
                self.etcd.set(Err(error.to_string()));
                return Ok(TermEnd::NotLoaded(error.to_string()));
            }
        };
        let term_end = self.shutdown.child();
        let writer = supervise_writer(writer, self.shutdown.clone())?;
        tokio::spawn(commit_health::follow(
            Arc::clone(store.commit_health()),
            Arc::clone(&self.clock),
            self.etcd.clone(),
            term_end.clone(),
        ));
        revocations::follow(&store, self.revocations.clone(), term_end.clone());
        let services = Services::new(Arc::clone(&store), term_end.clone());
        let services = services.with_authorities(self.config.authorities.clone());
        self.switch.lead(services.routes(), confirmed.clone());
        self.leads.set(Ok(()));
        self.metrics.leader.set(1);
        tracing::info!(revision = store.log().head(), "muster-store is ready: it leads");

        let mut deposed = ledger.follow_deposed();
        let end = tokio::select! {
            reason = &mut lease_ended => TermEnd::Deposed(reason),
            reason = async { deposed.wait_for(Option::is_some).await.ok().and_then(|it| it.clone()) } => {
                TermEnd::Deposed(reason.unwrap_or_default())
            }
            () = compact_for_ever(&client, &ledger) => TermEnd::Stopping,
            () = self.shutdown.requested() => TermEnd::Stopping,
        };
        if let TermEnd::Deposed(reason) = &end {
            ledger.depose(reason);
            self.switch.stand_by(None);
        }
        let is_stopping = matches!(end, TermEnd::Stopping);
        let finishing = self.finish(is_stopping, &term_end, &ledger, &store, writer);
        tokio::pin!(finishing);
        // The lease is kept while the last writes are finished.
        let ended = tokio::select! {
            ended = &mut finishing => ended,
            _ = &mut lease_ended, if is_stopping => finishing.await,
        };
        if !matches!(ended, Ok(Ok(()))) {
            return Err(std::io::Error::other("the writer ended with a panic").into());
        }
        Ok(end)
    }

    /// Ends the streams of a term, and waits until its last writes are finished or refused.
    async fn finish(
        &self,
        is_stopping: bool,
        term_end: &Shutdown,
        ledger: &EtcdLedger,
        store: &Store,
        mut writer: WriterEnd,
    ) -> Result<std::thread::Result<()>, RecvError> {
        term_end.trigger();
        if is_stopping {
            // Calls in flight may still write.
            let mut drained = self.drained.clone();
            let _ = drained.wait_for(|drained| *drained).await;
        }
        store.stop();
        // A commit under way may wait for etcd; a process that stops does not.
        tokio::select! {
            ended = &mut writer => return ended,
            () = self.shutdown.requested() => ledger.stop_waiting(),
        }
        writer.await
    }

    /// Loads everything, and starts the writer.
    async fn open(&self, term: Term) -> Result<Opened, RunError> {
        let (kv, keys, identity) =
            (Arc::clone(&self.kv), self.candidate.keys.clone(), self.candidate.identity);
        let (policy, clock, metrics) = (self.config.policy, Arc::clone(&self.clock), self.metrics.clone());
        let opening = tokio::task::spawn_blocking(move || -> Opened {
            let ledger = Arc::new(EtcdLedger::open(kv, keys, identity, term)?);
            let opened = Store::open(ledger.clone(), policy, clock, metrics);
            let (store, writer) = opened.map_err(|error| LedgerError::Unreachable(error.to_string()))?;
            Ok((ledger, store, writer))
        });
        Ok(opening.await.map_err(std::io::Error::other)?)
    }
}

/// Receives how the writer thread ended.
type WriterEnd = oneshot::Receiver<std::thread::Result<()>>;
type Opened = Result<(Arc<EtcdLedger>, Arc<Store>, std::thread::JoinHandle<()>), LedgerError>;

/// Compacts etcd as long as that is permitted.
async fn compact_for_ever(client: &Client, ledger: &EtcdLedger) {
    compact_etcd(client, ledger).await;
    std::future::pending::<()>().await;
}
