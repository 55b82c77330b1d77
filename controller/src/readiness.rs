//! When a controller is ready: its watches are synced, and the lease of the leader has a live holder.
//!
//! A standby is ready too: it knows the fleet, sees the leader renew and can take over. A controller is not ready while
//! no controller leads, since then nothing is decided for the fleet.

use muster_rpc::readiness::{Condition, Readiness};
use muster_rpc::shutdown::Shutdown;
use tokio::sync::watch;

use crate::event_loop::Shared;
use crate::service::NAMES;

/// The conditions of a controller's readiness. FleetService needs both: what it explains would be out of date, or would
/// not be done by any controller.
pub struct Conditions {
    watches: Condition,
    leader: Condition,
}

impl Conditions {
    pub fn declare(readiness: &Readiness) -> Conditions {
        Conditions {
            watches: readiness.condition("watches", NOT_SYNCED, &NAMES),
            leader: readiness.condition("leader", NO_LEADER, &NAMES),
        }
    }

    fn set(&self, is_synced: bool, has_leader: bool) {
        self.watches.set(if is_synced { Ok(()) } else { Err(NOT_SYNCED.to_owned()) });
        self.leader.set(if has_leader { Ok(()) } else { Err(NO_LEADER.to_owned()) });
    }

    /// Keeps the conditions up to date until the shutdown is requested.
    pub async fn follow(self, shared: Shared, mut has_leader: watch::Receiver<bool>, shutdown: Shutdown) {
        // The state of the watches changes with an event, and each event is followed by a decision.
        let mut decided = shared.decided();
        loop {
            decided.borrow_and_update();
            let is_synced = shared.reconciler().is_synced();
            let leads = *has_leader.borrow_and_update();
            self.set(is_synced, leads);
            tokio::select! {
                // First: a controller that stops releases its lease, which is not a problem to report.
                biased;
                () = shutdown.requested() => return,
                changed = decided.changed() => if changed.is_err() { return },
                changed = has_leader.changed() => if changed.is_err() { return },
            }
        }
    }
}

const NOT_SYNCED: &str = "the watches of nodes, pods and leases are not synced with the store";
const NO_LEADER: &str = "no controller holds a live leader lease";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_is_ready_when_it_is_synced_and_a_leader_is_alive() {
        let readiness = Readiness::new(NAMES);
        let conditions = Conditions::declare(&readiness);
        for (is_synced, has_leader, expected) in
            [(false, false, false), (true, false, false), (false, true, false), (true, true, true)]
        {
            conditions.set(is_synced, has_leader);
            assert_eq!(readiness.is_ready(), expected, "synced: {is_synced}, leader: {has_leader}");
        }
    }
}
