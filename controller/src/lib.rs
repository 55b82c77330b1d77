//! The controller: follows the store, asks [`muster_controller_core`] what to do, and does it.
//!
//! [`event_loop`] waits and folds in what arrives, [`executor`] performs one action, [`leader_election`] competes
//! for the lease, [`node_trace`] turns decisions into spans, [`service`] answers the calls of operators.
//! [`signer`] issues certificates to nodes, with the [`authority`] of the fleet.

pub mod authority;
pub mod cloud;
pub mod config;
pub mod decision_recorder;
pub mod event_loop;
pub mod executor;
pub mod leader_election;
pub mod metrics;
pub mod node_trace;
pub mod readiness;
pub mod run;
pub mod service;
pub mod signer;
