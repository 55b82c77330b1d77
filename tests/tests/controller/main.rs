//! The controller with a real store and real agents, with all durations divided by ten.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]
#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

mod audit;
mod decisions;
mod drain;
mod drain_command;
mod health;
mod ipam;
mod joining;
mod leader_election;
mod preemption;
mod scheduling_and_pod_gc;
mod zones;
