use super::*;
use crate::fixtures::{at, at_ms, node};

const NODES: u32 = 640;

/// A fleet that exists when the controller starts.
fn started(policy: &Policy) -> Liveness {
    let mut liveness = Liveness::new();
    for index in 0..NODES {
        let sample = node(&format!("n{index}")).ready(muster_proto::condition::ConditionStatus::True).build();
        let change = Change { old: None, new: Some(sample.into()) };
        liveness.observe(&change, NodeIndex::new(index), true, policy, at(0));
    }
    liveness
}

#[test]
fn a_fleet_that_is_added_at_once_is_not_checked_at_once() {
    let policy = Policy::default();
    let mut liveness = started(&policy);
    let mut checks = Vec::new();
    for millis in (0..=120_000).step_by(625) {
        // Each node renews every ten seconds, at a time of its own.
        let renew = (0..NODES).filter(|index| u64::from(*index) * 16 / u64::from(NODES) == millis / 625 % 16);
        liveness.observe_renewals(renew.map(NodeIndex::new), &policy, at_ms(millis).mono);
        let mut order = liveness.order.clone();
        checks.push(std::iter::from_fn(|| order.take_due(at_ms(millis).mono)).count());
        assert_eq!(liveness.take_silent(&policy, at_ms(millis).mono).len(), 0, "all nodes renew");
    }
    assert!(checks.iter().all(|checks| *checks <= 100), "{checks:?}");
    let each = checks.iter().sum::<usize>() / NODES as usize;
    assert!((3..=4).contains(&each), "a first check, and then about one per grace: {each}");
}

#[test]
fn a_first_check_before_the_deadline_makes_no_node_silent_early() {
    let policy = Policy::default();
    let mut liveness = started(&policy);
    let grace = u64::try_from(policy.grace.as_millis()).unwrap();
    for millis in [0, 1, grace / 64, grace / 2, grace - 1, grace] {
        assert_eq!(liveness.take_silent(&policy, at_ms(millis).mono).len(), 0, "after {millis} ms");
    }
    assert_eq!(liveness.take_silent(&policy, at_ms(grace + 1).mono).len(), NODES as usize);
    assert_eq!(liveness.next_check(), None, "a silent node is not checked");
}
