//! Scenarios of the whole judgement on virtual time.

mod accounts;
mod drains;
mod evictions;
mod health;
mod promises;
mod restarts;
mod taints;
mod trace_events;
mod zones;
