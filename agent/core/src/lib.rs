//! What the agent decides, as functions of what it is given, including the time.
//!
//! The node: [`registration`], [`renewal_schedule`], [`certificate_schedule`], [`status`], [`status_report`]. Its pods:
//! [`admission`], [`pod_security`], [`pod_lifecycle`], [`static_pods`], [`shutdown_order`], [`pressure`], [`resources`].
//! [`config`] and [`machine`] are the settings and the facts that these depend on. The crate has no runtime, no network, no
//! log and no clock; `muster-agent` is the
//! shell around it.

/// The source component of the events that the agent records.
pub const EVENT_SOURCE: &str = muster_proto::wellknown::AGENT_COMPONENT;

pub mod admission;
pub mod certificate_schedule;
pub mod config;
pub mod log_marks;
pub mod machine;
pub mod pod_lifecycle;
pub mod pod_security;
pub mod pressure;
pub mod registration;
pub mod renewal_schedule;
pub mod resources;
pub mod shutdown_order;
pub mod static_pods;
pub mod status;
pub mod status_report;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
