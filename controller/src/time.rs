//! The moment a decision is made at, on both clocks.

use jiff::Timestamp;
use muster_rpc::clock::Mono;

/// Now: `mono` is what silences and deadlines are measured by, `wall` is what goes into records for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    pub mono: Mono,
    pub wall: Timestamp,
}

impl Now {
    /// A moment of our own clock as the calendar has it; for people.
    pub fn wall_of(&self, moment: Mono) -> Timestamp {
        let shifted = if moment >= self.mono {
            self.wall.checked_add(moment - self.mono)
        } else {
            self.wall.checked_sub(self.mono - moment)
        };
        shifted.unwrap_or(if moment >= self.mono { Timestamp::MAX } else { Timestamp::MIN })
    }

    /// A moment of the calendar on our own clock, as far as the two agree now.
    pub fn mono_of(&self, moment: Timestamp) -> Mono {
        let apart = moment.duration_since(self.wall);
        if apart.is_negative() { self.mono - apart.unsigned_abs() } else { self.mono + apart.unsigned_abs() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_two_clocks_are_read_off_each_other() {
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
