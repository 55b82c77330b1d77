//! Who is to be looked at: now, when what is under way has come back, or later because it failed.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

use muster_proto::backoff::Backoff;
use muster_proto::time::Mono;

use crate::plan::Failure;

const RETRIES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
/// The next version of a record that has moved on is on its way; if it does not come, we look all the same.
const CONFLICT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct WorkQueue<K> {
    now: BTreeSet<K>,
    /// Under way; `true` if it must be looked at again when it is back.
    under_way: HashMap<K, bool>,
    later: BTreeSet<(Mono, K)>,
    failed: HashMap<K, Attempts>,
}

#[derive(Clone, Copy, Debug)]
struct Attempts {
    failures: u32,
    again_at: Mono,
}

impl<K: Clone + Eq + Hash + Ord> WorkQueue<K> {
    /// There is something to look at.
    pub fn add(&mut self, key: K) {
        match self.under_way.get_mut(&key) {
            Some(again) => *again = true,
            None => {
                // Observation is a better reason to look than the time that has passed.
                if let Some(attempts) = self.failed.get(&key) {
                    self.later.remove(&(attempts.again_at, key.clone()));
                }
                self.now.insert(key);
            }
        }
    }

    /// Those to look at now.
    pub fn take(&mut self, now: Mono) -> BTreeSet<K> {
        let mut taken = std::mem::take(&mut self.now);
        while let Some((at, _)) = self.later.first()
            && *at <= now
        {
            taken.insert(self.later.pop_first().expect("there is a first").1);
        }
        taken
    }

    /// Something was proposed for it.
    pub fn begin(&mut self, key: K) {
        self.under_way.insert(key, false);
    }

    /// What was proposed has come back; says how often in a row it has failed now.
    pub fn settle<T>(&mut self, key: &K, result: &Result<T, Failure>, now: Mono) -> u32 {
        let again = self.under_way.remove(key).unwrap_or(false);
        let wait = match result {
            Ok(_) | Err(Failure::Gone) => {
                self.failed.remove(key);
                if again {
                    self.now.insert(key.clone());
                }
                return 0;
            }
            Err(Failure::Conflict) if again => Duration::ZERO,
            Err(Failure::Conflict) => CONFLICT,
            Err(_) => RETRIES.delay(self.failures(key).saturating_add(1), 0.0),
        };
        let failures = self.failures(key).saturating_add(1);
        let again_at = now + wait;
        self.failed.insert(key.clone(), Attempts { failures, again_at });
        self.later.insert((again_at, key.clone()));
        failures
    }

    fn failures(&self, key: &K) -> u32 {
        self.failed.get(key).map_or(0, |attempts| attempts.failures)
    }

    /// It is of no interest any more. What is under way for it will come back all the same.
    pub fn forget(&mut self, key: &K) {
        self.now.remove(key);
        if let Some(attempts) = self.failed.remove(key) {
            self.later.remove(&(attempts.again_at, key.clone()));
        }
    }

    /// When to look again; at once if there is something now.
    pub fn next(&self) -> Option<Mono> {
        if self.now.is_empty() { self.later.first().map(|(at, _)| *at) } else { Some(Mono::ZERO) }
    }
}

impl<K> Default for WorkQueue<K> {
    fn default() -> WorkQueue<K> {
        WorkQueue {
            now: BTreeSet::new(),
            under_way: HashMap::new(),
            later: BTreeSet::new(),
            failed: HashMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::at_ms;

    fn ms(millis: u64) -> Mono {
        at_ms(millis).mono
    }

    fn taken(docket: &mut WorkQueue<&'static str>, millis: u64) -> String {
        docket.take(ms(millis)).into_iter().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_is_under_way_is_looked_at_again_only_when_it_is_back() {
        let mut docket = WorkQueue::default();
        docket.add("b");
        docket.add("a");
        assert_eq!(taken(&mut docket, 0), "a b");
        docket.begin("a");
        docket.add("a");
        assert_eq!((taken(&mut docket, 0).as_str(), docket.next()), ("", None));
        assert_eq!(docket.settle(&"a", &Ok(()), ms(5)), 0);
        assert_eq!(taken(&mut docket, 5), "a", "news came while it was under way");
        docket.begin("a");
        docket.settle(&"a", &Ok(()), ms(6));
        assert_eq!(taken(&mut docket, 1_000_000), "");
    }

    #[test]
    fn a_failure_is_tried_again_later_and_later_and_news_brings_it_forward() {
        let mut docket = WorkQueue::default();
        let later: Result<(), _> = Err(Failure::Later("busy".to_owned()));
        let mut waits = Vec::new();
        let mut now = 0;
        for failures in 1..=9 {
            docket.begin("a");
            assert_eq!(docket.settle(&"a", &later, ms(now)), failures);
            let next = docket.next().unwrap();
            waits.push((next - ms(now)).as_millis());
            now += (next - ms(now)).as_millis() as u64;
            assert_eq!(taken(&mut docket, now - 1), "");
            assert_eq!(taken(&mut docket, now), "a");
        }
        assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        docket.begin("a");
        docket.settle(&"a", &later, ms(now));
        docket.add("a");
        assert_eq!(taken(&mut docket, now), "a");
        assert_eq!(taken(&mut docket, now + 100_000), "", "it is not looked at twice");
    }

    #[test]
    fn a_conflict_waits_for_the_next_version() {
        let mut docket = WorkQueue::default();
        let conflict: Result<(), _> = Err(Failure::Conflict);
        docket.begin("a");
        docket.settle(&"a", &conflict, ms(0));
        assert_eq!(docket.next(), Some(ms(1000)), "unless it does not come");
        docket.begin("b");
        docket.add("b");
        docket.settle(&"b", &conflict, ms(0));
        assert_eq!(taken(&mut docket, 0), "b", "it has come already");
    }

    #[test]
    fn who_is_forgotten_is_not_looked_at() {
        let mut docket = WorkQueue::default();
        docket.begin("a");
        docket.settle(&"a", &Err::<(), _>(Failure::Later(String::new())), ms(0));
        docket.forget(&"a");
        docket.add("b");
        docket.forget(&"b");
        assert_eq!((taken(&mut docket, 100_000).as_str(), docket.next()), ("", None));
    }
}
