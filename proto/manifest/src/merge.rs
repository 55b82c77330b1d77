//! JSON Merge Patch (RFC 7396): fields of the patch are set, `null` removes a field, all other fields stay.

use serde_json::{Map, Value};

/// Merges a patch into an object. Lists are replaced as a whole.
pub(crate) fn merge_patch(target: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (field, value) in patch {
        match value {
            Value::Null => drop(target.remove(&field)),
            Value::Object(patch) => {
                let held = target.entry(field).or_insert(Value::Null);
                if !held.is_object() {
                    *held = Value::Object(Map::new());
                }
                if let Value::Object(held) = held {
                    merge_patch(held, patch);
                }
            }
            value => drop(target.insert(field, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_of_the_patch_are_set_and_the_others_stay() {
        for (target, patch, expected) in [
            (json!({"a": 1, "b": 2}), json!({"a": 3}), json!({"a": 3, "b": 2})),
            (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": null}}), json!({"a": {"c": 2}})),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (json!({"a": 1}), json!({"a": {"b": null, "c": 1}}), json!({"a": {"c": 1}})),
            (json!({}), json!({"a": {"b": {"c": null}}}), json!({"a": {"b": {}}})),
            (json!({"a": 1}), json!({"b": null}), json!({"a": 1})),
        ] {
            let (Value::Object(mut target), Value::Object(patch)) = (target, patch) else { unreachable!() };
            merge_patch(&mut target, patch);
            assert_eq!(Value::Object(target), expected);
        }
    }
}
