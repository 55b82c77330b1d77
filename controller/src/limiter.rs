//! A bucket of tokens that is told the time.
//!
//! It holds one token, or as many as its rate gives between two passes: nodes are given up in passes, and a fast rate
//! must not be slowed by that.

use std::time::Duration;

use muster_rpc::clock::Mono;

#[derive(Clone, Debug, PartialEq)]
pub struct Limiter {
    rate: f64,
    period: Duration,
    /// When the bucket is full again; never, at rate 0.
    full_at: Mono,
}

impl Limiter {
    /// With its tokens in it. `period` lies between two passes.
    pub fn full(rate: f64, period: Duration, now: Mono) -> Limiter {
        Limiter { rate, period, full_at: if rate > 0.0 { now } else { Mono::MAX } }
    }

    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// When the next token can be had; `None` means never.
    pub fn ready_at(&self) -> Option<Mono> {
        (self.rate > 0.0).then(|| self.full_at - self.interval().saturating_mul(self.capacity() - 1))
    }

    /// The time in which a token comes; at rate 0 none ever does.
    pub fn interval(&self) -> Duration {
        Duration::try_from_secs_f64(1.0 / self.rate).unwrap_or(Duration::MAX)
    }

    fn capacity(&self) -> u32 {
        (self.period.as_secs_f64() * self.rate).max(1.0) as u32
    }

    /// Another rate. A bucket that had no token starts without one; the same rate changes nothing.
    pub fn set_rate(&mut self, rate: f64, now: Mono) {
        if rate == self.rate {
            return;
        }
        let had_token = self.ready_at().is_some_and(|at| at <= now);
        self.rate = rate;
        self.full_at = match rate {
            rate if rate <= 0.0 => Mono::MAX,
            _ if had_token => now,
            _ => now + self.interval().saturating_mul(self.capacity()),
        };
    }

    /// Takes a token, if there is one.
    pub fn take(&mut self, now: Mono) -> bool {
        let ready = self.ready_at().is_some_and(|at| at <= now);
        if ready {
            self.full_at = self.full_at.max(now) + self.interval();
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::at;

    const PERIOD: Duration = Duration::from_secs(5);

    fn secs(seconds: u64) -> Mono {
        at(seconds).mono
    }

    fn taken(limiter: &mut Limiter, now: u64) -> usize {
        (0..100).take_while(|_| limiter.take(secs(now))).count()
    }

    #[test]
    fn one_token_at_once_and_then_one_per_interval() {
        let mut limiter = Limiter::full(0.1, PERIOD, secs(0));
        let taken: Vec<usize> = (0..40).step_by(5).map(|now| taken(&mut limiter, now)).collect();
        assert_eq!(taken, [1, 0, 1, 0, 1, 0, 1, 0]);
    }

    #[test]
    fn a_fast_rate_is_not_slowed_by_rare_passes() {
        let mut limiter = Limiter::full(1.0, PERIOD, secs(0));
        let taken: Vec<usize> = [0, 5, 10, 100, 105].iter().map(|&now| taken(&mut limiter, now)).collect();
        assert_eq!(taken, [5, 5, 5, 5, 5], "and nothing is saved up for later");
    }

    #[test]
    fn s138_the_same_rate_keeps_its_tokens_and_a_new_one_starts_as_the_old_stood() {
        let mut spent = Limiter::full(0.1, PERIOD, secs(0));
        assert!(spent.take(secs(0)));
        let mut same = spent.clone();
        same.set_rate(0.1, secs(3));
        assert_eq!(same.ready_at(), Some(secs(10)));
        let mut slower = spent.clone();
        slower.set_rate(0.01, secs(3));
        assert_eq!(slower.ready_at(), Some(secs(103)), "had no token, so it starts without");
        let mut full = Limiter::full(0.1, PERIOD, secs(0));
        full.set_rate(0.01, secs(3));
        assert_eq!(full.ready_at(), Some(secs(3)), "had one, so it starts with one");
        let mut stopped = Limiter::full(0.1, PERIOD, secs(0));
        stopped.set_rate(0.0, secs(3));
        assert!(!stopped.take(secs(1_000_000)), "a stopped one never gives");
        stopped.set_rate(0.1, secs(100));
        assert_eq!(stopped.ready_at(), Some(secs(110)), "and starts again without a token");
        stopped.set_rate(0.0, secs(100));
        stopped.set_rate(2.0, secs(200));
        assert_eq!(taken(&mut stopped, 201), 2, "a fast one fills as fast as it gives");
    }
}
