//! Tower layers around every call: span and traceparent, counters, in-flight cap, deadline, size of messages.
//!
//! Each works once per call and never per message: streams carry tens of thousands of messages a second.

pub mod call_metrics;
pub mod deadline;
pub mod max_in_flight;
pub mod message_size;
pub mod trace;

/// Whether a call belongs to health checking or reflection. Probes must be answered by a server under full load, and
/// nobody wants a trace of them.
pub(crate) fn is_infrastructure(path: &str) -> bool {
    path.starts_with("/grpc.health.") || path.starts_with("/grpc.reflection.")
}
