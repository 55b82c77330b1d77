//! Leader election: which controller leads, decided from one lease and our own clock.
//!
//! A holder that we have not seen renew for the lease's duration has lost the lease, whatever times the record has: the
//! duration runs from when we saw the record change. A leader that could not renew for its renew deadline stops leading,
//! which is earlier. If clocks run so differently that it is not, the store still refuses the old leader's writes: each
//! term has its own number of transitions, which the [`Fence`] carries.

use std::time::Duration;

use jiff::Timestamp;
use muster_proto::fence::{Fence, FenceError, check_holder};
use muster_proto::key::Key;
use muster_proto::lease::{Lease, LeaseSpec};
use muster_proto::meta::Metadata;
use muster_proto::name::{Name, Namespace, Uid};
use muster_proto::time::Mono;
use muster_proto::wellknown::{CONTROLLER_LEASE, SYSTEM_NAMESPACE};

use muster_proto::time::Now;

/// Which lease to compete for, under which identity, and the times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionSettings {
    /// This process in the lease; no two processes may have the same.
    pub identity: String,
    pub namespace: Namespace,
    pub name: Name,
    /// How long other candidates wait after a renewal.
    pub lease_duration: Duration,
    /// How long a leader leads without a renewal.
    pub renew_deadline: Duration,
    /// How often a leader renews, and the pause after a failed attempt.
    pub retry_period: Duration,
}

/// Settings that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("the identity {0:?} {1}")]
    Identity(String, FenceError),
    #[error("--leader-elect-retry-period must be more than 0")]
    RetryPeriod,
    #[error("--leader-elect-renew-deadline must be longer than --leader-elect-retry-period")]
    RenewDeadline,
    #[error("--leader-elect-lease-duration must be longer than --leader-elect-renew-deadline")]
    LeaseDuration,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Write this lease: create it if it has no version, else replace that version.
    TryAcquire(Box<Lease>),
    Renew,
    /// Nothing before that moment, or before the lease changes.
    Wait {
        until: Option<Mono>,
    },
    /// Stop acting as the leader.
    StepDown {
        why: String,
    },
}

/// Why an attempt to acquire or renew the lease failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptFailure {
    /// The lease has another holder, has changed or is gone.
    Lost(String),
    /// It may work later.
    Later,
}

/// Which controller leads, as far as this one knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Whether this controller leads.
    pub leading: bool,
    /// The holder of the lease; empty if it has none or is not read yet.
    pub holder: String,
    /// The fence of our writes while we lead.
    pub fence: Option<Fence>,
}

/// One candidate's view of the lease.
#[derive(Clone, Debug)]
pub struct Election {
    settings: ElectionSettings,
    role: Role,
    seen: Option<Seen>,
    /// The number of the next term, also if the lease has to be created again.
    next_term: i32,
}

#[derive(Clone, Debug)]
enum Role {
    Standby { not_before: Mono },
    Leading(Box<Term>),
}

/// Our own term as the leader.
#[derive(Clone, Debug)]
struct Term {
    fence: Fence,
    lease: Lease,
    /// When the last successful renewal was requested: other candidates saw it later than that.
    renewed_at: Mono,
    renew_at: Mono,
    lost: Option<String>,
}

/// The lease as the store has it, and when we saw it change.
#[derive(Clone, Debug)]
struct Seen {
    lease: Option<Lease>,
    changed_at: Mono,
}

impl ElectionSettings {
    /// The times of Kubernetes: 15 s, 10 s and 2 s.
    pub fn new(identity: impl Into<String>) -> ElectionSettings {
        ElectionSettings {
            identity: identity.into(),
            namespace: SYSTEM_NAMESPACE.parse().expect("the system namespace is a namespace"),
            name: CONTROLLER_LEASE.parse().expect("the controller's lease has a name"),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// # Errors
    /// When no candidate could lead with these times, or two could at once.
    pub fn check(&self) -> Result<(), SettingsError> {
        check_holder(&self.identity).map_err(|e| SettingsError::Identity(self.identity.clone(), e))?;
        if self.retry_period.is_zero() {
            Err(SettingsError::RetryPeriod)
        } else if self.renew_deadline <= self.retry_period {
            Err(SettingsError::RenewDeadline)
        } else if self.lease_duration <= self.renew_deadline {
            Err(SettingsError::LeaseDuration)
        } else {
            Ok(())
        }
    }

    pub fn key(&self) -> Key {
        Key::namespaced(self.namespace.clone(), self.name.clone())
    }

    /// The duration in the record: whole seconds, rounded up.
    fn duration_seconds(&self) -> i32 {
        let seconds = self.lease_duration.as_secs() + u64::from(self.lease_duration.subsec_nanos() > 0);
        i32::try_from(seconds).unwrap_or(i32::MAX)
    }
}

impl Election {
    /// A candidate that has not read the lease yet.
    ///
    /// # Errors
    /// When the settings contradict each other.
    pub fn new(settings: ElectionSettings) -> Result<Election, SettingsError> {
        settings.check()?;
        Ok(Election { settings, role: Role::Standby { not_before: Mono::ZERO }, seen: None, next_term: 0 })
    }

    pub fn settings(&self) -> &ElectionSettings {
        &self.settings
    }

    /// Observes the lease as the store has it now; `None` if there is none.
    pub fn observe(&mut self, lease: Option<&Lease>, now: Mono) {
        if self.seen.as_ref().is_none_or(|seen| version(seen.lease.as_ref()) != version(lease)) {
            self.seen = Some(Seen { lease: lease.cloned(), changed_at: now });
        }
        if let Some(lease) = lease {
            self.next_term = self.next_term.max(lease.spec.lease_transitions.saturating_add(1));
        }
        if let Role::Leading(term) = &mut self.role {
            match lease {
                Some(lease) if term.fence.holds(lease) => {
                    if lease.meta.resource_version > term.lease.meta.resource_version {
                        term.lease = lease.clone();
                    }
                }
                Some(lease) => {
                    let LeaseSpec { holder_identity, lease_transitions, .. } = &lease.spec;
                    let why =
                        format!("the lease is held by {holder_identity:?} at transition {lease_transitions}");
                    term.lost.get_or_insert(why);
                }
                None => drop(term.lost.get_or_insert_with(|| "the lease is gone".to_owned())),
            }
        }
    }

    /// The lease was acquired, by a write that was requested at that moment.
    pub fn acquired(&mut self, lease: &Lease, requested_at: Mono) {
        let ElectionSettings { namespace, name, identity, retry_period, .. } = &self.settings;
        let transitions = lease.spec.lease_transitions;
        let fence = Fence::new(namespace.clone(), name.clone(), identity, transitions)
            .expect("the identity was checked, and the store takes no negative number");
        let renew_at = requested_at + *retry_period;
        let term = Term { fence, lease: lease.clone(), renewed_at: requested_at, renew_at, lost: None };
        self.role = Role::Leading(Box::new(term));
        self.observe(Some(lease), requested_at);
    }

    /// The lease was renewed, by a request of that moment, and has this version now.
    pub fn renewed(&mut self, version: u64, requested_at: Mono) {
        let Role::Leading(term) = &mut self.role else { return };
        term.lease.meta.resource_version = version;
        term.renewed_at = requested_at;
        term.renew_at = requested_at + self.settings.retry_period;
    }

    /// An attempt to acquire or renew the lease failed.
    pub fn attempt_failed(&mut self, failure: AttemptFailure, now: Mono) {
        let again = now + self.settings.retry_period;
        match (&mut self.role, failure) {
            (Role::Leading(term), AttemptFailure::Lost(why)) => drop(term.lost.get_or_insert(why)),
            (Role::Leading(term), AttemptFailure::Later) => term.renew_at = again,
            (Role::Standby { not_before }, _) => *not_before = again,
        }
    }

    /// The store refused a write because of this fence. A fence of an earlier term says nothing about this term.
    pub fn refused(&mut self, fence: &Fence) {
        if let Role::Leading(term) = &mut self.role
            && term.fence == *fence
        {
            term.lost.get_or_insert_with(|| "the store refused a write because of its fence".to_owned());
        }
    }

    /// This candidate has stopped leading. Other candidates may try first.
    pub fn stepped_down(&mut self, now: Mono) {
        self.role = Role::Standby { not_before: now + self.settings.retry_period };
    }

    pub fn next(&self, now: Now) -> Step {
        match &self.role {
            Role::Leading(term) => self.lead(term, now.mono),
            Role::Standby { not_before } => self.stand_by(*not_before, now),
        }
    }

    fn lead(&self, term: &Term, now: Mono) -> Step {
        let deadline = term.renewed_at + self.settings.renew_deadline;
        if let Some(why) = &term.lost {
            return Step::StepDown { why: why.clone() };
        }
        if now >= deadline {
            let limit = self.settings.renew_deadline;
            return Step::StepDown { why: format!("the lease could not be renewed for {limit:?}") };
        }
        if now >= term.renew_at {
            return Step::Renew;
        }
        Step::Wait { until: Some(term.renew_at.min(deadline)) }
    }

    fn stand_by(&self, not_before: Mono, now: Now) -> Step {
        let Some(seen) = &self.seen else { return Step::Wait { until: None } };
        let free_at = match &seen.lease {
            Some(lease) if self.has_other_holder(lease) => seen.changed_at + self.duration(lease),
            _ => Mono::ZERO,
        };
        let at = free_at.max(not_before);
        if now.mono < at {
            return Step::Wait { until: Some(at) };
        }
        Step::TryAcquire(Box::new(self.claim(seen.lease.as_ref(), now.wall)))
    }

    fn has_other_holder(&self, lease: &Lease) -> bool {
        let holder = &lease.spec.holder_identity;
        !holder.is_empty() && *holder != self.settings.identity
    }

    /// How long the holder may rely on a renewal: the duration in the record or in our settings, the longer of the two.
    fn duration(&self, lease: &Lease) -> Duration {
        let written = lease.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        self.settings.lease_duration.max(Duration::from_secs(written.unwrap_or_default()))
    }

    /// The lease with us as its holder, in a new term. It is new also after our own last term, whose writes may still be
    /// in flight.
    fn claim(&self, held: Option<&Lease>, now: Timestamp) -> Lease {
        let ElectionSettings { identity, namespace, name, .. } = &self.settings;
        let meta = match held {
            Some(lease) => lease.meta.clone(),
            None => Metadata::new(Some(namespace.clone()), name.clone()),
        };
        // The times of a lease have microseconds.
        let now = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
        let spec = LeaseSpec {
            holder_identity: identity.clone(),
            lease_duration_seconds: Some(self.settings.duration_seconds()),
            acquire_time: Some(now),
            renew_time: Some(now),
            lease_transitions: self.next_term,
            ..LeaseSpec::default()
        };
        Lease { meta, spec }
    }

    /// The lease without a holder, so that other candidates need not wait; `None` unless we hold it.
    pub fn release(&self) -> Option<Lease> {
        let Role::Leading(term) = &self.role else { return None };
        if term.lost.is_some() {
            return None;
        }
        let mut lease = term.lease.clone();
        lease.spec.holder_identity.clear();
        Some(lease)
    }

    /// How much longer we lead without a renewal.
    pub fn time_left(&self, now: Mono) -> Duration {
        match &self.role {
            Role::Leading(term) => (term.renewed_at + self.settings.renew_deadline) - now,
            Role::Standby { .. } => Duration::ZERO,
        }
    }

    /// Whether the lease has a live holder, us or another, as far as we can see.
    pub fn has_leader(&self, now: Mono) -> bool {
        if let Role::Leading(term) = &self.role {
            return term.lost.is_none();
        }
        let Some(Seen { lease: Some(lease), changed_at }) = &self.seen else { return false };
        self.has_other_holder(lease) && now < *changed_at + self.duration(lease)
    }

    pub fn leadership(&self) -> Leadership {
        let held = self.seen.as_ref().and_then(|seen| seen.lease.as_ref());
        let holder = held.map(|lease| lease.spec.holder_identity.clone()).unwrap_or_default();
        let fence = match &self.role {
            Role::Leading(term) if term.lost.is_none() => Some(term.fence.clone()),
            Role::Leading(_) | Role::Standby { .. } => None,
        };
        Leadership { leading: fence.is_some(), holder, fence }
    }
}

/// What differs between two states of the lease.
fn version(lease: Option<&Lease>) -> Option<(Option<Uid>, u64)> {
    lease.map(|lease| (lease.meta.uid, lease.meta.resource_version))
}

#[cfg(test)]
mod tests;
