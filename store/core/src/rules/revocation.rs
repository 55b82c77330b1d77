//! Rules for revocations.

use jiff::SignedDuration;
use muster_proto::invalid::Invalid;
use muster_proto::revocation::{Revocation, RevocationStatus};

use super::{Context, DeletedWithoutGrace, RecordId, Refusal, Rules, common};

/// How long a revocation is kept that does not say when the certificates have expired. `muster certs` issues
/// certificates for 365 days, and the signer for a day.
const KEPT: SignedDuration = SignedDuration::from_hours(400 * 24);

impl Rules for Revocation {}

impl DeletedWithoutGrace for Revocation {}

/// The record to store for a revocation. One that exists is renewed: it covers what was issued until now, and is kept
/// for the longer of both times.
pub fn revoke(
    current: Option<&Revocation>,
    wanted: Revocation,
    revoked_by: String,
    cx: &Context,
) -> Result<Revocation, Refusal> {
    if wanted.spec.expire_time.is_some_and(|expires| expires <= cx.now) {
        let invalid = Invalid::of("spec.expireTime", "must be in the future");
        return Err(Refusal::Invalid { key: RecordId::of(&wanted), invalid });
    }
    let mut spec = wanted.spec.clone();
    let default = || cx.now.checked_add(KEPT).ok();
    spec.expire_time =
        spec.expire_time.or_else(default).max(current.and_then(|current| current.spec.expire_time));
    let mut next = match current {
        Some(current) => current.clone(),
        None => common::create(None, wanted, cx)?,
    };
    next.spec = spec;
    next.status = RevocationStatus { revoked_by, revoke_time: Some(cx.now) };
    Ok(next)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use muster_proto::meta::Metadata;
    use muster_proto::revocation::{RevocationSpec, Revoked, revocation_name};

    use super::super::fixtures::at;
    use super::*;

    fn wanted(expire_time: Option<Timestamp>) -> Revocation {
        let revoked = Revoked::Node("a".parse().unwrap());
        Revocation {
            meta: Metadata::new(None, revocation_name(&revoked)),
            spec: RevocationSpec { revoked, reason: "lost".to_owned(), expire_time },
            status: RevocationStatus::default(),
        }
    }

    #[test]
    fn a_revocation_that_is_repeated_covers_later_certificates_and_is_kept_longer() {
        let first = revoke(None, wanted(None), "eva".to_owned(), &at(100)).unwrap();
        assert_eq!(first.status.revoke_time, Some(at(100).now));
        assert_eq!(first.spec.expire_time.unwrap().duration_since(at(100).now), KEPT);
        assert_eq!(first.status.revoked_by, "eva");
        let shorter = wanted(Some(at(900).now));
        let second = revoke(Some(&first), shorter, "bob".to_owned(), &at(200)).unwrap();
        assert_eq!(second.status.revoke_time, Some(at(200).now));
        assert_eq!((second.meta.uid, second.spec.expire_time), (first.meta.uid, first.spec.expire_time));
        let past = revoke(None, wanted(Some(at(100).now)), String::new(), &at(100));
        assert_eq!(
            past.unwrap_err().to_string(),
            "Revocation node-a is not valid: spec.expireTime: must be in the future"
        );
    }
}
