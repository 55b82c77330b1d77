//! How an agent without a certificate joins the fleet, before it starts.
//!
//! It recognises the store by the hash of its authority's key (`--ca-hash`) or by the authority itself (`--ca`), and
//! sends its token only to a store that it has recognised. What it gets is kept in the state directory
//! ([`credential_set`]), so that it joins once; [`renewal`] renews it.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use muster_agent_core::certificate_schedule::Life;
use muster_proto::digest::Sha256;
use muster_proto::join_token::SecretToken;
use muster_proto::name::Name;
use muster_rpc::pki::CertificateFacts;
use muster_rpc::shutdown::Shutdown;
use muster_rpc::tls::{ClientTls, TlsError};
use muster_rpc::trace::Part;
use muster_store_client::{ClientError, EndpointError, StoreClient, StoreEndpoints};

pub mod credential_set;
pub mod renewal;
pub mod request;

use self::credential_set::CredentialDir;
use self::request::{NodeRequest, RequestError, new_key};
use crate::config::{Config, Flags};

/// How long a call may take while the agent joins.
const DEADLINE: Duration = Duration::from_secs(10);

/// Why the agent cannot join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("--join-token: it {0}")]
    Token(#[from] muster_proto::join_token::SecretTokenError),
    #[error("--ca-hash: `{text}` is not a hash: it must be sha256: and 64 hexadecimal digits")]
    Hash { text: String },
    #[error(
        "--join-token needs --ca-hash or --ca, by which the agent recognises the store: `muster token create` prints the \
         hash"
    )]
    Unrecognised,
    #[error(
        "--{given} cannot be combined with --tls-cert and --credentials: with those the agent has a certificate already"
    )]
    HasCertificate { given: &'static str },
    #[error("--ca: cannot read {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("--ca: {} holds no certificate in PEM format", path.display())]
    NotPem { path: PathBuf },
    #[error(
        "--ca-hash: none of the {found} authorities of the store has this key: it is another store, or its authority has \
         changed; `muster token create` prints the hash"
    )]
    OtherAuthority { found: usize },
    #[error("--store: {0}")]
    Store(#[from] EndpointError),
    #[error("cannot join: {0}")]
    Request(#[from] RequestError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("--state-dir: cannot keep the certificate: {0}")]
    State(io::Error),
}

/// The flags of joining, checked.
struct JoinSettings {
    token: Option<SecretToken>,
    hashes: Vec<Sha256>,
    ca: Option<PathBuf>,
}

/// Which of the flags was given, for errors.
fn given(flags: &Flags) -> Option<&'static str> {
    let join = &flags.join;
    if join.join_token.is_some() {
        Some("join-token")
    } else if !join.ca_hash.is_empty() {
        Some("ca-hash")
    } else {
        join.ca.as_ref().map(|_| "ca")
    }
}

impl JoinSettings {
    /// `None` if the agent does not join.
    fn check(flags: &Flags) -> Result<Option<JoinSettings>, JoinError> {
        let Some(given) = given(flags) else { return Ok(None) };
        if flags.tls.tls_cert.is_some() || flags.credentials.is_some() {
            return Err(JoinError::HasCertificate { given });
        }
        let hash = |text: &String| {
            let digits = text.trim().strip_prefix("sha256:");
            let hash = digits.and_then(|digits| digits.parse().ok());
            hash.ok_or_else(|| JoinError::Hash { text: text.clone() })
        };
        let settings = JoinSettings {
            token: flags.join.join_token.as_ref().map(|token| token.as_str().trim().parse()).transpose()?,
            hashes: flags.join.ca_hash.iter().map(hash).collect::<Result<_, _>>()?,
            ca: flags.join.ca.clone(),
        };
        if settings.hashes.is_empty() && settings.ca.is_none() {
            return Err(JoinError::Unrecognised);
        }
        Ok(Some(settings))
    }

    /// The authorities that the agent recognises, PEM.
    async fn authorities(&self, stores: &[String]) -> Result<String, JoinError> {
        if let Some(path) = &self.ca {
            let text = fs::read_to_string(path);
            let text = text.map_err(|error| JoinError::Unreadable { path: path.clone(), error })?;
            CertificateFacts::read_pem(&text).ok_or_else(|| JoinError::NotPem { path: path.clone() })?;
            return Ok(text);
        }
        // Nobody has proven anything on this connection: only the hashes tell which of the answer to believe.
        let client = client(stores, ClientTls::unverified())?;
        let answer = client.authorities().await.map_err(RequestError::from)?;
        recognised(&answer, &self.hashes)
    }
}

/// The authorities whose keys have one of the hashes.
fn recognised(authorities: &str, hashes: &[Sha256]) -> Result<String, JoinError> {
    let found = CertificateFacts::read_pem(authorities).unwrap_or_default();
    let known = found.iter().filter(|(authority, _)| hashes.contains(&authority.public_key_sha256));
    let known: String = known.map(|(_, block)| block.as_str()).collect();
    if known.is_empty() { Err(JoinError::OtherAuthority { found: found.len() }) } else { Ok(known) }
}

fn client(stores: &[String], tls: ClientTls) -> Result<StoreClient, EndpointError> {
    let endpoints = StoreEndpoints::new(stores.iter().cloned()).with_tls(Some(tls)).of(Part::AGENT);
    StoreClient::connect(StoreEndpoints { deadline: DEADLINE, ..endpoints })
}

/// Whether the agent's certificate comes from joining: the flags say so, or it has joined before.
pub fn is_joined(flags: &Flags) -> bool {
    let has_other = flags.tls.tls_cert.is_some() || flags.tls.insecure || flags.credentials.is_some();
    given(flags).is_some() || !has_other && CredentialDir::in_state_dir(&flags.state_dir).exists()
}

/// Joins unless the agent has joined before. Returns the flags with which it starts: its certificate is in the state
/// directory.
///
/// # Errors
/// When a flag is invalid, or the store refuses the agent for good.
pub async fn prepare(
    flags: &Flags,
    config: &Config,
    node: &Name,
    shutdown: &Shutdown,
) -> Result<Option<Flags>, JoinError> {
    let directory = CredentialDir::in_state_dir(&flags.state_dir);
    let settings = JoinSettings::check(flags)?;
    if !directory.exists() {
        let Some(settings) = settings else { return Ok(None) };
        tokio::select! {
            joined = join(&settings, config, node, &directory) => joined?,
            () = shutdown.requested() => return Ok(None),
        }
    }
    let mut flags = flags.clone();
    let current = directory.current();
    flags.tls.tls_cert = Some(current.join("tls.crt"));
    flags.tls.tls_key = Some(current.join("tls.key"));
    flags.tls.tls_client_ca = Some(current.join("ca.crt"));
    Ok(Some(flags))
}

async fn join(
    settings: &JoinSettings,
    config: &Config,
    node: &Name,
    directory: &CredentialDir,
) -> Result<(), JoinError> {
    let mut failures = 0;
    loop {
        let error = match attempt(settings, config, node, directory).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        match &error {
            JoinError::Request(RequestError::Store(cause)) if may_pass(cause) => {}
            JoinError::Request(RequestError::Denied { .. } | RequestError::Failed { .. }) => {
                // The key has had its answer; the next attempt is another request.
                directory.remove_pending_key().map_err(JoinError::State)?;
                return Err(error);
            }
            _ => return Err(error),
        }
        failures += 1;
        tracing::warn!(%error, "cannot join yet");
        tokio::time::sleep(retry_after(failures)).await;
    }
}

async fn attempt(
    settings: &JoinSettings,
    config: &Config,
    node: &Name,
    directory: &CredentialDir,
) -> Result<(), JoinError> {
    let authorities = settings.authorities(&config.stores).await?;
    let client = client(&config.stores, ClientTls::anonymous(&authorities)?)?;
    let key = directory.pending_key(new_key).map_err(JoinError::State)?;
    let token = settings.token.as_ref().map(SecretToken::reveal).unwrap_or_default();
    let request = NodeRequest::new(node, &config.node.labels, key, token)?;
    let (name, set) = request.wait(&client).await?;
    directory.replace(&name, &set).map_err(JoinError::State)?;
    directory.remove_pending_key().map_err(JoinError::State)?;
    tracing::info!(%node, serial = name, "the agent has joined and has a certificate");
    Ok(())
}

/// Whether the same call may succeed later.
fn may_pass(error: &ClientError) -> bool {
    matches!(error, ClientError::Unavailable(_) | ClientError::DeadlineExceeded | ClientError::TooBusy { .. })
}

/// As for a certificate of a day.
fn retry_after(failures: u32) -> Duration {
    let day = Life {
        begins: jiff::Timestamp::UNIX_EPOCH,
        ends: jiff::Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_hours(24),
    };
    day.retry_after(failures, jitter()).min(Duration::from_secs(30))
}

/// Random, from 0 to 1.
fn jitter() -> f64 {
    f64::from(uuid::Uuid::new_v4().as_bytes()[0]) / 255.0
}

#[cfg(test)]
mod tests;
