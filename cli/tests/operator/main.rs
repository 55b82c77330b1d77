//! `muster` as an operator uses it: the built binary against a real store and a fake controller.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

mod connection;
mod doctor_live;
mod fake_controller;
mod fleet;
mod harness;
mod joining;
mod kubectl;
mod local_commands;
mod manifests;
mod records;
mod terminal;
mod watch;
