//! The process runtime with real processes: their exits, what they leave behind, and agents that stop and start
//! meanwhile.

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
#[path = "runtime/users.rs"]
mod users;
