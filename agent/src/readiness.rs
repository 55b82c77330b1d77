//! When an agent is ready: the store acknowledged a heartbeat within the duration of the node's lease.
//!
//! An agent that the store refused, because another agent uses the node's name, is not ready. AgentService does not need
//! the condition: it answers from memory, and is how an operator finds out why the agent is not ready.

use std::sync::Arc;
use std::time::Duration;

use muster_proto::time::Mono;
use muster_rpc::clock::SharedClock;
use muster_rpc::readiness::Condition;
use muster_rpc::shutdown::Shutdown;

use crate::shared_state::SharedState;

/// What the store last answered to the agent's heartbeats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Acknowledged {
    /// Nothing that counts.
    #[default]
    Never,
    /// The last renewal was acknowledged at this moment.
    At(Mono),
    /// The node's lease is held by another agent.
    Refused(String),
}

/// Until when the agent is ready, or why it is not.
fn ready_until(acknowledged: &Acknowledged, lease: Duration, now: Mono) -> Result<Mono, String> {
    match acknowledged {
        Acknowledged::Never => Err("the store has not acknowledged a heartbeat of this agent yet".to_owned()),
        Acknowledged::Refused(reason) => Err(format!("the store refused this agent: {reason}")),
        Acknowledged::At(at) if now < *at + lease => Ok(*at + lease),
        Acknowledged::At(_) => {
            Err(format!("the store has not acknowledged a heartbeat for the lease's duration of {lease:?}"))
        }
    }
}

/// Keeps the condition up to date until the shutdown is requested.
pub async fn follow(
    shared: Arc<SharedState>,
    lease: Duration,
    clock: SharedClock,
    heartbeat: Condition,
    shutdown: Shutdown,
) {
    let mut acknowledged = shared.acknowledged();
    loop {
        let until = ready_until(&acknowledged.borrow_and_update(), lease, clock.mono());
        heartbeat.set(until.clone().map(drop));
        let expiry = async {
            match until {
                Ok(until) => tokio::time::sleep(until - clock.mono()).await,
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.requested() => return,
            changed = acknowledged.changed() => if changed.is_err() { return },
            () = expiry => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_ready_for_a_lease_after_each_acknowledged_heartbeat() {
        let at = |seconds| Mono::since_origin(Duration::from_secs(seconds));
        let lease = Duration::from_secs(40);
        let ready = |acknowledged: Acknowledged, now| ready_until(&acknowledged, lease, at(now));
        assert_eq!(ready(Acknowledged::At(at(10)), 10), Ok(at(50)));
        assert_eq!(ready(Acknowledged::At(at(10)), 49), Ok(at(50)));
        let expired = ready(Acknowledged::At(at(10)), 50).unwrap_err();
        assert_eq!(expired, "the store has not acknowledged a heartbeat for the lease's duration of 40s");
        let never = ready(Acknowledged::Never, 10).unwrap_err();
        assert_eq!(never, "the store has not acknowledged a heartbeat of this agent yet");
        let refused = ready(Acknowledged::Refused("held by another agent".to_owned()), 10).unwrap_err();
        assert_eq!(refused, "the store refused this agent: held by another agent");
    }
}
