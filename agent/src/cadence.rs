//! When to renew, when to try again, and when nobody is listening. Pure.
//!
//! A round is one renewal of the node's lease. On the heartbeat stream, to *ensure* the lease is to open a stream
//! and say hello, which creates the lease where there is none; to *renew* is one small message on it. All
//! randomness is drawn by the caller, as a number in 0..1.

use std::time::Duration;

use muster_rpc::backoff::Backoff;
use muster_rpc::clock::Mono;

#[cfg(test)]
mod tests;

/// Renewals in the time one of them lasts: three may be lost.
const RENEWALS_PER_LEASE: u32 = 4;
/// How much later than planned a turn may come, so that machines started together drift apart.
const JITTER: f64 = 0.04;
/// Tries of one round, without a pause.
pub const RENEW_ATTEMPTS: u32 = 5;
/// Failures in a row after which the connection itself is suspected.
const REDIAL_AFTER: u32 = 2;
/// Between attempts to ensure the lease.
const ENSURE: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(7));
/// Between attempts to register the node.
const REGISTER: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));

/// How long to sleep before the attempt to register (counted from 0); there is a pause before the first, too.
pub fn registration_delay(attempt: u32) -> Duration {
    REGISTER.delay(attempt.saturating_add(1), 0.0)
}

/// The interval, or up to 4 % more.
pub fn jittered(interval: Duration, draw: f64) -> Duration {
    interval.mul_f64(1.0 + JITTER * unit(draw))
}

/// How long an answer may take before the connection counts as dead.
///
/// Never more than half a lease: a connection that swallows everything without an error, as one behind a rebooted
/// balancer does, must be found out and replaced while the last renewal still counts.
pub fn answer_deadline(update_frequency: Duration, lease_duration: Duration) -> Duration {
    update_frequency.min(lease_duration / 2)
}

/// A draw within its bounds; a bad one must not panic the loop.
pub(crate) fn unit(draw: f64) -> f64 {
    if draw.is_nan() { 0.0 } else { draw.clamp(0.0, 1.0) }
}

/// What to do about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Wait {
        until: Mono,
    },
    /// Find the lease, or have it created.
    Ensure,
    /// Renew it.
    Renew,
}

/// How an attempt to ensure the lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ensured {
    /// It was there, and is to be renewed in this round.
    Found,
    /// It was created just now, which is as good as a renewal.
    Created,
}

/// The rounds of one node's lease.
#[derive(Clone, Debug)]
pub struct Cadence {
    lease_duration: Duration,
    phase: Phase,
    /// When the current round began; the next is counted from here.
    round: Mono,
    /// Attempts to ensure that came to nothing since the last renewal.
    ensure_failures: u32,
    /// Whether a renewal was acknowledged since the lease was last ensured.
    settled: bool,
    failures_in_a_row: u32,
    last_acknowledged: Option<Mono>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting { until: Mono, then: Task },
    Ensuring,
    Renewing { failures: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Ensure,
    Renew,
}

impl Cadence {
    /// The first round is due at once.
    pub fn new(lease_duration: Duration, now: Mono) -> Cadence {
        Cadence {
            lease_duration,
            phase: Phase::Ensuring,
            round: now,
            ensure_failures: 0,
            settled: false,
            failures_in_a_row: 0,
            last_acknowledged: None,
        }
    }

    /// How often the lease is renewed unless the store wishes otherwise.
    pub fn interval(&self) -> Duration {
        self.lease_duration / RENEWALS_PER_LEASE
    }

    /// What to do now. Asked again after each outcome, and when a wait is over.
    pub fn step(&mut self, now: Mono) -> Step {
        if let Phase::Waiting { until, then } = self.phase {
            if now < until {
                return Step::Wait { until };
            }
            self.round = now;
            self.phase = match then {
                Task::Ensure => Phase::Ensuring,
                Task::Renew => Phase::Renewing { failures: 0 },
            };
        }
        match self.phase {
            Phase::Renewing { .. } => Step::Renew,
            Phase::Ensuring | Phase::Waiting { .. } => Step::Ensure,
        }
    }

    /// The lease is there.
    pub fn observe_ensured(&mut self, ensured: Ensured, draw: f64, now: Mono) {
        self.failures_in_a_row = 0;
        self.settled = false;
        // However long it took to get here: the rounds go on from now.
        self.round = now;
        match ensured {
            Ensured::Found => self.phase = Phase::Renewing { failures: 0 },
            Ensured::Created => {
                self.last_acknowledged = Some(now);
                self.next_round(Task::Renew, None, draw);
            }
        }
    }

    /// The lease could not be ensured: it is tried for ever, less and less often.
    pub fn observe_ensure_failed(&mut self, draw: f64, now: Mono) {
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        self.ensure_failures = self.ensure_failures.saturating_add(1);
        let until = now + ENSURE.delay(self.ensure_failures, draw);
        self.phase = Phase::Waiting { until, then: Task::Ensure };
    }

    /// The store has the renewal, and may wish for the next one at another time than ours.
    pub fn observe_renewed(&mut self, wished: Option<Duration>, draw: f64, now: Mono) {
        self.failures_in_a_row = 0;
        self.ensure_failures = 0;
        self.settled = true;
        self.last_acknowledged = Some(now);
        self.next_round(Task::Renew, wished, draw);
    }

    /// A renewal failed, or was not answered in time. The fifth failure ends the round, and the next one does not
    /// take the lease for granted.
    pub fn observe_renew_failed(&mut self, draw: f64) {
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        let failures = match self.phase {
            Phase::Renewing { failures } => failures.saturating_add(1),
            Phase::Waiting { .. } | Phase::Ensuring => 1,
        };
        if failures >= RENEW_ATTEMPTS {
            self.next_round(Task::Ensure, None, draw);
        } else {
            self.phase = Phase::Renewing { failures };
        }
    }

    /// The stream broke: the lease has to be ensured again before it is renewed. At once if the stream had served,
    /// else after a pause: a store that takes streams only to drop them is not helped by more of them.
    pub fn observe_disconnected(&mut self, draw: f64, now: Mono) {
        if self.settled {
            self.settled = false;
            self.phase = Phase::Ensuring;
        } else {
            self.observe_ensure_failed(draw, now);
        }
    }

    /// Whether the connection should be dropped and dialled anew.
    pub fn must_redial(&self) -> bool {
        self.failures_in_a_row >= REDIAL_AFTER
    }

    /// When the store last acknowledged this node.
    pub fn last_acknowledged(&self) -> Option<Mono> {
        self.last_acknowledged
    }

    /// Whether our last sign of life has run out: others may by now believe that this node is gone.
    pub fn is_cut_off(&self, now: Mono) -> bool {
        self.last_acknowledged.is_none_or(|at| now - at >= self.lease_duration)
    }

    fn next_round(&mut self, then: Task, wished: Option<Duration>, draw: f64) {
        let wait = match wished {
            // The store has spread its wishes already. One that would let the lease run out, or keep the machine
            // busy with renewing, is not followed.
            Some(wished) => wished.clamp(self.interval() / 10, self.lease_duration / 2),
            None => jittered(self.interval(), draw),
        };
        self.phase = Phase::Waiting { until: self.round + wait, then };
    }
}
