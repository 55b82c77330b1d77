//! Whether the store can commit: the outcome of the last attempt, and a watchdog on the current batch.
//!
//! The writer reports here, and [`follow`] sets the store's readiness condition: a store that cannot commit is not
//! ready. It becomes ready again by itself, since a writer whose disk failed tries commits of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use muster_proto::time::Mono;
use muster_rpc::clock::SharedClock;
use muster_rpc::readiness::Condition;
use muster_rpc::shutdown::Shutdown;
use tokio::sync::watch;

/// A batch that takes longer is stuck: the disk hangs. The slowest working disk needs a fraction of this.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// How often the watchdog checks the current batch.
const WATCHDOG_PERIOD: Duration = Duration::from_secs(1);

/// What the writer last reported.
pub struct CommitHealth {
    clock: SharedClock,
    /// Why the last commit failed, or why the disk cannot take one; `None` while commits succeed.
    failure: watch::Sender<Option<String>>,
    /// When the writer began its current batch.
    batch_began: Mutex<Option<Mono>>,
    /// Since when commits are possible without an interruption.
    able_since: Mutex<Mono>,
}

impl CommitHealth {
    /// Not able to commit until the writer has checked the disk.
    pub fn new(clock: SharedClock) -> CommitHealth {
        let unchecked = Some("the disk has not been checked yet".to_owned());
        let able_since = Mutex::new(clock.mono());
        CommitHealth {
            clock,
            failure: watch::Sender::new(unchecked),
            batch_began: Mutex::new(None),
            able_since,
        }
    }

    pub fn batch_began(&self, now: Mono) {
        *self.batch_began.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    pub fn batch_ended(&self) {
        let began = self.batch_began.lock().unwrap_or_else(PoisonError::into_inner).take();
        if began.is_some_and(|began| self.clock.mono() - began > STUCK_AFTER) {
            self.set_able();
        }
    }

    fn set_able(&self) {
        *self.able_since.lock().unwrap_or_else(PoisonError::into_inner) = self.clock.mono();
    }

    /// Since when the store can take renewals of leases; `now` while it cannot.
    ///
    /// The time that has passed is measured on the monotonic clock, so that a wall clock that is set does not change it.
    pub fn renewable_since(&self, now: Timestamp) -> Timestamp {
        // The first batch after a failure is evaluated before its commit shows that the disk works again.
        if self.failure.borrow().is_some() {
            return now;
        }
        let able_since = *self.able_since.lock().unwrap_or_else(PoisonError::into_inner);
        now.checked_sub(self.clock.mono() - able_since).unwrap_or(Timestamp::MIN)
    }

    /// Records whether the disk takes commits, and if not, why.
    pub fn observe(&self, committed: Result<(), String>) {
        let failure = committed.err();
        if failure.is_none() && self.failure.borrow().is_some() {
            self.set_able();
        }
        self.failure.send_if_modified(|known| {
            let changed = *known != failure;
            *known = failure;
            changed
        });
    }

    /// Whether a commit is possible now, as far as known.
    pub fn check(&self, now: Mono) -> Result<(), String> {
        let began = *self.batch_began.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(began) = began
            && now - began > STUCK_AFTER
        {
            return Err(format!(
                "a commit has waited for the disk for more than {} s",
                STUCK_AFTER.as_secs()
            ));
        }
        match &*self.failure.borrow() {
            None => Ok(()),
            Some(failure) => Err(failure.clone()),
        }
    }
}

/// Sets the condition at once; the returned future keeps it up to date until shutdown is requested.
pub fn follow(
    health: Arc<CommitHealth>,
    clock: SharedClock,
    condition: Condition,
    shutdown: Shutdown,
) -> impl Future<Output = ()> + Send {
    let mut failure = health.failure.subscribe();
    let update = move || condition.set(health.check(clock.mono()));
    update();
    async move {
        loop {
            tokio::select! {
                () = shutdown.requested() => return,
                changed = failure.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(WATCHDOG_PERIOD) => {}
            }
            update();
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_rpc::clock::{Clock, ManualClock};
    use muster_rpc::readiness::Readiness;

    use super::*;

    #[test]
    fn a_store_can_commit_while_the_last_commit_succeeded_and_none_is_stuck() {
        let health = CommitHealth::new(Arc::new(ManualClock::default()));
        let at = |seconds| Mono::since_origin(Duration::from_secs(seconds));
        assert_eq!(health.check(at(0)), Err("the disk has not been checked yet".to_owned()));
        health.observe(Ok(()));
        assert_eq!(health.check(at(0)), Ok(()));

        health.batch_began(at(10));
        assert_eq!(health.check(at(15)), Ok(()), "slow is not stuck");
        let stuck = health.check(at(16)).unwrap_err();
        assert_eq!(stuck, "a commit has waited for the disk for more than 5 s");
        health.batch_ended();
        assert_eq!(health.check(at(16)), Ok(()));

        health.observe(Err("the disk is full".to_owned()));
        assert_eq!(health.check(at(17)), Err("the disk is full".to_owned()));
        health.observe(Ok(()));
        assert_eq!(health.check(at(17)), Ok(()));
    }

    #[test]
    fn renewals_are_possible_since_the_last_time_that_commits_were_not() {
        let clock = Arc::new(ManualClock::default());
        let health = CommitHealth::new(clock.clone());
        let pass = |seconds| clock.advance(Duration::from_secs(seconds));
        // In seconds.
        let renewable_for = || {
            let now = clock.wall();
            now.duration_since(health.renewable_since(now)).as_secs()
        };
        pass(3);
        assert_eq!(renewable_for(), 0, "the disk has not been checked");
        health.observe(Ok(()));
        pass(3);
        assert_eq!(renewable_for(), 3);
        health.observe(Ok(()));
        assert_eq!(renewable_for(), 3, "one success more changes nothing");

        health.observe(Err("the disk is full".to_owned()));
        pass(60);
        assert_eq!(renewable_for(), 0, "the disk refuses writes");
        health.observe(Ok(()));
        assert_eq!(renewable_for(), 0);
        pass(7);
        assert_eq!(renewable_for(), 7);

        health.batch_began(clock.mono());
        pass(2);
        health.batch_ended();
        assert_eq!(renewable_for(), 9, "a slow commit is no interruption");
        health.batch_began(clock.mono());
        pass(6);
        health.batch_ended();
        assert_eq!(renewable_for(), 0, "the disk was stuck");

        pass(5);
        clock.set_wall(Timestamp::from_second(1_000_000).unwrap());
        assert_eq!(renewable_for(), 5, "a jump of the wall clock is no interruption");
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_follows_failures_at_once_and_a_stuck_commit_within_the_period() {
        let clock = Arc::new(ManualClock::default());
        let health = Arc::new(CommitHealth::new(clock.clone()));
        let (readiness, shutdown) = (Readiness::new([]), Shutdown::new());
        let condition = readiness.condition("disk", "not checked yet", &[]);
        let following = tokio::spawn(follow(health.clone(), clock.clone(), condition, shutdown.clone()));
        let health_followed = || tokio::time::sleep(Duration::from_millis(1));
        health.observe(Ok(()));
        health_followed().await;
        assert!(readiness.is_ready());
        health.observe(Err("the disk is full".to_owned()));
        health_followed().await;
        assert_eq!(readiness.problems(), ["disk: the disk is full"]);
        health.observe(Ok(()));
        health_followed().await;
        assert!(readiness.is_ready());

        health.batch_began(clock.mono());
        clock.advance(STUCK_AFTER + Duration::from_millis(1));
        tokio::time::sleep(WATCHDOG_PERIOD).await;
        assert!(!readiness.is_ready(), "the writer does not report while it is stuck");
        health.batch_ended();
        tokio::time::sleep(WATCHDOG_PERIOD).await;
        assert!(readiness.is_ready());
        shutdown.trigger();
        following.await.unwrap();
    }
}
