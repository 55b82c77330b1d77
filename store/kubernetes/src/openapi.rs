//! OpenAPI documents of exactly what is served: kubectl validates and explains with them. Made once, at the start.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use http::header::{CACHE_CONTROL, ETAG};
use http::{HeaderMap, HeaderValue};
use muster_manifest::kubernetes;
use muster_rpc::server::Answer;
use serde_json::{Value, json};

use crate::answer;
use crate::patch::merge_key;
#[cfg(test)]
use crate::resources::RESOURCES;
use crate::resources::{Resource, Source, group_version, groups, of_group};

/// The documents, by group.
pub(crate) struct OpenApi {
    index: Value,
    documents: BTreeMap<&'static str, (Value, String)>,
    v2: Value,
}

impl OpenApi {
    pub(crate) fn new() -> OpenApi {
        let all = groups().into_iter().chain([""]);
        let documents: BTreeMap<_, _> = all
            .map(|group| {
                let document = document(group);
                let hash = hash(&document.to_string());
                (group, (document, hash))
            })
            .collect();
        let paths: BTreeMap<String, Value> = documents
            .iter()
            .map(|(group, (_, hash))| {
                let path = place(group);
                let url = format!("/openapi/v3/{path}?hash={hash}");
                (path, json!({"serverRelativeURL": url}))
            })
            .collect();
        OpenApi { index: json!({"paths": paths}), v2: v2(&documents), documents }
    }

    pub(crate) fn index(&self) -> &Value {
        &self.index
    }

    /// In the older form, as JSON.
    pub(crate) fn v2(&self) -> &Value {
        &self.v2
    }

    /// The document of a group.
    pub(crate) fn answer(&self, group: &str, headers: &HeaderMap) -> Answer {
        let Some((document, hash)) = self.documents.get(group) else {
            return answer::text(404, "404 page not found\n");
        };
        let mut answer = answer::large_json(document, headers);
        if let Ok(tag) = HeaderValue::try_from(format!("\"{hash}\"")) {
            answer.headers_mut().insert(ETAG, tag);
        }
        // Its address has its hash.
        answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
        answer
    }
}

fn hash(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:016X}", hasher.finish())
}

/// Such as `api/v1` or `apis/policy/v1`.
fn place(group: &str) -> String {
    let root = if group.is_empty() { "api" } else { "apis" };
    format!("{root}/{}", group_version(group))
}

fn gvk(resource: &Resource) -> Value {
    json!({"group": resource.group, "version": "v1", "kind": resource.kind})
}

fn document(group: &str) -> Value {
    let (mut paths, mut schemas) = (BTreeMap::new(), BTreeMap::new());
    for resource in of_group(group) {
        paths.extend(paths_of(resource));
        let own = match resource.source {
            Source::Record(kind) => {
                let lists = |path: &str| merge_key(path);
                let (name, definitions) = kubernetes::definitions(kind, &lists);
                schemas.extend(definitions);
                name
            }
            _ => {
                let name = format!("dev.muster.v1.{}", resource.kind);
                let text = json!({"type": "string"});
                schemas.insert(
                    name.clone(),
                    json!({"type": "object", "properties": {"apiVersion": text, "kind": text}}),
                );
                name
            }
        };
        if let Some(schema) = schemas.get_mut(&own) {
            schema["x-kubernetes-group-version-kind"] = json!([gvk(resource)]);
        }
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "Muster", "version": env!("CARGO_PKG_VERSION")}, "paths": paths,
        "components": {"schemas": schemas},
    })
}

/// The operations on a resource, with what clients look for: the kind, and which parameters there are.
fn paths_of(resource: &Resource) -> Vec<(String, Value)> {
    let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("/{}{scope}/{}", place(resource.group), resource.plural);
    let operation = |action: &str, writes: bool| {
        let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
        let parameters: Vec<Value> = if writes {
            ["dryRun", "fieldManager", "fieldValidation"].into_iter().map(parameter).collect()
        } else {
            ["labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "watch"]
                .into_iter()
                .map(parameter)
                .collect()
        };
        json!({
            "x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk(resource), "parameters": parameters,
            "responses": {"200": {"description": "OK"}},
        })
    };
    let of = |operations: &[(&str, &str, bool)]| -> Value {
        let served = operations.iter().filter(|(verb, ..)| resource.allows(verb));
        Value::Object(
            served.map(|(verb, method, writes)| ((*method).to_owned(), operation(verb, *writes))).collect(),
        )
    };
    let of_collection = of(&[("list", "get", false), ("create", "post", true)]);
    let mut of_object = of(&[
        ("get", "get", false),
        ("update", "put", true),
        ("patch", "patch", true),
        ("delete", "delete", true),
    ]);
    if resource.allows("patch") {
        let forms = [
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
        ];
        let content: BTreeMap<&str, Value> = forms.into_iter().map(|form| (form, json!({}))).collect();
        of_object["patch"]["requestBody"] = json!({"content": content});
    }
    vec![(format!("{collection}/{{name}}"), of_object), (collection, of_collection)]
}

/// All types in the older form.
fn v2(documents: &BTreeMap<&'static str, (Value, String)>) -> Value {
    let (mut definitions, mut paths) = (BTreeMap::new(), BTreeMap::new());
    for (document, _) in documents.values() {
        let schemas = document["components"]["schemas"].as_object().into_iter().flatten();
        definitions.extend(schemas.map(|(name, schema)| (name.clone(), in_v2(schema))));
        let own = document["paths"].as_object().into_iter().flatten();
        paths.extend(own.map(|(path, operations)| (path.clone(), operations.clone())));
    }
    json!({
        "swagger": "2.0", "info": {"title": "Muster", "version": env!("CARGO_PKG_VERSION")}, "paths": paths,
        "definitions": definitions,
    })
}

/// A type with the references of the older form.
fn in_v2(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => match fields.get("allOf").and_then(|all| all[0]["$ref"].as_str()) {
            Some(reference) => json!({"$ref": reference.replace("#/components/schemas/", "#/definitions/")}),
            None => Value::Object(fields.iter().map(|(name, value)| (name.clone(), in_v2(value))).collect()),
        },
        Value::Array(items) => items.iter().map(in_v2).collect(),
        scalar => scalar.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_is_in_the_index_and_every_reference_leads_somewhere() {
        let openapi = OpenApi::new();
        assert_eq!(openapi.index["paths"].as_object().map(serde_json::Map::len), Some(groups().len() + 1));
        for (group, (document, _)) in &openapi.documents {
            let schemas = &document["components"]["schemas"];
            let text = document.to_string();
            for reference in text.split("#/components/schemas/").skip(1) {
                let name = reference.split('"').next().expect("the end of a text");
                assert!(schemas[name].is_object(), "{group}: {name}");
            }
        }
    }

    #[test]
    fn what_can_be_written_is_validated_by_the_server() {
        for resource in RESOURCES.iter().filter(|resource| resource.allows("patch")) {
            let paths: BTreeMap<_, _> = paths_of(resource).into_iter().collect();
            let (_, of_object) = paths.iter().find(|(path, _)| path.ends_with("{name}")).expect("a path");
            let patch = &of_object["patch"];
            assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], resource.kind);
            let parameters = patch["parameters"].as_array().expect("parameters");
            assert!(parameters.iter().any(|parameter| parameter["name"] == "fieldValidation"), "{patch}");
        }
    }

    #[test]
    fn types_have_the_names_of_kubernetes_and_the_keys_by_which_lists_are_merged() {
        let openapi = OpenApi::new();
        let core = &openapi.documents[""].0["components"]["schemas"];
        let spec = &core["dev.muster.v1.NodeSpec"]["properties"];
        assert!(spec["podCIDRs"].is_object() && spec["podCidrs"].is_null(), "{spec}");
        assert_eq!(spec["taints"]["x-kubernetes-list-type"], "atomic");
        assert!(
            !spec["taints"]["description"].as_str().unwrap_or_default().is_empty(),
            "explained by the schema"
        );
        let pod = &core["dev.muster.v1.PodSpec"]["properties"]["containers"];
        assert_eq!(pod["x-kubernetes-patch-merge-key"], "name");
        assert!(
            !openapi.v2.to_string().contains("components/schemas"),
            "the older form has other references"
        );
    }
}
