//! The client: one connection for each member, one of them in use.
//!
//! A call goes to the member in use. If that one gives no answer in time the next one is used from then on. Reads are
//! tried again there; writes are not, since only their caller can find out whether they were done.

use std::fs;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use prost::bytes::Bytes;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Response, Status};

use crate::error::EtcdError;
use crate::pb;
use crate::pb::kv_client::KvClient;
use crate::pb::lease_client::LeaseClient;
use crate::pb::maintenance_client::MaintenanceClient;
use crate::watch::Watch;

/// The longest that a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(1);
/// etcd answers pings more often than every 5 s by closing the connection.
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
/// More than a page of a thousand of the usual records. A page that is larger is asked for again, in halves.
const MAX_ANSWER: usize = 64 << 20;
const WINDOW: u32 = 4 << 20;

/// The files for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// Why there can be no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("--etcd-endpoints is missing: give the URLs of etcd's members, such as https://10.0.0.1:2379")]
    NoEndpoint,
    #[error("--etcd-endpoints: {url} cannot be used: {reason}")]
    Endpoint { url: String, reason: String },
    #[error("{flag}: cannot read {}: {error}", path.display())]
    Unreadable { flag: &'static str, path: PathBuf, error: io::Error },
    #[error("{missing} is missing: a certificate for etcd needs --etcd-cert and --etcd-key")]
    Incomplete { missing: &'static str },
    #[error("--etcd-endpoints: {url} is used without TLS although --etcd-ca is given: write https://")]
    InClear { url: String },
    #[error("--etcd-endpoints: {url} needs --etcd-ca, the authority of etcd's certificates")]
    NoAuthority { url: String },
}

#[derive(Debug)]
struct Member {
    url: String,
    channel: Channel,
    /// For watches alone: behind large reads on the same connection they would starve.
    watches: Channel,
}

/// A client of one etcd cluster.
#[derive(Debug)]
pub struct Client {
    members: Vec<Member>,
    current: AtomicUsize,
    /// The id of the cluster that answered first; 0 until then.
    cluster: AtomicU64,
}

impl Client {
    /// A client of these members; connections are made when they are needed. Must be called within a runtime.
    ///
    /// # Errors
    /// When a URL or a file cannot be used.
    pub fn new(urls: &[String], tls: &TlsFiles) -> Result<Client, ClientError> {
        let tls = tls_config(tls)?;
        let member = |url: &String| member(url.trim(), tls.as_ref());
        let members: Vec<Member> = urls.iter().map(member).collect::<Result<_, _>>()?;
        if members.is_empty() {
            return Err(ClientError::NoEndpoint);
        }
        Ok(Client { members, current: AtomicUsize::new(0), cluster: AtomicU64::new(0) })
    }

    /// Reads keys. Asks each member once, until one answers.
    ///
    /// # Errors
    /// The last member's.
    pub async fn range(
        &self,
        request: pb::RangeRequest,
        deadline: Duration,
    ) -> Result<pb::RangeResponse, EtcdError> {
        let mut last = EtcdError::NotDone("there is no member".to_owned());
        for _ in &self.members {
            match self.range_once(request.clone(), deadline).await {
                Err(error) if error.is_of_member() => last = error,
                answer => return answer,
            }
        }
        Err(last)
    }

    async fn range_once(
        &self,
        request: pb::RangeRequest,
        deadline: Duration,
    ) -> Result<pb::RangeResponse, EtcdError> {
        let send = |channel, request| async move {
            KvClient::new(channel).max_decoding_message_size(MAX_ANSWER).range(request).await
        };
        self.call(request, deadline, send, |answer: &pb::RangeResponse| answer.header).await
    }

    /// A transaction, sent once.
    ///
    /// # Errors
    /// Any; after [`EtcdError::Unknown`] and [`EtcdError::NoSpace`] it may have been done.
    pub async fn txn(
        &self,
        request: pb::TxnRequest,
        deadline: Duration,
    ) -> Result<pb::TxnResponse, EtcdError> {
        let send = |channel, request| async move {
            KvClient::new(channel).max_decoding_message_size(MAX_ANSWER).txn(request).await
        };
        self.call(request, deadline, send, |answer: &pb::TxnResponse| answer.header).await
    }

    /// Drops the history of etcd's own up to a revision.
    ///
    /// # Errors
    /// Any.
    pub async fn compact(&self, revision: i64, deadline: Duration) -> Result<(), EtcdError> {
        let request = pb::CompactionRequest { revision };
        let send = |channel, request| async move { KvClient::new(channel).compact(request).await };
        let header = |answer: &pb::CompactionResponse| answer.header;
        self.call(request, deadline, send, header).await.map(drop)
    }

    /// A new lease: its number and how long it lasts.
    ///
    /// # Errors
    /// Any.
    pub async fn grant(&self, ttl_seconds: i64, deadline: Duration) -> Result<(i64, Duration), EtcdError> {
        let request = pb::LeaseGrantRequest { ttl: ttl_seconds };
        let send = |channel, request| async move { LeaseClient::new(channel).lease_grant(request).await };
        let header = |answer: &pb::LeaseGrantResponse| answer.header;
        let granted = self.call(request, deadline, send, header).await?;
        Ok((granted.id, Duration::from_secs(u64::try_from(granted.ttl).unwrap_or_default())))
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// Any.
    pub async fn revoke(&self, lease: i64, deadline: Duration) -> Result<(), EtcdError> {
        let request = pb::LeaseRevokeRequest { id: lease };
        let send = |channel, request| async move { LeaseClient::new(channel).lease_revoke(request).await };
        let header = |answer: &pb::LeaseRevokeResponse| answer.header;
        self.call(request, deadline, send, header).await.map(drop)
    }

    /// Prolongs a lease. Returns how long it lasts now, and 0 or less if it has ended.
    ///
    /// # Errors
    /// Any.
    pub async fn keep_alive(&self, lease: i64, deadline: Duration) -> Result<i64, EtcdError> {
        let request = pb::LeaseKeepAliveRequest { id: lease };
        // One stream for each message: a longer one to a member that hangs would have to be abandoned all the same.
        let send = |channel: Channel, request: Request<pb::LeaseKeepAliveRequest>| async move {
            let (metadata, extensions, message) = request.into_parts();
            let once = Request::from_parts(metadata, extensions, tokio_stream::once(message));
            let mut answers = LeaseClient::new(channel).lease_keep_alive(once).await?.into_inner();
            let answer = answers.message().await?;
            answer.map(Response::new).ok_or_else(|| Status::unavailable("the stream ended"))
        };
        let header = |answer: &pb::LeaseKeepAliveResponse| answer.header;
        self.call(request, deadline, send, header).await.map(|answer| answer.ttl)
    }

    /// The alarms that are raised.
    ///
    /// # Errors
    /// Any.
    pub async fn alarms(&self, deadline: Duration) -> Result<Vec<pb::AlarmMember>, EtcdError> {
        let request = pb::AlarmRequest::default();
        let send = |channel, request| async move { MaintenanceClient::new(channel).alarm(request).await };
        let header = |answer: &pb::AlarmResponse| answer.header;
        self.call(request, deadline, send, header).await.map(|answer| answer.alarms)
    }

    /// Follows the keys from one up to another, from this revision on. Also returns etcd's revision at the member.
    ///
    /// # Errors
    /// Any; [`EtcdError::Compacted`] may come later, from the watch.
    pub async fn watch(
        &self,
        keys: (Bytes, Bytes),
        start_revision: i64,
        deadline: Duration,
    ) -> Result<(Watch, i64), EtcdError> {
        let index = self.current.load(Ordering::Relaxed) % self.members.len();
        let Member { url, watches, .. } = &self.members[index];
        let opened = match tokio::time::timeout(deadline, Watch::open(watches.clone(), keys, start_revision))
            .await
        {
            Ok(opened) => opened,
            Err(_) => {
                Err(EtcdError::Unknown(format!("{url} began no watch within {} ms", deadline.as_millis())))
            }
        };
        match opened {
            Ok((watch, header)) => {
                self.check_cluster(url, header.cluster_id)?;
                Ok((watch, header.revision))
            }
            Err(error) => {
                if error.is_of_member() {
                    self.move_on_from(index);
                }
                Err(error)
            }
        }
    }

    /// The member in use does not do what it should: the next one is used from now on.
    pub fn avoid_member(&self) {
        self.move_on_from(self.current.load(Ordering::Relaxed) % self.members.len());
    }

    /// One call to the member in use.
    async fn call<Q, A, F, Fut>(
        &self,
        message: Q,
        deadline: Duration,
        send: F,
        header: impl Fn(&A) -> Option<pb::ResponseHeader>,
    ) -> Result<A, EtcdError>
    where
        F: FnOnce(Channel, Request<Q>) -> Fut,
        Fut: Future<Output = Result<Response<A>, Status>>,
    {
        let index = self.current.load(Ordering::Relaxed) % self.members.len();
        let Member { url, channel, .. } = &self.members[index];
        let mut request = Request::new(message);
        // A member that is cut off from the others says so at once.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        request.set_timeout(deadline);
        let answer = match tokio::time::timeout(deadline, send(channel.clone(), request)).await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => {
                let error = EtcdError::from(status);
                if error.is_of_member() {
                    self.move_on_from(index);
                }
                return Err(error);
            }
            Err(_) => {
                self.move_on_from(index);
                return Err(EtcdError::Unknown(format!(
                    "{url} took longer than {} ms",
                    deadline.as_millis()
                )));
            }
        };
        if let Some(header) = header(&answer) {
            self.check_cluster(url, header.cluster_id)?;
        }
        Ok(answer)
    }

    fn move_on_from(&self, index: usize) {
        let next = (index + 1) % self.members.len();
        let _ = self.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn check_cluster(&self, url: &str, found: u64) -> Result<(), EtcdError> {
        let known = self.cluster.compare_exchange(0, found, Ordering::Relaxed, Ordering::Relaxed);
        match known {
            Err(known) if known != found => {
                Err(EtcdError::OtherCluster { url: url.to_owned(), known, found })
            }
            _ => Ok(()),
        }
    }
}

fn member(url: &str, tls: Option<&ClientTlsConfig>) -> Result<Member, ClientError> {
    let unusable = |reason: String| ClientError::Endpoint { url: url.to_owned(), reason };
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|error| unusable(reason_of(&error)))?;
    let endpoint = match (endpoint.uri().scheme_str(), tls) {
        (Some("http"), None) => endpoint,
        (Some("https"), Some(tls)) => {
            endpoint.tls_config(tls.clone()).map_err(|error| unusable(reason_of(&error)))?
        }
        (Some("http"), Some(_)) => return Err(ClientError::InClear { url: url.to_owned() }),
        (Some("https"), None) => return Err(ClientError::NoAuthority { url: url.to_owned() }),
        _ => return Err(unusable("it must start with http:// or https://".to_owned())),
    };
    let endpoint = endpoint
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW);
    let (channel, watches) = (endpoint.connect_lazy(), endpoint.connect_lazy());
    Ok(Member { url: url.to_owned(), channel, watches })
}

fn reason_of(error: &tonic::transport::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn tls_config(files: &TlsFiles) -> Result<Option<ClientTlsConfig>, ClientError> {
    let identity = match (&files.cert, &files.key) {
        (None, None) => None,
        (Some(cert), Some(key)) => {
            Some(Identity::from_pem(read("--etcd-cert", cert)?, read("--etcd-key", key)?))
        }
        (None, Some(_)) => return Err(ClientError::Incomplete { missing: "--etcd-cert" }),
        (Some(_), None) => return Err(ClientError::Incomplete { missing: "--etcd-key" }),
    };
    let Some(ca) = &files.ca else {
        return match identity {
            None => Ok(None),
            Some(_) => Err(ClientError::Incomplete { missing: "--etcd-ca" }),
        };
    };
    let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read("--etcd-ca", ca)?));
    Ok(Some(match identity {
        Some(identity) => config.identity(identity),
        None => config,
    }))
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, ClientError> {
    fs::read(path).map_err(|error| ClientError::Unreadable { flag, path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls<const N: usize>(urls: [&str; N]) -> Vec<String> {
        urls.map(str::to_owned).to_vec()
    }

    #[tokio::test]
    async fn endpoints_and_files_that_cannot_work_are_refused_with_their_flag() {
        let none = TlsFiles::default();
        let refused = |given: &[String], tls: &TlsFiles| Client::new(given, tls).unwrap_err().to_string();
        assert!(refused(&[], &none).contains("--etcd-endpoints is missing"));
        assert!(refused(&urls(["ftp://a:1"]), &none).contains("ftp://a:1"));
        assert!(refused(&urls(["a b"]), &none).contains("--etcd-endpoints"));
        assert!(refused(&urls(["https://a:1"]), &none).contains("--etcd-ca"));
        let missing = TlsFiles { ca: Some("/nowhere/ca.pem".into()), ..TlsFiles::default() };
        assert!(
            refused(&urls(["https://a:1"]), &missing).starts_with("--etcd-ca: cannot read /nowhere/ca.pem")
        );
        let half = TlsFiles { cert: Some("/nowhere/cert.pem".into()), ..TlsFiles::default() };
        assert!(refused(&urls(["https://a:1"]), &half).starts_with("--etcd-key is missing"));
    }

    #[tokio::test]
    async fn a_member_that_cannot_be_reached_is_left_and_a_write_to_it_was_not_done() {
        let client = Client::new(&urls(["http://127.0.0.1:1", "http://127.0.0.1:2"]), &TlsFiles::default());
        let client = client.unwrap();
        let failed = client.txn(pb::TxnRequest::default(), Duration::from_secs(5)).await.unwrap_err();
        assert!(matches!(failed, EtcdError::NotDone(_)), "{failed:?}");
        assert_eq!(client.current.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn an_answer_from_another_cluster_is_refused() {
        let client = Client::new(&urls(["http://127.0.0.1:1"]), &TlsFiles::default()).unwrap();
        assert_eq!(client.check_cluster("a", 7), Ok(()));
        assert_eq!(client.check_cluster("b", 7), Ok(()));
        let other = client.check_cluster("c", 8).unwrap_err();
        assert_eq!(other, EtcdError::OtherCluster { url: "c".into(), known: 7, found: 8 });
    }
}
