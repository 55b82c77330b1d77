//! Which agent may hold a node's lease.
//!
//! A node's lease names its holder and, in an annotation, the incarnation (the instance) of the agent that holds it. A
//! second incarnation is refused while the first one renews, so two machines with one name never merge into one node.

use jiff::{SignedDuration, Timestamp};
use muster_proto::lease::{Lease, LeaseSpec};
use muster_proto::meta::{Metadata, OwnerReference};
use muster_proto::name::Namespace;
use muster_proto::node::Node;
use muster_proto::pb;
use muster_proto::record::Kind;
use muster_proto::wellknown::NODE_LEASE_NAMESPACE;

use super::hello::{DEFAULT_DURATION, Hello};
use crate::rules::{RecordId, Refusal};

/// The annotation on a node's lease that names the agent instance holding it.
pub const INCARNATION: &str = "muster.dev/incarnation";

/// The lease to write for an agent's hello, or `None` when the agent already holds the lease and nothing in it changes.
///
/// `renewable_since` is when the store became able to take renewals: it started, or its disk took writes again. A holder
/// that could not renew before that has the whole duration from then on.
///
/// # Errors
/// When the node does not exist or has another uid, or another incarnation holds the lease and still renews it.
pub fn acquire_lease(
    hello: &Hello,
    node: Option<&Node>,
    lease: Option<&Lease>,
    now: Timestamp,
    renewable_since: Timestamp,
) -> Result<Option<Lease>, Refusal> {
    let node_key = RecordId { kind: Kind::Node, namespace: None, name: hello.node.clone() };
    let Some(node) = node else { return Err(Refusal::NotFound { key: node_key }) };
    if node.meta.uid != Some(hello.node_uid) {
        let (expected, found) = (hello.node_uid, node.meta.uid);
        return Err(Refusal::UidMismatch { key: node_key, expected, found });
    }
    let Some(lease) = lease else { return Ok(Some(new_lease(hello, now))) };
    let holder = lease.meta.annotations.get(INCARNATION);
    if holder.is_some_and(|holder| *holder == hello.incarnation)
        && lease.spec.holder_identity == hello.node.as_str()
    {
        return Ok(refreshed(hello, lease, now));
    }
    if let Some(holder) = holder {
        let (why, left) = match (time_left(lease, now), time_left_since(lease, renewable_since, now)) {
            (Some(left), since_renewable) => {
                let lasts = lease.spec.lease_duration_seconds.unwrap_or_default();
                let why = format!("which renewed it less than {lasts} s ago");
                (why, since_renewable.map_or(left, |other| left.max(other)))
            }
            (None, Some(left)) => {
                ("which could not renew it while the store was down or could not write".to_owned(), left)
            }
            (None, None) => return Ok(Some(taken_over(hello, lease, now))),
        };
        let why = format!(
            "is held by another agent (incarnation {holder}), {why}: to replace that agent, stop it and wait {left} s; \
             if it runs on another machine, give one of them another name",
        );
        return Err(Refusal::Conflict { key: RecordId::of(lease), why });
    }
    Ok(Some(taken_over(hello, lease, now)))
}

/// Seconds until the lease expires, counted from its last renewal; `None` if it has expired.
fn time_left(lease: &Lease, now: Timestamp) -> Option<i64> {
    time_left_since(lease, lease.spec.renew_time?, now)
}

/// Seconds until the lease's duration has passed since `start`; `None` if it has.
fn time_left_since(lease: &Lease, start: Timestamp, now: Timestamp) -> Option<i64> {
    let lasts = i64::from(lease.spec.lease_duration_seconds.unwrap_or(DEFAULT_DURATION.as_secs() as i32));
    let left = SignedDuration::from_secs(lasts) - now.duration_since(start);
    // A clock that was set back leaves renewals in the future. A renewal further ahead than its duration is ignored.
    let counts = left.is_positive() && left <= SignedDuration::from_secs(2 * lasts);
    counts.then(|| left.as_secs().max(1))
}

fn new_lease(hello: &Hello, now: Timestamp) -> Lease {
    // Renewals are stored with microsecond precision; the lease's own times have the same.
    let now = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: Kind::Node.to_string(),
        name: hello.node.to_string(),
        uid: hello.node_uid.to_string(),
        controller: false,
        block_owner_deletion: false,
    };
    let meta = Metadata {
        annotations: [(INCARNATION.to_owned(), hello.incarnation.clone())].into(),
        owner_references: vec![owner],
        ..Metadata::new(NODE_LEASE_NAMESPACE.parse::<Namespace>().ok(), hello.node.clone())
    };
    let spec = LeaseSpec {
        holder_identity: hello.node.to_string(),
        lease_duration_seconds: Some(hello.lease_duration.as_secs() as i32),
        acquire_time: Some(now),
        renew_time: Some(now),
        ..Default::default()
    };
    Lease { meta, spec }
}

fn taken_over(hello: &Hello, lease: &Lease, now: Timestamp) -> Lease {
    let mut lease = lease.clone();
    let fresh = new_lease(hello, now);
    lease.meta.annotations.insert(INCARNATION.to_owned(), hello.incarnation.clone());
    lease.meta.owner_references = fresh.meta.owner_references;
    lease.spec.lease_transitions += 1;
    lease.spec = LeaseSpec { lease_transitions: lease.spec.lease_transitions, ..fresh.spec };
    lease
}

/// The lease with the duration and the owner reference of its holder's new hello; `None` if it has both already.
fn refreshed(hello: &Hello, lease: &Lease, now: Timestamp) -> Option<Lease> {
    let fresh = new_lease(hello, now);
    let mut refreshed = lease.clone();
    refreshed.spec.lease_duration_seconds = fresh.spec.lease_duration_seconds;
    for owner in fresh.meta.owner_references {
        if !refreshed.meta.owner_references.contains(&owner) {
            refreshed.meta.owner_references.push(owner);
        }
    }
    (refreshed != *lease).then_some(refreshed)
}

/// The holder of a lease including its incarnation.
pub fn holder_instance(lease: &pb::Lease) -> String {
    let annotations = lease.metadata.as_ref().map(|metadata| &metadata.annotations);
    let incarnation = annotations.and_then(|annotations| annotations.get(INCARNATION));
    let identity = lease.spec.as_ref().map_or("", |spec| spec.holder_identity.as_str());
    join_holder_instance(identity, incarnation.map_or("", String::as_str))
}

/// A holder's identity and its incarnation as one string.
pub fn join_holder_instance(identity: &str, incarnation: &str) -> String {
    format!("{identity}\0{incarnation}")
}

#[cfg(test)]
mod tests;
