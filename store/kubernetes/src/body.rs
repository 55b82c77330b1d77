//! The objects that clients send: read from JSON, YAML or Protobuf, and checked against the path. Pure.

use muster_manifest::documents;
use muster_manifest::kubernetes::{self, Findings};
use muster_proto::record::Kind;
use serde_json::{Map, Value};

use crate::media::{BodyForm, body_form};
use crate::path::At;
use crate::protobuf;
use crate::query::FieldValidation;
use crate::resources::Resource;
use crate::status::Failure;

/// The object of a body. An empty body is an empty object.
pub(crate) fn read(content_type: &str, body: &[u8]) -> Result<Map<String, Value>, Failure> {
    let form = body_form(content_type)?;
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    match form {
        BodyForm::Json => json(body),
        BodyForm::Yaml => yaml(body),
        BodyForm::Protobuf => protobuf::decode(body)
            .map_err(|error| Failure::bad_request(format!("the body cannot be read: {}", error.0))),
    }
}

fn json(body: &[u8]) -> Result<Map<String, Value>, Failure> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| Failure::bad_request(format!("the object provided is unrecognized: {error}")))?;
    object(value)
}

fn yaml(body: &[u8]) -> Result<Map<String, Value>, Failure> {
    let text = std::str::from_utf8(body).map_err(|_| Failure::bad_request("the body is not UTF-8"))?;
    let mut found = documents::parse(text)
        .map_err(|error| Failure::bad_request(format!("the object provided is unrecognized: {error}")))?;
    match (found.pop(), found.is_empty()) {
        (Some(document), true) => object(document),
        _ => Err(Failure::bad_request("the body must have one document")),
    }
}

fn object(value: Value) -> Result<Map<String, Value>, Failure> {
    match value {
        Value::Object(fields) => Ok(fields),
        _ => Err(Failure::bad_request("the object provided is unrecognized: it is no object")),
    }
}

/// A text in the metadata of an object; empty if there is none.
pub(crate) fn metadata_text<'a>(object: &'a Map<String, Value>, field: &str) -> &'a str {
    object
        .get("metadata")
        .and_then(|metadata| metadata.get(field))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Checks that the object is one of the resource, and takes its namespace from the path. `name` is that of the path;
/// `None` for a new object.
pub(crate) fn check(object: &mut Map<String, Value>, at: &At, name: Option<&str>) -> Result<(), Failure> {
    let At { resource, namespace } = at;
    check_kind(object, &resource.group_version(), resource.kind)?;
    let sent = metadata_text(object, "namespace").to_owned();
    if !sent.is_empty() && sent != *namespace {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Failure::bad_request(message));
    }
    let sent = metadata_text(object, "name").to_owned();
    if let Some(name) = name
        && !sent.is_empty()
        && sent != name
    {
        let message = format!("the name of the object ({sent}) does not match the name on the URL ({name})");
        return Err(Failure::bad_request(message));
    }
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(metadata) = metadata else {
        return Err(Failure::bad_request("metadata: must be an object"));
    };
    if !namespace.is_empty() {
        metadata.insert("namespace".to_owned(), namespace.as_str().into());
    }
    if let Some(name) = name {
        metadata.insert("name".to_owned(), name.into());
    }
    Ok(())
}

/// Checks kind and version of an object.
pub(crate) fn check_kind(object: &Map<String, Value>, version: &str, kind: &str) -> Result<(), Failure> {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let (sent_kind, sent_version) = (text("kind"), text("apiVersion"));
    // Clients may leave both out: the path says what it is.
    let fits = |sent: &str, expected: &str| sent.is_empty() || sent == expected;
    if fits(sent_kind, kind) && fits(sent_version, version) {
        return Ok(());
    }
    Err(Failure::bad_request(format!(
        "the API version in the data ({sent_version}, Kind={sent_kind}) does not match the expected API version ({version}, \
         Kind={kind})"
    )))
}

/// An object by the names of the schema, and warnings about what the record will not have.
pub(crate) fn to_fields(
    resource: &Resource,
    kind: Kind,
    object: Map<String, Value>,
    validation: FieldValidation,
) -> Result<(Map<String, Value>, Vec<String>), Failure> {
    let version = resource.group_version();
    let unreadable = |why: String| {
        let kind = resource.kind;
        Failure::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    };
    let (fields, Findings { unknown, not_kept }) =
        kubernetes::from_object(kind, object).map_err(|error| unreadable(error.to_string()))?;
    if validation == FieldValidation::Strict && !unknown.is_empty() {
        let listed: Vec<String> = unknown.iter().map(|path| format!("unknown field {path:?}")).collect();
        return Err(unreadable(format!("strict decoding error: {}", listed.join(", "))));
    }
    let mut warnings = Vec::new();
    if validation != FieldValidation::Ignore {
        warnings.extend(unknown.iter().map(|path| format!("unknown field {path:?}")));
        warnings.extend(
            not_kept.iter().map(|path| format!("field {path:?} is not kept by Muster and has no effect")),
        );
    }
    Ok((fields, warnings))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resources;

    fn at(plural: &str, namespace: &str) -> At {
        At { resource: resources::find("", plural).expect("a resource"), namespace: namespace.to_owned() }
    }

    #[test]
    fn json_and_yaml_are_read_and_an_empty_body_is_nothing() {
        let expected = json!({"a": {"b": [1]}});
        for (content_type, text) in [
            ("", "{\"a\":{\"b\":[1]}}"),
            ("application/json; charset=utf-8", " {\"a\":{\"b\":[1]}}\n"),
            ("application/yaml", "a:\n  b: [1]\n"),
        ] {
            assert_eq!(read(content_type, text.as_bytes()).map(Value::Object), Ok(expected.clone()));
        }
        assert_eq!(read("", b"").map(Value::Object), Ok(json!({})));
        for (content_type, text) in [("", "{"), ("", "[]"), ("application/yaml", "a: 1\n---\nb: 2\n")] {
            assert_eq!(
                read(content_type, text.as_bytes()).map_err(|failure| failure.code),
                Err(400),
                "{text}"
            );
        }
    }

    #[test]
    fn name_namespace_and_kind_must_be_those_of_the_path() {
        for (sent, name, expected) in [
            (json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}}), Some("p"), Ok("d")),
            (json!({}), None, Ok("d")),
            (json!({"metadata": {"name": "q"}}), Some("p"), Err("does not match the name on the URL")),
            (json!({"metadata": {"namespace": "e"}}), None, Err("does not match the namespace")),
            (json!({"kind": "Node"}), None, Err("Kind=Node) does not match")),
            (json!({"apiVersion": "v2"}), None, Err("(v2, Kind=)")),
            (json!({"metadata": 1}), None, Err("must be an object")),
        ] {
            let Value::Object(mut object) = sent.clone() else { unreachable!() };
            match (check(&mut object, &at("pods", "d"), name), expected) {
                (Ok(()), Ok(namespace)) => assert_eq!(metadata_text(&object, "namespace"), namespace),
                (Err(failure), Err(part)) => assert!(failure.message.contains(part), "{}", failure.message),
                (found, _) => panic!("{sent}: {found:?}"),
            }
        }
    }

    #[test]
    fn unknown_fields_are_refused_reported_or_ignored_and_known_ones_reported() {
        let sent = || {
            let sent = json!({"spec": {"hostPID": true, "hostPPID": true}});
            let Value::Object(fields) = sent else { unreachable!() };
            fields
        };
        let resource = resources::find("", "pods").expect("pods");
        let read = |validation| to_fields(resource, Kind::Pod, sent(), validation);
        let refused = read(FieldValidation::Strict).expect_err("it is refused");
        assert_eq!(
            refused.message,
            "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.hostPPID\""
        );
        let (_, warnings) = read(FieldValidation::Warn).expect("read");
        assert_eq!(
            warnings,
            [
                "unknown field \"spec.hostPPID\"",
                "field \"spec.hostPID\" is not kept by Muster and has no effect"
            ]
        );
        let (_, warnings) = read(FieldValidation::Ignore).expect("read");
        assert!(warnings.is_empty());
    }
}
