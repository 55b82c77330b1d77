//! Decides what to do about the fleet. Pure: no I/O, no clock, no waiting.
//!
//! [`reconciler`] folds in what was seen and decides. It keeps the [`world`], a fold of the store's changes, and the
//! [`controllers`], one module per concern. Each controller keeps what it needs, observes every [`world::Delta`] and plans
//! [`plan::Action`]s. A controller offers, as far as it needs them:
//!
//! - `observe(&mut self, &Delta, &World, Now)`: what changed;
//! - `decide(&mut self, &World, Now, &mut Plan)`: what to do now, and when to look again;
//! - `settle(&mut self, &Outcome, &World, Now)`: the outcome of an action of its own;
//! - `take_changed(&mut self) -> Vec<Name>`: nodes whose record it now wants to be different;
//! - `apply_to(&self, &mut Node, Now)`: writes what it wants into a node's next record.
//!
//! What all controllers want of one node's record becomes one write, so that they do not conflict with each other.

pub mod cloud_nodes;
pub mod controllers;
pub mod deadlines;
pub mod drain;
pub mod explain;
pub mod ipam;
pub mod leader_election;
pub mod node_lifecycle;
pub mod plan;
pub mod pod_gc;
pub mod policy;
pub mod reconciler;
pub mod scheduler;
pub mod taint_eviction;
pub mod token_bucket;
pub mod trace_event;
pub mod world;

#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
