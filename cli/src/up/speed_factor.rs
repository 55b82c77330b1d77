//! `--speed`: durations are divided and rates are multiplied by one factor. Pure.

use std::time::Duration;

/// How many times faster than normal Muster runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpeedFactor(pub(crate) u32);

impl SpeedFactor {
    pub(super) fn shorten(self, duration: Duration) -> Duration {
        duration / self.0.max(1)
    }

    /// Whole seconds; a positive number stays at least 1.
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
    fn a_factor_of_ten_gives_a_tenth_of_the_time_and_ten_times_the_rate() {
        let ten = SpeedFactor(10);
        assert_eq!(ten.shorten(Duration::from_secs(40)), Duration::from_secs(4));
        assert_eq!(ten.raise(0.1), 1.0);
        for (seconds, expected) in [(300, 30), (40, 4), (5, 1), (0, 0)] {
            assert_eq!(ten.shorten_seconds(seconds), expected, "{seconds}");
        }
    }
}
