//! How many nodes may be deleted on the cloud's word: so many within any stretch of a given length.

use std::collections::VecDeque;
use std::time::Duration;

use muster_proto::time::Mono;

#[derive(Clone, Debug)]
pub(crate) struct Brake {
    limit: usize,
    period: Duration,
    /// Until when deletions count that are known to have happened, oldest first.
    until: VecDeque<Mono>,
    under_way: usize,
}

impl Brake {
    pub(crate) fn new(limit: u32, period: Duration) -> Brake {
        Brake { limit: limit as usize, period, until: VecDeque::new(), under_way: 0 }
    }

    /// What the store remembers: until when deletions count, oldest first.
    pub(crate) fn remember(&mut self, until: Vec<Mono>) {
        self.until = until.into();
    }

    /// Until when the deletions count that do now, oldest first.
    pub(crate) fn counting(&self, now: Mono) -> impl Iterator<Item = Mono> {
        self.until.range(self.over(now)..).copied()
    }

    /// How many of those that are known count no more.
    fn over(&self, now: Mono) -> usize {
        self.until.partition_point(|&until| until <= now)
    }

    /// Deletions that count against the limit now.
    pub(crate) fn used(&self, now: Mono) -> usize {
        self.until.len() - self.over(now) + self.under_way
    }

    pub(crate) fn is_on(&self, now: Mono) -> bool {
        self.used(now) >= self.limit
    }

    /// When it lets go, if it is on and nothing else happens; `None` when that cannot be said.
    pub(crate) fn lets_go_at(&self, now: Mono) -> Option<Mono> {
        // As many as are too many must run out first.
        let too_many = (self.used(now) + 1).checked_sub(self.limit)?;
        too_many.checked_sub(1).and_then(|i| self.until.get(self.over(now) + i)).copied()
    }

    pub(crate) fn begin(&mut self) {
        self.under_way += 1;
    }

    /// A deletion that was begun did not happen.
    pub(crate) fn cancel(&mut self) {
        self.under_way -= 1;
    }

    /// A deletion that was begun happened, or may have: at some time until now.
    pub(crate) fn finish(&mut self, now: Mono) {
        self.under_way -= 1;
        self.until.drain(..self.over(now));
        self.until.push_back(now + self.period);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at;

    #[test]
    fn so_many_go_within_any_period_and_the_next_when_the_oldest_has_run_out() {
        let mut brake = Brake::new(2, Duration::from_secs(100));
        assert_eq!((brake.is_on(at(0).mono), brake.lets_go_at(at(0).mono)), (false, None));
        brake.begin();
        brake.finish(at(10).mono);
        brake.begin();
        assert!(brake.is_on(at(20).mono), "one that is under way counts");
        brake.cancel();
        assert!(!brake.is_on(at(20).mono), "one that did not happen does not");
        brake.begin();
        brake.finish(at(30).mono);
        for (seconds, used, lets_go_at) in
            [(30, 2, Some(at(110).mono)), (109, 2, Some(at(110).mono)), (110, 1, None), (130, 0, None)]
        {
            let now = at(seconds).mono;
            assert_eq!((brake.used(now), brake.lets_go_at(now)), (used, lets_go_at), "{seconds} s");
            assert_eq!(brake.is_on(now), used == 2, "{seconds} s");
        }
    }

    #[test]
    fn a_limit_of_none_never_lets_go() {
        let brake = Brake::new(0, Duration::from_secs(100));
        assert_eq!((brake.is_on(at(0).mono), brake.lets_go_at(at(0).mono)), (true, None));
    }
}
