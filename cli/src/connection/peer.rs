//! A service we speak to, and what its refusals mean to the person who asked.

use std::time::Duration;

use muster_store_client::ClientError;
use tonic::{Code, Status};

use crate::failure::{Exit, Failure};

/// Who is spoken to, and how that is set.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    role: &'static str,
    address: String,
    settings: &'static str,
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

    /// What a call that came to nothing means.
    pub(crate) fn failure(&self, error: ClientError) -> Failure {
        let Peer { role, address, settings, start, timeout } = self;
        match error {
            ClientError::Invalid(invalid) => {
                Failure::new(Exit::Refused, invalid).hint("correct what is named, and try again")
            }
            ClientError::NotFound(message) => Failure::new(Exit::NotFound, message)
                .hint("`muster get` lists what there is; -A looks in all namespaces"),
            ClientError::AlreadyExists(message) => {
                Failure::new(Exit::Conflict, message).hint("`muster apply` changes what exists")
            }
            ClientError::Conflict(message) | ClientError::Fenced(message) => {
                Failure::new(Exit::Conflict, message)
                    .hint("look at it again with `muster get -o yaml` and repeat what you want of it")
            }
            ClientError::Denied(message) => Failure::new(Exit::Refused, message)
                .hint("the certificate decides who you are: --tls-cert, or another --context"),
            ClientError::Expired(message) => {
                Failure::new(Exit::Failed, message).hint("the answer took too long to read: try again")
            }
            ClientError::BudgetExhausted { message, .. } => Failure::new(Exit::Refused, message)
                .hint("`muster get budgets -A` shows what stands in the way; it may pass"),
            ClientError::FutureVersion { message, .. } | ClientError::TooBusy { message, .. } => {
                Failure::new(Exit::Unreachable, format!("the {role} at {address} is busy: {message}"))
                    .hint("try again in a moment")
            }
            ClientError::Unavailable(reason) => Failure::new(
                Exit::Unreachable,
                format!("the {role} at {address} cannot be reached: {reason}"),
            )
            .hint(format!("does it run? {start} starts one. {settings} says where it is")),
            ClientError::DeadlineExceeded => {
                let message = format!("the {role} at {address} did not answer within {timeout:?}");
                Failure::new(Exit::Unreachable, message)
                    .hint(format!("--request-timeout waits longer; {settings} says where it is"))
            }
            ClientError::Unreadable(reason) => Failure::new(
                Exit::Failed,
                format!("the answer of the {role} at {address} cannot be read: {reason}"),
            )
            .hint("it may be of another release: use the muster that came with it"),
            ClientError::Other(status) => self.other(&status),
        }
    }

    /// What it means that a stream could not be opened.
    pub(crate) fn lost(&self, exit: Exit, message: &str) -> Failure {
        let Peer { role, address, settings, .. } = self;
        let failure = Failure::new(exit, format!("the {role} at {address} cannot be followed: {message}"));
        failure.hint(format!("{settings} says where it is, and --tls-cert who you are"))
    }

    fn other(&self, status: &Status) -> Failure {
        let Peer { role, address, settings, .. } = self;
        match status.code() {
            Code::Unimplemented => Failure::new(
                Exit::Failed,
                format!("what answers at {address} is no {role} that knows this call"),
            )
            .hint(format!("{settings} says where the {role} is")),
            Code::FailedPrecondition => Failure::new(Exit::Refused, status.message())
                .hint("`muster explain node` and `muster fleet` say how things stand"),
            code => Failure::new(Exit::Failed, format!("{code}: {}", status.message()))
                .hint(format!("the log of the {role} at {address} says more")),
        }
    }
}

/// A call's answer, or what its failure means.
pub(crate) trait At<T> {
    fn at(self, peer: &Peer) -> Result<T, Failure>;
}

impl<T> At<T> for Result<T, ClientError> {
    fn at(self, peer: &Peer) -> Result<T, Failure> {
        self.map_err(|error| peer.failure(error))
    }
}

impl<T> At<T> for Result<T, Status> {
    fn at(self, peer: &Peer) -> Result<T, Failure> {
        self.map_err(|status| peer.failure(status.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_proto::invalid::Invalid;

    #[test]
    fn every_failure_has_its_code_and_says_what_to_do() {
        let peer = Peer::store("http://a:1".to_owned(), Duration::from_secs(10));
        let text = || "why".to_owned();
        for (error, exit, said) in [
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
            (ClientError::Other(Status::unimplemented("")), Exit::Failed, "is no store"),
            (ClientError::Other(Status::failed_precondition("")), Exit::Refused, "muster fleet"),
            (ClientError::Other(Status::internal("")), Exit::Failed, "the log of the store"),
        ] {
            let failure = peer.failure(error);
            assert_eq!(failure.exit(), Some(exit), "{said}");
            let report = failure.report("x");
            assert!(report.contains(said), "{report}");
            assert!(report.contains("\nhint: "), "{report}");
        }
    }
}
