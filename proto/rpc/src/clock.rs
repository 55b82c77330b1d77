//! Time as an input: whoever needs it takes a [`Clock`].
//!
//! [`SystemClock`] is the only code of the workspace that asks the machine for the time (a clippy rule holds everybody
//! else to that). Cores are handed [`Mono`], a plain value, so that tests and the simulation decide what time it is.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

/// The clock as processes pass it around.
pub type SharedClock = Arc<dyn Clock>;

/// What time it is, twice over: on the calendar and on a watch that never jumps.
pub trait Clock: Send + Sync {
    /// Wall time, for records that people read. It may jump; never subtract two of them to judge a silence.
    fn now(&self) -> Timestamp;

    /// Monotonic time, for deadlines and ages.
    fn mono(&self) -> Mono;
}

/// A moment of monotonic time: how long after the clock's arbitrary origin.
///
/// Arithmetic saturates: a deadline too far to express is "never", an age before its start is zero.
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

/// How long before a [`SystemClock`] was made its monotonic origin lies: longer than any record has existed, so that a
/// moment before this process began has a place of its own and does not saturate.
const PAST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The machine's own clock. Its monotonic origin lies a century before the moment it was made.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    made: Instant,
}

impl SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place of the workspace that reads the machine's clocks"
    )]
    pub fn new() -> SystemClock {
        SystemClock { made: Instant::now() }
    }

    /// A new system clock in the form that processes pass around.
    pub fn shared() -> SharedClock {
        Arc::new(SystemClock::new())
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place of the workspace that reads the machine's clocks"
    )]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn mono(&self) -> Mono {
        Mono(PAST + self.made.elapsed())
    }
}

/// A clock that stands still until it is told otherwise, for the tests of every crate.
#[derive(Debug)]
pub struct ManualClock {
    time: Mutex<(Timestamp, Mono)>,
}

impl ManualClock {
    pub fn new(wall: Timestamp, mono: Mono) -> ManualClock {
        ManualClock { time: Mutex::new((wall, mono)) }
    }

    /// Both clocks move forward together.
    pub fn advance(&self, by: Duration) {
        let mut time = self.time();
        time.0 = time.0.saturating_add(by).unwrap_or(Timestamp::MAX);
        time.1 += by;
    }

    /// The wall clock jumps, as an operator or NTP may make it; monotonic time does not notice.
    pub fn set_wall(&self, wall: Timestamp) {
        self.time().0 = wall;
    }

    fn time(&self) -> MutexGuard<'_, (Timestamp, Mono)> {
        self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ManualClock {
    /// Starts at the Unix epoch and the monotonic origin.
    fn default() -> ManualClock {
        ManualClock::new(Timestamp::UNIX_EPOCH, Mono::ZERO)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.time().0
    }

    fn mono(&self) -> Mono {
        self.time().1
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
    fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::default();
        clock.advance(5 * SECOND);
        assert_eq!(clock.mono(), Mono::since_origin(5 * SECOND));
        assert_eq!(clock.now(), Timestamp::from_second(5).unwrap());

        clock.set_wall(Timestamp::from_second(1).unwrap());
        assert_eq!(clock.now(), Timestamp::from_second(1).unwrap());
        assert_eq!(clock.mono(), Mono::since_origin(5 * SECOND), "a wall clock that jumps ages nobody");
    }

    #[test]
    fn the_system_clock_never_runs_backwards() {
        let clock = SystemClock::new();
        let first = clock.mono();
        assert!(clock.mono() >= first);
        assert!(clock.now() > Timestamp::UNIX_EPOCH);
    }

    #[test]
    fn the_system_clock_knows_moments_before_it_was_made() {
        let now = SystemClock::new().mono();
        let year = 365 * 24 * 3600 * SECOND;
        assert_eq!(now - (now - year), year, "a record may be older than the process that reads it");
    }
}
