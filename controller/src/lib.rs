//! JUDGEMENT: decides what is to be done about the fleet.
//!
//! [`world`] is a fold of the store's changes. Each room beside it keeps what it needs to decide about one matter, is told
//! of every [`world::Delta`], and proposes [`plan::Action`]s; none of them waits, calls or reads a clock.
//!
//! A room that decides about one matter offers, as far as it has them:
//!
//! - `observe(&mut self, &Delta, &World, Now)`: what changed;
//! - `decide(&mut self, &World, Now, &mut Plan)`: what to do now, and when to look again;
//! - `settle(&mut self, &Outcome, &World, Now)`: what came of a proposal of its own;
//! - `take_touched(&mut self) -> Vec<Name>`: nodes about whose record it has changed its mind;
//! - `shape(&self, &mut Node, Now)`: writes into a node's next record what it wants of it.
//!
//! All that the rooms want of one node's record is put together into one write, so that they do not get in each other's
//! way.

pub mod account;
pub mod cidr;
pub mod cloud;
pub mod collection;
pub mod conditions;
pub mod config;
pub mod core;
pub mod docket;
pub mod drain;
pub mod drive;
pub mod eviction;
pub mod explain;
pub mod health;
pub mod leader;
pub mod limiter;
pub mod marks;
pub mod metrics;
pub mod note;
pub mod office;
pub mod perform;
pub mod placement;
pub mod plan;
pub mod policy;
pub mod rooms;
pub mod run;
pub mod service;
pub mod story;

pub mod world;
pub mod zone;
pub mod zones;

#[cfg(test)]
mod samples;
