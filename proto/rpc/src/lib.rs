//! What every Muster process needs: gRPC server, TLS, telemetry, settings, clock, readiness, shutdown.
//!
//! - [`server`]: bind, health, reflection, layers, drain; every service starts here. [`layers`] are the tower layers
//!   around a call: span, metrics, admission, deadline.
//! - [`tls`]: mutual TLS. [`identity`]: the caller's role. [`pki`]: what is read from certificates and requests for them.
//!   [`audit`]: the log of denials and writes.
//! - [`shutdown`]: graceful stop on a signal. [`readiness`]: the state behind `/readyz` and gRPC health.
//! - [`config`]: flags, environment and config file. [`http`]: the HTTP port; [`health_command`] asks its `/readyz`.
//! - [`trace`]: spans, across calls and processes. [`telemetry`]: where spans and logs are sent; [`exemplar`]: links
//!   from latency histograms to traces.
//! - [`process_metrics`]: the version, memory and CPU of a process, at its HTTP port.
//! - [`private_dir`]: where a process may keep its data.
//! - [`clock`]: the only code that reads the machine's clocks.

pub(crate) mod admission;
pub mod audit;
pub mod clock;
pub mod config;
pub mod exemplar;
pub mod health_command;
pub mod http;
pub mod identity;
pub mod layers;
pub(crate) mod metrics_text;
pub mod pki;
pub mod private_dir;
pub mod process_metrics;
pub mod readiness;
pub mod server;
pub mod shutdown;
pub mod telemetry;
pub mod tls;
pub mod trace;
