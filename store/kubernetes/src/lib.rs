//! The store's records as the Kubernetes API: kubectl, client-go and the others work against it as they are.
//!
//! It is a translation and keeps nothing. Every request becomes calls of the store's own gRPC services on behalf of its
//! caller (`calls`), which pass the same layers as calls from outside: the same admission, audit log, rights, rules and
//! versions. What translates is pure and has its tests beside it:
//!
//! - `path`, `query`, `media`: what a request asks for; `body`, `protobuf`, `patch`: what it brings.
//! - `object`: a record as an object (the names are in `muster_manifest::kubernetes`); `table`: as `kubectl get` prints it.
//! - `resources`: the one list of what is served, of which `discovery` and `openapi` are made.
//! - `status`: errors.
//!
//! `server` answers a request; `read`, `watch`, `write` and `delete` are its ways to do so.

mod age;
mod answer;
mod body;
mod calls;
mod delete;
mod discovery;
mod media;
mod namespaces;
mod object;
mod openapi;
mod patch;
mod path;
mod protobuf;
mod query;
mod read;
mod resources;
mod review;
mod server;
mod status;
mod table;
mod watch;
mod write;

pub use self::server::Kubernetes;
