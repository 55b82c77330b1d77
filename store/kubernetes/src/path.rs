//! Which request a path is. Pure.

use crate::resources::{self, Resource, Review, Source};

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// `/`
    Root,
    /// `/version`
    Version,
    /// `/healthz` and `/livez`
    Health,
    /// `/readyz`
    Ready,
    /// `/api`
    Versions,
    /// `/apis`
    Groups,
    /// `/apis/policy`
    Group(&'static str),
    /// `/api/v1` or `/apis/policy/v1`
    Resources(&'static str),
    /// `/openapi/v3`
    OpenApiIndex,
    /// `/openapi/v3/api/v1`, by group
    OpenApi(&'static str),
    /// `/openapi/v2`
    OpenApiV2,
    Collection {
        at: At,
        watch: bool,
    },
    Object {
        at: At,
        name: String,
        watch: bool,
    },
    Subresource {
        at: At,
        name: String,
        subresource: String,
    },
    Review(&'static Resource, Review),
}

/// A resource, and the namespace in the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) resource: &'static Resource,
    /// Empty for all namespaces, and for resources without.
    pub(crate) namespace: String,
}

/// Why a path names nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// No such group or page.
    Page,
    /// No such resource in the group.
    Resource,
}

/// What a path names. Segments may be percent-encoded.
pub(crate) fn parse(path: &str) -> Result<Target, Unknown> {
    let decoded: Option<Vec<String>> =
        path.split('/').filter(|segment| !segment.is_empty()).map(|segment| decode(segment, false)).collect();
    let decoded = decoded.ok_or(Unknown::Page)?;
    let segments: Vec<&str> = decoded.iter().map(String::as_str).collect();
    match segments[..] {
        [] => Ok(Target::Root),
        ["version"] => Ok(Target::Version),
        ["healthz" | "livez", ..] => Ok(Target::Health),
        ["readyz", ..] => Ok(Target::Ready),
        ["api"] => Ok(Target::Versions),
        ["apis"] => Ok(Target::Groups),
        ["openapi", "v2"] => Ok(Target::OpenApiV2),
        ["openapi", "v3"] => Ok(Target::OpenApiIndex),
        ["openapi", "v3", "api", "v1"] => Ok(Target::OpenApi("")),
        ["openapi", "v3", "apis", group, "v1"] => Ok(Target::OpenApi(known_group(group)?)),
        ["api", "v1"] => Ok(Target::Resources("")),
        ["api", "v1", ref rest @ ..] => in_group("", rest),
        ["apis", group] => Ok(Target::Group(known_group(group)?)),
        ["apis", group, "v1"] => Ok(Target::Resources(known_group(group)?)),
        ["apis", group, "v1", ref rest @ ..] => in_group(known_group(group)?, rest),
        _ => Err(Unknown::Page),
    }
}

fn known_group(group: &str) -> Result<&'static str, Unknown> {
    resources::groups().into_iter().find(|known| *known == group).ok_or(Unknown::Page)
}

fn in_group(group: &str, rest: &[&str]) -> Result<Target, Unknown> {
    let (watch, rest) = match rest {
        ["watch", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (namespace, rest) = match rest {
        // Otherwise it is the namespace itself that is named.
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() && !is_of_namespace(rest) => {
            (*namespace, rest)
        }
        rest => ("", rest),
    };
    let [plural, rest @ ..] = rest else { return Err(Unknown::Resource) };
    let resource = resources::find(group, plural).ok_or(Unknown::Resource)?;
    if !namespace.is_empty() && !resource.namespaced {
        return Err(Unknown::Resource);
    }
    let at = At { resource, namespace: namespace.to_owned() };
    match (resource.source, rest) {
        (Source::Review(review), []) => Ok(Target::Review(resource, review)),
        (_, []) => Ok(Target::Collection { at, watch }),
        // An object of a namespace is only found in it.
        _ if resource.namespaced && namespace.is_empty() => Err(Unknown::Resource),
        (_, [name]) => Ok(Target::Object { at, name: (*name).to_owned(), watch }),
        (_, [name, subresource, ..]) => {
            Ok(Target::Subresource { at, name: (*name).to_owned(), subresource: (*subresource).to_owned() })
        }
    }
}

/// Whether this follows a namespace's own name.
fn is_of_namespace(rest: &[&str]) -> bool {
    matches!(rest, ["status" | "finalize"])
}

/// Decodes `%41`, and in queries `+`.
pub(crate) fn decode(text: &str, is_query: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |digit: Option<u8>| char::from(digit?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            b'+' if is_query => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &str) -> String {
        let at = |At { resource, namespace }: At| format!("{} in {namespace:?}", resource.qualified());
        match parse(path) {
            Ok(Target::Collection { at: found, watch }) => format!("{}, watch {watch}", at(found)),
            Ok(Target::Object { at: found, name, watch }) => format!("{} {name}, watch {watch}", at(found)),
            Ok(Target::Subresource { at: found, name, subresource }) => {
                format!("{} {name} {subresource}", at(found))
            }
            Ok(Target::Review(resource, _)) => resource.kind.to_owned(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_path_names_what_kubernetes_has_there() {
        for (path, expected) in [
            ("/", "Ok(Root)"),
            ("/version/", "Ok(Version)"),
            ("/livez/ping", "Ok(Health)"),
            ("/readyz", "Ok(Ready)"),
            ("/api/", "Ok(Versions)"),
            ("/apis/policy", "Ok(Group(\"policy\"))"),
            ("/apis/policy/v1", "Ok(Resources(\"policy\"))"),
            ("/apis/policy/v2", "Err(Page)"),
            ("/apis/apps/v1/daemonsets", "Err(Page)"),
            ("/api/v1/nodes", "nodes in \"\", watch false"),
            ("/api/v1/watch/nodes", "nodes in \"\", watch true"),
            ("/api/v1/nodes/n%2D1", "nodes in \"\" n-1, watch false"),
            ("/api/v1/nodes/n/status", "nodes in \"\" n status"),
            ("/api/v1/namespaces", "namespaces in \"\", watch false"),
            ("/api/v1/namespaces/a", "namespaces in \"\" a, watch false"),
            ("/api/v1/namespaces/a/status", "namespaces in \"\" a status"),
            ("/api/v1/namespaces/a/pods", "pods in \"a\", watch false"),
            ("/api/v1/namespaces/a/pods/p/eviction", "pods in \"a\" p eviction"),
            ("/api/v1/watch/namespaces/a/pods/p", "pods in \"a\" p, watch true"),
            ("/api/v1/pods", "pods in \"\", watch false"),
            ("/api/v1/pods/p", "Err(Resource)"),
            ("/api/v1/namespaces/a/nodes", "Err(Resource)"),
            ("/api/v1/configmaps", "Err(Resource)"),
            (
                "/apis/coordination.k8s.io/v1/namespaces/a/leases/l",
                "leases.coordination.k8s.io in \"a\" l, watch false",
            ),
            ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "SelfSubjectAccessReview"),
            ("/openapi/v3/apis/policy/v1", "Ok(OpenApi(\"policy\"))"),
            ("/api/v1/nodes/%zz", "Err(Page)"),
        ] {
            assert_eq!(shown(path), expected, "{path}");
        }
    }
}
