use super::*;
use crate::fixtures::{at, at_ms, uid};

fn settings(identity: &str) -> ElectionSettings {
    ElectionSettings::new(identity)
}

fn election(identity: &str) -> Election {
    Election::new(settings(identity)).unwrap()
}

/// The lease as the store has it, at that version.
fn lease(holder: &str, transitions: i32, version: u64) -> Lease {
    let settings = settings("any");
    let mut meta = Metadata::new(Some(settings.namespace), settings.name);
    meta.uid = Some(uid("lease"));
    meta.resource_version = version;
    let spec = LeaseSpec {
        holder_identity: holder.to_owned(),
        lease_duration_seconds: Some(15),
        // What the holder's own clock says must not matter.
        acquire_time: Some(Timestamp::UNIX_EPOCH),
        renew_time: Some(Timestamp::MAX),
        lease_transitions: transitions,
        ..LeaseSpec::default()
    };
    Lease { meta, spec }
}

/// The next step in few words: `acquire 3`, `renew`, `wait 15000`, `news`, `step down`.
fn next(election: &Election, now: Now) -> String {
    match election.next(now) {
        Step::TryAcquire(lease) => {
            assert_eq!(lease.spec.holder_identity, election.settings.identity);
            let create = if lease.meta.resource_version == 0 { "create" } else { "acquire" };
            format!("{create} {}", lease.spec.lease_transitions)
        }
        Step::Renew => "renew".to_owned(),
        Step::Wait { until: Some(until) } => format!("wait {}", (until - at(0).mono).as_millis()),
        Step::Wait { until: None } => "news".to_owned(),
        Step::StepDown { .. } => "step down".to_owned(),
    }
}

/// One that leads since that second, at that transition.
fn leading(since: u64, transitions: i32) -> Election {
    let mut election = election("a");
    election.acquired(&lease("a", transitions, 5), at(since).mono);
    election
}

#[test]
fn nothing_is_done_before_the_lease_was_looked_for() {
    assert_eq!(next(&election("a"), at(1000)), "news");
    assert_eq!(election("a").leadership(), Leadership::default());
}

#[test]
fn a_lease_that_is_free_is_taken_at_once() {
    for (found, expected) in [
        (None, "create 0"),
        (Some(lease("", 3, 7)), "acquire 4"),
        // Our own last term is over: what it wrote may still be on its way.
        (Some(lease("a", 3, 7)), "acquire 4"),
    ] {
        let mut election = election("a");
        election.observe(found.as_ref(), at(1).mono);
        assert_eq!(next(&election, at(1)), expected);
        let Step::TryAcquire(claim) = election.next(at(1)) else { panic!() };
        assert_eq!(claim.meta.resource_version, found.as_ref().map_or(0, |_| 7), "at the version seen");
        assert_eq!(claim.meta.uid, found.as_ref().and_then(|lease| lease.meta.uid));
        assert_eq!(claim.spec.lease_duration_seconds, Some(15));
        assert_eq!((claim.spec.acquire_time, claim.spec.renew_time), (Some(at(1).wall), Some(at(1).wall)));
    }
}

#[test]
fn anothers_lease_lasts_from_when_it_was_seen_to_change() {
    let mut election = election("b");
    election.observe(Some(&lease("a", 3, 7)), at(100).mono);
    assert_eq!(next(&election, at(100)), "wait 115000");
    assert_eq!(next(&election, at_ms(114_999)), "wait 115000");
    // Seen again and unchanged is no sign of life; a renewal is.
    election.observe(Some(&lease("a", 3, 7)), at(110).mono);
    assert_eq!(next(&election, at(110)), "wait 115000");
    election.observe(Some(&lease("a", 3, 8)), at(112).mono);
    assert_eq!(next(&election, at(115)), "wait 127000");
    assert_eq!(next(&election, at(127)), "acquire 4");
    assert_eq!(election.leadership().holder, "a");
    // Given back, it is free.
    election.observe(Some(&lease("", 3, 9)), at(113).mono);
    assert_eq!(next(&election, at(113)), "acquire 4");
    // A lease of the same name in another namespace is another lease.
    let mut other = lease("a", 0, 9);
    other.meta.uid = Some(uid("other"));
    election.observe(Some(&other), at(114).mono);
    assert_eq!(next(&election, at(114)), "wait 129000");
}

#[test]
fn there_is_a_leader_while_the_lease_is_live_with_any_holder() {
    let mut standby = election("b");
    assert!(!standby.has_leader(at(0).mono), "nothing was read");
    standby.observe(None, at(0).mono);
    assert!(!standby.has_leader(at(0).mono), "there is no lease");
    standby.observe(Some(&lease("a", 3, 7)), at(100).mono);
    assert!(standby.has_leader(at_ms(114_999).mono));
    assert!(!standby.has_leader(at(115).mono), "the lease has expired");
    standby.observe(Some(&lease("a", 3, 8)), at(115).mono);
    assert!(standby.has_leader(at(115).mono), "the holder renewed");
    standby.observe(Some(&lease("", 3, 9)), at(116).mono);
    assert!(!standby.has_leader(at(116).mono), "the lease was released");
    standby.observe(Some(&lease("b", 3, 10)), at(117).mono);
    assert!(!standby.has_leader(at(117).mono), "our own last term is over");

    let mut leader = leading(0, 4);
    assert!(leader.has_leader(at(0).mono));
    leader.observe(Some(&lease("c", 5, 11)), at(1).mono);
    assert!(!leader.has_leader(at(1).mono), "another controller took the lease");
    leader.stepped_down(at(1).mono);
    assert!(leader.has_leader(at(1).mono), "the other controller leads");
}

#[test]
fn the_longer_of_two_durations_counts() {
    for (written, expected) in [(None, "wait 15000"), (Some(1), "wait 15000"), (Some(60), "wait 60000")] {
        let mut held = lease("a", 0, 7);
        held.spec.lease_duration_seconds = written;
        let mut election = election("b");
        election.observe(Some(&held), at(0).mono);
        assert_eq!(next(&election, at(0)), expected, "{written:?}");
    }
}

#[test]
fn who_came_too_late_tries_again_after_a_while() {
    let mut election = election("b");
    election.observe(None, at(0).mono);
    for (setback, now) in [(AttemptFailure::Later, 0), (AttemptFailure::Lost("taken".to_owned()), 2)] {
        election.attempt_failed(setback, at(now).mono);
        assert_eq!(next(&election, at(now)), format!("wait {}", (now + 2) * 1000));
        assert_eq!(next(&election, at(now + 2)), "create 0");
    }
}

#[test]
fn a_leader_renews_every_retry_period() {
    let mut election = leading(100, 3);
    let Leadership { leading, holder, fence } = election.leadership();
    assert_eq!((leading, holder.as_str()), (true, "a"));
    assert_eq!(fence.unwrap().to_string(), "kube-system/muster-controller;transitions=3;holder=a");
    assert_eq!(next(&election, at(101)), "wait 102000");
    assert_eq!(next(&election, at(102)), "renew");
    // The time of the request counts, not the time of the answer.
    election.renewed(6, at(102).mono);
    assert_eq!(next(&election, at_ms(103_500)), "wait 104000");
    assert_eq!(election.time_left(at(103).mono), Duration::from_secs(9));
}

#[test]
fn a_leader_that_cannot_renew_stops_before_another_may_begin() {
    let mut leader = leading(100, 3);
    let mut standby = election("b");
    standby.observe(Some(&lease("a", 3, 5)), at(100).mono);
    for second in [102, 104, 106, 108] {
        assert_eq!(next(&leader, at(second)), "renew");
        leader.attempt_failed(AttemptFailure::Later, at(second).mono);
        assert!(leader.leadership().leading);
    }
    assert_eq!(next(&leader, at(108)), "wait 110000", "not later than its deadline");
    assert_eq!(next(&leader, at_ms(109_999)), "wait 110000");
    assert_eq!(next(&leader, at(110)), "step down");
    assert_eq!(next(&standby, at(110)), "wait 115000");
    leader.stepped_down(at(110).mono);
    assert_eq!(leader.leadership().fence, None);
    assert_eq!(leader.release(), None, "there is nothing to release");
    // No other candidate acquired it: this one may lead again, in another term.
    assert_eq!(next(&leader, at(111)), "wait 112000");
    assert_eq!(next(&leader, at(112)), "acquire 4");
}

#[test]
fn a_leader_stops_as_soon_as_it_has_lost_the_lease() {
    type Lose<'a> = &'a dyn Fn(&mut Election);
    let lost: [(&str, Lose<'_>); 6] = [
        ("held by another", &|election| election.observe(Some(&lease("b", 4, 9)), at(101).mono)),
        ("a later term of our own", &|election| election.observe(Some(&lease("a", 4, 9)), at(101).mono)),
        ("released", &|election| election.observe(Some(&lease("", 3, 9)), at(101).mono)),
        ("gone", &|election| election.observe(None, at(101).mono)),
        ("conflict", &|election| {
            election.attempt_failed(AttemptFailure::Lost("why".to_owned()), at(101).mono);
        }),
        ("fenced", &|election| election.refused(&election.leadership().fence.unwrap())),
    ];
    for (what, lose) in lost {
        let mut election = leading(100, 3);
        lose(&mut election);
        assert_eq!(election.leadership().fence, None, "{what}: nothing is written from here on");
        assert_eq!(next(&election, at(101)), "step down", "{what}");
        assert_eq!(election.release(), None, "{what}");
    }
    let mut election = leading(100, 3);
    election.observe(Some(&lease("a", 3, 9)), at(101).mono);
    assert!(election.leadership().leading, "our own renewal comes back");
    election.refused(&leading(50, 2).leadership().fence.unwrap());
    assert!(election.leadership().leading, "that was a write of an earlier term");
}

#[test]
fn a_deleted_lease_is_created_again_in_a_later_term() {
    let mut election = leading(100, 3);
    election.observe(None, at(101).mono);
    election.stepped_down(at(101).mono);
    assert_eq!(next(&election, at(103)), "create 4");
}

#[test]
fn a_lease_is_released_at_its_newest_version() {
    let mut election = leading(100, 3);
    election.renewed(9, at(102).mono);
    let released = election.release().unwrap();
    assert_eq!((released.spec.holder_identity.as_str(), released.spec.lease_transitions), ("", 3));
    assert_eq!(released.meta.resource_version, 9);
    election.observe(Some(&lease("a", 3, 11)), at(103).mono);
    assert_eq!(election.release().unwrap().meta.resource_version, 11, "another client wrote it meanwhile");

    let mut successor = Election::new(settings("b")).unwrap();
    successor.observe(Some(&Lease { meta: lease("", 3, 12).meta, ..released }), at(103).mono);
    assert_eq!(next(&successor, at(103)), "acquire 4", "it need not wait");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    use SettingsError::*;
    let seconds = Duration::from_secs;
    for (duration, deadline, retry, expected) in [
        (15, 10, 2, Ok(())),
        (15, 10, 0, Err(RetryPeriod)),
        (15, 2, 2, Err(RenewDeadline)),
        (10, 10, 2, Err(LeaseDuration)),
    ] {
        let settings = ElectionSettings {
            lease_duration: seconds(duration),
            renew_deadline: seconds(deadline),
            retry_period: seconds(retry),
            ..settings("a")
        };
        assert_eq!(settings.check(), expected, "{duration} {deadline} {retry}");
    }
    for identity in ["", "a b", "\u{e9}"] {
        assert!(matches!(settings(identity).check(), Err(Identity(..))), "{identity:?}");
    }
    let odd = ElectionSettings { lease_duration: Duration::from_millis(1500), ..settings("a") };
    assert_eq!(odd.duration_seconds(), 2, "rounded up");
}

/// Several candidates for one lease on one clock, with losses: each read and each write may fail.
mod together {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Event {
        /// A candidate does its next step. The request or the answer may be lost.
        Act {
            candidate: usize,
            sent: bool,
            answered: bool,
        },
        Read {
            candidate: usize,
        },
        Wait {
            millis: u64,
        },
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            6 => (0..3usize, prop::bool::weighted(0.8), prop::bool::weighted(0.8))
                .prop_map(|(candidate, sent, answered)| Event::Act { candidate, sent, answered }),
            4 => (0..3usize).prop_map(|candidate| Event::Read { candidate }),
            5 => (0..5000u64).prop_map(|millis| Event::Wait { millis }),
        ]
    }

    /// The store's side: writes by version, renewals by holder.
    #[derive(Default)]
    struct Store {
        lease: Option<Lease>,
        version: u64,
    }

    impl Store {
        fn write(&mut self, mut wanted: Lease) -> Option<Lease> {
            let held = self.lease.as_ref().map_or(0, |lease| lease.meta.resource_version);
            if wanted.meta.resource_version != held {
                return None;
            }
            self.version += 1;
            wanted.meta.resource_version = self.version;
            wanted.meta.uid = Some(uid("lease"));
            self.lease = Some(wanted.clone());
            Some(wanted)
        }

        fn renew(&mut self, holder: &str) -> Option<u64> {
            let lease = self.lease.as_mut().filter(|lease| lease.spec.holder_identity == holder)?;
            self.version += 1;
            lease.meta.resource_version = self.version;
            Some(self.version)
        }
    }

    proptest! {
        #[test]
        fn no_two_fences_hold_and_no_term_comes_twice(events in prop::collection::vec(event(), 1..200)) {
            let mut store = Store::default();
            let mut all = ["a", "b", "c"].map(election);
            let mut terms: Vec<(i32, usize)> = Vec::new();
            let mut millis = 0;
            for event in events {
                match event {
                    Event::Wait { millis: more } => millis += more,
                    Event::Read { candidate } => all[candidate].observe(store.lease.as_ref(), at_ms(millis).mono),
                    Event::Act { candidate, sent, answered } => {
                        act(&mut all[candidate], &mut store, sent, answered, millis);
                    },
                }
                let fences: Vec<_> = all.iter().map(|one| one.leadership().fence).collect();
                for (candidate, fence) in fences.iter().enumerate() {
                    let Some(fence) = fence else { continue };
                    match terms.iter().find(|(term, _)| *term == fence.transitions()) {
                        Some((_, leader)) => prop_assert_eq!(*leader, candidate, "one term of two leaders"),
                        None => terms.push((fence.transitions(), candidate)),
                    }
                }
                let lease = store.lease.as_ref();
                let holding = fences.iter().flatten().filter(|fence| lease.is_some_and(|lease| fence.holds(lease)));
                prop_assert!(holding.count() <= 1, "two write at a time");
                // On clocks of equal speed at most one candidate acts as the leader.
                let now = at_ms(millis);
                let acting = all.iter().filter(|one| {
                    one.leadership().leading && !matches!(one.next(now), Step::StepDown { .. })
                });
                prop_assert!(acting.count() <= 1, "two act at a time");
            }
        }
    }

    fn act(one: &mut Election, store: &mut Store, sent: bool, answered: bool, millis: u64) {
        let now = at_ms(millis);
        match one.next(now) {
            Step::Wait { .. } => {}
            Step::StepDown { .. } => one.stepped_down(now.mono),
            Step::TryAcquire(lease) => {
                let written = if sent { store.write(*lease) } else { None };
                match written.filter(|_| answered) {
                    Some(lease) => one.acquired(&lease, now.mono),
                    None => one.attempt_failed(AttemptFailure::Later, now.mono),
                }
            }
            Step::Renew => {
                let renewed = if sent { store.renew(&one.settings.identity) } else { None };
                match renewed.filter(|_| answered) {
                    Some(version) => one.renewed(version, now.mono),
                    None => one.attempt_failed(AttemptFailure::Later, now.mono),
                }
            }
        }
    }
}
