//! How many decisions are recorded one by one. What exceeds it is summed up by zone.

use std::time::Duration;

use muster_proto::time::Mono;

/// A bucket that is full at first and filled at a constant rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    size: u32,
    left: u32,
    /// Up to when it has been filled.
    filled_at: Option<Mono>,
    /// The time between two tokens.
    interval: Duration,
}

impl Budget {
    pub(super) const fn new(size: u32, per_second: u32) -> Budget {
        let interval = Duration::from_nanos(1_000_000_000 / per_second as u64);
        Budget { size, left: size, filled_at: None, interval }
    }

    /// Takes a token if there is one.
    pub(super) fn take(&mut self, now: Mono) -> bool {
        let since = *self.filled_at.get_or_insert(now);
        let tokens = u32::try_from((now - since).as_nanos() / self.interval.as_nanos()).unwrap_or(u32::MAX);
        let free = self.size - self.left;
        if tokens >= free {
            (self.left, self.filled_at) = (self.size, Some(now));
        } else {
            self.left += tokens;
            self.filled_at = Some(since + self.interval * tokens);
        }
        let is_left = self.left > 0;
        self.left -= u32::from(is_left);
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at_ms;

    #[test]
    fn a_budget_allows_its_size_at_once_and_then_its_rate() {
        let mut budget = Budget::new(3, 10);
        let mut taken = |millis: u64| (0..5).filter(|_| budget.take(at_ms(millis).mono)).count();
        assert_eq!([0, 0, 99, 100, 350, 10_000].map(&mut taken), [3, 0, 0, 1, 2, 3]);
    }
}
