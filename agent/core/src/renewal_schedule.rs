//! When to renew the node's lease, when to retry, and when to drop the connection.
//!
//! A round is one renewal. On the heartbeat stream, to *ensure* the lease is to open a stream and say Hello, which
//! creates the lease if there is none; to *renew* it is one small message on that stream, or on a new one if the last
//! one broke. The caller draws all random numbers, in 0..1.

use std::time::Duration;

use muster_proto::backoff::Backoff;
use muster_proto::time::Mono;

#[cfg(test)]
mod tests;

/// Renewals within one lease duration: three in a row may be lost.
const RENEWALS_PER_LEASE: u32 = 4;
/// How much later than planned a round may start, so that machines that started together drift apart.
const JITTER: f64 = 0.04;
/// Attempts of one round, without a pause.
pub const RENEW_ATTEMPTS: u32 = 5;
/// Calls in a row without an answer, after which the connection is dropped.
const REDIAL_AFTER: u32 = 2;
/// Between attempts to ensure the lease.
const ENSURE: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(7));
/// Between attempts to register the node.
const REGISTER: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));

/// How long to sleep before the attempt to register (counted from 0); there is a pause before the first one too.
pub fn registration_delay(attempt: u32) -> Duration {
    REGISTER.delay(attempt.saturating_add(1), 0.0)
}

/// The interval, or up to 4 % more.
pub fn jittered(interval: Duration, draw: f64) -> Duration {
    interval.mul_f64(1.0 + JITTER * unit(draw))
}

/// How long an answer may take before the connection counts as dead.
///
/// Never more than half a lease: a connection that drops everything without an error, as one through a rebooted load
/// balancer does, must be found and replaced while the last renewal is still valid.
pub fn answer_deadline(update_frequency: Duration, lease_duration: Duration) -> Duration {
    update_frequency.min(lease_duration / 2)
}

/// How often a connection is probed, and how long a probe may go unanswered.
///
/// The upper bounds fit the default lease. A shorter lease needs faster probes, or a dead connection would outlive it;
/// below a second, a busy machine would be taken for a dead one.
pub fn keepalive(lease_duration: Duration) -> (Duration, Duration) {
    let least = Duration::from_secs(1);
    let [interval, timeout] = [(4, 10), (8, 5)]
        .map(|(share, most)| (lease_duration / share).clamp(least, Duration::from_secs(most)));
    (interval, timeout)
}

/// A draw within its bounds: a bad value must not panic the loop.
pub(crate) fn unit(draw: f64) -> f64 {
    if draw.is_nan() { 0.0 } else { draw.clamp(0.0, 1.0) }
}

/// What to do about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStep {
    Wait {
        until: Mono,
    },
    /// Open a stream, which finds the lease or creates it.
    Ensure,
    /// Send a renewal.
    Renew,
}

/// The renewals of one node's lease.
#[derive(Clone, Debug)]
pub struct RenewalSchedule {
    lease_duration: Duration,
    phase: Phase,
    /// When the current round began; the next round is counted from here.
    round: Mono,
    /// Failed attempts to ensure the lease since the last renewal.
    ensure_failures: u32,
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

impl RenewalSchedule {
    /// The first round is due at once.
    pub fn new(lease_duration: Duration, now: Mono) -> RenewalSchedule {
        RenewalSchedule { lease_duration, phase: Phase::Ensuring, round: now, ensure_failures: 0 }
    }

    /// How often the lease is renewed unless the store requests another interval.
    pub fn interval(&self) -> Duration {
        self.lease_duration / RENEWALS_PER_LEASE
    }

    /// What to do now. Called again after each outcome, and when a wait is over.
    pub fn step(&mut self, now: Mono) -> LeaseStep {
        if let Phase::Waiting { until, then } = self.phase {
            if now < until {
                return LeaseStep::Wait { until };
            }
            self.round = now;
            self.phase = match then {
                Task::Ensure => Phase::Ensuring,
                Task::Renew => Phase::Renewing { failures: 0 },
            };
        }
        match self.phase {
            Phase::Renewing { .. } => LeaseStep::Renew,
            Phase::Ensuring | Phase::Waiting { .. } => LeaseStep::Ensure,
        }
    }

    /// The lease exists, and is renewed in the same round.
    pub fn observe_ensured(&mut self, now: Mono) {
        // However long that took: the next rounds are counted from now.
        self.round = now;
        self.phase = Phase::Renewing { failures: 0 };
    }

    /// The lease could not be ensured: it is tried again without end, less and less often.
    pub fn observe_ensure_failed(&mut self, draw: f64, now: Mono) {
        self.ensure_failures = self.ensure_failures.saturating_add(1);
        let until = now + ENSURE.delay(self.ensure_failures, draw);
        self.phase = Phase::Waiting { until, then: Task::Ensure };
    }

    /// The store has the renewal, and may request the next one at another time than ours.
    pub fn observe_renewed(&mut self, requested: Option<Duration>, draw: f64) {
        self.ensure_failures = 0;
        self.next_round(Task::Renew, requested, draw);
    }

    /// A renewal failed, or was not answered in time. The fifth failure ends the round, and the next round ensures the
    /// lease again.
    pub fn observe_renew_failed(&mut self, draw: f64) {
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

    fn next_round(&mut self, then: Task, requested: Option<Duration>, draw: f64) {
        let wait = match requested {
            // The store spreads its requests itself. A request is bounded so that the lease does not expire and
            // renewals do not load the machine.
            Some(requested) => requested.clamp(self.interval() / 10, self.lease_duration / 2),
            None => jittered(self.interval(), draw),
        };
        self.phase = Phase::Waiting { until: self.round + wait, then };
    }
}

/// Whether the connection still answers: a dead one may look alive for long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionHealth {
    timeouts: u32,
}

impl ConnectionHealth {
    /// A call was answered, with success or an error.
    pub fn observe_answer(&mut self) {
        self.timeouts = 0;
    }

    /// A call was not answered. Returns whether the connection should be dropped and dialled again.
    pub fn observe_timeout(&mut self) -> bool {
        self.timeouts = self.timeouts.saturating_add(1);
        self.timeouts >= REDIAL_AFTER
    }
}
