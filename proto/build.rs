//! Schema to Rust, without a protoc: protox compiles the files, prost and tonic
//! generate from the descriptor set, and the same set feeds reflection.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

/// Kinds whose watch answers are joined from events that are encoded once.
const WATCHED: [(&str, &str); 5] = [
    ("WatchNodesResponse", "NodeWatchEvent"),
    ("WatchLeasesResponse", "LeaseWatchEvent"),
    ("WatchPodsResponse", "PodWatchEvent"),
    ("WatchDisruptionBudgetsResponse", "DisruptionBudgetWatchEvent"),
    ("WatchEventsResponse", "EventWatchEvent"),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=muster");
    let mut files: Vec<PathBuf> =
        fs::read_dir("muster/v1")?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    files.sort();
    let schema = protox::compile(&files, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("muster.v1.bin"), schema.encode_to_vec())?;

    let mut builder = tonic_prost_build::configure().btree_map(".").codec_path("crate::codec::SmallCodec");
    for (response, event) in WATCHED {
        builder = builder.extern_path(
            format!(".muster.v1.{response}"),
            format!("crate::watch::WatchFrame<crate::pb::{event}>"),
        );
    }
    builder.compile_fds(schema)?;
    Ok(())
}
