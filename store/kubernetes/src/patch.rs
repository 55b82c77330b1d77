//! Patches of three kinds. Pure.

mod strategic;

use serde_json::{Map, Value};

use crate::media::PatchForm;
use crate::status::Failure;

/// The most operations of a JSON patch, as in Kubernetes.
const MAX_OPERATIONS: usize = 10_000;
/// The most bytes that the operations of a JSON patch may copy.
const MAX_COPIED: usize = 3 << 20;

pub(crate) use self::strategic::merge_key;

/// The object after the patch.
pub(crate) fn apply(form: PatchForm, current: &Value, patch: &[u8]) -> Result<Map<String, Value>, Failure> {
    let unreadable =
        |error: &dyn std::fmt::Display| Failure::bad_request(format!("error decoding patch: {error}"));
    let mut patched = current.clone();
    match form {
        PatchForm::Json => {
            let patch: json_patch::Patch =
                serde_json::from_slice(patch).map_err(|error| unreadable(&error))?;
            if patch.0.len() > MAX_OPERATIONS {
                let message = format!(
                    "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                    patch.0.len()
                );
                return Err(Failure::new(413, "RequestEntityTooLarge", message));
            }
            apply_operations(&mut patched, &patch)?;
        }
        PatchForm::Merge => {
            let patch = object(patch).map_err(|error| unreadable(&error))?;
            json_patch::merge(&mut patched, &Value::Object(patch));
        }
        PatchForm::Strategic => {
            let patch = object(patch).map_err(|error| unreadable(&error))?;
            let Value::Object(target) = &mut patched else {
                return Err(unreadable(&"there is nothing to patch"));
            };
            strategic::merge(target, patch).map_err(|error| Failure::bad_request(error.0))?;
        }
    }
    match patched {
        Value::Object(fields) => Ok(fields),
        _ => Err(Failure::unprocessable("the patch leaves no object")),
    }
}

/// Applies the operations of a JSON patch one by one. Each copy may double the object, so what is copied is limited.
fn apply_operations(object: &mut Value, patch: &json_patch::Patch) -> Result<(), Failure> {
    let mut copied = 0;
    for operation in &patch.0 {
        if let json_patch::PatchOperation::Copy(copy) = operation {
            copied += object.pointer(copy.from.as_str()).map_or(0, |value| value.to_string().len());
            if copied > MAX_COPIED {
                let message =
                    format!("the operations of the patch copy too much: the limit is {MAX_COPIED} bytes");
                return Err(Failure::new(413, "RequestEntityTooLarge", message));
            }
        }
        json_patch::patch(object, std::slice::from_ref(operation)).map_err(|error| {
            let rejected = "the server rejected our request due to an error in our request";
            Failure::unprocessable(format!("{rejected}: {error}"))
        })?;
    }
    Ok(())
}

/// A patch as an object. YAML is accepted, as Kubernetes does.
fn object(patch: &[u8]) -> Result<Map<String, Value>, String> {
    match serde_json::from_slice(patch) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err("it is no object".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_three_kinds_of_patches_change_the_object() {
        let current =
            json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"taints": [{"key": "x"}]}});
        for (form, patch, expected) in [
            (
                PatchForm::Json,
                json!([{"op": "test", "path": "/metadata/labels/a", "value": "1"}, {"op": "remove", "path": "/metadata/labels/b"}]),
                json!({"metadata": {"labels": {"a": "1"}}, "spec": {"taints": [{"key": "x"}]}}),
            ),
            (
                PatchForm::Merge,
                json!({"metadata": {"labels": {"a": null}}, "spec": {"taints": []}}),
                json!({"metadata": {"labels": {"b": "2"}}, "spec": {"taints": []}}),
            ),
            (
                PatchForm::Strategic,
                json!({"metadata": {"labels": {"a": null, "c": "3"}}}),
                json!({"metadata": {"labels": {"b": "2", "c": "3"}}, "spec": {"taints": [{"key": "x"}]}}),
            ),
        ] {
            let patched = apply(form, &current, patch.to_string().as_bytes()).expect("it applies");
            assert_eq!(Value::Object(patched), expected, "{form:?}");
        }
    }

    #[test]
    fn a_patch_cannot_grow_an_object_without_limit() {
        let doubling = |i: usize| json!({"op": "copy", "from": "/a", "path": format!("/a/{i}")});
        let patch = Value::Array((0..60).map(doubling).collect()).to_string();
        let refused = apply(PatchForm::Json, &json!({"a": {"c": "text"}}), patch.as_bytes());
        assert_eq!(refused.map_err(|failure| failure.code), Err(413));
    }

    #[test]
    fn a_patch_that_does_not_fit_is_refused() {
        for (form, patch, code) in [
            (PatchForm::Json, r#"[{"op":"test","path":"/a","value":2}]"#, 422),
            (PatchForm::Json, r#"[{"op":"remove","path":"/b"}]"#, 422),
            (PatchForm::Json, r#"{"a":1}"#, 400),
            (PatchForm::Json, r#"[{"op":"replace","path":"","value":1}]"#, 422),
            (PatchForm::Merge, "[]", 400),
            (PatchForm::Strategic, "{", 400),
            (PatchForm::Strategic, r#"{"a":{"$patch":"rename"}}"#, 400),
        ] {
            let refused = apply(form, &json!({"a": 1}), patch.as_bytes()).map_err(|failure| failure.code);
            assert_eq!(refused, Err(code), "{patch}");
        }
    }
}
