use super::*;
use crate::fixtures::{at, at_ms, node};

const NODES: u32 = 640;

/// A fleet that is there when we begin to look.
fn met(policy: &Policy) -> Health {
    let mut health = Health::new();
    for number in 0..NODES {
        let sample =
            node(&format!("n{number}")).ready(muster_proto::condition::ConditionStatus::True).build();
        let change = Change { old: None, new: Some(sample.into()) };
        health.observe(&change, Number::of(number), true, policy, at(0));
    }
    health
}

#[test]
fn a_fleet_that_is_met_at_once_is_not_looked_at_at_once() {
    let policy = Policy::default();
    let mut health = met(&policy);
    let mut looks = Vec::new();
    for millis in (0..=120_000).step_by(625) {
        // Each renews every ten seconds, at a time of its own.
        let renew =
            (0..NODES).filter(|number| u64::from(*number) * 16 / u64::from(NODES) == millis / 625 % 16);
        health.observe_renewals(renew.map(Number::of), &policy, at_ms(millis).mono);
        let mut roll = health.roll.clone();
        looks.push(std::iter::from_fn(|| roll.take_due(at_ms(millis).mono)).count());
        assert_eq!(health.take_silent(&policy, at_ms(millis).mono).len(), 0, "everybody is well");
    }
    assert!(looks.iter().all(|looks| *looks <= 100), "{looks:?}");
    let each = looks.iter().sum::<usize>() / NODES as usize;
    assert!((3..=4).contains(&each), "one to begin with, and then about one per grace: {each}");
}

#[test]
fn a_first_look_that_comes_early_makes_nobody_silent_early() {
    let policy = Policy::default();
    let mut health = met(&policy);
    let grace = u64::try_from(policy.grace.as_millis()).unwrap();
    for millis in [0, 1, grace / 64, grace / 2, grace - 1, grace] {
        assert_eq!(health.take_silent(&policy, at_ms(millis).mono).len(), 0, "after {millis} ms");
    }
    assert_eq!(health.take_silent(&policy, at_ms(grace + 1).mono).len(), NODES as usize);
    assert_eq!(health.next_deadline(), None, "who is silent is not looked at");
}
