//! Generates the messages and clients of etcd's calls, without protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=../../proto/etcd");
    let schema = protox::compile(["etcd/kv.proto", "etcd/rpc.proto"], ["../../proto"])?;
    tonic_prost_build::configure().build_server(false).bytes(".").compile_fds(schema)?;
    Ok(())
}
