//! What an error of etcd says about the call: whether it was done, and what an operator has to do.

use std::error::Error as _;

use tonic::{Code, ConnectError, Status};

/// Why a call of etcd failed. etcd tells its errors apart by code and text, and has no details.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// Nothing of the call was done, and nothing will be.
    #[error("etcd did not do it: {0}")]
    NotDone(String),
    /// It was done, or it was not, or it will be.
    #[error("etcd gave no answer: {0}")]
    Unknown(String),
    /// The quota is reached. A transaction may have been done before etcd noticed.
    #[error(
        "etcd's space is used up (alarm NOSPACE): compact and defragment etcd, or raise its --quota-backend-bytes, and then disarm the alarm"
    )]
    NoSpace,
    #[error(
        "a message to or from etcd is too large ({0}): its --max-request-bytes and --max-txn-ops must not be below their defaults"
    )]
    TooLarge(String),
    /// The revision to read at, or some of its history, is compacted.
    #[error("etcd has compacted the revision that was read")]
    Compacted,
    #[error("etcd does not permit it: {0}")]
    NotPermitted(String),
    /// Members have different content. Only an operator can repair that.
    #[error("etcd reports that its members have different content (alarm CORRUPT): {0}")]
    Corrupt(String),
    #[error(
        "--etcd-endpoints lead to different clusters: {url} is a member of {found:x}, and the first answer came from {known:x}"
    )]
    OtherCluster { url: String, known: u64, found: u64 },
}

impl EtcdError {
    /// Whether the call may succeed later without anybody's help.
    pub fn is_passing(&self) -> bool {
        matches!(self, EtcdError::NotDone(_) | EtcdError::Unknown(_) | EtcdError::Compacted)
    }

    /// Whether another member may be able to answer.
    pub(crate) fn is_of_member(&self) -> bool {
        matches!(self, EtcdError::NotDone(_) | EtcdError::Unknown(_))
    }
}

impl From<Status> for EtcdError {
    fn from(status: Status) -> Self {
        let text = status.message();
        let has = |part: &str| text.contains(part);
        let said = || root_cause(&status);
        if is_unsent(&status) {
            return EtcdError::NotDone(format!("it cannot be reached: {}", said()));
        }
        match status.code() {
            Code::ResourceExhausted if has("space exceeded") => EtcdError::NoSpace,
            Code::ResourceExhausted if has("too many requests") => EtcdError::NotDone(said()),
            Code::ResourceExhausted => EtcdError::TooLarge(said()),
            Code::InvalidArgument if has("too many operations") || has("too large") => {
                EtcdError::TooLarge(said())
            }
            Code::InvalidArgument if has("auth store is old") => EtcdError::NotDone(said()),
            Code::InvalidArgument if has("user name is empty") || has("authentication failed") => {
                EtcdError::NotPermitted(said())
            }
            Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::Unimplemented => {
                EtcdError::NotDone(said())
            }
            Code::OutOfRange if has("compacted") => EtcdError::Compacted,
            // Our own decoder's, of an answer.
            Code::OutOfRange if has("message length too large") => EtcdError::TooLarge(said()),
            Code::OutOfRange => EtcdError::NotDone(said()),
            Code::PermissionDenied | Code::Unauthenticated => EtcdError::NotPermitted(said()),
            Code::DataLoss => EtcdError::Corrupt(said()),
            _ => EtcdError::Unknown(said()),
        }
    }
}

/// Whether no connection could be made.
fn is_unsent(status: &Status) -> bool {
    causes(status).any(<dyn std::error::Error>::is::<ConnectError>)
}

/// The last cause: tonic's own text is only "transport error".
fn root_cause(status: &Status) -> String {
    causes(status).last().map_or_else(|| status.message().to_owned(), ToString::to_string)
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(status.source(), |&cause| cause.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_text_tell_what_became_of_a_call() {
        let unsent = ConnectError(Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)));
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(matches!(EtcdError::from(Status::from_error(Box::new(unsent))), EtcdError::NotDone(_)));
        assert!(matches!(EtcdError::from(Status::from_error(Box::new(broken))), EtcdError::Unknown(_)));
        for (code, text, expected) in [
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", "NoSpace"),
            (Code::ResourceExhausted, "etcdserver: too many requests", "NotDone"),
            (Code::ResourceExhausted, "grpc: received message larger than max (3 vs. 2)", "TooLarge"),
            (Code::InvalidArgument, "etcdserver: too many operations in txn request", "TooLarge"),
            (Code::InvalidArgument, "etcdserver: request is too large", "TooLarge"),
            (Code::InvalidArgument, "etcdserver: duplicate key given in txn request", "NotDone"),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old", "NotDone"),
            (Code::InvalidArgument, "etcdserver: user name is empty", "NotPermitted"),
            (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted", "Compacted"),
            (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision", "NotDone"),
            (Code::NotFound, "etcdserver: requested lease not found", "NotDone"),
            (Code::Unavailable, "etcdserver: request timed out", "Unknown"),
            (Code::Unavailable, "etcdserver: leader changed", "Unknown"),
            (Code::Unavailable, "etcdserver: no leader", "Unknown"),
            (Code::DeadlineExceeded, "context deadline exceeded", "Unknown"),
            (Code::Cancelled, "", "Unknown"),
            (Code::Internal, "", "Unknown"),
            (Code::Unknown, "", "Unknown"),
            (Code::DataLoss, "etcdserver: corrupt cluster", "Corrupt"),
            (Code::PermissionDenied, "etcdserver: permission denied", "NotPermitted"),
            (Code::Unauthenticated, "etcdserver: invalid auth token", "NotPermitted"),
            (Code::FailedPrecondition, "etcdserver: rpc not supported for learner", "NotDone"),
        ] {
            let error = format!("{:?}", EtcdError::from(Status::new(code, text)));
            assert!(error.starts_with(expected), "{code:?} {text:?}: {error}");
        }
    }
}
