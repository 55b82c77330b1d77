//! What the store remembers of the brake, whoever leads: when nodes were deleted on the cloud's word.
//!
//! A deletion is written down before it is asked for, under the leader's fence. So a controller that takes over, be it
//! again and again, has no fresh allowance. What was written down and then did not happen is forgotten with the next that
//! is written down.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use muster_proto::key::Key;
use muster_proto::lease::{Lease, LeaseSpec};
use muster_proto::meta::Metadata;
use muster_proto::time::Mono;
use muster_proto::wellknown::annotation::CLOUD_DELETIONS;
use muster_proto::wellknown::{CLOUD_BRAKE_LEASE, SYSTEM_NAMESPACE};

use super::Settings;
use super::machine_checks::text;
use crate::plan::{Action, Answer, ControllerName, Failure, Plan, Subject};
use muster_proto::time::Now;

/// Into how many parts the time that a deletion counts for is cut: however many nodes may be deleted, no more moments than
/// this are written down.
const PARTS: u64 = 256;

#[derive(Clone, Debug)]
pub(crate) struct Memory {
    /// How long a deletion counts.
    counts_for: Duration,
    /// After how long it is tried again to read what could not be read.
    retry: Duration,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Unread {
        /// When it is to be read.
        at: Mono,
        /// Why it could not be so far.
        why: Option<String>,
    },
    Reading,
    /// The record as it was last seen; `None` if there is none.
    Known(Option<Box<Lease>>),
}

impl Memory {
    pub(crate) fn new(settings: &Settings) -> Memory {
        let state = State::Unread { at: Mono::ZERO, why: None };
        Memory { counts_for: settings.delete_period, retry: settings.period, state }
    }

    pub(crate) fn is_known(&self) -> bool {
        matches!(self.state, State::Known(_))
    }

    /// Why it is not known.
    pub(crate) fn why_unknown(&self) -> Option<&str> {
        match &self.state {
            State::Unread { why, .. } => why.as_deref(),
            State::Reading | State::Known(_) => None,
        }
    }

    pub(crate) fn is_reading(&self) -> bool {
        matches!(self.state, State::Reading)
    }

    /// Asks for what is not known.
    pub(crate) fn recall(&mut self, now: Mono, plan: &mut Plan) {
        let State::Unread { at, .. } = self.state else { return };
        if now < at {
            return plan.wake_by(at);
        }
        let why = "how many nodes were deleted on the cloud's word is not known yet";
        plan.act(ControllerName::CloudNodes, subject(), Action::ReadLease, why);
        self.state = State::Reading;
    }

    /// What was read: until when each deletion counts, oldest first; `None` if that is still not known.
    pub(crate) fn read(&mut self, result: &Result<Answer, Failure>, now: Now) -> Option<Vec<Mono>> {
        let lease = match result {
            Ok(Answer::Lease(lease)) => Some(lease.clone()),
            Err(Failure::Gone) => None,
            other => {
                self.forget(other, now);
                return None;
            }
        };
        let until = lease.as_ref().map(|lease| self.deletions(lease, now)).unwrap_or_default();
        self.state = State::Known(lease);
        Some(until)
    }

    /// Writes down those that count, and one more.
    pub(crate) fn note(&self, counting: impl Iterator<Item = Mono>, now: Now) -> (Subject, Action) {
        let period = SignedDuration::try_from(self.counts_for).unwrap_or(SignedDuration::MAX);
        let times = counting.map(|until| now.wall_of(until).saturating_sub(period).unwrap_or(Timestamp::MIN));
        let mut counts: BTreeMap<Timestamp, usize> = BTreeMap::new();
        for time in times.chain([now.wall]) {
            *counts.entry(self.rounded_up(time)).or_default() += 1;
        }
        let told: Vec<String> = counts.into_iter().map(|(time, count)| format!("{time}*{count}")).collect();
        let mut lease = match &self.state {
            State::Known(Some(lease)) => lease.clone(),
            _ => Box::new(Lease {
                meta: Metadata::new(key().namespace, key().name),
                spec: LeaseSpec::default(),
            }),
        };
        lease.meta.annotations.insert(CLOUD_DELETIONS.to_owned(), told.join(" "));
        (subject(), Action::WriteLease(lease))
    }

    /// Whether it was written. If not, it may be otherwise than we know by now.
    pub(crate) fn wrote(&mut self, result: &Result<Answer, Failure>, now: Now) -> bool {
        if let Ok(Answer::Lease(lease)) = result {
            self.state = State::Known(Some(lease.clone()));
            return true;
        }
        self.forget(result, now);
        false
    }

    fn forget(&mut self, result: &Result<Answer, Failure>, now: Now) {
        let (wait, why) = match result {
            Ok(_) => (self.retry, "the store answered something else".to_owned()),
            Err(failure @ (Failure::Conflict | Failure::Gone)) => (Duration::ZERO, text(failure)),
            Err(failure) => (self.retry, text(failure)),
        };
        self.state = State::Unread { at: now.mono + wait, why: Some(why) };
    }

    /// Until when the deletions of the record count, as far as they still do.
    fn deletions(&self, lease: &Lease, now: Now) -> Vec<Mono> {
        let period = SignedDuration::try_from(self.counts_for).unwrap_or(SignedDuration::MAX);
        let told = lease.meta.annotations.get(CLOUD_DELETIONS).map_or("", String::as_str);
        let mut until = Vec::new();
        for entry in told.split_whitespace() {
            // What cannot be read counts as one of now: better too slow than too fast.
            let (time, count) = parse(entry).unwrap_or((now.wall, 1));
            // One that lies ahead, by a clock that was ahead of ours, does not count for longer than others.
            let left = time.duration_since(now.wall).saturating_add(period).min(period);
            if left.is_positive() {
                until.extend(std::iter::repeat_n(now.mono + left.unsigned_abs(), count));
            }
        }
        until.sort_unstable();
        until
    }

    /// The next moment that is written down: a deletion may count for a little longer after a fail-over, never shorter.
    fn rounded_up(&self, time: Timestamp) -> Timestamp {
        let part = i64::try_from(self.counts_for.as_secs() / PARTS).unwrap_or(i64::MAX).max(1);
        let seconds = time.as_second() + i64::from(time.subsec_nanosecond() > 0);
        let parts = seconds.div_euclid(part) + i64::from(seconds.rem_euclid(part) > 0);
        Timestamp::from_second(parts.saturating_mul(part)).unwrap_or(time)
    }
}

fn parse(entry: &str) -> Option<(Timestamp, usize)> {
    let (time, count) = entry.split_once('*')?;
    Some((time.parse().ok()?, count.parse().ok()?))
}

fn key() -> Key {
    let namespace = SYSTEM_NAMESPACE.parse().expect("a namespace of ours is a namespace");
    Key { namespace: Some(namespace), name: CLOUD_BRAKE_LEASE.parse().expect("a name of ours is a name") }
}

fn subject() -> Subject {
    Subject::Lease(key())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at;

    fn memory(period: u64) -> Memory {
        Memory::new(&Settings { delete_period: Duration::from_secs(period), ..Settings::default() })
    }

    /// What another controller reads of what one has written, at that second: until when each counts, in seconds.
    fn reread(period: u64, counting: &[u64], written: u64, read: u64) -> Vec<f64> {
        let (_, action) = memory(period).note(counting.iter().map(|until| at(*until).mono), at(written));
        let Action::WriteLease(lease) = action else { panic!("{action:?}") };
        let until = memory(period).read(&Ok(Answer::Lease(lease)), at(read)).unwrap();
        until.into_iter().map(|at_| (at_ - at(0).mono).as_secs_f64()).collect()
    }

    #[test]
    fn what_one_controller_wrote_counts_for_the_next() {
        assert_eq!(reread(100, &[], 10, 20), [110.0]);
        assert_eq!(reread(100, &[80, 90], 30, 50), [80.0, 90.0, 130.0]);
        assert_eq!(reread(100, &[80, 90], 30, 85), [90.0, 130.0], "what counts no more is dropped");
        assert_eq!(reread(100, &[], 50, 20), [120.0], "by a clock behind ours, and still not for ever");
    }

    #[test]
    fn no_more_moments_are_written_down_than_there_are_parts() {
        let day = 24 * 60 * 60;
        let counting: Vec<u64> = (0..20_000).map(|i| 4 * i + 4).collect();
        let (_, action) = memory(day).note(counting.iter().map(|until| at(*until).mono), at(10));
        let Action::WriteLease(lease) = action else { panic!("{action:?}") };
        let told = &lease.meta.annotations[CLOUD_DELETIONS];
        assert!(told.split(' ').count() <= 258, "{told}");
        let until = memory(day).read(&Ok(Answer::Lease(lease)), at(10)).unwrap();
        assert_eq!(until.len(), 20_001);
        let soonest = counting.into_iter().chain([day + 10]).map(|until| at(until).mono);
        let latest = |until: Mono| until + Duration::from_secs(day / PARTS + 1);
        for (until, exact) in until.into_iter().zip(soonest) {
            assert!(exact <= until && until <= latest(exact), "{until:?} {exact:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_counts_as_one_of_now() {
        let mut lease =
            Lease { meta: Metadata::new(key().namespace, key().name), spec: LeaseSpec::default() };
        lease.meta.annotations.insert(CLOUD_DELETIONS.to_owned(), "yesterday 3 x*2".to_owned());
        let until = memory(100).read(&Ok(Answer::Lease(Box::new(lease))), at(10)).unwrap();
        assert_eq!(until, [at(110).mono; 3]);
    }
}
