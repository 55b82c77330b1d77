//! Reads certificates, keys and authorities again while a process runs, and tells of their end ahead of time.
//!
//! Files are compared by content every few seconds, and at once on SIGHUP. Nothing else is reliable: times of files do
//! not change when a directory is exchanged, and a file system may not notify.

use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::certificate::CertificateInfo;
use super::{ClientTls, Credentials, Security};
use crate::clock::SharedClock;
use crate::shutdown::Shutdown;

/// How often the files are compared with what is in use.
const INTERVAL: Duration = Duration::from_secs(5);

/// Follows the files of a part until it stops: those that it serves with and those that it calls with. Registers the
/// metrics of their certificates. Must be called within a tokio runtime.
pub fn follow(
    security: &Security,
    client: Option<&ClientTls>,
    registry: &mut Registry,
    clock: SharedClock,
    shutdown: &Shutdown,
) {
    let mut all: Vec<Credentials> = Vec::new();
    if let Security::MutualTls(credentials) = security {
        all.push(credentials.clone());
    }
    if let Some(client) = client.and_then(ClientTls::credentials)
        && !all.iter().any(|known| known.is(client))
    {
        all.push(client.clone());
    }
    if all.is_empty() {
        return;
    }
    let metrics = Metrics::register(registry);
    let mut followed: Vec<Followed> = all.into_iter().map(Followed::new).collect();
    for credentials in &followed {
        metrics.observe(&credentials.credentials);
    }
    let stop = shutdown.requested();
    tokio::spawn(async move {
        let run = async {
            let mut hangup = signal(SignalKind::hangup()).ok();
            let mut interval = tokio::time::interval(INTERVAL);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                let hung_up = async {
                    match &mut hangup {
                        Some(hangup) => hangup.recv().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    _ = interval.tick() => {}
                    _ = hung_up => {}
                }
                for credentials in &mut followed {
                    credentials.reload(&metrics).await;
                    credentials.warn_of_expiry(clock.wall());
                }
            }
        };
        tokio::select! {
            () = stop => {}
            () = run => {}
        }
    });
}

/// Credentials, and what was said about them.
struct Followed {
    credentials: Credentials,
    /// The last error, which is logged once.
    failure: Option<String>,
    /// The certificates whose end was announced, and whether it has passed: each is logged once.
    announced: Vec<(CertificateInfo, bool)>,
}

impl Followed {
    fn new(credentials: Credentials) -> Followed {
        Followed { credentials, failure: None, announced: Vec::new() }
    }

    async fn reload(&mut self, metrics: &Metrics) {
        let credentials = self.credentials.clone();
        // The disk may not answer, and this task must not hold up others.
        let Ok(reloaded) = tokio::task::spawn_blocking(move || credentials.reload()).await else { return };
        match reloaded {
            Ok(is_new) => {
                if is_new {
                    metrics.reloads.inc();
                    metrics.observe(&self.credentials);
                    let CertificateInfo { common_name, serial, not_after, .. } =
                        self.credentials.certificate();
                    tracing::info!(
                        common_name, serial, %not_after,
                        "certificates were read again; new connections use them"
                    );
                }
                self.failure = None;
            }
            Err(error) => {
                metrics.failures.inc();
                let failure = Some(error.to_string());
                if self.failure != failure {
                    tracing::warn!("certificates cannot be read again, the old ones stay in use: {error}");
                    self.failure = failure;
                }
            }
        }
    }

    fn warn_of_expiry(&mut self, now: Timestamp) {
        let [own_flag, authority_flag] = self.credentials.flags();
        let current = [
            (own_flag, "certificate", self.credentials.certificate()),
            (authority_flag, "certificate of the authority", self.credentials.authority()),
        ];
        self.announced.retain(|(announced, _)| current.iter().any(|(_, _, info)| info == announced));
        for (flag, what, info) in current {
            let has_expired = now >= info.not_after;
            let is_news = !self.announced.contains(&(info.clone(), has_expired));
            if now < info.notice() || !is_news {
                continue;
            }
            let not_after = info.not_after;
            if has_expired {
                tracing::warn!(%not_after, "{flag}: the {what} has expired: replace the file");
            } else {
                tracing::warn!(%not_after, "{flag}: the {what} expires soon: replace the file");
            }
            self.announced.push((info, has_expired));
        }
    }
}

/// Which certificate it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    /// `certificate` or `authority`.
    kind: &'static str,
    /// The flag that names its file.
    flag: &'static str,
}

struct Metrics {
    expiry: Family<Labels, Gauge>,
    notice: Family<Labels, Gauge>,
    reloads: Counter,
    failures: Counter,
}

impl Metrics {
    fn register(registry: &mut Registry) -> Metrics {
        let metrics = Metrics {
            expiry: Family::default(),
            notice: Family::default(),
            reloads: Counter::default(),
            failures: Counter::default(),
        };
        let certificates = registry.sub_registry_with_prefix("muster_certificate");
        certificates.register(
            "expiry_timestamp_seconds",
            "When the process's own certificate expires, and the first of its authorities, in seconds since 1970",
            metrics.expiry.clone(),
        );
        certificates.register(
            "notice_timestamp_seconds",
            "When a third of the certificate's life is left, or seven days: from then on it should be replaced",
            metrics.notice.clone(),
        );
        certificates.register(
            "reloads",
            "How often new certificates, keys or authorities were taken over from their files",
            metrics.reloads.clone(),
        );
        certificates.register(
            "reload_failures",
            "How often certificates, keys or authorities could not be read again, or did not fit together",
            metrics.failures.clone(),
        );
        metrics
    }

    fn observe(&self, credentials: &Credentials) {
        let [own, authority] = credentials.flags();
        for (kind, flag, info) in [
            ("certificate", own, credentials.certificate()),
            ("authority", authority, credentials.authority()),
        ] {
            let labels = Labels { kind, flag };
            self.expiry.get_or_create(&labels).set(info.not_after.as_second());
            self.notice.get_or_create(&labels).set(info.notice().as_second());
        }
    }
}

#[cfg(test)]
mod tests;
