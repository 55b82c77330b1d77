//! A server that `muster` calls, and the failures that its errors become.

use std::time::Duration;

use muster_store_client::ClientError;
use tonic::{Code, Status};

use super::protocol::{Protocol, probe};
use crate::failure::{Exit, Failure};

/// What an error message says about a server.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    role: &'static str,
    address: String,
    /// The settings that give its address.
    settings: &'static str,
    /// The commands that start it.
    start: &'static str,
    timeout: Duration,
}

impl Peer {
    pub(super) fn store(address: String, timeout: Duration) -> Peer {
        let settings = "--store, MUSTER_STORE or a context of the config file";
        Peer { role: "store", address, settings, start: "`muster up` or muster-store", timeout }
    }

    pub(super) fn controller(address: String, timeout: Duration) -> Peer {
        let settings = "--controller, MUSTER_CONTROLLER or a context of the config file";
        Peer { role: "controller", address, settings, start: "`muster up` or muster-controller", timeout }
    }

    pub(super) fn agent(address: String, settings: &'static str, timeout: Duration) -> Peer {
        Peer { role: "agent", address, settings, start: "`muster up` or muster-agent", timeout }
    }

    /// The failure for the error of a call.
    pub(crate) fn failure(&self, error: ClientError) -> Failure {
        let Peer { role, address, settings, start, timeout } = self;
        match error {
            ClientError::Invalid(invalid) => {
                Failure::new(Exit::Refused, invalid).hint("correct the named fields and try again")
            }
            ClientError::NotFound(message) => Failure::new(Exit::NotFound, message)
                .hint("`muster get` lists the records; -A searches all namespaces"),
            ClientError::AlreadyExists(message) => {
                Failure::new(Exit::Conflict, message).hint("`muster apply` updates existing records")
            }
            ClientError::Conflict(message) | ClientError::Fenced(message) => {
                Failure::new(Exit::Conflict, message)
                    .hint("the record has changed: check it with `muster get -o yaml` and repeat the command")
            }
            ClientError::Denied(message) => Failure::new(Exit::Refused, message)
                .hint("the client certificate decides your rights: use another --tls-cert or --context"),
            ClientError::Expired(message) => {
                Failure::new(Exit::Failed, message).hint("the list took too long to read: try again")
            }
            ClientError::BudgetExhausted { message, .. } => Failure::new(Exit::Refused, message)
                .hint("`muster get budgets -A` shows the budgets; try again when more pods are healthy"),
            ClientError::FutureVersion { message, .. } | ClientError::TooBusy { message, .. } => {
                Failure::new(Exit::Unreachable, format!("the {role} at {address} is busy: {message}"))
                    .hint("try again in a moment")
            }
            ClientError::Unavailable(reason) => {
                let failure = Failure::new(
                    Exit::Unreachable,
                    format!("the {role} at {address} cannot be reached: {reason}"),
                );
                self.protocol_mismatch().unwrap_or_else(|| {
                    failure.hint(format!(
                        "is the {role} running? {start} starts one; {settings} sets its address"
                    ))
                })
            }
            ClientError::DeadlineExceeded => {
                let message = format!("the {role} at {address} did not answer within {timeout:?}");
                Failure::new(Exit::Unreachable, message)
                    .hint(format!("--request-timeout sets the time limit; {settings} sets the address"))
            }
            ClientError::Unreadable(reason) => Failure::new(
                Exit::Failed,
                format!("the answer of the {role} at {address} cannot be decoded: {reason}"),
            )
            .hint(format!("the {role} may be of another release: use the muster of that release")),
            ClientError::Other(status) => self.other(&status),
        }
    }

    /// The failure for an `http://` address of a server with TLS, or the other way round; `None` for any other cause.
    /// The transport's own errors do not tell: one side closes the connection, or gets bytes that it cannot read.
    fn protocol_mismatch(&self) -> Option<Failure> {
        let Peer { role, .. } = self;
        self.address.split(", ").find_map(|url| match (probe(url)?, url.starts_with("https://")) {
            (Protocol::Tls, false) => Some(
                Failure::new(
                    Exit::Unreachable,
                    format!("the {role} at {url} uses TLS, but the address is http://"),
                )
                .hint("write https:// and give --tls-ca, --tls-cert and --tls-key, or use a --context that has them"),
            ),
            (Protocol::Plaintext, true) => Some(
                Failure::new(
                    Exit::Unreachable,
                    format!("the {role} at {url} does not use TLS, but the address is https://"),
                )
                .hint("write http:// and leave out the certificates, or start the server with TLS"),
            ),
            _ => None,
        })
    }

    /// The server's address or addresses.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// What the server is: `store`, `controller` or `agent`.
    pub(crate) fn role(&self) -> &'static str {
        self.role
    }

    /// The failure for a watch that could not be opened.
    pub(crate) fn watch_failure(&self, exit: Exit, message: &str) -> Failure {
        let Peer { role, address, settings, .. } = self;
        let failure = Failure::new(exit, format!("cannot watch the {role} at {address}: {message}"));
        failure.hint(format!("{settings} sets the address, --tls-cert the client certificate"))
    }

    fn other(&self, status: &Status) -> Failure {
        let Peer { role, address, settings, .. } = self;
        match status.code() {
            Code::Unimplemented => Failure::new(
                Exit::Failed,
                format!("the server at {address} is not a {role}, or does not support this call"),
            )
            .hint(format!("{settings} sets the address of the {role}")),
            Code::FailedPrecondition => Failure::new(Exit::Refused, status.message())
                .hint("`muster fleet` and `muster explain node` show the current state"),
            code => Failure::new(Exit::Failed, format!("{code}: {}", status.message()))
                .hint(format!("see the log of the {role} at {address}")),
        }
    }
}

/// Converts the error of a call to a [`Failure`].
pub(crate) trait OrFailure<T> {
    fn or_failure(self, peer: &Peer) -> Result<T, Failure>;
}

impl<T> OrFailure<T> for Result<T, ClientError> {
    fn or_failure(self, peer: &Peer) -> Result<T, Failure> {
        self.map_err(|error| peer.failure(error))
    }
}

impl<T> OrFailure<T> for Result<T, Status> {
    fn or_failure(self, peer: &Peer) -> Result<T, Failure> {
        self.map_err(|status| peer.failure(status.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_proto::invalid::Invalid;

    #[test]
    fn every_error_has_an_exit_code_and_a_hint() {
        let peer = Peer::store("http://a:1".to_owned(), Duration::from_secs(10));
        let text = || "why".to_owned();
        for (error, exit, expected) in [
            (ClientError::Invalid(Invalid::of("spec.x", "is wrong")), Exit::Refused, "spec.x: is wrong"),
            (ClientError::NotFound(text()), Exit::NotFound, "muster get"),
            (ClientError::AlreadyExists(text()), Exit::Conflict, "muster apply"),
            (ClientError::Conflict(text()), Exit::Conflict, "-o yaml"),
            (ClientError::Denied(text()), Exit::Refused, "--tls-cert"),
            (ClientError::Expired(text()), Exit::Failed, "try again"),
            (
                ClientError::BudgetExhausted { message: text(), retry_after: None },
                Exit::Refused,
                "muster get budgets",
            ),
            (
                ClientError::TooBusy { message: text(), retry_after: None },
                Exit::Unreachable,
                "http://a:1 is busy",
            ),
            (ClientError::Unavailable(text()), Exit::Unreachable, "MUSTER_STORE"),
            (ClientError::DeadlineExceeded, Exit::Unreachable, "within 10s"),
            (ClientError::Unreadable(Invalid::of("a", "b")), Exit::Failed, "another release"),
            (ClientError::Other(Status::unimplemented("")), Exit::Failed, "is not a store"),
            (ClientError::Other(Status::failed_precondition("")), Exit::Refused, "muster fleet"),
            (ClientError::Other(Status::internal("")), Exit::Failed, "the log of the store"),
        ] {
            let failure = peer.failure(error);
            assert_eq!(failure.exit(), Some(exit), "{expected}");
            let report = failure.report("x");
            assert!(report.contains(expected), "{report}");
            assert!(report.contains("\nhint: "), "{report}");
        }
    }
}
