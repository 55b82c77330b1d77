//! The eviction hold: after a start or an interruption no node is tainted NoExecute and no pod is evicted because of
//! its node's health, until the fleet had a whole grace in which to send heartbeats.
//!
//! A short interruption, such as a connection that breaks and is opened again, delays what is known of the fleet by no
//! more than its own length and starts no hold. Otherwise a link that breaks every few seconds would stop evictions for
//! good. Many short ones in one grace count as a long one.

use std::collections::VecDeque;
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

    /// The hold after an interruption that ends now; the same as before after a short one.
    #[must_use]
    pub fn after_interruption(self, is_long: bool, policy: &Policy, now: Mono) -> EvictionHold {
        let catch_up_until = now + CATCH_UP;
        if !is_long {
            return EvictionHold { catch_up_until, ..self };
        }
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

/// The interruptions of the last grace.
#[derive(Clone, Debug, Default)]
pub struct Interruptions {
    /// From when until when, in order.
    recent: VecDeque<(Mono, Mono)>,
}

impl Interruptions {
    /// Adds one that ends now. Returns whether the controller was cut off for long in the last grace.
    pub fn add(&mut self, since: Mono, policy: &Policy, now: Mono) -> bool {
        self.recent.push_back((since, now));
        while self.recent.front().is_some_and(|(_, until)| now - *until > policy.grace) {
            self.recent.pop_front();
        }
        // Together as long as one pause that this process would take for an interruption.
        self.recent.iter().map(|(since, until)| *until - *since).sum::<Duration>() > policy.longest_pause()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at;

    #[test]
    fn many_short_interruptions_in_one_grace_are_a_long_one() {
        // The longest pause is 5 s and a quarter of the grace of 40 s.
        let policy = Policy::default();
        for (what, interruptions, expected) in [
            ("a short one", vec![(10, 12)], vec![false]),
            ("as long as a pause may be", vec![(10, 25)], vec![false]),
            ("longer", vec![(10, 26)], vec![true]),
            ("short ones", vec![(10, 18), (20, 28)], vec![false, true]),
            (
                "short ones that are far apart",
                vec![(10, 18), (60, 68), (110, 118)],
                vec![false, false, false],
            ),
        ] {
            let mut held = Interruptions::default();
            let added =
                interruptions.into_iter().map(|(since, now)| held.add(at(since).mono, &policy, at(now).mono));
            assert_eq!(added.collect::<Vec<_>>(), expected, "{what}");
        }
    }

    #[test]
    fn a_short_interruption_neither_starts_nor_ends_a_hold() {
        let policy = Policy::default();
        let start = EvictionHold::at_start(&policy, at(0).mono);
        let short = start.after_interruption(false, &policy, at(10).mono);
        assert_eq!((short.since, short.until, short.cause), (start.since, start.until, HoldCause::Start));
        assert_eq!(
            short.catching_up(at(10).mono),
            Some(at(11).mono),
            "missed events are awaited all the same"
        );
        let long = short.after_interruption(true, &policy, at(10).mono);
        assert_eq!((long.since, long.until), (at(10).mono, at(51).mono));
        assert_eq!((long.cause, long.catching_up(at(11).mono)), (HoldCause::Interruption, None));
    }
}
