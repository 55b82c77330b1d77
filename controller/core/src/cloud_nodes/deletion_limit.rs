//! How many nodes may be deleted because their machines do not exist: a limit within any period of a given length.

use std::collections::VecDeque;
use std::time::Duration;

use muster_proto::time::Mono;

/// A sliding window of deletions.
#[derive(Clone, Debug)]
pub(crate) struct DeletionLimit {
    limit: usize,
    period: Duration,
    /// Until when each deletion that is known to have happened counts, oldest first.
    counted_until: VecDeque<Mono>,
    in_flight: usize,
}

impl DeletionLimit {
    pub(crate) fn new(limit: u32, period: Duration) -> DeletionLimit {
        DeletionLimit { limit: limit as usize, period, counted_until: VecDeque::new(), in_flight: 0 }
    }

    /// Replaces the known deletions by those recorded in the store: until when each counts, oldest first.
    pub(crate) fn set_deletions(&mut self, until: Vec<Mono>) {
        self.counted_until = until.into();
    }

    /// Until when each deletion that counts now counts, oldest first.
    pub(crate) fn counted(&self, now: Mono) -> impl Iterator<Item = Mono> {
        self.counted_until.range(self.expired(now)..).copied()
    }

    /// How many known deletions count no more.
    fn expired(&self, now: Mono) -> usize {
        self.counted_until.partition_point(|&until| until <= now)
    }

    /// Deletions that count against the limit now.
    pub(crate) fn used(&self, now: Mono) -> usize {
        self.counted_until.len() - self.expired(now) + self.in_flight
    }

    pub(crate) fn is_reached(&self, now: Mono) -> bool {
        self.used(now) >= self.limit
    }

    /// When the next deletion is allowed, if the limit is reached and nothing else happens; `None` if that is unknown.
    pub(crate) fn next_allowed_at(&self, now: Mono) -> Option<Mono> {
        // As many deletions as exceed the limit must expire first.
        let too_many = (self.used(now) + 1).checked_sub(self.limit)?;
        too_many.checked_sub(1).and_then(|i| self.counted_until.get(self.expired(now) + i)).copied()
    }

    pub(crate) fn begin(&mut self) {
        self.in_flight += 1;
    }

    /// The deletion in flight did not happen.
    pub(crate) fn cancel(&mut self) {
        self.in_flight -= 1;
    }

    /// The deletion in flight happened, or may have happened, at some time until now.
    pub(crate) fn finish(&mut self, now: Mono) {
        self.in_flight -= 1;
        self.counted_until.drain(..self.expired(now));
        self.counted_until.push_back(now + self.period);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at;

    #[test]
    fn the_limit_holds_in_any_period_and_is_lifted_when_the_oldest_deletion_expires() {
        let mut limit = DeletionLimit::new(2, Duration::from_secs(100));
        assert_eq!((limit.is_reached(at(0).mono), limit.next_allowed_at(at(0).mono)), (false, None));
        limit.begin();
        limit.finish(at(10).mono);
        limit.begin();
        assert!(limit.is_reached(at(20).mono), "a deletion in flight counts");
        limit.cancel();
        assert!(!limit.is_reached(at(20).mono), "a deletion that did not happen does not count");
        limit.begin();
        limit.finish(at(30).mono);
        for (seconds, used, next_allowed_at) in
            [(30, 2, Some(at(110).mono)), (109, 2, Some(at(110).mono)), (110, 1, None), (130, 0, None)]
        {
            let now = at(seconds).mono;
            assert_eq!((limit.used(now), limit.next_allowed_at(now)), (used, next_allowed_at), "{seconds} s");
            assert_eq!(limit.is_reached(now), used == 2, "{seconds} s");
        }
    }

    #[test]
    fn a_limit_of_zero_allows_no_deletion() {
        let limit = DeletionLimit::new(0, Duration::from_secs(100));
        assert_eq!((limit.is_reached(at(0).mono), limit.next_allowed_at(at(0).mono)), (true, None));
    }
}
