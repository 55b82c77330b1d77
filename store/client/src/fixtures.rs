//! Records for the tests of this crate.

use muster_proto::meta::Metadata;
use muster_proto::name::Uid;
use muster_proto::node::Node;

/// A node with a uid made from its name.
pub(crate) fn node(name: &str, version: u64) -> Node {
    let meta = Metadata {
        uid: Some(uid(name.as_bytes()[0])),
        resource_version: version,
        ..Metadata::new(None, name.parse().unwrap())
    };
    Node { meta, spec: Default::default(), status: Default::default() }
}

pub(crate) fn uid(seed: u8) -> Uid {
    format!("00000000-0000-4000-8000-0000000000{seed:02x}").parse().unwrap()
}
