//! The `muster.v1` schema and the domain types of Muster. No I/O, no clock.
//!
//! [`pb`] holds the messages of the schema as prost generates them. The other modules are the domain types; converting
//! a message to one validates it. The gRPC clients and servers of the schema are in `muster-grpc`.

pub mod affinity;
pub mod backoff;
pub mod budget;
pub mod certificate_request;
pub mod cidr;
pub mod condition;
mod convert;
pub mod digest;
pub mod drain;
pub mod duration;
pub mod event;
pub mod feature_gates;
pub mod fence;
pub mod identity;
pub mod invalid;
pub mod join_token;
pub mod key;
pub mod label;
pub mod lease;
pub mod meta;
pub mod name;
pub mod node;
pub mod percent;
pub mod pod;
pub mod priority_class;
pub mod quantity;
pub mod record;
pub mod restriction;
pub mod revocation;
pub mod selector;
pub mod taint;
pub mod time;
pub mod watch;
pub mod watch_event;
pub mod wellknown;

/// The messages of the `muster.v1` schema.
#[allow(clippy::all, unused_qualifications, unreachable_pub)]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/muster.v1.rs"));
}

/// Without the token, which is a secret.
impl std::fmt::Debug for pb::JoinRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pb::JoinRequest { node_name, request, token: _, labels } = self;
        f.debug_struct("JoinRequest")
            .field("node_name", node_name)
            .field("request", request)
            .field("labels", labels)
            .finish_non_exhaustive()
    }
}

/// The encoded descriptor set of the schema, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/muster.v1.bin"));

/// The domain of every `google.rpc.ErrorInfo` that Muster sends.
pub const ERROR_DOMAIN: &str = "muster.dev";

/// The gRPC metadata key of a write that is checked and not done: its value is `true`.
pub const DRY_RUN_KEY: &str = "muster-dry-run";
