//! VOCABULARY: what Muster's services say to each other. No I/O, no clock.
//!
//! [`pb`] is the `muster.v1` schema as prost and tonic generate it; the other
//! modules are the domain types checked out of it.

pub mod affinity;
pub mod budget;
pub mod cidr;
pub mod codec;
pub mod condition;
mod convert;
pub mod drain;
pub mod event;
pub mod fence;
pub mod invalid;
pub mod label;
pub mod lease;
pub mod meta;
pub mod name;
pub mod node;
pub mod percent;
pub mod pod;
pub mod quantity;
pub mod record;
pub mod restriction;
pub mod selector;
pub mod taint;
pub mod watch;
pub mod wellknown;

/// The `muster.v1` schema: messages, clients and servers.
#[allow(clippy::all, unused_qualifications, unreachable_pub)]
pub mod pb {
    tonic::include_proto!("muster.v1");
}

/// The encoded descriptor set of the schema, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/muster.v1.bin"));
