//! Which form of an answer a client accepts, and in which form it sends a body. Pure.

use crate::status::Failure;

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The object or list itself.
    Object,
    /// As the rows of a table.
    Table,
    /// Only the metadata of an object.
    Metadata,
    /// Only the metadata of the objects of a list.
    MetadataList,
    /// Discovery in two answers instead of one for each group.
    Aggregated,
}

/// The content type of every answer but aggregated discovery.
pub(crate) const JSON: &str = "application/json";

/// The first form of the header that is one of `offered`; `Object` always is.
///
/// # Errors
/// When none is.
pub(crate) fn accepted(accept: &str, offered: &[Form]) -> Result<Form, Failure> {
    if accept.trim().is_empty() {
        return Ok(Form::Object);
    }
    let mut entries: Vec<(f32, Form)> = Vec::new();
    for entry in accept.split(',') {
        let mut parts = entry.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        let parameter =
            |name: &str| parameters.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| *value);
        if !matches!(media.as_str(), "application/json" | "application/*" | "*/*") {
            continue;
        }
        let meta = parameter("g") == "meta.k8s.io" && parameter("v") == "v1";
        let form = match parameter("as") {
            "" => Form::Object,
            "Table" if meta => Form::Table,
            "PartialObjectMetadata" if meta => Form::Metadata,
            "PartialObjectMetadataList" if meta => Form::MetadataList,
            "APIGroupDiscoveryList" if parameter("g") == "apidiscovery.k8s.io" && parameter("v") == "v2" => {
                Form::Aggregated
            }
            _ => continue,
        };
        let quality = parameter("q").parse().unwrap_or(1.0);
        if form == Form::Object || offered.contains(&form) {
            entries.push((quality, form));
        }
    }
    // The first of those with the highest quality.
    let best = entries.into_iter().reduce(|best, next| if next.0 > best.0 { next } else { best });
    best.map(|(_, form)| form).ok_or_else(Failure::not_acceptable)
}

/// The form of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyForm {
    Json,
    Yaml,
    Protobuf,
}

/// The form of a body by its content type; JSON if there is none.
pub(crate) fn body_form(content_type: &str) -> Result<BodyForm, Failure> {
    match media_type(content_type).as_str() {
        "" | "application/json" => Ok(BodyForm::Json),
        "application/yaml" => Ok(BodyForm::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(BodyForm::Protobuf),
        _ => Err(Failure::unsupported_media_type(
            "application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

/// How a patch is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchForm {
    Json,
    Merge,
    Strategic,
}

/// The form of a patch by its content type.
pub(crate) fn patch_form(content_type: &str) -> Result<PatchForm, Failure> {
    const ACCEPTED: &str =
        "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json";
    match media_type(content_type).as_str() {
        "application/json-patch+json" => Ok(PatchForm::Json),
        "application/merge-patch+json" => Ok(PatchForm::Merge),
        "application/strategic-merge-patch+json" => Ok(PatchForm::Strategic),
        "application/apply-patch+yaml" | "application/apply-patch+cbor" => {
            Err(Failure::unsupported_media_type(&format!(
                "{ACCEPTED}; Muster does not record which client owns which field, so there is no server-side apply: use client-side apply"
            )))
        }
        _ => Err(Failure::unsupported_media_type(ACCEPTED)),
    }
}

fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_offered_form_is_chosen() {
        const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        const METADATA: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
        const DISCOVERY: &str =
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        for (accept, offered, expected) in [
            ("", &[][..], Some(Form::Object)),
            ("*/*", &[], Some(Form::Object)),
            ("application/vnd.kubernetes.protobuf, */*", &[], Some(Form::Object)),
            ("application/vnd.kubernetes.protobuf,application/json", &[], Some(Form::Object)),
            ("application/vnd.kubernetes.protobuf", &[], None),
            (TABLE, &[Form::Table], Some(Form::Table)),
            (TABLE, &[], Some(Form::Object)),
            (METADATA, &[Form::Metadata], Some(Form::Metadata)),
            ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", &[Form::MetadataList], None),
            (DISCOVERY, &[Form::Aggregated], Some(Form::Aggregated)),
            (
                "application/json;q=0.5,application/json;as=Table;v=v1;g=meta.k8s.io;q=0.8",
                &[Form::Table],
                Some(Form::Table),
            ),
            ("text/html", &[], None),
        ] {
            assert_eq!(accepted(accept, offered).ok(), expected, "{accept}");
        }
    }

    #[test]
    fn server_side_apply_is_refused_with_the_reason() {
        let refused = patch_form("application/apply-patch+yaml").expect_err("it is refused");
        assert!(refused.message.contains("which client owns which field"), "{}", refused.message);
        assert_eq!(patch_form("application/merge-patch+json; charset=utf-8").ok(), Some(PatchForm::Merge));
        assert_eq!(body_form("").ok(), Some(BodyForm::Json));
        assert!(body_form("text/plain").is_err());
    }
}
