//! `muster` as an operator uses it: the built binary against a real store, and a controller that says what it
//! is told to.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

mod connecting;
mod controller;
mod fleet;
mod manifests;
mod records;
mod screen;
mod stage;
mod tools;
mod watching;
