//! Who leads: judged from one lease, by our own clock alone.
//!
//! A holder that we have not seen renew for the lease's duration has lost it, whatever time its records say: the
//! duration runs from when we saw the record change. A leader that could not renew for its renew deadline stops by
//! itself, and that comes first. Should clocks run so badly that it does not, the store still refuses what the old
//! leader writes: each term has its own number of transitions, and the [`Fence`] carries it.

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

/// Which lease to compete for, as whom, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionSettings {
    /// Who we are; no two processes may say the same.
    pub identity: String,
    pub namespace: Namespace,
    pub name: Name,
    /// How long a renewal lasts in the eyes of the others.
    pub lease_duration: Duration,
    /// How long a leader goes on without a renewal.
    pub renew_deadline: Duration,
    /// How often a leader renews, and how long to wait after an attempt that failed.
    pub retry_period: Duration,
}

/// Settings that do not fit together.
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
    /// Nothing before that moment, or before there is news.
    Wait {
        until: Option<Mono>,
    },
    /// Stop acting as the leader.
    StepDown {
        why: String,
    },
}

/// Why a write to the lease did not do what it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setback {
    /// The lease is another's, has changed or is gone.
    Lost(String),
    /// It may work later.
    Later,
}

/// Who leads, as far as we know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Whether it is us.
    pub leading: bool,
    /// Who holds the lease; empty if nobody does, or that is not known yet.
    pub holder: String,
    /// What our writes are to carry while we lead.
    pub fence: Option<Fence>,
}

/// One competitor's view of the lease.
#[derive(Clone, Debug)]
pub struct Election {
    settings: ElectionSettings,
    role: Role,
    seen: Option<Seen>,
    /// The number of the next term, if the lease has to be made anew.
    next_term: i32,
}

#[derive(Clone, Debug)]
enum Role {
    Standby { not_before: Mono },
    Leading(Box<Term>),
}

/// Our own time as the leader.
#[derive(Clone, Debug)]
struct Term {
    fence: Fence,
    lease: Lease,
    /// When the renewal that counts was asked for: the others saw it later than that.
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
    /// Kubernetes' own times: 15 s, 10 s and 2 s.
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
    /// When nobody could lead with them, or two could at once.
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

    /// As the record has it: in whole seconds, and not less.
    fn duration_seconds(&self) -> i32 {
        let seconds = self.lease_duration.as_secs() + u64::from(self.lease_duration.subsec_nanos() > 0);
        i32::try_from(seconds).unwrap_or(i32::MAX)
    }
}

impl Election {
    /// A competitor that has not looked yet.
    ///
    /// # Errors
    /// When the settings do not fit together.
    pub fn new(settings: ElectionSettings) -> Result<Election, SettingsError> {
        settings.check()?;
        Ok(Election { settings, role: Role::Standby { not_before: Mono::ZERO }, seen: None, next_term: 0 })
    }

    pub fn settings(&self) -> &ElectionSettings {
        &self.settings
    }

    /// The lease as the store has it now.
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

    /// The lease that was to be acquired is ours; it was asked for at that moment.
    pub fn acquired(&mut self, lease: &Lease, asked_at: Mono) {
        let ElectionSettings { namespace, name, identity, retry_period, .. } = &self.settings;
        let transitions = lease.spec.lease_transitions;
        let fence = Fence::new(namespace.clone(), name.clone(), identity, transitions)
            .expect("the identity was checked, and the store takes no negative number");
        let renew_at = asked_at + *retry_period;
        let term = Term { fence, lease: lease.clone(), renewed_at: asked_at, renew_at, lost: None };
        self.role = Role::Leading(Box::new(term));
        self.observe(Some(lease), asked_at);
    }

    /// The lease was renewed; that was asked for at that moment, and made this version of it.
    pub fn renewed(&mut self, version: u64, asked_at: Mono) {
        let Role::Leading(term) = &mut self.role else { return };
        term.lease.meta.resource_version = version;
        term.renewed_at = asked_at;
        term.renew_at = asked_at + self.settings.retry_period;
    }

    /// An attempt to acquire or renew the lease failed.
    pub fn set_back(&mut self, setback: Setback, now: Mono) {
        let again = now + self.settings.retry_period;
        match (&mut self.role, setback) {
            (Role::Leading(term), Setback::Lost(why)) => drop(term.lost.get_or_insert(why)),
            (Role::Leading(term), Setback::Later) => term.renew_at = again,
            (Role::Standby { not_before }, _) => *not_before = again,
        }
    }

    /// A write with that fence was refused because of it. One of an earlier term says nothing about this one.
    pub fn refused(&mut self, fence: &Fence) {
        if let Role::Leading(term) = &mut self.role
            && term.fence == *fence
        {
            term.lost.get_or_insert_with(|| "the store refused a write because of its fence".to_owned());
        }
    }

    /// We do not act as the leader any more. Somebody else may try first.
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
            let patience = self.settings.renew_deadline;
            return Step::StepDown { why: format!("the lease could not be renewed for {patience:?}") };
        }
        if now >= term.renew_at {
            return Step::Renew;
        }
        Step::Wait { until: Some(term.renew_at.min(deadline)) }
    }

    fn stand_by(&self, not_before: Mono, now: Now) -> Step {
        let Some(seen) = &self.seen else { return Step::Wait { until: None } };
        let free_at = match &seen.lease {
            Some(lease) if self.is_anothers(lease) => seen.changed_at + self.lasts(lease),
            _ => Mono::ZERO,
        };
        let at = free_at.max(not_before);
        if now.mono < at {
            return Step::Wait { until: Some(at) };
        }
        Step::TryAcquire(Box::new(self.claim(seen.lease.as_ref(), now.wall)))
    }

    fn is_anothers(&self, lease: &Lease) -> bool {
        let holder = &lease.spec.holder_identity;
        !holder.is_empty() && *holder != self.settings.identity
    }

    /// How long the holder may rely on a renewal: by what it wrote or by what we were told, whichever is longer.
    fn lasts(&self, lease: &Lease) -> Duration {
        let written = lease.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        self.settings.lease_duration.max(Duration::from_secs(written.unwrap_or_default()))
    }

    /// The lease with us as its holder, in a term of its own: also after our own last one, whose writes may still be on
    /// their way.
    fn claim(&self, held: Option<&Lease>, now: Timestamp) -> Lease {
        let ElectionSettings { identity, namespace, name, .. } = &self.settings;
        let meta = match held {
            Some(lease) => lease.meta.clone(),
            None => Metadata::new(Some(namespace.clone()), name.clone()),
        };
        // A lease's times are to the microsecond.
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

    /// The lease given back, so that another need not wait; `None` unless it is ours.
    pub fn release(&self) -> Option<Lease> {
        let Role::Leading(term) = &self.role else { return None };
        if term.lost.is_some() {
            return None;
        }
        let mut lease = term.lease.clone();
        lease.spec.holder_identity.clear();
        Some(lease)
    }

    /// How much longer we lead if nothing is renewed.
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
        self.is_anothers(lease) && now < *changed_at + self.lasts(lease)
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

/// What tells one state of the lease from another.
fn version(lease: Option<&Lease>) -> Option<(Option<Uid>, u64)> {
    lease.map(|lease| (lease.meta.uid, lease.meta.resource_version))
}

#[cfg(test)]
mod tests;
