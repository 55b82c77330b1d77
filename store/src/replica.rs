//! A store on etcd: one of several processes, all of which serve, and one of which leads.
//!
//! Each process loads the records once and follows what etcd's watch shows (`following`), so that all have the same
//! revisions. Reads and watches are answered from there. Writes are the leader's (`leading`). A process that wins the
//! leader's key has followed until its own claim, and goes on from what it has in memory; one that loses the key
//! follows again from its last commit on. Its watches go on through both.
//!
//! Only when a process cannot go on from what it has, because something was missed or does not add up, it stops serving,
//! ends its watches and loads everything again.

mod following;
mod forward;
mod leading;
mod switch;

use std::sync::Arc;
use std::time::Duration;

use muster_etcd::Client;
use muster_etcd::requests::get;
use muster_rpc::audit::AuditLog;
use muster_rpc::clock::{SharedClock, SystemClock};
use muster_rpc::http::serve_http;
use muster_rpc::process_metrics;
use muster_rpc::readiness::{Condition, Readiness};
use muster_rpc::server::{Server, Stopped, bind};
use muster_rpc::shutdown::Shutdown;
use muster_rpc::tls::{self, Revocations};
use muster_rpc::trace::Part;
use muster_store_core::history::Revision;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use self::following::Followed;
use self::forward::Dialer;
use self::leading::Led;
use self::switch::{Reads, Switch};
use crate::config::{Config, EtcdConfig};
use crate::error::StoreError;
use crate::leadership::Candidate;
use crate::ledger::etcd::{BlockingClient, EtcdLedger, Identity, Keys, Kv, prepare};
use crate::metrics::Metrics;
use crate::read_index::ReadIndex;
use crate::revocations;
use crate::run::{RunError, kubernetes};
use crate::service::{HEARTBEAT, NAMES, OPEN_TO_ANONYMOUS, Services};
use crate::store::Store;

/// The wait before something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long a read of the head may take.
const READ_HEAD: Duration = Duration::from_secs(2);

/// A process that is one of several stores.
struct Replica {
    config: Config,
    candidate: Arc<Candidate>,
    kv: Arc<dyn Kv>,
    clock: SharedClock,
    metrics: Metrics,
    switch: Switch,
    reads: ReadIndex,
    revocations: Revocations,
    conditions: Conditions,
    /// Requested when the process has to stop: it hands over before it stops serving.
    shutdown: Shutdown,
    /// Requested when it stops serving.
    serving: Shutdown,
    /// True when no call is in flight any more and none comes.
    drained: watch::Receiver<bool>,
}

/// What the readiness of a process depends on.
struct Conditions {
    /// Its records are those of etcd.
    records: Condition,
    /// Some store leads.
    leader: Condition,
    /// etcd takes the commits of this process, if it leads.
    etcd: Condition,
}

/// Runs a store on etcd until shutdown is requested.
///
/// # Errors
/// When it cannot start: an address is taken, or the prefix in etcd is somebody else's. While etcd cannot be reached it
/// waits.
pub async fn run(config: Config, etcd: EtcdConfig, shutdown: Shutdown) -> Result<(), RunError> {
    let http = bind("--http-listen", config.http_listen).await?;
    let mut registry = Registry::default();
    process_metrics::register(&mut registry, "muster-store");
    let metrics = Metrics::register(&mut registry);
    metrics.leader.set(0);
    let clock = SystemClock::shared();
    let audit = AuditLog::open(&config.audit, &clock, &mut registry)?;
    tls::follow(&config.security, None, &mut registry, Arc::clone(&clock), &shutdown);
    let revocations = Revocations::default();
    let serving = Shutdown::new();
    let server = Server::new(config.server.clone(), config.security.clone(), serving.clone()).of(Part::STORE);
    let server = server.metered(&mut registry).audited(audit.clone());
    let server = server.revocations(revocations.clone()).open_to_anonymous(&OPEN_TO_ANONYMOUS);
    let server = server.with_face(kubernetes(config.kubernetes.as_ref()).await?);
    let readiness = Readiness::new(NAMES);
    let conditions = Conditions {
        records: readiness.condition("records", "not loaded yet", &NAMES),
        leader: readiness.condition("leader", "not elected yet", &[HEARTBEAT]),
        etcd: readiness.condition("etcd", "not reached yet", &[HEARTBEAT]),
    };
    let client = Arc::new(Client::new(&etcd.endpoints, &etcd.tls)?);
    tracing::info!(http = %http.address(), etcd = etcd.endpoints.join(","), prefix = etcd.prefix, "muster-store is starting");
    if let Some(warning) = config.security.warning() {
        tracing::warn!("{warning}");
    }
    tokio::spawn(serve_http(http, Arc::new(registry), readiness.clone(), serving.clone()));

    let kv: Arc<dyn Kv> = Arc::new(BlockingClient::new(Arc::clone(&client)));
    let Some(identity) = identify(&kv, &etcd, &conditions.etcd, &shutdown).await? else {
        return Ok(());
    };
    // Only now: clients go to another store while this one has no identity to show.
    let listener = bind("--listen", config.listen).await?;
    let address = etcd.advertise.clone().unwrap_or_else(|| listener.address().to_string());
    tracing::info!(grpc = %listener.address(), advertised = address, store_id = %identity.store, "muster-store is one of several");
    let switch = Switch::new(Dialer::new(config.security.client()), &address);
    let (ended, drained) = watch::channel(false);
    let ending = {
        let server = server.identified(&identity.store.to_string());
        let ending = server.serve(listener, switch.routes(), muster_proto::DESCRIPTORS, readiness);
        tokio::spawn(async move {
            let stopped = ending.await;
            ended.send_replace(true);
            stopped
        })
    };
    let keys = etcd.keys.clone();
    let (reads, work) = ReadIndex::new({
        let (client, keys) = (Arc::clone(&client), keys.clone());
        move || read_head(Arc::clone(&client), keys.clone())
    });
    tokio::spawn(work);
    let candidate = Arc::new(Candidate { client, keys, identity, address, clock: Arc::clone(&clock) });
    let replica = Replica {
        config,
        candidate,
        kv,
        clock,
        metrics,
        switch,
        reads,
        revocations,
        conditions,
        shutdown,
        serving,
        drained,
    };
    let ran = replica.run().await;
    // Also when it cannot go on: what it still serves must end.
    replica.serving.trigger();
    if ending.await.map_err(std::io::Error::other)?? == Stopped::Aborted {
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

/// The head of all history, as etcd has it now.
async fn read_head(client: Arc<Client>, keys: Keys) -> Result<Revision, String> {
    let read = timeout(READ_HEAD, client.range(get(keys.head()), READ_HEAD / 2));
    match read.await {
        Ok(Ok(found)) => keys.revision_of_head(&found),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("etcd did not answer within {} s", READ_HEAD.as_secs())),
    }
}

/// The records of this process, from one load to the next.
struct Loaded {
    ledger: Arc<EtcdLedger>,
    store: Arc<Store>,
    /// Requested when these records are not served any more.
    end: Shutdown,
}

/// Why a process cannot go on as it is.
enum Ended {
    /// It must load everything again.
    Reload(String),
    /// The process stops.
    Stopping,
}

impl Replica {
    async fn run(&self) -> Result<(), RunError> {
        while !self.shutdown.is_requested() {
            let loaded = tokio::select! {
                loaded = self.load() => loaded?,
                () = self.shutdown.requested() => break,
            };
            let reason = match loaded {
                Err(error) => error.to_string(),
                Ok(loaded) => {
                    let ended = self.serve(&loaded).await;
                    // First nothing new, then the watches that are open: they must not see what comes next as the
                    // continuation of what they had.
                    self.switch.serve_reads(None);
                    self.switch.follow(None);
                    loaded.end.trigger();
                    match ended? {
                        Ended::Stopping => break,
                        Ended::Reload(reason) => reason,
                    }
                }
            };
            tracing::error!(reason, "the records are loaded from etcd again");
            self.conditions.records.set(Err(reason));
            tokio::select! {
                () = sleep(RETRY) => {}
                () = self.shutdown.requested() => {}
            }
        }
        Ok(())
    }

    async fn load(&self) -> Result<Result<Loaded, StoreError>, RunError> {
        let Candidate { keys, identity, .. } = &*self.candidate;
        let ledger = Arc::new(EtcdLedger::new(Arc::clone(&self.kv), keys.clone(), *identity));
        let (to_load, policy) = (Arc::clone(&ledger), self.config.policy);
        let (clock, metrics) = (Arc::clone(&self.clock), self.metrics.clone());
        let loading = tokio::task::spawn_blocking(move || Store::load(to_load, policy, clock, metrics));
        let loaded = loading.await.map_err(std::io::Error::other)?;
        Ok(loaded.map(|store| {
            store.stop_leading();
            Loaded { ledger, store, end: self.serving.child() }
        }))
    }

    /// The services on these records. Streams end with `end`.
    fn services(&self, loaded: &Loaded, end: &Shutdown) -> Services {
        let services = Services::new(Arc::clone(&loaded.store), end.clone());
        services.with_authorities(self.config.authorities.clone()).confirming_reads(self.reads.clone())
    }

    /// Follows and leads in turn, until these records cannot be used any more.
    async fn serve(&self, loaded: &Loaded) -> Result<Ended, RunError> {
        revocations::follow(&loaded.store, self.revocations.clone(), loaded.end.clone());
        let routes = self.services(loaded, &loaded.end).routes();
        self.switch.serve_reads(Some(Reads { routes, log: Arc::clone(loaded.store.log()) }));
        tracing::info!(revision = loaded.store.log().head(), "muster-store has loaded the records");
        loop {
            let holding = match self.follow(loaded, true).await {
                Followed::Won(holding) => holding,
                Followed::Ended(Ended::Stopping) => break,
                Followed::Ended(reload) => return Ok(reload),
            };
            match self.lead(loaded, holding).await? {
                Led::Deposed(reason) => {
                    tracing::warn!(reason, "muster-store does not lead any more; it follows");
                }
                Led::Ended(Ended::Stopping) => break,
                Led::Ended(reload) => return Ok(reload),
            }
        }
        // Calls in flight are finished, and reads among them must be confirmed.
        self.serving.trigger();
        let mut drained = self.drained.clone();
        tokio::select! {
            _ = self.follow(loaded, false) => {}
            _ = drained.wait_for(|drained| *drained) => {}
        }
        Ok(Ended::Stopping)
    }
}
