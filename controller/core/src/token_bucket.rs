//! A token bucket that holds at most one token. The caller passes the time.

use std::time::Duration;

use muster_proto::time::Mono;

#[derive(Clone, Debug, PartialEq)]
pub struct TokenBucket {
    rate: f64,
    /// When there is a token; `None`, which is never, at rate 0.
    ready_at: Option<Mono>,
}

impl TokenBucket {
    /// A bucket that holds its token.
    pub fn full(rate: f64, now: Mono) -> TokenBucket {
        TokenBucket { rate, ready_at: (rate > 0.0).then_some(now) }
    }

    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// When the next token can be taken; `None` means never.
    pub fn ready_at(&self) -> Option<Mono> {
        self.ready_at
    }

    /// The time between two tokens; the longest possible at rate 0.
    pub fn interval(&self) -> Duration {
        Duration::try_from_secs_f64(1.0 / self.rate).unwrap_or(Duration::MAX)
    }

    /// Changes the rate. A bucket that holds a token keeps it; one that holds none waits a whole interval of the new
    /// rate. Setting the same rate changes nothing.
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
            let mut bucket = TokenBucket::full(rate, secs(0));
            let taken: Vec<u64> = (0..=20).filter(|now| bucket.take(secs(*now))).collect();
            assert_eq!(taken, expected, "{rate} a second");
        }
        let mut fast = TokenBucket::full(4.0, secs(0));
        let taken = (0..100).map(|_| fast.take(secs(7))).filter(|taken| *taken).count();
        assert_eq!(taken, 1, "tokens do not accumulate");
        assert_eq!(fast.ready_at(), Some(secs(7) + Duration::from_millis(250)));
    }

    #[test]
    fn s138_the_same_rate_keeps_the_next_token_and_a_new_rate_keeps_a_token_that_is_there() {
        let mut spent = TokenBucket::full(0.1, secs(0));
        assert!(spent.take(secs(0)));
        let mut same = spent.clone();
        same.set_rate(0.1, secs(3));
        assert_eq!(same.ready_at(), Some(secs(10)));
        let mut slower = spent.clone();
        slower.set_rate(0.01, secs(3));
        assert_eq!(slower.ready_at(), Some(secs(103)), "it had no token");
        let mut full = TokenBucket::full(0.1, secs(0));
        full.set_rate(0.01, secs(3));
        assert_eq!(full.ready_at(), Some(secs(3)), "it had a token");
        let mut stopped = TokenBucket::full(0.1, secs(0));
        stopped.set_rate(0.0, secs(3));
        assert!(!stopped.take(secs(1_000_000)), "at rate 0 there is never a token");
        stopped.set_rate(0.1, secs(100));
        assert_eq!(stopped.ready_at(), Some(secs(110)), "it starts again without a token");
    }
}
