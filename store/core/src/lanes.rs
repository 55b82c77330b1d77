//! The lanes of the writer's queue: what may not wait behind everything else.

use muster_proto::identity::Caller;
use muster_proto::record::Kind;

/// Where a request waits. A lane is served before those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Renewals of leases: one that waits too long makes a healthy node look dead.
    Renewals,
    /// The small writes by which the parts of Muster do their work: leases, hellos, and the controller's decisions.
    Parts,
    Others,
}

/// The largest write in the lane of the parts, in bytes. A larger one would delay the others of that lane.
const MAX_PARTS_BYTES: usize = 64 * 1024;

/// The lane of a write that is not a renewal. `is_fenced` tells whether it names a lease that its caller must hold, as
/// a controller's writes do: without TLS every caller is an administrator.
pub fn lane_of(caller: &Caller, kind: Kind, is_fenced: bool, bytes: usize) -> Lane {
    let is_part = match (caller, kind) {
        // Events are for people to read: no part waits for them.
        (_, Kind::Event) => false,
        (Caller::Controller | Caller::Scheduler, _) => true,
        (Caller::Node(_) | Caller::Admin, Kind::Lease) => true,
        (Caller::Admin, _) => is_fenced,
        (Caller::Node(_) | Caller::Viewer | Caller::Unknown(_), _) => false,
    };
    if is_part && bytes <= MAX_PARTS_BYTES { Lane::Parts } else { Lane::Others }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_writes_of_the_parts_have_a_lane_of_their_own() {
        use Kind::{DisruptionBudget, Event, Lease, Node, Pod};
        let node = || Caller::Node("a".into());
        let nobody = || Caller::Unknown("x".into());
        for (caller, kind, is_fenced, bytes, expected) in [
            (Caller::Controller, Node, true, 4_000, Lane::Parts),
            (Caller::Controller, Lease, false, 200, Lane::Parts),
            (Caller::Controller, Node, true, 1_400_000, Lane::Others),
            (Caller::Controller, Event, false, 200, Lane::Others),
            (Caller::Scheduler, Pod, false, 200, Lane::Parts),
            (node(), Lease, false, 200, Lane::Parts),
            (node(), Lease, false, MAX_PARTS_BYTES, Lane::Parts),
            (node(), Lease, false, MAX_PARTS_BYTES + 1, Lane::Others),
            (node(), Node, false, 200, Lane::Others),
            (node(), Pod, false, 200, Lane::Others),
            (node(), Node, true, 200, Lane::Others),
            (Caller::Admin, Lease, false, 200, Lane::Parts),
            (Caller::Admin, Node, false, 200, Lane::Others),
            (Caller::Admin, Node, true, 200, Lane::Parts),
            (Caller::Admin, DisruptionBudget, false, 200, Lane::Others),
            (Caller::Viewer, Lease, false, 200, Lane::Others),
            (nobody(), Lease, true, 200, Lane::Others),
        ] {
            let lane = lane_of(&caller, kind, is_fenced, bytes);
            assert_eq!(lane, expected, "{caller}, {kind}, fenced: {is_fenced}, {bytes} bytes");
        }
    }
}
