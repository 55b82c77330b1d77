//! Merge patches (RFC 7396) between two documents, and whether two patches touch the same field.

use serde_json::{Map, Value};

type Fields = Map<String, Value>;

/// The patch that turns `before` into `after`. Lists are compared as a whole.
pub(super) fn between(before: &Fields, after: &Fields) -> Fields {
    let mut patch = Fields::new();
    for (field, value) in after {
        match (before.get(field), value) {
            (Some(held), _) if held == value => {}
            (Some(Value::Object(held)), Value::Object(value)) => {
                patch.insert(field.clone(), Value::Object(between(held, value)));
            }
            _ => drop(patch.insert(field.clone(), value.clone())),
        }
    }
    for field in before.keys().filter(|field| !after.contains_key(*field)) {
        patch.insert(field.clone(), Value::Null);
    }
    patch
}

/// The first field that both patches set or remove, to different values.
pub(super) fn overlaps(own: &Fields, other: &Fields) -> Option<String> {
    own.iter().find_map(|(field, value)| match (value, other.get(field)?) {
        (Value::Object(own), Value::Object(other)) => {
            overlaps(own, other).map(|inner| format!("{field}.{inner}"))
        }
        (own, other) => (own != other).then(|| field.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        match value {
            Value::Object(fields) => fields,
            _ => unreachable!(),
        }
    }

    #[test]
    fn a_patch_has_only_what_differs() {
        for (before, after, expected) in [
            (json!({"a": 1, "b": 2}), json!({"a": 1, "b": 3}), json!({"b": 3})),
            (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": 1}}), json!({"a": {"c": null}})),
            (json!({"a": [1, 2]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({}), json!({"a": {"b": 1}}), json!({"a": {"b": 1}})),
            (json!({"a": 1}), json!({"a": 1}), json!({})),
        ] {
            assert_eq!(Value::Object(between(&fields(before), &fields(after))), expected);
        }
    }

    #[test]
    fn patches_overlap_where_both_change_a_field_differently() {
        for (own, other, expected) in [
            (json!({"a": 1}), json!({"b": 1}), None),
            (json!({"a": 1}), json!({"a": 1}), None),
            (json!({"a": 1}), json!({"a": 2}), Some("a")),
            (json!({"a": {"b": 1}}), json!({"a": {"c": 1}}), None),
            (json!({"a": {"b": 1}}), json!({"a": {"b": null}}), Some("a.b")),
            (json!({"a": {"b": 1}}), json!({"a": null}), Some("a")),
        ] {
            assert_eq!(overlaps(&fields(own.clone()), &fields(other)).as_deref(), expected, "{own}");
        }
    }
}
