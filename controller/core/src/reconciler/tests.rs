//! Scenarios of the whole reconciler on virtual time.

mod drains;
mod evictions;
mod explanations;
mod invariants;
mod liveness;
mod restarts;
mod shaky_link;
mod taints;
mod trace_events;
mod zones;
