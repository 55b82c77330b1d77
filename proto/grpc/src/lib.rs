//! The gRPC clients and servers of the `muster.v1` schema, one module each: `node_service_client`,
//! `node_service_server` and so on. Their messages are in `muster_proto::pb`.
//!
//! They are in a crate of their own so that the pure cores, which use the messages, do not depend on tonic.

pub mod codec;

#[allow(clippy::all, missing_docs, unused_qualifications, unreachable_pub)]
mod generated {
    tonic::include_proto!("muster.v1");
}

pub use generated::*;
