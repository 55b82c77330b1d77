//! Judges what concurrent clients saw of one store, whatever its replicas did meanwhile.
//!
//! [`register`] is what a record promises to its callers, [`linearizability`] searches for an order of calls that keeps that
//! promise, [`shrink`] reduces a history without one to what a person can read, and [`watches`] compares what watchers
//! received with what was written. All of it is a function of recorded calls: no I/O and no clock.

pub mod linearizability;
pub mod register;
pub mod shrink;
pub mod watches;
