//! The life of pods on this node: what to start, what to stop, what to say about it, and in which order.
//!
//! A [`PodStates`] folds in everything that is seen (the pods the store binds here, what the runtime reports,
//! the node itself) and the outcome of everything that was done; [`decide`] is a pure function of it. What
//! comes of an action always changes the pod_states, so nothing is proposed twice at one instant.
//!
//! A pod ends in one order, whoever ends it: it is told not to be ready, its hooks run, TERM, KILL when its
//! time is over, what it held is released, its last status is acknowledged by the store, and only then is
//! its record deleted.

mod container;
mod decide;
mod events;
mod observe;
mod plan;
mod pod_state;
mod pod_states;
mod pod_status;
mod restore;
#[cfg(test)]
mod tests;
mod workload;

pub use container::{ContainerReport, Exit, ReportedState};
pub use decide::decide;
pub use plan::{Action, Outcome, Plan, PodTermination};
pub use pod_states::{NodeState, PodReport, PodStates};
pub use workload::Workload;
