//! Sample pods and nodes, and a harness for pod lifecycles, for the tests of this crate and of `muster-agent`.
#![allow(clippy::unwrap_used, reason = "only tests call this module, and a bad sample is a bad test")]

pub mod harness;
pub mod node;
mod samples;

pub use samples::*;
