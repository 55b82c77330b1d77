//! Reviews: what the caller may do, and who it is. They are answered and not kept.

use muster_proto::identity::Caller;
use muster_proto::record::Kind;
use muster_rpc::server::Answer;
use muster_store_core::authz::{Call, Content, Denial, Refused, Rule, Verb, authorize};
use serde_json::{Map, Value, json};

use crate::answer;
use crate::body;
use crate::resources::{RESOURCES, Resource, Review, Source, find};
use crate::server::Ask;
use crate::status::Failure;

pub(crate) fn answer(resource: &Resource, review: Review, ask: &Ask) -> Result<Answer, Failure> {
    let mut sent = body::read(ask.content_type(), &ask.body)?;
    body::check_kind(&sent, &resource.group_version(), resource.kind)?;
    let calls = ask.store.calls();
    let caller = calls.caller();
    let status = match review {
        Review::Access => access(&caller, &sent),
        Review::Rules => rules(&caller),
        Review::Caller => {
            json!({"userInfo": {"username": calls.requester(), "groups": [caller.to_string(), "system:authenticated"]}})
        }
    };
    sent.insert("kind".to_owned(), resource.kind.into());
    sent.insert("apiVersion".to_owned(), resource.group_version().into());
    sent.entry("metadata").or_insert_with(|| json!({}));
    sent.insert("status".to_owned(), status);
    Ok(answer::json(201, &Value::Object(sent)))
}

/// Whether the caller may do one thing.
fn access(caller: &Caller, sent: &Map<String, Value>) -> Value {
    let spec = sent.get("spec").cloned().unwrap_or_default();
    let text = |field: &str| spec["resourceAttributes"][field].as_str().unwrap_or_default().to_owned();
    if spec["nonResourceAttributes"].is_object() {
        let verb = spec["nonResourceAttributes"]["verb"].as_str().unwrap_or_default();
        return verdict(verb == "get", "pages about the server can be read by every caller with a role");
    }
    let (verb, group, plural, subresource) =
        (text("verb"), text("group"), text("resource"), text("subresource"));
    if verb == "*" || plural == "*" || group == "*" {
        return verdict(*caller == Caller::Admin, "only administrators may do everything");
    }
    let Some(resource) = find(&group, &plural) else {
        return verdict(false, "there is no such resource here");
    };
    let (namespace, name) = (text("namespace"), text("name"));
    let (allowed, why) = may(caller, resource, &verb, &subresource, (&namespace, &name));
    verdict(allowed, &why)
}

fn verdict(allowed: bool, why: &str) -> Value {
    json!({"allowed": allowed, "reason": why})
}

/// Whether the caller may do this, and why or why not.
fn may(
    caller: &Caller,
    resource: &Resource,
    verb: &str,
    subresource: &str,
    (namespace, name): (&str, &str),
) -> (bool, String) {
    let kind = match resource.source {
        Source::Record(kind) => kind,
        Source::Review(_) => return (verb == "create", "everybody may ask this about itself".to_owned()),
        // They are made of other records, which decide.
        Source::Namespaces | Source::Nothing => Kind::Pod,
    };
    let serves = match resource.subresource(subresource) {
        Some(found) => found.verbs.contains(&verb),
        None => subresource.is_empty() && resource.allows(verb),
    };
    if !serves {
        return (false, "it is not served here".to_owned());
    }
    let call = |verb| Call {
        verb,
        kind,
        namespace: Some(namespace).filter(|namespace| !namespace.is_empty()),
        name: Some(name).filter(|name| !name.is_empty()),
        field_selector: None,
    };
    let refused = verbs_of(kind, verb, subresource).iter().find_map(|verb| {
        match authorize(caller, &call(*verb), &Content::None) {
            // What the record has in it decides then.
            Ok(())
            | Err(Refused::Denied(Denial { rule: Rule::MissingContent, .. }) | Refused::MissingNode(_)) => {
                None
            }
            Err(Refused::Denied(denial)) => Some(denial.to_string()),
        }
    });
    match refused {
        None => (true, format!("{caller} may")),
        Some(why) => (false, why),
    }
}

/// The verbs of Muster that one of Kubernetes needs.
fn verbs_of(kind: Kind, verb: &str, subresource: &str) -> &'static [Verb] {
    match (verb, subresource) {
        ("get", _) => &[Verb::Get],
        ("list", _) => &[Verb::List],
        ("watch", _) => &[Verb::Watch],
        ("create", "binding") => &[Verb::Bind],
        ("create", "eviction") => &[Verb::Evict],
        ("create" | "patch", _) if kind == Kind::Event => &[Verb::Record],
        ("create", _) => &[Verb::Create],
        (_, "status") => &[Verb::UpdateStatus],
        ("update" | "patch", _) => &[Verb::Update],
        ("deletecollection", _) => &[Verb::List, Verb::Delete],
        _ => &[Verb::Delete],
    }
}

/// All that the caller may do.
fn rules(caller: &Caller) -> Value {
    let mut rules = Vec::new();
    for resource in RESOURCES {
        let mut add = |name: String, subresource: &str, verbs: &[&str]| {
            let verbs: Vec<&str> = verbs
                .iter()
                .copied()
                .filter(|verb| may(caller, resource, verb, subresource, ("", "")).0)
                .collect();
            if !verbs.is_empty() {
                rules.push(json!({"verbs": verbs, "apiGroups": [resource.group], "resources": [name]}));
            }
        };
        add(resource.plural.to_owned(), "", resource.verbs);
        for sub in resource.subresources {
            add(format!("{}/{}", resource.plural, sub.name), sub.name, sub.verbs);
        }
    }
    // A node's rights depend on the record, which rules cannot say.
    let incomplete = matches!(caller, Caller::Node(_));
    json!({
        "resourceRules": rules, "incomplete": incomplete,
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez",
            "/openapi", "/openapi/*", "/readyz", "/version"]}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(caller: &Caller, attributes: &Value) -> bool {
        let sent = json!({"spec": {"resourceAttributes": attributes}});
        let Value::Object(sent) = sent else { unreachable!() };
        access(caller, &sent)["allowed"] == true
    }

    #[test]
    fn access_is_what_the_rules_of_the_store_say() {
        let node = Caller::Node("a".to_owned());
        for (caller, attributes, expected) in [
            (&Caller::Admin, json!({"verb": "*", "resource": "*", "group": "*"}), true),
            (&Caller::Viewer, json!({"verb": "*", "resource": "*", "group": "*"}), false),
            (&Caller::Viewer, json!({"verb": "list", "resource": "pods"}), true),
            (
                &Caller::Viewer,
                json!({"verb": "delete", "resource": "pods", "namespace": "d", "name": "p"}),
                false,
            ),
            (
                &Caller::Scheduler,
                json!({"verb": "create", "resource": "pods", "subresource": "binding"}),
                true,
            ),
            (
                &Caller::Viewer,
                json!({"verb": "create", "resource": "pods", "subresource": "eviction"}),
                false,
            ),
            (&Caller::Admin, json!({"verb": "create", "resource": "pods", "subresource": "exec"}), false),
            (&Caller::Admin, json!({"verb": "create", "resource": "namespaces"}), false),
            (&Caller::Admin, json!({"verb": "get", "resource": "deployments", "group": "apps"}), false),
            (&node, json!({"verb": "get", "resource": "nodes", "name": "a"}), true),
            (&node, json!({"verb": "get", "resource": "nodes", "name": "b"}), false),
            (
                &node,
                json!({"verb": "patch", "resource": "nodes", "subresource": "status", "name": "a"}),
                true,
            ),
            (&node, json!({"verb": "delete", "resource": "nodes", "name": "a"}), false),
            (
                &node,
                json!({"verb": "update", "resource": "leases", "group": "coordination.k8s.io",
                    "namespace": "kube-node-lease", "name": "b"}),
                false,
            ),
            (&node, json!({"verb": "get", "resource": "poddisruptionbudgets", "group": "policy"}), false),
        ] {
            assert_eq!(allowed(caller, &attributes), expected, "{caller}: {attributes}");
        }
    }

    #[test]
    fn a_viewer_reads_everything_and_writes_nothing() {
        let rules = rules(&Caller::Viewer);
        for rule in rules["resourceRules"].as_array().expect("rules") {
            let reads = ["get", "list", "watch"];
            let only_reviews = rule["resources"][0].as_str().expect("a name").starts_with("selfsubject");
            let verbs = rule["verbs"].as_array().expect("verbs");
            assert!(
                only_reviews || verbs.iter().all(|verb| reads.contains(&verb.as_str().expect("a verb"))),
                "{rule}"
            );
        }
    }
}
