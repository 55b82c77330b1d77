//! The calls of etcd that the store makes: their schema (`proto/etcd`), and a client that knows several members and what
//! each error says about a transaction.

mod client;
mod error;
pub mod requests;
mod watch;

/// The messages and clients of the schema.
pub mod pb {
    #[allow(clippy::all, missing_docs, unused_qualifications, unreachable_pub)]
    pub mod mvccpb {
        include!(concat!(env!("OUT_DIR"), "/mvccpb.rs"));
    }
    #[allow(clippy::all, missing_docs, unused_qualifications, unreachable_pub)]
    pub mod etcdserverpb {
        include!(concat!(env!("OUT_DIR"), "/etcdserverpb.rs"));
    }
    pub use etcdserverpb::*;
    pub use mvccpb::{Event, KeyValue};
}

pub use client::{Client, ClientError, TlsFiles};
pub use error::EtcdError;
pub use watch::{Watch, WatchAnswer};
