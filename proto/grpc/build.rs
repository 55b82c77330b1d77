//! Generates the gRPC clients and servers of the schema. The messages come from `muster-proto`.

use std::{error::Error, fs, path::PathBuf};

include!("../build/watch_responses.rs");

const SCHEMA: &str = "../muster/v1";
const MESSAGES: &str = "::muster_proto::pb";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=../muster");
    let mut files: Vec<PathBuf> =
        fs::read_dir(SCHEMA)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    files.sort();
    let schema = protox::compile(&files, [".."])?;
    let mut builder = tonic_prost_build::configure()
        .extern_path(".muster.v1", MESSAGES)
        .codec_path("crate::codec::SmallCodec");
    for (response, rust_type) in watch_responses(MESSAGES, "::muster_proto::watch::WatchFrame") {
        builder = builder.extern_path(response, rust_type);
    }
    builder.compile_fds(schema)?;
    Ok(())
}
