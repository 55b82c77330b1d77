//! Generates Rust from the schema without protoc: protox compiles the files, prost generates the messages from the
//! descriptor set. Reflection serves the same set. `muster-grpc` generates the clients and servers.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

include!("build/watch_responses.rs");

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=muster");
    let mut files: Vec<PathBuf> =
        fs::read_dir("muster/v1")?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    files.sort();
    let schema = protox::compile(&files, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("muster.v1.bin"), schema.encode_to_vec())?;

    let mut builder = tonic_prost_build::configure().btree_map(".").build_client(false).build_server(false);
    // Its token is a secret: `lib.rs` has a debug text without it.
    builder = builder.skip_debug([".muster.v1.JoinRequest"]);
    for (response, rust_type) in watch_responses("crate::pb", "crate::watch::WatchFrame") {
        builder = builder.extern_path(response, rust_type);
    }
    builder.compile_fds(schema)?;
    Ok(())
}
