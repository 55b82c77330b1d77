//! The lifecycle of the node's pods: what to start, what to stop, what to post, and in which order.
//!
//! [`PodStates`] folds in every observation (the pods that the store binds here, what the runtime reports, the node
//! itself) and the outcome of every action; [`decide`] is a pure function of it. Every outcome changes the state, so no
//! action is planned twice at one instant.
//!
//! A pod stops in one order, whatever the cause: it is posted not ready, its hooks run, TERM, KILL when its grace
//! period is over and [`TERM_BEFORE_KILL`] has passed since TERM, its resources are released, its last status is acknowledged by the store, and only then is its
//! record deleted.

mod container;
mod decide;
mod events;
mod mirrors;
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
pub use decide::{TERM_BEFORE_KILL, decide};
pub use plan::{Action, Outcome, Plan, PodTermination};
pub use pod_states::{NodeState, PodReport, PodStates};
pub use workload::Workload;
