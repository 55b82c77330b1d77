//! Discovery: which groups and resources are served, in the old form and in the aggregated one. Pure.

use serde_json::{Value, json};

use crate::resources::{RESOURCES, Resource, Subresource, group_version, groups, of_group};

/// `/api`
pub(crate) fn versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// `/apis`
pub(crate) fn group_list() -> Value {
    let groups: Vec<Value> = groups().into_iter().map(group_parts).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/policy`
pub(crate) fn group(name: &str) -> Value {
    let mut group = group_parts(name);
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    group
}

fn group_parts(name: &str) -> Value {
    let version = json!({"groupVersion": group_version(name), "version": "v1"});
    json!({"name": name, "versions": [version], "preferredVersion": version})
}

/// `/api/v1` or `/apis/policy/v1`
pub(crate) fn resource_list(group: &str) -> Value {
    let mut resources = Vec::new();
    for resource in of_group(group) {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": resource.verbs,
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = json!(resource.categories);
        }
        resources.push(entry);
        resources.extend(resource.subresources.iter().map(|sub| subresource_entry(resource, sub)));
    }
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version(group), "resources": resources})
}

fn subresource_entry(resource: &Resource, sub: &Subresource) -> Value {
    let mut entry = json!({
        "name": format!("{}/{}", resource.plural, sub.name), "singularName": "", "namespaced": resource.namespaced,
        "kind": sub.other.map_or(resource.kind, |(_, kind)| kind), "verbs": sub.verbs,
    });
    if let Some((group, _)) = sub.other.filter(|(group, _)| *group != resource.group) {
        entry["group"] = group.into();
        entry["version"] = "v1".into();
    }
    entry
}

/// `/api` (of the first group) or `/apis` (of the named ones), with all resources in one answer.
pub(crate) fn aggregated(is_named: bool) -> Value {
    let groups = if is_named { groups() } else { vec![""] };
    let items: Vec<Value> = groups
        .into_iter()
        .map(|group| {
            let resources: Vec<Value> = of_group(group).map(aggregated_resource).collect();
            let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
            let version = json!({"version": "v1", "freshness": "Current", "resources": resources});
            json!({"metadata": metadata, "versions": [version]})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_resource(resource: &Resource) -> Value {
    let kind =
        |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let mut entry = json!({
        "resource": resource.plural, "singularResource": resource.singular,
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "responseKind": kind("", "", resource.kind), "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    if !resource.subresources.is_empty() {
        let subresources = resource.subresources.iter().map(|sub| {
            let response = match sub.other {
                Some((group, other)) if group != resource.group => kind(group, "v1", other),
                Some((_, other)) => kind("", "", other),
                None => kind("", "", resource.kind),
            };
            json!({"subresource": sub.name, "responseKind": response, "verbs": sub.verbs})
        });
        entry["subresources"] = subresources.collect();
    }
    entry
}

/// `/`
pub(crate) fn paths() -> Value {
    let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
    for group in groups() {
        paths.extend([format!("/apis/{group}"), format!("/apis/{group}/v1")]);
    }
    paths.extend(
        ["/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"].map(str::to_owned),
    );
    json!({"paths": paths})
}

/// A tag that changes with what is served.
pub(crate) fn tag() -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    for resource in RESOURCES {
        format!("{resource:?}").hash(&mut hasher);
    }
    format!("\"{:016X}\"", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_finds_the_eviction_of_policy_in_the_old_form() {
        let list = resource_list("");
        let found = list["resources"]
            .as_array()
            .expect("a list")
            .iter()
            .find(|entry| entry["name"] == "pods/eviction");
        assert_eq!(
            found,
            Some(
                &json!({"name": "pods/eviction", "singularName": "", "namespaced": true, "kind": "Eviction",
                "group": "policy", "version": "v1", "verbs": ["create"]})
            )
        );
    }

    #[test]
    fn both_forms_have_the_same_resources_and_verbs() {
        for group in groups().into_iter().chain([""]) {
            let old = resource_list(group);
            let old: Vec<_> = old["resources"]
                .as_array()
                .expect("a list")
                .iter()
                .filter(|entry| !entry["name"].as_str().expect("a name").contains('/'))
                .map(|entry| (entry["name"].clone(), entry["verbs"].clone(), entry["kind"].clone()))
                .collect();
            let all = aggregated(!group.is_empty());
            let items = all["items"].as_array().expect("a list");
            let own = items
                .iter()
                .find(|item| item["metadata"]["name"].as_str().unwrap_or_default() == group)
                .expect("the group");
            let new: Vec<_> = own["versions"][0]["resources"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|entry| {
                    (entry["resource"].clone(), entry["verbs"].clone(), entry["responseKind"]["kind"].clone())
                })
                .collect();
            assert_eq!(old, new, "{group}");
        }
    }
}
