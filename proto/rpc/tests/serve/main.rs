//! The server of `muster-rpc` as its callers see it: over real sockets, with a small service behind it.

#![allow(clippy::unwrap_used, reason = "a test says what broke by panicking")]

mod certificates;
mod health_and_reflection;
mod hostile_callers;
mod limits;
mod mutual_tls;
mod probe;
mod stopping;
mod unix_socket;
