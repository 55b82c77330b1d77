use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::fixtures::at_ms;

fn ms(millis: u64) -> Mono {
    at_ms(millis).mono
}

fn taken(deadlines: &mut Deadlines<&'static str>, millis: u64) -> String {
    deadlines.take(ms(millis)).join(" ")
}

fn later() -> Result<(), Failure> {
    Err(Failure::Later("busy".to_owned()))
}

#[test]
fn a_key_in_flight_is_due_only_after_its_outcome() {
    let mut deadlines = Deadlines::default();
    deadlines.add("b");
    deadlines.add("a");
    assert_eq!(taken(&mut deadlines, 0), "a b");
    deadlines.begin("a");
    deadlines.add("a");
    assert_eq!((taken(&mut deadlines, 0).as_str(), deadlines.next()), ("", None));
    assert_eq!(deadlines.settle(&"a", &Ok(()), ms(5)), 0);
    assert_eq!(taken(&mut deadlines, 5), "a", "it was added while it was in flight");
    deadlines.begin("a");
    deadlines.settle(&"a", &Ok(()), ms(6));
    assert_eq!(taken(&mut deadlines, 1_000_000), "");
}

#[test]
fn a_failure_is_retried_later_and_later_and_a_change_makes_it_due_now() {
    let mut deadlines = Deadlines::default();
    let mut waits = Vec::new();
    let mut now = 0;
    for failures in 1..=9 {
        deadlines.begin("a");
        assert_eq!(deadlines.settle(&"a", &later(), ms(now)), failures);
        let next = deadlines.next().unwrap();
        waits.push((next - ms(now)).as_millis());
        now += (next - ms(now)).as_millis() as u64;
        assert_eq!(taken(&mut deadlines, now - 1), "");
        assert_eq!(taken(&mut deadlines, now), "a");
    }
    assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
    deadlines.begin("a");
    deadlines.settle(&"a", &later(), ms(now));
    deadlines.add("a");
    assert_eq!(taken(&mut deadlines, now), "a");
    assert_eq!(taken(&mut deadlines, now + 100_000), "", "it is due once, not twice");
}

#[test]
fn each_user_has_its_own_back_off() {
    let second = Duration::from_secs(1);
    for (backoff, waits) in [
        (Backoff::new(Duration::from_millis(5), Duration::from_secs(1000)), [5, 10, 20]),
        (Backoff::new(second, second), [1000, 1000, 1000]),
    ] {
        let mut deadlines = Deadlines::new(backoff);
        let found = waits.map(|_| (deadlines.fail(&"a", ms(0)) - ms(0)).as_millis());
        assert_eq!(found, waits);
        deadlines.succeed(&"a");
        assert_eq!((deadlines.failures(&"a"), deadlines.retry_at(&"a")), (0, None));
    }
}

#[test]
fn a_conflict_waits_for_the_next_version() {
    let mut deadlines = Deadlines::default();
    let conflict: Result<(), _> = Err(Failure::Conflict);
    deadlines.begin("a");
    deadlines.settle(&"a", &conflict, ms(0));
    assert_eq!(deadlines.next(), Some(ms(1000)), "the fallback if no version comes");
    deadlines.begin("b");
    deadlines.add("b");
    deadlines.settle(&"b", &conflict, ms(0));
    assert_eq!(taken(&mut deadlines, 0), "b", "the version came while it was in flight");
}

#[test]
fn a_forgotten_key_is_never_due() {
    let mut deadlines = Deadlines::default();
    deadlines.begin("a");
    deadlines.settle(&"a", &later(), ms(0));
    deadlines.forget(&"a");
    deadlines.add("b");
    deadlines.forget(&"b");
    assert_eq!((taken(&mut deadlines, 100_000).as_str(), deadlines.next()), ("", None));
}

#[test]
fn a_key_has_one_deadline_the_last_one_that_was_set() {
    let mut deadlines = Deadlines::default();
    deadlines.schedule("a", ms(10));
    deadlines.schedule("b", ms(5));
    deadlines.schedule("a", ms(7));
    assert_eq!(deadlines.iter().collect::<Vec<_>>(), [(ms(5), &"b"), (ms(7), &"a")]);
    deadlines.schedule("b", ms(9));
    assert_eq!((deadlines.pop(ms(8)), deadlines.pop(ms(8))), (Some("a"), None));
    deadlines.cancel(&"b");
    assert_eq!((deadlines.next(), deadlines.len()), (None, 0));
}

#[test]
fn a_cancelled_key_keeps_its_failures_and_a_forgotten_one_does_not() {
    let mut deadlines = Deadlines::default();
    deadlines.fail(&"a", ms(0));
    deadlines.cancel(&"a");
    assert_eq!((deadlines.next(), deadlines.failures(&"a")), (None, 1));
    assert_eq!(deadlines.retry_at(&"a"), Some(ms(100)));
    deadlines.forget(&"a");
    assert_eq!(deadlines.failures(&"a"), 0);
}

/// The same rules without an index: every question looks at all keys.
#[derive(Default)]
struct Model {
    keys: BTreeMap<u8, ModelKey>,
}

#[derive(Clone, Copy, Default)]
struct ModelKey {
    due: Option<u64>,
    is_in_flight: bool,
    failures: u32,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u8),
    Schedule(u8, u64),
    Cancel(u8),
    Forget(u8),
    /// Take all that is due, and begin an action for every other key.
    Take,
    Pop,
    Settle(u8, Answer),
    Pass(u64),
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Ok,
    Gone,
    Conflict,
    Later,
}

impl Answer {
    fn result(self) -> Result<(), Failure> {
        match self {
            Answer::Ok => Ok(()),
            Answer::Gone => Err(Failure::Gone),
            Answer::Conflict => Err(Failure::Conflict),
            Answer::Later => later(),
        }
    }
}

impl Model {
    fn key(&mut self, key: u8) -> &mut ModelKey {
        self.keys.entry(key).or_default()
    }

    /// The keys that are due, the longest overdue first.
    fn due(&self, now: u64) -> Vec<u8> {
        let mut due: Vec<(u64, u8)> = self.waiting().filter(|(at, _)| *at <= now).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, key)| key).collect()
    }

    fn waiting(&self) -> impl Iterator<Item = (u64, u8)> {
        let waiting = self.keys.iter().filter(|(_, held)| !held.is_in_flight);
        waiting.filter_map(|(key, held)| Some((held.due?, *key)))
    }

    fn settle(&mut self, key: u8, answer: Answer, now: u64) -> u32 {
        let held = self.key(key);
        let changed = if std::mem::take(&mut held.is_in_flight) { held.due.take() } else { None };
        if matches!(answer, Answer::Conflict | Answer::Later) {
            held.failures += 1;
        }
        match answer {
            Answer::Ok | Answer::Gone => {
                held.failures = 0;
                held.due = changed.or(held.due);
            }
            Answer::Conflict => held.due = Some(changed.unwrap_or(now + 1000)),
            Answer::Later => held.due = Some(now + (100 << (held.failures - 1).min(10)).min(10_000)),
        }
        held.failures
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let key = 0..5u8;
    let answer = prop::sample::select(vec![Answer::Ok, Answer::Gone, Answer::Conflict, Answer::Later]);
    prop_oneof![
        4 => key.clone().prop_map(Step::Add),
        3 => (key.clone(), 0..30_000u64).prop_map(|(key, at)| Step::Schedule(key, at)),
        1 => key.clone().prop_map(Step::Cancel),
        1 => key.clone().prop_map(Step::Forget),
        4 => Just(Step::Take),
        1 => Just(Step::Pop),
        4 => (key, answer).prop_map(|(key, answer)| Step::Settle(key, answer)),
        4 => (0..3_000u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn deadlines_agree_with_a_model_that_looks_at_every_key(
        steps in prop::collection::vec(any_step(), 1..200)
    ) {
        let moment = |millis: u64| Mono::since_origin(Duration::from_millis(millis));
        let (mut deadlines, mut model, mut now) = (Deadlines::default(), Model::default(), 1);
        for step in steps {
            match step {
                Step::Add(key) => {
                    deadlines.add(key);
                    model.key(key).due = Some(0);
                }
                Step::Schedule(key, at) => {
                    deadlines.schedule(key, moment(at));
                    model.key(key).due = Some(at);
                }
                Step::Cancel(key) => {
                    deadlines.cancel(&key);
                    model.key(key).due = None;
                }
                Step::Forget(key) => {
                    deadlines.forget(&key);
                    let held = model.key(key);
                    *held = ModelKey { is_in_flight: held.is_in_flight, ..ModelKey::default() };
                }
                Step::Take => {
                    let mut due = model.due(now);
                    due.sort_unstable();
                    prop_assert_eq!(&deadlines.take(moment(now)), &due);
                    for key in due {
                        model.key(key).due = None;
                        if key % 2 == 0 {
                            deadlines.begin(key);
                            model.key(key).is_in_flight = true;
                        }
                    }
                }
                Step::Pop => {
                    let first = model.due(now).first().copied();
                    prop_assert_eq!(deadlines.pop(moment(now)), first);
                    first.into_iter().for_each(|key| model.key(key).due = None);
                }
                Step::Settle(key, answer) => {
                    let failures = model.settle(key, answer, now);
                    prop_assert_eq!(deadlines.settle(&key, &answer.result(), moment(now)), failures);
                }
                Step::Pass(millis) => now += millis,
            }
            let mut waiting: Vec<(u64, u8)> = model.waiting().collect();
            waiting.sort_unstable();
            let expected: Vec<(Mono, u8)> = waiting.into_iter().map(|(at, key)| (moment(at), key)).collect();
            let found: Vec<(Mono, u8)> = deadlines.iter().map(|(at, key)| (at, *key)).collect();
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(deadlines.next(), expected.first().map(|(at, _)| *at));
            for (key, held) in &model.keys {
                prop_assert_eq!(deadlines.failures(key), held.failures);
                prop_assert_eq!(deadlines.is_in_flight(key), held.is_in_flight);
                let due_at = held.due.filter(|_| !held.is_in_flight).map(moment);
                prop_assert_eq!(deadlines.due_at(key), due_at);
            }
        }
    }
}
