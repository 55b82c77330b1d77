//! Decides what to do about the fleet. Pure: no I/O, no clock, no waiting.
//!
//! [`reconciler`] folds in what was observed and decides. It keeps the [`world`], a fold of the store's changes, and
//! the [`controllers`], one module per controller. Each keeps its own state, observes every [`world::Delta`] and plans
//! [`plan::Action`]s. A controller has, as far as it needs them:
//!
//! - `observe(&mut self, &Delta, &World, Now)`: what changed;
//! - `decide(&mut self, &World, Now, &mut Plan)`: what to do now, and when to decide again;
//! - `settle(&mut self, &Outcome, &World, Now)`: the outcome of one of its actions;
//! - `take_changed(&mut self) -> Vec<Name>`: nodes whose record it wants to change;
//! - `apply_to(&self, &mut Node, Now)`: writes its part into a node's next record.
//!
//! [`node_records`] makes one write of what all controllers want in a node's record, so that they do not conflict.

pub mod cloud_nodes;
pub mod controllers;
pub mod cordon_expiry;
pub mod deadlines;
pub mod decision;
pub mod drain;
pub mod explain;
pub mod ipam;
pub mod leader_election;
pub mod node_lifecycle;
pub mod node_records;
pub mod plan;
pub mod pod_gc;
pub mod policy;
pub mod reconciler;
pub mod scheduler;
pub mod signer;
pub mod taint_eviction;
pub mod token_bucket;
pub mod trace_event;
pub mod world;

#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
