//! Rules for requests of certificates: who decides about them, and how long they are kept.

use jiff::{SignedDuration, Timestamp};
use muster_proto::certificate_request::{CertificateRequest, RequestState};
use muster_proto::invalid::{Check, Path};
use muster_proto::revocation::Revocation;

use super::{
    Context, DeletedWithoutGrace, HasStatus, Outcome, Preconditions, RecordId, Refusal, Rules, common,
};

#[cfg(test)]
mod tests;

/// How long a request is kept that waits for an administrator.
const PENDING: SignedDuration = SignedDuration::from_hours(1);
/// How long a request is kept that waits for the signer.
const APPROVED: SignedDuration = SignedDuration::from_hours(24);
/// How long a request is kept after its end: the machine must learn of it, and people may want to know.
const FINAL: SignedDuration = SignedDuration::from_hours(1);

impl Rules for CertificateRequest {}

impl HasStatus for CertificateRequest {
    fn prepare_status_update(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
        self.meta.labels.clone_from(&old.meta.labels);
        self.meta.annotations.clone_from(&old.meta.annotations);
        self.status.decided_by.clone_from(&old.status.decided_by);
    }

    fn validate_status_update(&self, old: &Self, check: &mut Check) {
        let root = Path::ROOT;
        let status = root.key("status");
        let path = status.key("state");
        let is_outcome = matches!(self.status.state, RequestState::Issued | RequestState::Failed);
        check.ensure(&path, is_outcome, "must be Issued or Failed: the others are decisions, not outcomes");
        check.ensure(
            &path,
            old.status.state == RequestState::Approved,
            format_args!(
                "cannot change: the request is {}, and only an approved one is signed",
                old.status.state
            ),
        );
    }
}

impl DeletedWithoutGrace for CertificateRequest {}

/// The outcome of an administrator's approval. `revocation` is that of the request's node, if there is one.
pub fn approve_request(
    key: &RecordId,
    current: Option<&CertificateRequest>,
    preconditions: &Preconditions,
    revocation: Option<&Revocation>,
    by: &str,
    cx: &Context,
) -> Result<Outcome<CertificateRequest>, Refusal> {
    let current = common::existing(key, current)?;
    common::check_preconditions(current, preconditions)?;
    match current.status.state {
        RequestState::Approved => return Ok(Outcome::Unchanged(current.clone())),
        RequestState::Pending => refuse_revoked(key, current, revocation)?,
        state => {
            return Err(conflict(key, format!("is {state}, and only a pending request can be approved")));
        }
    }
    let mut next = current.clone();
    decide(&mut next, RequestState::Approved, format!("approved by {by}"), by, cx.now);
    Ok(Outcome::Store(next))
}

/// The outcome of an administrator's denial.
pub fn deny_request(
    key: &RecordId,
    current: Option<&CertificateRequest>,
    preconditions: &Preconditions,
    reason: &str,
    by: &str,
    cx: &Context,
) -> Result<Outcome<CertificateRequest>, Refusal> {
    let current = common::existing(key, current)?;
    common::check_preconditions(current, preconditions)?;
    match current.status.state {
        RequestState::Denied => return Ok(Outcome::Unchanged(current.clone())),
        RequestState::Pending | RequestState::Approved => {}
        state => {
            let why = format!("is {state}, and only a pending or approved request can be denied");
            return Err(conflict(key, why));
        }
    }
    let reason = if reason.is_empty() { format!("denied by {by}") } else { reason.to_owned() };
    let mut next = current.clone();
    decide(&mut next, RequestState::Denied, reason, by, cx.now);
    Ok(Outcome::Store(next))
}

/// The outcome of a signer's work. A node that was revoked after it asked gets no certificate.
pub fn record_outcome(
    current: Option<&CertificateRequest>,
    mut wanted: CertificateRequest,
    revocation: Option<&Revocation>,
    cx: &Context,
) -> Result<Outcome<CertificateRequest>, Refusal> {
    if let Some(current) = current {
        let same = current.status.issued.is_some() && current.status.issued == wanted.status.issued;
        if same {
            return Ok(Outcome::Unchanged(current.clone()));
        }
        if wanted.status.issued.is_some() {
            refuse_revoked(&RecordId::of(current), current, revocation)?;
        }
    }
    wanted.status.transition_time = Some(cx.now);
    common::update_status(current, wanted, cx)
}

/// When the store deletes the request.
pub fn request_expiry(request: &CertificateRequest) -> Option<Timestamp> {
    let since = request.status.transition_time.or(request.meta.creation_timestamp)?;
    let kept = match request.status.state {
        RequestState::Pending => PENDING,
        RequestState::Approved => APPROVED,
        RequestState::Denied | RequestState::Issued | RequestState::Failed => FINAL,
    };
    since.checked_add(kept).ok()
}

pub(super) fn decide(
    request: &mut CertificateRequest,
    state: RequestState,
    reason: String,
    by: &str,
    now: Timestamp,
) {
    let status = &mut request.status;
    (status.state, status.reason, status.transition_time) = (state, reason, Some(now));
    by.clone_into(&mut status.decided_by);
}

fn refuse_revoked(
    key: &RecordId,
    request: &CertificateRequest,
    revocation: Option<&Revocation>,
) -> Result<(), Refusal> {
    let asked = request.meta.creation_timestamp;
    match revocation {
        Some(revocation) if asked.is_none_or(|asked| revocation.covers_issue(asked)) => {
            let why =
                format!("was made before node {} was revoked: it must ask again", request.spec.node_name);
            Err(conflict(key, why))
        }
        _ => Ok(()),
    }
}

fn conflict(key: &RecordId, why: String) -> Refusal {
    Refusal::Conflict { key: key.clone(), why }
}
