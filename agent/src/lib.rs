//! The agent: registers one machine as a node, renews its lease, posts its status, and runs its pods.
//!
//! Three loops, each a shell around decisions of `muster-agent-core`: [`node_loop`] (registration, lease, status),
//! [`pod_loop`] (admission, lifecycle, eviction) and [`pressure_monitor`] (memory, disk, process ids). They share
//! [`shared_state`]. [`runtime`] runs containers as processes that outlive the agent. [`joining`] gets the agent its
//! certificate, and renews it.

mod blocking_probe;
pub mod config;
pub mod events;
pub mod heartbeat_stream;
pub mod identity;
pub mod joining;
pub mod machine;
pub mod machine_probe;
pub mod metrics;
pub mod node_loop;
pub mod pod_loop;
pub mod pod_stop_traces;
pub mod pressure_monitor;
pub mod readiness;
pub mod run;
pub mod runtime;
pub mod runtime_probe;
pub mod service;
pub mod shared_state;
pub mod shutdown;
pub mod static_pods;

pub use config::Config;
pub use run::{RunError, run};
