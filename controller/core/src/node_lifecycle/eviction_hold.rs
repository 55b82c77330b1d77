//! The eviction hold: after a start or an interruption no node is tainted NoExecute and no pod is evicted because of
//! its node's health, until the fleet had a whole grace in which to send heartbeats.

use std::time::Duration;

use muster_proto::time::Mono;

use crate::policy::Policy;

/// How long a watch that is connected again is given to deliver what was missed: it reports that it is synced before.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Why and until when there are no evictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictionHold {
    pub since: Mono,
    pub until: Mono,
    pub cause: HoldCause,
    catch_up_until: Mono,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldCause {
    /// This controller has only just become the leader.
    Start,
    /// A watch was disconnected, or this process was paused.
    Interruption,
}

impl EvictionHold {
    pub fn at_start(policy: &Policy, now: Mono) -> EvictionHold {
        EvictionHold { since: now, until: now + policy.hold, cause: HoldCause::Start, catch_up_until: now }
    }

    pub fn after_interruption(policy: &Policy, now: Mono) -> EvictionHold {
        let catch_up_until = now + CATCH_UP;
        // A missed renewal counts from when it is delivered, so a node that stopped after it falls silent that much
        // later.
        let until = if policy.hold.is_zero() { now } else { catch_up_until + policy.hold };
        EvictionHold { since: now, until, cause: HoldCause::Interruption, catch_up_until }
    }

    pub fn is_active(&self, now: Mono) -> bool {
        now < self.until
    }

    /// Until when nothing at all is decided, because missed events are still being delivered; `None` if that is over.
    pub fn catching_up(&self, now: Mono) -> Option<Mono> {
        Some(self.catch_up_until).filter(|until| now < *until)
    }
}
