//! HANDS: keeps one machine's promises.
//!
//! Three loops, each a shell around pure judgement: [`link`] keeps the node on the
//! roll (registration, cadence, status, report), [`supervise`] its pods
//! (lifecycle, admission, eviction), [`watchful`] an eye on what the machine has
//! left (pressure). They meet on the [`board`]. [`runtime`] runs processes that
//! outlive the agent.

pub mod board;
pub mod config;
pub mod identity;
pub mod leave;
pub mod link;
pub mod machine;
pub mod metrics;
pub mod perform;
pub mod pulse;
pub mod run;
pub mod runtime;
pub mod service;
pub mod stops;
pub mod stream;
pub mod supervise;
pub mod survey;
pub mod tell;
pub mod watchful;

pub use config::Config;
pub use run::{RunError, run};
