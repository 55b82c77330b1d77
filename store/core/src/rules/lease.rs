//! Rules for leases: replaced only at a known version, created by the first update, renewed by the holder.
//!
//! The store never expires a lease. The controller decides by its own clock when a missing renewal means silence.

use jiff::Timestamp;
use muster_proto::fence::Fence;
use muster_proto::lease::Lease;
use muster_proto::record::Kind;

use super::common::existing;
use super::{Context, DeletedWithoutGrace, RecordId, Refusal, Rules};

#[cfg(test)]
mod tests;

/// How many characters of a holder's identity a refusal shows.
const SHOWN_HOLDER: usize = 64;

impl Rules for Lease {
    const UPDATE_CREATES: bool = true;
}

impl DeletedWithoutGrace for Lease {}

/// A renewal request, without the rest of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal<'a> {
    pub holder: &'a str,
    /// Digest and age in milliseconds of the holder's last computed status, if the renewal carries them.
    pub status: Option<(u64, u32)>,
}

/// The lease renewed now, by the store's clock.
///
/// A lease without a holder is acquired; one with another holder is refused.
pub fn renew_lease(
    key: &RecordId,
    current: Option<&Lease>,
    renewal: Renewal<'_>,
    cx: &Context,
) -> Result<Lease, Refusal> {
    let mut lease = existing(key, current)?.clone();
    let now = to_the_microsecond(cx.now);
    let spec = &mut lease.spec;
    if spec.holder_identity.is_empty() {
        renewal.holder.clone_into(&mut spec.holder_identity);
        spec.acquire_time = Some(now);
    } else if spec.holder_identity != renewal.holder {
        let why = format!("is held by {:?}, not by {:?}", shortened(&spec.holder_identity), renewal.holder);
        return Err(Refusal::Conflict { key: key.clone(), why });
    }
    spec.renew_time = Some(now);
    if let Some((digest, age_millis)) = renewal.status {
        spec.status_digest = digest;
        spec.status_age_millis = age_millis;
    }
    Ok(lease)
}

/// Refuses a fenced write unless the lease still has the fence's holder and transition.
pub fn check_fence(fence: &Fence, lease: Option<&Lease>) -> Result<(), Refusal> {
    if lease.is_some_and(|lease| fence.holds(lease)) {
        return Ok(());
    }
    let key = fenced_lease(fence);
    let found = lease.map(|lease| (shortened(&lease.spec.holder_identity), lease.spec.lease_transitions));
    Err(Refusal::Fenced { key, fence: Box::new(fence.clone()), found })
}

/// The lease that a fence names.
pub fn fenced_lease(fence: &Fence) -> RecordId {
    RecordId { kind: Kind::Lease, namespace: Some(fence.namespace().clone()), name: fence.name().clone() }
}

/// An identity has no length limit, and an error must fit into gRPC's headers.
fn shortened(holder: &str) -> String {
    holder.chars().take(SHOWN_HOLDER).collect()
}

fn to_the_microsecond(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}
