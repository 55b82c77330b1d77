//! Requests that a node's record holds: cordons and drains, with the requester and the reason.

use jiff::Timestamp;
use muster_proto::drain::{Cordon, Drain};
use muster_proto::node::Node;

/// The node, cordoned; `None` if it is cordoned already, by any requester.
pub fn cordon(node: &Node, requested_by: &str, reason: &str, now: Timestamp) -> Option<Node> {
    if node.spec.unschedulable {
        return None;
    }
    let mut node = node.clone();
    node.spec.unschedulable = true;
    node.spec.cordon =
        Some(Cordon { requested_by: requested_by.to_owned(), reason: reason.to_owned(), requested_at: now });
    Some(node)
}

/// The node, uncordoned, which ends a drain; `None` if there is no cordon and no drain.
///
/// Taints stay: the node lifecycle controller removes the taint that it added for the cordon.
pub fn uncordon(node: &Node) -> Option<Node> {
    let spec = &node.spec;
    if !spec.unschedulable && spec.cordon.is_none() && spec.drain.is_none() {
        return None;
    }
    let mut node = node.clone();
    node.spec.unschedulable = false;
    node.spec.cordon = None;
    node.spec.drain = None;
    Some(node)
}

/// The node, cordoned, with this drain; `None` if the same drain is in progress already, by any requester.
///
/// A different drain is replaced; an existing cordon keeps its requester.
pub fn request_drain(node: &Node, drain: Drain) -> Option<Node> {
    let under_way = node.spec.drain.as_ref().filter(|_| node.spec.unschedulable);
    if under_way.is_some_and(|held| held.is_under_way() && is_equivalent(held, &drain)) {
        return None;
    }
    let cordoned = cordon(node, &drain.requested_by, &drain.reason, drain.requested_at);
    let mut node = cordoned.unwrap_or_else(|| node.clone());
    node.spec.drain = Some(drain);
    Some(node)
}

/// Whether two drains have the same options and the same time limit.
fn is_equivalent(one: &Drain, other: &Drain) -> bool {
    let timeout = |drain: &Drain| drain.deadline.map(|deadline| deadline.duration_since(drain.requested_at));
    one.options == other.options && timeout(one) == timeout(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{at, drain, node};
    use muster_proto::drain::{DrainOptions, DrainState};

    #[test]
    fn s175_a_second_cordon_changes_nothing() {
        let cordoned = cordon(&node("a").build(), "eva", "new disk", at(5).wall).unwrap();
        assert!(cordoned.spec.unschedulable);
        let Cordon { requested_by, reason, requested_at } = cordoned.spec.cordon.clone().unwrap();
        assert_eq!((requested_by.as_str(), reason.as_str(), requested_at), ("eva", "new disk", at(5).wall));
        assert_eq!(cordon(&cordoned, "bob", "other reason", at(9).wall), None, "the first requester stays");
        assert_eq!(cordon(&node("a").cordoned().build(), "bob", "why", at(9).wall), None, "set by hand");
    }

    #[test]
    fn uncordon_removes_everything_but_the_taints() {
        let free = node("a").taint("team=x:NoSchedule").build();
        let drained = request_drain(&free, drain(0)).unwrap();
        assert_eq!(uncordon(&drained), Some(free.clone()));
        assert_eq!(uncordon(&free), None, "nothing to remove");
        assert_eq!(uncordon(&node("a").cordoned().build()), Some(node("a").build()), "set by hand");
    }

    #[test]
    fn a_drain_cordons_and_keeps_the_requester_of_an_existing_cordon() {
        let drained = request_drain(&node("a").build(), drain(3)).unwrap();
        assert!(drained.spec.unschedulable);
        assert_eq!(drained.spec.cordon.as_ref().unwrap().reason, drain(3).reason);
        assert_eq!(drained.spec.drain, Some(drain(3)));

        let cordoned = cordon(&node("a").build(), "bob", "flaky", at(1).wall).unwrap();
        let drained = request_drain(&cordoned, drain(3)).unwrap();
        assert_eq!(drained.spec.cordon, cordoned.spec.cordon);
    }

    #[test]
    fn the_same_drain_again_changes_nothing_and_another_one_replaces_it() {
        let within = |seconds: u64, drain: Drain| {
            let deadline = drain.requested_at + std::time::Duration::from_secs(seconds);
            Drain { deadline: Some(deadline), ..drain }
        };
        let of_bob = Drain { requested_by: "bob".to_owned(), reason: "mine".to_owned(), ..drain(8) };
        let forced = DrainOptions { force: true, ..DrainOptions::default() };
        let ended = Drain { state: DrainState::Failed, ..drain(3) };
        for (held, asked, is_new, why) in [
            (drain(3), drain(8), false, "the same, later"),
            (drain(3), of_bob, false, "the same, by another requester"),
            (within(60, drain(3)), within(60, drain(8)), false, "the same, with the same limit"),
            (within(60, drain(3)), within(90, drain(8)), true, "with a longer limit"),
            (within(60, drain(3)), drain(8), true, "without a limit"),
            (drain(3), Drain { options: forced, ..drain(8) }, true, "with other options"),
            (ended, drain(8), true, "after the end of the first"),
        ] {
            let held = node("a").draining(held).build();
            let wanted = request_drain(&held, asked.clone());
            assert_eq!(wanted.and_then(|node| node.spec.drain), is_new.then_some(asked), "{why}");
        }
        let mut uncordoned = node("a").draining(drain(3)).build();
        uncordoned.spec.unschedulable = false;
        let again = request_drain(&uncordoned, drain(8)).unwrap();
        assert!(
            again.spec.unschedulable && again.spec.drain == Some(drain(8)),
            "the uncordon was about to end the first one"
        );
    }
}
