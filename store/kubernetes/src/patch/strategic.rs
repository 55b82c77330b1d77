//! Strategic merge patch: like a merge patch, but some lists are merged by a key of their elements. Pure.

use serde_json::{Map, Value};

/// Why a patch cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unmergeable(pub(super) String);

/// How a list is patched, if it is not replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    /// Elements are objects, and equal if this field is.
    By(&'static str),
    /// Elements are scalars; each is in the list once.
    Set,
}

/// The lists that are merged, by their path without positions. No two kinds have different lists at one path.
const MERGED: &[(&str, Strategy)] = &[
    ("metadata.finalizers", Strategy::Set),
    ("metadata.ownerReferences", Strategy::By("uid")),
    ("spec.podCIDRs", Strategy::Set),
    ("status.addresses", Strategy::By("type")),
    ("status.conditions", Strategy::By("type")),
    ("status.podIPs", Strategy::By("ip")),
    ("status.hostIPs", Strategy::By("ip")),
    ("spec.imagePullSecrets", Strategy::By("name")),
    ("spec.schedulingGates", Strategy::By("name")),
    ("spec.volumes", Strategy::By("name")),
    ("spec.hostAliases", Strategy::By("ip")),
    ("spec.topologySpreadConstraints", Strategy::By("topologyKey")),
    ("spec.containers", Strategy::By("name")),
    ("spec.initContainers", Strategy::By("name")),
    ("spec.ephemeralContainers", Strategy::By("name")),
];

/// The lists of each container.
const MERGED_IN_CONTAINERS: &[(&str, Strategy)] = &[
    ("ports", Strategy::By("containerPort")),
    ("env", Strategy::By("name")),
    ("volumeMounts", Strategy::By("mountPath")),
    ("volumeDevices", Strategy::By("devicePath")),
];

/// Objects that are replaced as a whole.
const REPLACED: &[&str] = &["spec.selector"];

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE: &str = "$deleteFromPrimitiveList/";

fn strategy(path: &str) -> Option<Strategy> {
    let found = |table: &[(&str, Strategy)], path: &str| {
        table.iter().find(|(known, _)| *known == path).map(|(_, strategy)| *strategy)
    };
    let of_container = ["spec.containers.", "spec.initContainers.", "spec.ephemeralContainers."];
    found(MERGED, path).or_else(|| {
        let inner = of_container.iter().find_map(|prefix| path.strip_prefix(prefix))?;
        found(MERGED_IN_CONTAINERS, inner)
    })
}

/// The key by which the list at a path is merged; the inner `None` is a set of scalars.
pub(crate) fn merge_key(path: &str) -> Option<Option<&'static str>> {
    strategy(path).map(|strategy| match strategy {
        Strategy::By(key) => Some(key),
        Strategy::Set => None,
    })
}

/// Merges a patch into an object.
pub(super) fn merge(target: &mut Map<String, Value>, patch: Map<String, Value>) -> Result<(), Unmergeable> {
    merge_object(target, patch, "")
}

fn merge_object(
    target: &mut Map<String, Value>,
    mut patch: Map<String, Value>,
    path: &str,
) -> Result<(), Unmergeable> {
    match patch.remove(PATCH) {
        None => {}
        Some(Value::String(directive)) if directive == "merge" => {}
        Some(Value::String(directive)) if directive == "replace" => {
            *target = clean_object(patch);
            return Ok(());
        }
        Some(Value::String(directive)) if directive == "delete" => {
            target.clear();
            return Ok(());
        }
        Some(other) => return Err(unknown_directive(path, &other)),
    }
    if let Some(retained) = patch.remove(RETAIN) {
        let retained = scalars(&retained, path)?;
        target.retain(|key, _| retained.iter().any(|kept| kept.as_str() == Some(key)));
    }
    let mut orders = Vec::new();
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(ORDER) {
            orders.push((list.to_owned(), value));
        } else if let Some(list) = key.strip_prefix(DELETE) {
            let removed = scalars(&value, path)?.to_vec();
            if let Some(Value::Array(items)) = target.get_mut(list) {
                items.retain(|item| !removed.contains(item));
            }
        } else {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            merge_field(target, key, value, &path)?;
        }
    }
    for (list, order) in orders {
        let path = if path.is_empty() { list.clone() } else { format!("{path}.{list}") };
        if let Some(Value::Array(items)) = target.get_mut(&list) {
            sort(items, &scalars_or_keys(&order, &path)?, &path);
        }
    }
    Ok(())
}

fn merge_field(
    target: &mut Map<String, Value>,
    key: String,
    value: Value,
    path: &str,
) -> Result<(), Unmergeable> {
    let merged = match (value, target.get_mut(&key)) {
        (Value::Null, _) => {
            target.remove(&key);
            return Ok(());
        }
        (Value::Object(patch), Some(Value::Object(current))) if !REPLACED.contains(&path) => {
            return merge_object(current, patch, path);
        }
        (Value::Object(patch), _) => {
            // Also into nothing: it may have directives.
            let mut new = Map::new();
            merge_object(&mut new, patch, path)?;
            Value::Object(new)
        }
        (Value::Array(patch), current) => {
            let current = match current {
                Some(Value::Array(items)) => std::mem::take(items),
                _ => Vec::new(),
            };
            Value::Array(merge_list(current, patch, path)?)
        }
        (scalar, _) => scalar,
    };
    target.insert(key, merged);
    Ok(())
}

fn merge_list(current: Vec<Value>, patch: Vec<Value>, path: &str) -> Result<Vec<Value>, Unmergeable> {
    match strategy(path) {
        None => Ok(patch.into_iter().map(clean).collect()),
        Some(Strategy::Set) => {
            let new = patch.into_iter().filter(|item| !current.contains(item));
            Ok(new.chain(current.iter().cloned()).collect())
        }
        Some(Strategy::By(key)) => merge_by(key, current, patch, path),
    }
}

fn merge_by(
    key: &str,
    mut current: Vec<Value>,
    patch: Vec<Value>,
    path: &str,
) -> Result<Vec<Value>, Unmergeable> {
    // An element of its own that says so replaces all.
    if patch.iter().any(|item| directive(item) == Some("replace")) {
        return Ok(patch.into_iter().filter(|item| directive(item) != Some("replace")).map(clean).collect());
    }
    let mut new = Vec::new();
    for item in patch {
        let Value::Object(fields) = item else {
            return Err(Unmergeable(format!("{path}: an element of the patch is no object")));
        };
        let Some(own) = fields.get(key).cloned() else {
            return Err(Unmergeable(format!(
                "{path}: an element of the patch has no {key}, by which the list is merged"
            )));
        };
        let at = current.iter().position(|known| known.get(key) == Some(&own));
        match (fields.get(PATCH), at) {
            (Some(Value::String(directive)), at) if directive == "delete" => {
                if let Some(at) = at {
                    current.remove(at);
                }
            }
            (Some(Value::String(directive)), _) if directive != "merge" => {
                return Err(unknown_directive(path, &directive.as_str().into()));
            }
            (_, Some(at)) => {
                if let Value::Object(known) = &mut current[at] {
                    merge_object(known, fields, path)?;
                }
            }
            (_, None) => {
                let mut element = Map::new();
                merge_object(&mut element, fields, path)?;
                new.push(Value::Object(element));
            }
        }
    }
    new.extend(current);
    Ok(new)
}

fn directive(item: &Value) -> Option<&str> {
    item.get(PATCH).and_then(Value::as_str)
}

fn unknown_directive(path: &str, directive: &Value) -> Unmergeable {
    Unmergeable(format!("{path}: unknown $patch {directive}: it can be replace, delete or merge"))
}

fn scalars<'a>(value: &'a Value, path: &str) -> Result<&'a [Value], Unmergeable> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| Unmergeable(format!("{path}: a directive has no list")))
}

/// What an order names: the elements themselves, or their keys.
fn scalars_or_keys(order: &Value, path: &str) -> Result<Vec<Value>, Unmergeable> {
    let key = match strategy(path) {
        Some(Strategy::By(key)) => Some(key),
        _ => None,
    };
    let named = scalars(order, path)?.iter();
    Ok(named.filter_map(|item| key.map_or(Some(item), |key| item.get(key)).cloned()).collect())
}

/// Brings the elements that are named into that order. The others keep their places relative to those that were
/// before.
fn sort(items: &mut Vec<Value>, order: &[Value], path: &str) {
    let key = |item: &Value| match strategy(path) {
        Some(Strategy::By(key)) => item.get(key).cloned().unwrap_or_default(),
        _ => item.clone(),
    };
    let place = |item: &Value| order.iter().position(|named| *named == key(item));
    let before: Vec<Value> = items.iter().map(key).collect();
    let was_at = |item: &Value| before.iter().position(|known| *known == key(item)).unwrap_or_default();
    let (mut named, others): (Vec<Value>, Vec<Value>) =
        items.drain(..).partition(|item| place(item).is_some());
    named.sort_by_key(place);
    let mut named = named.into_iter().peekable();
    for other in others {
        while let Some(next) = named.next_if(|next| was_at(next) < was_at(&other)) {
            items.push(next);
        }
        items.push(other);
    }
    items.extend(named);
}

/// New content without what is only for a patch.
fn clean(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(clean_object(fields)),
        Value::Array(items) => Value::Array(items.into_iter().map(clean).collect()),
        scalar => scalar,
    }
}

fn clean_object(fields: Map<String, Value>) -> Map<String, Value> {
    let is_content = |(key, value): &(String, Value)| !value.is_null() && !key.starts_with('$');
    fields.into_iter().filter(is_content).map(|(key, value)| (key, clean(value))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(current: Value, patch: Value) -> Result<Value, String> {
        let (Value::Object(mut current), Value::Object(patch)) = (current, patch) else { unreachable!() };
        merge(&mut current, patch).map(|()| Value::Object(current)).map_err(|error| error.0)
    }

    #[test]
    fn lists_are_merged_by_their_keys_and_new_elements_come_first() {
        let pod = json!({"spec": {"containers": [
            {"name": "a", "image": "1", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "command": ["x", "y"], "ports": [{"containerPort": 80}]},
            {"name": "b"}]}});
        let patch = json!({"spec": {"containers": [
            {"name": "c", "image": "3"},
            {"name": "a", "image": "2", "command": ["z"], "ports": [{"containerPort": 81}],
                "env": [{"name": "B", "value": "3"}, {"$patch": "delete", "name": "A"}]}]}});
        assert_eq!(
            patched(pod, patch),
            Ok(json!({"spec": {"containers": [
                {"name": "c", "image": "3"},
                {"name": "a", "image": "2", "command": ["z"], "env": [{"name": "B", "value": "3"}],
                    "ports": [{"containerPort": 81}, {"containerPort": 80}]},
                {"name": "b"}]}}))
        );
    }

    #[test]
    fn directives_do_what_kubectl_means_by_them() {
        for (current, patch, expected) in [
            // kubectl taint: the list has no key and is replaced.
            (
                json!({"spec": {"taints": [{"key": "a"}]}}),
                json!({"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}}),
                json!({"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}}),
            ),
            // kubectl uncordon
            (
                json!({"spec": {"unschedulable": true}}),
                json!({"spec": {"unschedulable": null}}),
                json!({"spec": {}}),
            ),
            (
                json!({"status": {"addresses": [{"type": "a"}, {"type": "b"}]}}),
                json!({"status": {"addresses": [{"$patch": "replace"}, {"type": "c"}]}}),
                json!({"status": {"addresses": [{"type": "c"}]}}),
            ),
            (
                json!({"metadata": {"labels": {"a": "1"}}}),
                json!({"metadata": {"labels": {"$patch": "replace", "x": "y"}}}),
                json!({"metadata": {"labels": {"x": "y"}}}),
            ),
            (
                json!({"metadata": {"labels": {"a": "1"}}}),
                json!({"metadata": {"labels": {"$patch": "delete"}}}),
                json!({"metadata": {"labels": {}}}),
            ),
            (
                json!({"metadata": {"finalizers": ["x/a", "x/b"]}}),
                json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/a"], "finalizers": ["x/c", "x/b"],
                    "$setElementOrder/finalizers": ["x/b", "x/c"]}}),
                json!({"metadata": {"finalizers": ["x/b", "x/c"]}}),
            ),
            (
                json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
                json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "configMap"], "configMap": {"name": "c"}, "emptyDir": null}]}}),
                json!({"spec": {"volumes": [{"name": "v", "configMap": {"name": "c"}}]}}),
            ),
            (
                json!({"spec": {"selector": {"matchLabels": {"a": "1"}}}}),
                json!({"spec": {"selector": {"matchLabels": {"b": "2"}}}}),
                json!({"spec": {"selector": {"matchLabels": {"b": "2"}}}}),
            ),
            // Directives do not reach what is stored, even where there was nothing to merge with.
            (
                json!({}),
                json!({"spec": {"containers": [{"name": "a", "env": [{"name": "A", "value": null}]}],
                    "$setElementOrder/containers": [{"name": "a"}]}}),
                json!({"spec": {"containers": [{"name": "a", "env": [{"name": "A"}]}]}}),
            ),
        ] {
            assert_eq!(patched(current, patch.clone()), Ok(expected), "{patch}");
        }
    }

    #[test]
    fn elements_that_an_order_does_not_name_stay_where_they_are() {
        let list =
            |names: &[&str]| -> Vec<Value> { names.iter().map(|name| json!({"name": name})).collect() };
        for (current, order, expected) in [
            (&["a", "b", "c"][..], &["c", "a"][..], &["b", "c", "a"][..]),
            (&["x", "a", "b"], &["b", "a"], &["x", "b", "a"]),
            (&["a", "x", "b"], &["a", "b"], &["a", "x", "b"]),
            (&["a", "b"], &[], &["a", "b"]),
        ] {
            let mut items = list(current);
            let order: Vec<Value> = order.iter().map(|name| json!(name)).collect();
            sort(&mut items, &order, "spec.containers");
            assert_eq!(items, list(expected), "{current:?}");
        }
    }

    #[test]
    fn an_element_without_its_key_and_an_unknown_directive_are_refused() {
        for (patch, part) in [
            (json!({"spec": {"containers": [{"image": "1"}]}}), "has no name, by which the list is merged"),
            (json!({"spec": {"containers": ["a"]}}), "is no object"),
            (json!({"spec": {"$patch": "swap"}}), "unknown $patch"),
            (json!({"spec": {"containers": [{"name": "a", "$patch": "swap"}]}}), "unknown $patch"),
        ] {
            let refused = patched(json!({"spec": {"containers": []}}), patch).expect_err("it is refused");
            assert!(refused.contains(part), "{refused}");
        }
    }
}
