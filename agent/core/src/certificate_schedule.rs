//! When an agent renews its certificate, and from when on a failure to do so is worrying.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use muster_proto::backoff::Backoff;

/// How soon a renewal is tried again that failed.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5 * 60));

/// How soon the store is asked again what became of a request: soon at first, since a signer takes less than a second.
const POLL: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(15));

/// The life of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub begins: Timestamp,
    pub ends: Timestamp,
}

impl Life {
    fn whole(self) -> SignedDuration {
        self.ends.duration_since(self.begins).max(SignedDuration::ZERO)
    }

    /// When the certificate is to be renewed: when a third of its life is left, or up to a tenth of its life earlier, so
    /// that machines that joined together do not renew together. `jitter` is random, from 0 to 1.
    pub fn renew_at(self, jitter: f64) -> Timestamp {
        let jitter = if jitter.is_nan() { 0.0 } else { jitter.clamp(0.0, 1.0) };
        let left = self.whole().as_secs_f64() * (1.0 / 3.0 + jitter / 10.0);
        let left = SignedDuration::try_from_secs_f64(left).unwrap_or(SignedDuration::ZERO);
        self.ends.checked_sub(left).unwrap_or(self.ends)
    }

    /// Whether so little is left that somebody should look why it was not renewed: a sixth of its life.
    pub fn is_ending(self, now: Timestamp) -> bool {
        self.ends.duration_since(now) < self.whole() / 6
    }

    /// How long to wait after so many failures in a row. Never longer than a tenth of the certificate's life, so that a
    /// short-lived one is tried several times.
    pub fn retry_after(self, failures: u32, jitter: f64) -> Duration {
        let tenth = Duration::try_from(self.whole() / 10).unwrap_or_default();
        RETRY.delay(failures, jitter).min(tenth.max(Duration::from_millis(100)))
    }
}

/// How long to wait before the store is asked again, after so many answers that said to wait.
pub fn poll_after(answers: u32, jitter: f64) -> Duration {
    POLL.delay(answers, jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: i64, minutes: i64) -> Timestamp {
        Timestamp::from_second(hours * 3600 + minutes * 60).unwrap()
    }

    #[test]
    fn a_certificate_is_renewed_when_about_a_third_of_its_life_is_left() {
        let day = Life { begins: at(0, 0), ends: at(24, 0) };
        for (jitter, expected) in
            [(0.0, at(16, 0)), (0.5, at(14, 48)), (1.0, at(13, 36)), (7.0, at(13, 36)), (f64::NAN, at(16, 0))]
        {
            assert_eq!(day.renew_at(jitter).as_second(), expected.as_second(), "{jitter}");
        }
        let nonsense = Life { begins: at(1, 0), ends: at(0, 0) };
        assert_eq!(nonsense.renew_at(0.0), nonsense.ends);
    }

    #[test]
    fn a_failure_worries_when_a_sixth_is_left() {
        let day = Life { begins: at(0, 0), ends: at(24, 0) };
        assert!(!day.is_ending(at(20, 0)));
        assert!(day.is_ending(at(20, 1)));
        assert!(day.is_ending(at(25, 0)));
    }

    #[test]
    fn retries_become_slower_but_fit_into_what_is_left() {
        let day = Life { begins: at(0, 0), ends: at(24, 0) };
        assert_eq!(day.retry_after(1, 0.0), Duration::from_secs(1));
        assert_eq!(day.retry_after(30, 0.0), Duration::from_secs(300));
        let short = Life { begins: at(0, 0), ends: at(0, 1) };
        assert_eq!(short.retry_after(30, 0.0), Duration::from_secs(6));
        let none = Life { begins: at(0, 0), ends: at(0, 0) };
        assert_eq!(none.retry_after(30, 0.0), Duration::from_millis(100), "never a busy loop");
        assert_eq!(
            (poll_after(1, 0.0), poll_after(30, 0.0)),
            (Duration::from_millis(200), Duration::from_secs(15))
        );
    }
}
