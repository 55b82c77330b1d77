//! How often heartbeat streams of one agent incarnation replace each other.
//!
//! An agent that reconnects replaces its own older stream; that is rare. Streams that replace each other again and again
//! belong to two agents with one identity, such as a machine and its clone.

use std::collections::VecDeque;
use std::time::Duration;

use muster_proto::time::Mono;

/// More takeovers than this within one lease duration do not come from a single agent: it renews four times in that
/// time, and opens a new stream only after a failed renewal.
const MAX_TAKEOVERS: usize = 3;

/// What a takeover means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    /// An agent reconnected.
    Reconnect,
    /// Two agents use one identity. `warn` is set once in a lease duration.
    Contested { warn: bool },
}

/// The recent takeovers of one lease's heartbeat stream.
#[derive(Debug, Clone, Default)]
pub struct Takeovers {
    /// The newest takeovers, oldest first; at most one more than [`MAX_TAKEOVERS`].
    recent: VecDeque<Mono>,
    warned_at: Option<Mono>,
}

impl Takeovers {
    /// Counts a takeover.
    pub fn observe(&mut self, now: Mono, lease_duration: Duration) -> Takeover {
        self.recent.push_back(now);
        while self.recent.len() > MAX_TAKEOVERS + 1
            || self.recent.front().is_some_and(|at| now - *at >= lease_duration)
        {
            self.recent.pop_front();
        }
        if self.recent.len() <= MAX_TAKEOVERS {
            return Takeover::Reconnect;
        }
        let warn = self.warned_at.is_none_or(|at| now - at >= lease_duration);
        if warn {
            self.warned_at = Some(now);
        }
        Takeover::Contested { warn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_three_takeovers_within_a_lease_duration_are_contested_and_warned_about_once_in_it() {
        use Takeover::{Contested, Reconnect};
        let (warned, silent) = (Contested { warn: true }, Contested { warn: false });
        for (name, takeovers) in [
            (
                "an agent on a bad network",
                vec![(0, Reconnect), (13, Reconnect), (26, Reconnect), (40, Reconnect)],
            ),
            ("a burst", vec![(0, Reconnect), (0, Reconnect), (0, Reconnect), (0, warned), (0, silent)]),
            (
                "two clones that each renew every 10 s",
                vec![
                    (0, Reconnect),
                    (5, Reconnect),
                    (10, Reconnect),
                    (15, warned),
                    (20, silent),
                    (35, silent),
                    (40, silent),
                    (50, silent),
                    (55, warned),
                    (60, silent),
                ],
            ),
            (
                "it ends and begins again",
                vec![
                    (0, Reconnect),
                    (1, Reconnect),
                    (2, Reconnect),
                    (3, warned),
                    (43, Reconnect),
                    (44, Reconnect),
                    (45, Reconnect),
                    (46, warned),
                ],
            ),
        ] {
            let mut seen = Takeovers::default();
            for (second, expected) in takeovers {
                let now = Mono::since_origin(Duration::from_secs(1000 + second));
                assert_eq!(seen.observe(now, Duration::from_secs(40)), expected, "{name}, at {second} s");
            }
        }
    }
}
