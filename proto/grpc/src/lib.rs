//! The gRPC clients and servers of the `muster.v1` schema, one module each: `node_service_client`,
//! `node_service_server` and so on. Their messages are in `muster_proto::pb`; a server's responses with records are in
//! [`records`].
//!
//! They are in a crate of their own so that the pure cores, which use the messages, do not depend on tonic.

pub mod codec;
pub mod records;

#[allow(clippy::all, missing_docs, unused_qualifications, unreachable_pub)]
mod clients {
    include!(concat!(env!("OUT_DIR"), "/client/muster.v1.rs"));
}

#[allow(clippy::all, missing_docs, unused_qualifications, unreachable_pub)]
mod servers {
    include!(concat!(env!("OUT_DIR"), "/server/muster.v1.rs"));
}

pub use clients::*;
pub use servers::*;
