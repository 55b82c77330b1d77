//! The controller with a real store and real agents, in a tenth of the usual time.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]
#![allow(clippy::disallowed_methods, reason = "real processes run by the real clock")]

#[path = "controller/addresses.rs"]
mod addresses;
#[path = "controller/drains.rs"]
mod drains;
#[path = "controller/health.rs"]
mod health;
#[path = "controller/leaders.rs"]
mod leaders;
#[path = "controller/work.rs"]
mod work;
#[path = "controller/zones.rs"]
mod zones;
