//! Node lifecycle: which nodes are alive, and what that means for their records and pods.
//!
//! [`liveness`] measures the silence of each node, [`unknown_status`] is the status of a silent one, [`pod_readiness`]
//! marks its pods not ready. [`zone_state`] says how much of a zone is unhealthy, [`noexecute_taints`] taints unhealthy
//! nodes at the rate their zone allows, and [`noschedule_taints`] follows the conditions that the agent reports.

pub mod liveness;
pub mod noexecute_taints;
pub mod noschedule_taints;
pub mod pod_readiness;
pub mod unknown_status;
pub mod zone_state;
