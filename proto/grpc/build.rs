//! Generates the gRPC clients and servers of the schema. The messages come from `muster-proto`.
//!
//! A server has its own types for the responses that consist of records: the store sends records as it keeps them,
//! encoded, and does not decode them first.

use std::{env, error::Error, fs, path::PathBuf};

use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::Label;

include!("../build/watch_responses.rs");

const SCHEMA: &str = "../muster/v1";
const MESSAGES: &str = "::muster_proto::pb";
/// The kinds of records; each has a service of its own.
const KINDS: [&str; 9] = [
    "Node",
    "Lease",
    "Pod",
    "DisruptionBudget",
    "Event",
    "JoinToken",
    "CertificateRequest",
    "Revocation",
    "PriorityClass",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=../muster");
    let mut files: Vec<PathBuf> =
        fs::read_dir(SCHEMA)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    files.sort();
    let schema = protox::compile(&files, [".."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for (folder, is_client) in [("client", true), ("server", false)] {
        let folder = out.join(folder);
        fs::create_dir_all(&folder)?;
        let mut builder = tonic_prost_build::configure()
            .out_dir(folder)
            .build_client(is_client)
            .build_server(!is_client)
            .extern_path(".muster.v1", MESSAGES)
            .codec_path("crate::codec::SmallCodec");
        for (response, rust_type) in watch_responses(MESSAGES, "::muster_proto::watch::WatchFrame") {
            builder = builder.extern_path(response, rust_type);
        }
        if !is_client {
            for (response, rust_type) in record_responses(&schema) {
                builder = builder.extern_path(response, rust_type);
            }
        }
        builder.compile_fds(schema.clone())?;
    }
    Ok(())
}

/// The responses whose first field is a record or a list of records, with the type that a server sends instead.
fn record_responses(schema: &FileDescriptorSet) -> Vec<(String, &'static str)> {
    let services = KINDS.map(|kind| format!("{kind}Service"));
    let files: Vec<_> = schema
        .file
        .iter()
        .filter(|file| file.service.iter().any(|it| services.contains(&it.name().to_owned())))
        .collect();
    let mut found = Vec::new();
    for message in files.into_iter().flat_map(|file| &file.message_type) {
        let is_record = |name: &str| KINDS.iter().any(|kind| name == format!(".muster.v1.{kind}"));
        let Some(first) = message.field.iter().find(|field| field.number() == 1) else { continue };
        if !message.name().ends_with("Response") || !is_record(first.type_name()) {
            continue;
        }
        let rust_type = match (first.label(), message.field.len()) {
            (Label::Repeated, 3) => "crate::records::RecordList",
            (Label::Optional, 1) => "crate::records::EncodedRecord",
            _ => continue,
        };
        found.push((format!(".muster.v1.{}", message.name()), rust_type));
    }
    found
}
