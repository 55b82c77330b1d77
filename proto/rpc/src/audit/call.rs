//! A call that is audited: what the layer knows of it, and what is noted while it runs.
//!
//! A call notes its record and revision through the functions of this module, wherever it runs in its task. They do
//! nothing where no call is audited.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_proto::record::Kind;
use opentelemetry::trace::TraceId;
use tokio::task_local;
use tonic::transport::CertificateDer;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::AuditLog;
use super::method::{Effect, Method};
use crate::layers::forwarded::ForwardedBy;

/// The metadata of an `ErrorInfo` that names the rule of a denial.
pub const RULE: &str = "rule";

/// The longest namespace and name in the log. Those of records are shorter; others are a caller's invention.
const MAX_NAME: usize = 256;

task_local! {
    static CURRENT: Arc<Call>;
}

/// A call, or one message of a stream.
pub struct Call {
    log: AuditLog,
    pub(super) method: Arc<Method>,
    pub(super) peer: Option<SocketAddr>,
    /// The certificates of the connection; `None` without TLS.
    pub(super) certificates: Option<Arc<Vec<CertificateDer<'static>>>>,
    pub(super) trace: Option<TraceId>,
    /// The store that forwarded the call.
    pub(super) forwarded_by: Option<ForwardedBy>,
    notes: Mutex<Notes>,
}

/// What is noted while a call runs.
#[derive(Default)]
pub(super) struct Notes {
    /// Verb and kind, where they are not those of the method.
    pub(super) message: Option<(&'static str, Kind)>,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) revision: Option<u64>,
    is_write: bool,
    is_forwarded: bool,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) code: Code,
    pub(super) reason: String,
    pub(super) rule: String,
    pub(super) message: String,
}

impl Outcome {
    fn of_code(code: Code) -> Outcome {
        Outcome { code, reason: String::new(), rule: String::new(), message: String::new() }
    }

    fn of(status: &Status) -> Outcome {
        let details = status.get_error_details();
        let (reason, rule) = details.error_info().map_or_else(Default::default, |info| {
            (info.reason.clone(), info.metadata.get(RULE).cloned().unwrap_or_default())
        });
        Outcome { code: status.code(), reason, rule, message: status.message().to_owned() }
    }
}

impl Call {
    pub(crate) fn new(
        log: AuditLog,
        method: Arc<Method>,
        extensions: &http::Extensions,
        trace: Option<TraceId>,
    ) -> Arc<Call> {
        Arc::new(Call {
            log,
            method,
            peer: crate::identity::peer_address(extensions),
            certificates: crate::identity::certificates(extensions),
            trace,
            forwarded_by: extensions.get::<ForwardedBy>().cloned(),
            notes: Mutex::default(),
        })
    }

    /// A message of this call's stream.
    fn message(&self, verb: &'static str, kind: Kind, namespace: &str, name: &str) -> Arc<Call> {
        let (namespace, name) = (truncated(namespace), truncated(name));
        let message = Some((verb, kind));
        let notes = Notes { message, namespace, name, revision: None, is_write: true, is_forwarded: false };
        Arc::new(Call {
            log: self.log.clone(),
            method: Arc::clone(&self.method),
            peer: self.peer,
            certificates: self.certificates.clone(),
            trace: self.trace,
            forwarded_by: self.forwarded_by.clone(),
            notes: Mutex::new(notes),
        })
    }

    /// Runs the call's work, in which it is the current call.
    pub(crate) fn scope<F: Future>(
        self: Arc<Call>,
        work: F,
    ) -> tokio::task::futures::TaskLocalFuture<Arc<Call>, F> {
        CURRENT.scope(self, work)
    }

    pub(super) fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs the call if it is to be logged. The status is read only then.
    fn end(self: Arc<Call>, code: Code, status: impl FnOnce() -> Option<Status>) {
        if self.notes().is_forwarded {
            return;
        }
        let is_denial = matches!(code, Code::PermissionDenied | Code::Unauthenticated);
        let is_write = self.method.effect == Effect::Write || self.notes().is_write;
        if !is_denial && !is_write {
            return;
        }
        let status = if code == Code::Ok { None } else { status() };
        let outcome = status.map_or_else(|| Outcome::of_code(code), |status| Outcome::of(&status));
        let log = self.log.clone();
        log.push(self, outcome);
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("method", &self.method.name).finish_non_exhaustive()
    }
}

/// A call that has not ended. However it ends, it is logged once: a caller that goes away before its answer may have
/// written all the same.
pub(crate) struct Pending(Option<Arc<Call>>);

impl Pending {
    pub(crate) fn new(call: Arc<Call>) -> Pending {
        Pending(Some(call))
    }

    pub(crate) fn end(mut self, code: Code, status: impl FnOnce() -> Option<Status>) {
        if let Some(call) = self.0.take() {
            call.end(code, status);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call.end(Code::Cancelled, || None);
        }
    }
}

/// The call that this task works for, if it is audited.
pub fn current() -> Option<Arc<Call>> {
    CURRENT.try_with(Arc::clone).ok()
}

fn note(note: impl FnOnce(&mut Notes)) {
    // An error means that there is no call to note anything of.
    let _ = CURRENT.try_with(|call| note(&mut call.notes()));
}

/// Notes the record of the current call.
pub fn note_record(namespace: &str, name: &str) {
    note(|notes| (notes.namespace, notes.name) = (truncated(namespace), truncated(name)));
}

/// Notes the revision that the current call wrote.
pub fn note_revision(revision: u64) {
    note(|notes| notes.revision = Some(revision));
}

/// Notes whether the current call is forwarded to another store, which logs it.
pub fn note_forwarded(is_forwarded: bool) {
    note(|notes| notes.is_forwarded = is_forwarded);
}

/// Notes that the current call is a write, whatever its method.
pub fn note_write() {
    note(|notes| notes.is_write = true);
}

/// Audits one message of a stream as a write of its own, if the stream's call is audited.
///
/// # Errors
/// Those of the work.
pub async fn message<T>(
    stream: Option<Arc<Call>>,
    verb: &'static str,
    (kind, namespace, name): (Kind, &str, &str),
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let Some(stream) = stream else { return work.await };
    let call = stream.message(verb, kind, namespace, name);
    drop(stream);
    let pending = Pending::new(Arc::clone(&call));
    let result = call.scope(work).await;
    match &result {
        Ok(_) => pending.end(Code::Ok, || None),
        Err(status) => pending.end(status.code(), || Some(status.clone())),
    }
    result
}

fn truncated(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_NAME)].to_owned()
}
