//! Time as an input: code that needs the time takes a [`Clock`].
//!
//! [`SystemClock`] is the only code of the workspace that reads the machine's clocks; a clippy rule forbids it
//! everywhere else. Cores get [`Mono`] or [`Now`], plain values, so that tests and simulations choose the time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use muster_proto::time::{Mono, Now};

/// A clock that can be shared.
pub type SharedClock = Arc<dyn Clock>;

/// Wall time and monotonic time.
pub trait Clock: Send + Sync {
    /// Wall time, for records that people read. It may jump: never subtract two readings to measure a silence.
    fn wall(&self) -> Timestamp;

    /// Monotonic time, for deadlines and ages.
    fn mono(&self) -> Mono;

    /// This moment on both clocks.
    fn now(&self) -> Now {
        // The wall clock is read first. If the thread is suspended between the two readings, a past moment that is
        // converted to wall time comes out too early, never too late.
        let wall = self.wall();
        Now { wall, mono: self.mono() }
    }
}

/// The monotonic origin lies this long before a [`SystemClock`] is created. It is longer than any record has existed,
/// so that a moment before the start of the process can be expressed and does not saturate.
const PAST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The machine's clock. Its monotonic origin lies a century before its creation.
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

    /// A new shared system clock.
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
    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }

    fn mono(&self) -> Mono {
        Mono::since_origin(PAST + self.made.elapsed())
    }
}

/// A clock that moves only when a test advances it, for the tests of every crate.
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

    /// The wall clock jumps, as an operator or NTP may set it; monotonic time does not change.
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
    fn wall(&self) -> Timestamp {
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
    fn a_manual_clock_moves_only_when_advanced() {
        let clock = ManualClock::default();
        clock.advance(5 * SECOND);
        assert_eq!(clock.mono(), Mono::since_origin(5 * SECOND));
        assert_eq!(clock.wall(), Timestamp::from_second(5).unwrap());

        clock.set_wall(Timestamp::from_second(1).unwrap());
        assert_eq!(clock.wall(), Timestamp::from_second(1).unwrap());
        assert_eq!(clock.mono(), Mono::since_origin(5 * SECOND), "a jump of the wall clock changes no age");
    }

    #[test]
    fn the_system_clock_never_runs_backwards() {
        let clock = SystemClock::new();
        let first = clock.mono();
        assert!(clock.mono() >= first);
        assert!(clock.wall() > Timestamp::UNIX_EPOCH);
    }

    #[test]
    fn the_system_clock_can_express_moments_before_its_creation() {
        let now = SystemClock::new().mono();
        let year = 365 * 24 * 3600 * SECOND;
        assert_eq!(now - (now - year), year, "a record may be older than the process that reads it");
    }
}
