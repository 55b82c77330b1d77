//! Time as a value, for the pure cores: [`Mono`] for deadlines and ages, [`Now`] for a moment on both clocks.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

use jiff::Timestamp;

/// A moment of monotonic time: how long after the clock's arbitrary origin.
///
/// Arithmetic saturates: a deadline too far in the future is "never", a negative age is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(Duration);

impl Mono {
    /// The origin of the clock.
    pub const ZERO: Mono = Mono(Duration::ZERO);
    /// Later than every other moment.
    pub const MAX: Mono = Mono(Duration::MAX);

    /// The moment this long after the origin.
    pub const fn since_origin(elapsed: Duration) -> Mono {
        Mono(elapsed)
    }

    /// How long after the origin this moment is.
    pub const fn elapsed_since_origin(self) -> Duration {
        self.0
    }
}

impl Add<Duration> for Mono {
    type Output = Mono;

    fn add(self, later: Duration) -> Mono {
        Mono(self.0.saturating_add(later))
    }
}

impl AddAssign<Duration> for Mono {
    fn add_assign(&mut self, later: Duration) {
        *self = *self + later;
    }
}

impl Sub for Mono {
    type Output = Duration;

    fn sub(self, earlier: Mono) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Sub<Duration> for Mono {
    type Output = Mono;

    fn sub(self, earlier: Duration) -> Mono {
        Mono(self.0.saturating_sub(earlier))
    }
}

impl fmt::Display for Mono {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{:?}", self.0)
    }
}

/// The current time: `mono` for measuring silences and deadlines, `wall` for records that people read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    pub mono: Mono,
    pub wall: Timestamp,
}

impl Now {
    /// A moment of the monotonic clock as wall time; for people.
    pub fn wall_of(&self, moment: Mono) -> Timestamp {
        let shifted = if moment >= self.mono {
            self.wall.checked_add(moment - self.mono)
        } else {
            self.wall.checked_sub(self.mono - moment)
        };
        shifted.unwrap_or(if moment >= self.mono { Timestamp::MAX } else { Timestamp::MIN })
    }

    /// A wall time on the monotonic clock, by the current difference of the two.
    pub fn mono_of(&self, moment: Timestamp) -> Mono {
        let apart = moment.duration_since(self.wall);
        if apart.is_negative() { self.mono - apart.unsigned_abs() } else { self.mono + apart.unsigned_abs() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn monotonic_arithmetic_saturates_at_both_ends() {
        let at = Mono::since_origin;
        assert_eq!(at(SECOND) + SECOND, at(2 * SECOND));
        assert_eq!(at(3 * SECOND) - at(SECOND), 2 * SECOND);
        assert_eq!(at(SECOND) - at(3 * SECOND), Duration::ZERO, "an age is never negative");
        assert_eq!(at(SECOND) - 3 * SECOND, Mono::ZERO);
        assert_eq!(Mono::MAX + SECOND, Mono::MAX, "never stays never");
    }

    #[test]
    fn a_moment_converts_between_the_two_clocks() {
        let now = Now {
            mono: Mono::since_origin(Duration::from_secs(100)),
            wall: Timestamp::from_second(1_000).expect("a time"),
        };
        for (mono, wall) in [(100, 1_000), (160, 1_060), (40, 940)] {
            let moment = Mono::since_origin(Duration::from_secs(mono));
            let stamp = Timestamp::from_second(wall).expect("a time");
            assert_eq!((now.wall_of(moment), now.mono_of(stamp)), (stamp, moment));
        }
        assert_eq!(now.mono_of(Timestamp::from_second(0).expect("a time")), Mono::ZERO, "before our origin");
        assert_eq!(now.wall_of(Mono::MAX), Timestamp::MAX, "never");
    }
}
