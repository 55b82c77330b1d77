//! Requests that a node's record holds: cordons and drains, with the requester and the reason.

use jiff::Timestamp;
use muster_proto::drain::{Cordon, DRAIN_OWNER, Drain};
use muster_proto::node::Node;

/// The node with this cordon; `None` if its owner has one with the same end already.
///
/// The cordons of other owners stay. The first reason stays too, unless the end changes.
pub fn cordon(node: &Node, cordon: Cordon) -> Option<Node> {
    let held = node.spec.cordons.iter().find(|held| held.owner == cordon.owner);
    if node.spec.unschedulable && held.is_some_and(|held| held.expires_at == cordon.expires_at) {
        return None;
    }
    let mut node = node.clone();
    node.spec.cordons.retain(|held| held.owner != cordon.owner);
    node.spec.cordons.push(cordon);
    node.spec.unschedulable = true;
    Some(node)
}

/// The cordon of a person or program, by its identity.
pub fn cordon_of(requested_by: &str, reason: &str, now: Timestamp, expires_at: Option<Timestamp>) -> Cordon {
    Cordon {
        owner: requested_by.to_owned(),
        requested_by: requested_by.to_owned(),
        reason: reason.to_owned(),
        requested_at: now,
        expires_at,
    }
}

/// The node without what the caller requested: its cordon and its drain with the cordon of that. With `all` without any
/// cordon or drain. `None` if there is nothing to remove.
///
/// Taints stay: the node lifecycle controller removes the taint that it added for the cordon.
pub fn uncordon(node: &Node, caller: &str, all: bool) -> Option<Node> {
    let mut next = node.clone();
    let spec = &mut next.spec;
    if all {
        spec.cordons.clear();
        spec.drain = None;
        spec.unschedulable = false;
    } else {
        spec.cordons.retain(|held| held.requested_by != caller);
        spec.drain.take_if(|drain| drain.requested_by == caller);
        // A record from before there were several cordons says by the field alone that somebody set it.
        let is_set_by_field = node.spec.unschedulable && node.spec.cordons.is_empty();
        spec.unschedulable = is_set_by_field || !spec.cordons.is_empty();
    }
    (next != *node).then_some(next)
}

/// The node, cordoned, with this drain; `None` if the same drain is in progress already, by any requester.
///
/// A different drain is replaced, and so is its cordon. The cordons of others stay.
pub fn request_drain(node: &Node, drain: Drain) -> Option<Node> {
    let under_way = node.spec.drain.as_ref().filter(|_| node.spec.unschedulable);
    if under_way.is_some_and(|held| held.is_under_way() && is_equivalent(held, &drain)) {
        return None;
    }
    let mut node = node.clone();
    node.spec.cordons.retain(|held| held.owner != DRAIN_OWNER);
    node.spec.cordons.push(Cordon {
        owner: DRAIN_OWNER.to_owned(),
        ..cordon_of(&drain.requested_by, &drain.reason, drain.requested_at, None)
    });
    node.spec.unschedulable = true;
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

    /// The owners of a node's cordons.
    fn owners(node: &Node) -> Vec<&str> {
        node.spec.cordons.iter().map(|held| held.owner.as_str()).collect()
    }

    #[test]
    fn s175_a_second_cordon_of_the_same_owner_changes_nothing() {
        let first = cordon_of("eva", "new disk", at(5).wall, None);
        let cordoned = cordon(&node("a").build(), first.clone()).unwrap();
        assert!(cordoned.spec.unschedulable);
        assert_eq!(cordoned.spec.cordons, [first]);
        let again = cordon_of("eva", "other reason", at(9).wall, None);
        assert_eq!(cordon(&cordoned, again), None, "the first reason stays");

        let for_a_time = cordon_of("eva", "other reason", at(9).wall, Some(at(60).wall));
        let changed = cordon(&cordoned, for_a_time.clone()).unwrap();
        assert_eq!(changed.spec.cordons, [for_a_time], "it ends now");
    }

    #[test]
    fn each_owner_has_a_cordon_and_removes_its_own() {
        let by = |owner| cordon_of(owner, "why", at(5).wall, None);
        let eva = cordon(&node("a").build(), by("eva")).unwrap();
        let both = cordon(&eva, by("bob")).unwrap();
        assert_eq!(owners(&both), ["eva", "bob"]);
        let without_eva = uncordon(&both, "eva", false).unwrap();
        assert_eq!((owners(&without_eva), without_eva.spec.unschedulable), (vec!["bob"], true));
        assert_eq!(uncordon(&without_eva, "eva", false), None, "nothing of hers is left");
        assert_eq!(uncordon(&without_eva, "bob", false), Some(node("a").build()));
        assert_eq!(uncordon(&both, "eva", true), Some(node("a").build()), "those of others too");
    }

    #[test]
    fn uncordon_removes_everything_of_the_caller_but_the_taints() {
        let free = node("a").taint("team=x:NoSchedule").build();
        let drained = request_drain(&free, drain(0)).unwrap();
        assert_eq!(uncordon(&drained, &drain(0).requested_by, false), Some(free.clone()));
        assert_eq!(uncordon(&drained, "somebody", false), None, "it is the drain of another");
        assert_eq!(uncordon(&free, "eva", true), None, "nothing to remove");
        let by_field = node("a").cordoned().build();
        assert_eq!(uncordon(&by_field, "eva", false), None, "a client set the field");
        assert_eq!(uncordon(&by_field, "eva", true), Some(node("a").build()));
    }

    #[test]
    fn a_drain_has_a_cordon_of_its_own() {
        let drained = request_drain(&node("a").build(), drain(3)).unwrap();
        assert!(drained.spec.unschedulable);
        assert_eq!((owners(&drained), &drained.spec.drain), (vec!["drain"], &Some(drain(3))));
        assert_eq!(drained.spec.cordons[0].reason, drain(3).reason);

        let cordoned = cordon(&node("a").build(), cordon_of("bob", "flaky", at(1).wall, None)).unwrap();
        let drained = request_drain(&cordoned, drain(3)).unwrap();
        assert_eq!(owners(&drained), ["bob", "drain"]);
        let ended = uncordon(&drained, &drain(3).requested_by, false).unwrap();
        assert_eq!(ended, cordoned, "the cordon of another stays");
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
