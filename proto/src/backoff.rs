//! Exponential backoff: how long to wait before a retry.
//!
//! Delays double from a base to a cap. The caller draws the jitter and passes it in, so that tests are deterministic
//! and a fleet that lost its store does not reconnect all at once.

use std::time::Duration;

/// A schedule of retry delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first delay, before jitter.
    pub base: Duration,
    /// No delay is longer than this, before jitter.
    pub cap: Duration,
}

impl Backoff {
    pub const fn new(base: Duration, cap: Duration) -> Backoff {
        Backoff { base, cap }
    }

    /// The delay after `failures` failures in a row (0 and 1 both mean the first delay).
    ///
    /// `jitter` lies in `0.0..=1.0` and takes away up to half of the delay: the cap stays the longest wait, and half of
    /// the delay stays the shortest, so that jitter never turns a backoff into a busy loop.
    pub fn delay(&self, failures: u32, jitter: f64) -> Duration {
        let doublings = failures.saturating_sub(1);
        let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let full = self.base.saturating_mul(factor).min(self.cap);
        // NaN is treated as no jitter: a bad draw must not panic the retry loop.
        let jitter = if jitter.is_nan() { 0.0 } else { jitter.clamp(0.0, 1.0) };
        full.mul_f64(1.0 - jitter / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_cap_and_jitter_takes_at_most_half() {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        for (failures, jitter, expected_ms) in [
            (0, 0.0, 100),
            (1, 0.0, 100),
            (2, 0.0, 200),
            (3, 0.0, 400),
            (6, 0.0, 3_200),
            (7, 0.0, 5_000),
            (32, 0.0, 5_000),
            (33, 0.0, 5_000),
            (u32::MAX, 0.0, 5_000),
            (1, 1.0, 50),
            (2, 0.5, 150),
            (7, 1.0, 2_500),
            (1, 7.0, 50),
            (1, -1.0, 100),
            (1, f64::NAN, 100),
        ] {
            let expected = Duration::from_millis(expected_ms);
            assert_eq!(backoff.delay(failures, jitter), expected, "{failures} failures, jitter {jitter}");
        }
    }
}
