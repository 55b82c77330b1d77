//! Namespaces. Muster keeps none: a namespace is there while a record is in it, and a few are always there.

use std::collections::BTreeSet;

use muster_proto::record::Kind;
use muster_rpc::server::Answer;
use serde_json::{Value, json};

use crate::answer;
use crate::calls::Selection;
use crate::media::Form;
use crate::object;
use crate::path::At;
use crate::server::Ask;
use crate::status::{Failure, Subject};
use crate::table;

/// Those that clients expect.
const ALWAYS: [&str; 3] = ["default", "kube-node-lease", "kube-system"];
const PAGE: u32 = 500;

/// A namespace.
pub(crate) async fn get(at: &At, name: &str, form: Form, ask: &Ask) -> Result<Answer, Failure> {
    let subject = Subject { resource: at.resource, name, verb: "get" };
    let is_there = ALWAYS.contains(&name) || names(at, ask, Some(name)).await?.0.contains(name);
    if !is_there {
        return Err(Failure::not_found(subject));
    }
    let document = match form {
        Form::Table => table::table(&table::columns(at.resource), &[row(name)], &json!({})),
        Form::Metadata => metadata(name),
        _ => namespace(at, name),
    };
    Ok(answer::json(200, &document))
}

/// All namespaces.
pub(crate) async fn list(at: &At, form: Form, ask: &Ask) -> Result<Answer, Failure> {
    if ask.query.has("labelSelector") || ask.query.has("fieldSelector") {
        return Err(Failure::bad_request("namespaces cannot be selected: they have no labels"));
    }
    let (mut names, version) = names(at, ask, None).await?;
    names.extend(ALWAYS.map(str::to_owned));
    let list_metadata = json!({"resourceVersion": version.to_string()});
    let document = match form {
        Form::Table => {
            let rows: Vec<Value> = names.iter().map(|name| row(name)).collect();
            table::table(&table::columns(at.resource), &rows, &list_metadata)
        }
        Form::MetadataList => {
            let items: Vec<Value> = names.iter().map(|name| metadata(name)).collect();
            json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": list_metadata, "items": items})
        }
        _ => {
            let items: Vec<Value> = names.iter().map(|name| namespace(at, name)).collect();
            json!({"kind": "NamespaceList", "apiVersion": "v1", "metadata": list_metadata, "items": items})
        }
    };
    Ok(answer::json(200, &document))
}

/// The namespaces of records, and the version they were read at. With `only`, it is enough to find that one.
async fn names(at: &At, ask: &Ask, only: Option<&str>) -> Result<(BTreeSet<String>, u64), Failure> {
    let (mut names, mut version) = (BTreeSet::new(), 0);
    for kind in [Kind::Pod, Kind::Lease, Kind::DisruptionBudget] {
        let mut token = String::new();
        loop {
            let namespace = only.unwrap_or_default().to_owned();
            let selection = Selection { namespace, ..Selection::default() };
            let size = if only.is_some() { 1 } else { PAGE };
            let page = ask.store.list(kind, selection, size, &token).await;
            let subject = Subject { resource: at.resource, name: "", verb: "list" };
            let page = page.map_err(|status| Failure::of(&status, subject))?;
            names.extend(page.records.iter().map(|record| object::metadata(record).namespace));
            version = page.resource_version;
            token = page.next_page_token;
            if token.is_empty() || only.is_some() {
                break;
            }
        }
    }
    Ok((names, version))
}

fn namespace(at: &At, name: &str) -> Value {
    json!({
        "kind": at.resource.kind, "apiVersion": at.resource.group_version(), "metadata": own_metadata(name),
        "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
    })
}

fn metadata(name: &str) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": own_metadata(name)})
}

fn own_metadata(name: &str) -> Value {
    json!({"name": name, "labels": {"kubernetes.io/metadata.name": name}, "creationTimestamp": null})
}

fn row(name: &str) -> Value {
    json!({"cells": [name, "Active", "<unknown>"], "object": metadata(name)})
}
