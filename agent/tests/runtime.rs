//! The process runtime with real processes: their ends, their leftovers, and agents that come and go meanwhile.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

#[path = "runtime/harness.rs"]
mod harness;

#[path = "runtime/adoption.rs"]
mod adoption;
#[path = "runtime/limits.rs"]
mod limits;
#[path = "runtime/starting.rs"]
mod starting;
#[path = "runtime/stopping.rs"]
mod stopping;
