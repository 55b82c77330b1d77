//! Leases.

use super::meta::meta_in;
use super::{time_in, time_out};
use crate::invalid::{Check, Invalid, Path};
use crate::lease::{Lease, LeaseSpec};
use crate::pb;
use crate::record::Kind;

#[cfg(test)]
mod tests;

impl TryFrom<pb::Lease> for Lease {
    type Error = Invalid;

    fn try_from(lease: pb::Lease) -> Result<Self, Invalid> {
        let pb::Lease { metadata, spec } = lease;
        let mut check = Check::new();
        let meta = meta_in(&mut check, &Path::ROOT.key("metadata"), Kind::Lease, metadata);
        let spec = spec_in(&mut check, &Path::ROOT.key("spec"), spec.unwrap_or_default());
        check.finish_some(meta.map(|meta| Lease { meta, spec }))
    }
}

fn spec_in(check: &mut Check, path: &Path<'_>, spec: pb::LeaseSpec) -> LeaseSpec {
    let pb::LeaseSpec {
        holder_identity,
        lease_duration_seconds,
        acquire_time,
        renew_time,
        lease_transitions,
        status_digest,
        status_age_millis,
    } = spec;
    check.ensure(
        &path.key("leaseDurationSeconds"),
        lease_duration_seconds.is_none_or(|seconds| seconds > 0),
        "must be more than 0",
    );
    check.ensure(&path.key("leaseTransitions"), lease_transitions >= 0, "must not be negative");
    LeaseSpec {
        holder_identity,
        lease_duration_seconds,
        acquire_time: time_in(check, &path.key("acquireTime"), acquire_time),
        renew_time: time_in(check, &path.key("renewTime"), renew_time),
        lease_transitions,
        status_digest,
        status_age_millis,
    }
}

impl From<Lease> for pb::Lease {
    fn from(lease: Lease) -> Self {
        let Lease { meta, spec } = lease;
        Self { metadata: Some(meta.into()), spec: Some(spec.into()) }
    }
}

impl From<LeaseSpec> for pb::LeaseSpec {
    fn from(spec: LeaseSpec) -> Self {
        let LeaseSpec {
            holder_identity,
            lease_duration_seconds,
            acquire_time,
            renew_time,
            lease_transitions,
            status_digest,
            status_age_millis,
        } = spec;
        Self {
            holder_identity,
            lease_duration_seconds,
            acquire_time: time_out(acquire_time),
            renew_time: time_out(renew_time),
            lease_transitions,
            status_digest,
            status_age_millis,
        }
    }
}
