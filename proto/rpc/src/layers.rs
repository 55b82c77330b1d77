//! Tower layers around every call: span and traceparent, metrics, audit, store id, admission, deadline, bad messages.
//!
//! Each layer works once per call and never per message: streams carry tens of thousands of messages a second.

pub(crate) mod admission;
pub mod audit;
pub mod bad_message;
pub mod call_metrics;
pub mod deadline;
pub mod forwarded;
pub mod store_id;
pub mod trace;

/// Whether a call belongs to health checking or reflection. These are answered under full load, too, and not traced.
pub(crate) fn is_infrastructure(path: &str) -> bool {
    path.starts_with("/grpc.health.") || path.starts_with("/grpc.reflection.")
}
