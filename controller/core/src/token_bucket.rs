//! A bucket of one token that is told the time.

use std::time::Duration;

use muster_proto::time::Mono;

#[derive(Clone, Debug, PartialEq)]
pub struct Limiter {
    rate: f64,
    /// When there is a token; never, at rate 0.
    ready_at: Option<Mono>,
}

impl Limiter {
    /// With its token in it.
    pub fn full(rate: f64, now: Mono) -> Limiter {
        Limiter { rate, ready_at: (rate > 0.0).then_some(now) }
    }

    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// When the next token can be had; `None` means never.
    pub fn ready_at(&self) -> Option<Mono> {
        self.ready_at
    }

    /// The time in which a token comes; at rate 0 none ever does.
    pub fn interval(&self) -> Duration {
        Duration::try_from_secs_f64(1.0 / self.rate).unwrap_or(Duration::MAX)
    }

    /// Another rate. A bucket that had no token starts without one; the same rate changes nothing.
    pub fn set_rate(&mut self, rate: f64, now: Mono) {
        if rate == self.rate {
            return;
        }
        let had_token = self.has_token(now);
        self.rate = rate;
        self.ready_at = (rate > 0.0).then(|| if had_token { now } else { now + self.interval() });
    }

    /// Takes the token, if there is one.
    pub fn take(&mut self, now: Mono) -> bool {
        let had_token = self.has_token(now);
        if had_token {
            self.ready_at = Some(now + self.interval());
        }
        had_token
    }

    fn has_token(&self, now: Mono) -> bool {
        self.ready_at.is_some_and(|at| at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at;

    fn secs(seconds: u64) -> Mono {
        at(seconds).mono
    }

    #[test]
    fn one_token_at_once_and_then_one_per_interval() {
        for (rate, expected) in [(0.1, vec![0, 10, 20]), (0.3, vec![0, 4, 8, 12, 16, 20]), (0.0, vec![])] {
            let mut limiter = Limiter::full(rate, secs(0));
            let taken: Vec<u64> = (0..=20).filter(|now| limiter.take(secs(*now))).collect();
            assert_eq!(taken, expected, "{rate} a second");
        }
        let mut fast = Limiter::full(4.0, secs(0));
        let taken = (0..100).map(|_| fast.take(secs(7))).filter(|taken| *taken).count();
        assert_eq!(taken, 1, "nothing is saved up");
        assert_eq!(fast.ready_at(), Some(secs(7) + Duration::from_millis(250)));
    }

    #[test]
    fn s138_the_same_rate_keeps_its_tokens_and_a_new_one_starts_as_the_old_stood() {
        let mut spent = Limiter::full(0.1, secs(0));
        assert!(spent.take(secs(0)));
        let mut same = spent.clone();
        same.set_rate(0.1, secs(3));
        assert_eq!(same.ready_at(), Some(secs(10)));
        let mut slower = spent.clone();
        slower.set_rate(0.01, secs(3));
        assert_eq!(slower.ready_at(), Some(secs(103)), "had no token, so it starts without");
        let mut full = Limiter::full(0.1, secs(0));
        full.set_rate(0.01, secs(3));
        assert_eq!(full.ready_at(), Some(secs(3)), "had one, so it starts with one");
        let mut stopped = Limiter::full(0.1, secs(0));
        stopped.set_rate(0.0, secs(3));
        assert!(!stopped.take(secs(1_000_000)), "a stopped one never gives");
        stopped.set_rate(0.1, secs(100));
        assert_eq!(stopped.ready_at(), Some(secs(110)), "and starts again without a token");
    }
}
