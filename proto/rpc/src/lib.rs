//! How a Muster process listens, is traced, keeps time and stops.
//!
//! - [`server`]: bind, health, reflection, layers, drain; every service starts here. [`layers`] holds what surrounds a
//!   call: its span, the in-flight cap, its deadline.
//! - [`tls`] and [`identity`]: how a connection is protected, and who is calling.
//! - [`shutdown`]: a signal becomes a token, a grace, a stop.
//! - [`config`]: flags, environment and config file. [`http`]: metrics and readiness; [`health_command`] asks for the latter.
//! - [`trace`]: spans, across calls, processes and time. [`telemetry`]: where they and log lines go; [`exemplar`] leads
//!   from a latency to a trace.
//! - [`clock`]: time as an input.

pub mod clock;
pub mod config;
pub mod exemplar;
pub mod health_command;
pub mod http;
pub mod identity;
pub mod layers;
pub mod readiness;
pub mod server;
pub mod shutdown;
pub mod telemetry;
pub mod tls;
pub mod trace;
