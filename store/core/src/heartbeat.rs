//! Pure rules of the heartbeat stream: its hello, the holder of the node's lease, and streams that contest each other.

pub mod contested_streams;
mod hello;
mod lease_holder;

pub use self::hello::Hello;
pub use self::lease_holder::{INCARNATION, acquire_lease, holder_instance, join_holder_instance};
