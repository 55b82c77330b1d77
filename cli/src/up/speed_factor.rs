//! Shortened time: every duration divided, every rate multiplied by one number. Pure.

use std::time::Duration;

/// How many times faster than usual Muster lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Speed(pub(crate) u32);

impl Speed {
    pub(super) fn shorten(self, duration: Duration) -> Duration {
        duration / self.0.max(1)
    }

    /// Whole seconds, at least one unless there were none.
    pub(super) fn shorten_seconds(self, seconds: i64) -> i64 {
        let shortened = seconds / i64::from(self.0.max(1));
        if seconds > 0 { shortened.max(1) } else { shortened }
    }

    pub(super) fn raise(self, rate: f64) -> f64 {
        rate * f64::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_times_as_fast_is_a_tenth_of_the_time_and_ten_times_the_rate() {
        let ten = Speed(10);
        assert_eq!(ten.shorten(Duration::from_secs(40)), Duration::from_secs(4));
        assert_eq!(ten.raise(0.1), 1.0);
        for (seconds, expected) in [(300, 30), (40, 4), (5, 1), (0, 0)] {
            assert_eq!(ten.shorten_seconds(seconds), expected, "{seconds}");
        }
    }
}
