//! HANDS: keeps one machine's promises.
//!
//! Three loops, each a shell around pure judgement: [`node_loop`] keeps the node on the
//! roll (registration, cadence, status, report), [`pod_loop`] its pods
//! (lifecycle, admission, eviction), [`pressure_monitor`] an eye on what the machine has
//! left (pressure). They meet on the [`shared_state`]. [`runtime`] runs processes that
//! outlive the agent.

pub mod config;
pub mod events;
pub mod heartbeat_stream;
pub mod identity;
pub mod machine;
pub mod machine_probe;
pub mod metrics;
pub mod node_loop;
pub mod pod_loop;
pub mod pod_stop_traces;
pub mod pressure_monitor;
pub mod run;
pub mod runtime;
pub mod runtime_probe;
pub mod service;
pub mod shared_state;
pub mod shutdown;

pub use config::Config;
pub use run::{RunError, run};
