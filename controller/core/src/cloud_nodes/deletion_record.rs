//! The deletions that count against the limit, recorded in a lease of the store so that they outlive the leader.
//!
//! A deletion is recorded before it is requested, under the leader's fence. So a new leader, even after many
//! fail-overs, does not start with an unused limit. A recorded deletion that did not happen is dropped when the next
//! one is recorded.

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

/// Times are rounded to this fraction of the period before they are written, so that the record stays small however many
/// deletions the limit allows.
const TIMES_PER_PERIOD: u64 = 256;

/// The lease with the recorded deletions, as far as it is known.
#[derive(Clone, Debug)]
pub(crate) struct DeletionRecord {
    /// How long a deletion counts.
    period: Duration,
    /// How long to wait before the lease is read again after a failure.
    retry: Duration,
    state: RecordState,
}

#[derive(Clone, Debug)]
enum RecordState {
    Unread {
        /// When to read the lease.
        at: Mono,
        /// Why the last attempt failed.
        why: Option<String>,
    },
    Reading,
    /// The lease as it was last read or written; `None` if there is none.
    Known(Option<Box<Lease>>),
}

impl DeletionRecord {
    pub(crate) fn new(settings: &Settings) -> DeletionRecord {
        let state = RecordState::Unread { at: Mono::ZERO, why: None };
        DeletionRecord { period: settings.delete_period, retry: settings.period, state }
    }

    pub(crate) fn is_known(&self) -> bool {
        matches!(self.state, RecordState::Known(_))
    }

    /// Why the deletions are not known.
    pub(crate) fn why_unknown(&self) -> Option<&str> {
        match &self.state {
            RecordState::Unread { why, .. } => why.as_deref(),
            RecordState::Reading | RecordState::Known(_) => None,
        }
    }

    pub(crate) fn is_reading(&self) -> bool {
        matches!(self.state, RecordState::Reading)
    }

    /// Plans to read the lease, unless it is known or being read.
    pub(crate) fn read_if_unknown(&mut self, now: Mono, plan: &mut Plan) {
        let RecordState::Unread { at, .. } = self.state else { return };
        if now < at {
            return plan.wake_by(at);
        }
        let why = "the recorded deletions of nodes without a machine are not known yet";
        plan.act(ControllerName::CloudNodes, subject(), Action::ReadLease, why, []);
        self.state = RecordState::Reading;
    }

    /// The lease was read. Returns until when each deletion counts, oldest first; `None` if that is still not known.
    pub(crate) fn set_read(&mut self, result: &Result<Answer, Failure>, now: Now) -> Option<Vec<Mono>> {
        let lease = match result {
            Ok(Answer::Lease(lease)) => Some(lease.clone()),
            Err(Failure::Gone) => None,
            other => {
                self.set_unread(other, now);
                return None;
            }
        };
        let until = lease.as_ref().map(|lease| self.deletions(lease, now)).unwrap_or_default();
        self.state = RecordState::Known(lease);
        Some(until)
    }

    /// The action that records the deletions that count and one more.
    pub(crate) fn write(&self, counted: impl Iterator<Item = Mono>, now: Now) -> (Subject, Action) {
        let period = SignedDuration::try_from(self.period).unwrap_or(SignedDuration::MAX);
        let times = counted.map(|until| now.wall_of(until).saturating_sub(period).unwrap_or(Timestamp::MIN));
        let mut counts: BTreeMap<Timestamp, usize> = BTreeMap::new();
        for time in times.chain([now.wall]) {
            *counts.entry(self.rounded_up(time)).or_default() += 1;
        }
        let text: Vec<String> = counts.into_iter().map(|(time, count)| format!("{time}*{count}")).collect();
        let mut lease = match &self.state {
            RecordState::Known(Some(lease)) => lease.clone(),
            _ => Box::new(Lease {
                meta: Metadata::new(key().namespace, key().name),
                spec: LeaseSpec::default(),
            }),
        };
        lease.meta.annotations.insert(CLOUD_DELETIONS.to_owned(), text.join(" "));
        (subject(), Action::WriteLease(lease))
    }

    /// The lease was written. Returns whether that succeeded; if not, the lease is read again.
    pub(crate) fn set_written(&mut self, result: &Result<Answer, Failure>, now: Now) -> bool {
        if let Ok(Answer::Lease(lease)) = result {
            self.state = RecordState::Known(Some(lease.clone()));
            return true;
        }
        self.set_unread(result, now);
        false
    }

    fn set_unread(&mut self, result: &Result<Answer, Failure>, now: Now) {
        let (wait, why) = match result {
            Ok(_) => (self.retry, "the store answered something else".to_owned()),
            Err(failure @ (Failure::Conflict | Failure::Gone)) => (Duration::ZERO, text(failure)),
            Err(failure) => (self.retry, text(failure)),
        };
        self.state = RecordState::Unread { at: now.mono + wait, why: Some(why) };
    }

    /// Until when each recorded deletion counts, without those that count no more.
    fn deletions(&self, lease: &Lease, now: Now) -> Vec<Mono> {
        let period = SignedDuration::try_from(self.period).unwrap_or(SignedDuration::MAX);
        let text = lease.meta.annotations.get(CLOUD_DELETIONS).map_or("", String::as_str);
        let mut until = Vec::new();
        for entry in text.split_whitespace() {
            // An unreadable entry counts as a deletion of now: deleting too slowly is safer than too fast.
            let (time, count) = parse(entry).unwrap_or((now.wall, 1));
            // A time in the future, from a clock ahead of ours, counts no longer than a deletion of now.
            let left = time.duration_since(now.wall).saturating_add(period).min(period);
            if left.is_positive() {
                until.extend(std::iter::repeat_n(now.mono + left.unsigned_abs(), count));
            }
        }
        until.sort_unstable();
        until
    }

    /// The time as it is written, rounded up: after a fail-over a deletion may count a little longer, never shorter.
    fn rounded_up(&self, time: Timestamp) -> Timestamp {
        let part = i64::try_from(self.period.as_secs() / TIMES_PER_PERIOD).unwrap_or(i64::MAX).max(1);
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
    let namespace = SYSTEM_NAMESPACE.parse().expect("the constant is a valid namespace");
    Key { namespace: Some(namespace), name: CLOUD_BRAKE_LEASE.parse().expect("the constant is a valid name") }
}

fn subject() -> Subject {
    Subject::Lease(key())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at;

    fn record(period: u64) -> DeletionRecord {
        DeletionRecord::new(&Settings { delete_period: Duration::from_secs(period), ..Settings::default() })
    }

    /// What a new leader reads at that second after another one has written: until when each counts, in seconds.
    fn reread(period: u64, counted: &[u64], written: u64, read: u64) -> Vec<f64> {
        let (_, action) = record(period).write(counted.iter().map(|until| at(*until).mono), at(written));
        let Action::WriteLease(lease) = action else { panic!("{action:?}") };
        let until = record(period).set_read(&Ok(Answer::Lease(lease)), at(read)).unwrap();
        until.into_iter().map(|at_| (at_ - at(0).mono).as_secs_f64()).collect()
    }

    #[test]
    fn deletions_of_one_leader_count_for_the_next() {
        assert_eq!(reread(100, &[], 10, 20), [110.0]);
        assert_eq!(reread(100, &[80, 90], 30, 50), [80.0, 90.0, 130.0]);
        assert_eq!(reread(100, &[80, 90], 30, 85), [90.0, 130.0], "expired deletions are dropped");
        assert_eq!(
            reread(100, &[], 50, 20),
            [120.0],
            "written by a clock ahead of ours, and counted no longer"
        );
    }

    #[test]
    fn the_number_of_written_times_is_limited() {
        let day = 24 * 60 * 60;
        let counted: Vec<u64> = (0..20_000).map(|i| 4 * i + 4).collect();
        let (_, action) = record(day).write(counted.iter().map(|until| at(*until).mono), at(10));
        let Action::WriteLease(lease) = action else { panic!("{action:?}") };
        let text = &lease.meta.annotations[CLOUD_DELETIONS];
        assert!(text.split(' ').count() <= 258, "{text}");
        let until = record(day).set_read(&Ok(Answer::Lease(lease)), at(10)).unwrap();
        assert_eq!(until.len(), 20_001);
        let soonest = counted.into_iter().chain([day + 10]).map(|until| at(until).mono);
        let latest = |until: Mono| until + Duration::from_secs(day / TIMES_PER_PERIOD + 1);
        for (until, exact) in until.into_iter().zip(soonest) {
            assert!(exact <= until && until <= latest(exact), "{until:?} {exact:?}");
        }
    }

    #[test]
    fn an_unreadable_entry_counts_as_a_deletion_of_now() {
        let mut lease =
            Lease { meta: Metadata::new(key().namespace, key().name), spec: LeaseSpec::default() };
        lease.meta.annotations.insert(CLOUD_DELETIONS.to_owned(), "yesterday 3 x*2".to_owned());
        let until = record(100).set_read(&Ok(Answer::Lease(Box::new(lease))), at(10)).unwrap();
        assert_eq!(until, [at(110).mono; 3]);
    }
}
