//! Writes: create, replace, patch.

use bytes::Bytes;
use muster_manifest::kubernetes::{self, keep_unseen};
use muster_proto::budget::DisruptionBudget;
use muster_proto::event::Event;
use muster_proto::lease::Lease;
use muster_proto::node::Node;
use muster_proto::pod::Pod;
use muster_proto::record::{Kind, Record};
use muster_rpc::server::Answer;
use prost::Message;
use serde_json::{Map, Value};
use tonic::{Code, Status};

use crate::answer;
use crate::body;
use crate::calls::Write;
use crate::media::{Form, patch_form};
use crate::object;
use crate::patch as patches;
use crate::path::At;
use crate::read::shown;
use crate::resources::{Resource, Source};
use crate::server::Ask;
use crate::status::{Failure, Subject};

/// How often a write that names no version is repeated when another one came between.
const ATTEMPTS: usize = 5;
/// The letters of generated names: none that could be read as another, and no vowels, so that they make no words.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const GENERATED: usize = 5;

/// Metadata that only the store writes.
const STORE_FIELDS: [&str; 7] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
];

/// What of an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Main,
    Status,
}

/// How what is written was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Whole,
    Patched,
}

/// The kind of the records that are written.
pub(crate) fn kind_of(at: &At) -> Result<Kind, Failure> {
    match at.resource.source {
        Source::Record(kind) => Ok(kind),
        _ => Err(Failure::method_not_allowed()),
    }
}

/// Creates an object.
pub(crate) async fn create(at: &At, ask: &Ask) -> Result<Answer, Failure> {
    let kind = kind_of(at)?;
    let form = ask.form(&[Form::Table, Form::Metadata])?;
    let dry_run = ask.query.dry_run()?;
    let mut object = body::read(ask.content_type(), &ask.body)?;
    if at.resource.namespaced && at.namespace.is_empty() {
        return Err(Failure::method_not_allowed());
    }
    body::check(&mut object, at, None)?;
    if !body::metadata_text(&object, "resourceVersion").is_empty() {
        return Err(Failure::bad_request("resourceVersion should not be set on objects to be created"));
    }
    name_it(&mut object, kind)?;
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        STORE_FIELDS.iter().for_each(|field| drop(metadata.remove(*field)));
    }
    if matches!(kind, Kind::Pod | Kind::DisruptionBudget) {
        object.remove("status");
    }
    let name = body::metadata_text(&object, "name").to_owned();
    let subject = Subject { resource: at.resource, name: &name, verb: "create" };
    let object = object::sent(at.resource, object);
    let (fields, warnings) = body::to_fields(at.resource, kind, object, ask.query.field_validation()?)?;
    let record = encoded(at.resource, kind, fields)?;
    let created = ask.store.write(kind, Write::Create, record, dry_run).await;
    let created = created.map_err(|status| Failure::of(&status, subject))?;
    let document = shown(at.resource, kind, form, &created, ask)?;
    Ok(answer::warn(answer::json(201, &document), &warnings))
}

/// Gives an object a name that has only the beginning of one. Events are named by the store.
fn name_it(object: &mut Map<String, Value>, kind: Kind) -> Result<(), Failure> {
    let start = body::metadata_text(object, "generateName").to_owned();
    let has_name = !body::metadata_text(object, "name").is_empty();
    let name = match (has_name, kind) {
        (true, _) => return Ok(()),
        (false, Kind::Event) if start.is_empty() => "event".to_owned(),
        (false, _) if start.is_empty() => return Ok(()),
        (false, _) => format!("{start}{}", random_letters()),
    };
    match object.get_mut("metadata") {
        Some(Value::Object(metadata)) => drop(metadata.insert("name".to_owned(), name.into())),
        _ => return Err(Failure::bad_request("metadata: must be an object")),
    }
    Ok(())
}

fn random_letters() -> String {
    let random = uuid::Uuid::new_v4();
    let bytes = random.as_bytes().iter().take(GENERATED);
    bytes.map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect()
}

/// Fields by the names of the schema as an encoded record.
fn encoded(resource: &Resource, kind: Kind, fields: Map<String, Value>) -> Result<Bytes, Failure> {
    fn message<R: Record>(fields: Map<String, Value>) -> Result<Bytes, kubernetes::Unreadable> {
        Ok(kubernetes::to_message::<R>(fields)?.encode_to_vec().into())
    }
    let encoded = match kind {
        Kind::Node => message::<Node>(fields),
        Kind::Pod => message::<Pod>(fields),
        Kind::Lease => message::<Lease>(fields),
        Kind::DisruptionBudget => message::<DisruptionBudget>(fields),
        Kind::Event => message::<Event>(fields),
        Kind::PriorityClass | Kind::JoinToken | Kind::CertificateRequest | Kind::Revocation => {
            return Err(Failure::unknown_resource());
        }
    };
    encoded.map_err(|error| {
        let (kind, version) = (resource.kind, resource.group_version());
        Failure::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {error}"))
    })
}

/// Replaces an object.
pub(crate) async fn update(at: &At, name: &str, ask: &Ask, part: Part) -> Result<Answer, Failure> {
    let kind = kind_of(at)?;
    let mut sent = body::read(ask.content_type(), &ask.body)?;
    body::check(&mut sent, at, Some(name))?;
    replace(at, kind, name, ask, (part, How::Whole), |_| Ok(sent.clone())).await
}

/// Changes an object by a patch of the current one.
pub(crate) async fn patch(at: &At, name: &str, ask: &Ask, part: Part) -> Result<Answer, Failure> {
    let kind = kind_of(at)?;
    let form = patch_form(ask.content_type())?;
    if ask.query.flag("force") {
        return Err(Failure::unprocessable(
            "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch",
        ));
    }
    replace(at, kind, name, ask, (part, How::Patched), |current| {
        let current = current
            .ok_or_else(|| Failure::not_found(Subject { resource: at.resource, name, verb: "patch" }))?;
        let before = current["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let mut patched = patches::apply(form, current, &ask.body)?;
        body::check(&mut patched, at, Some(name))?;
        // A version that the patch did not name is no condition.
        if body::metadata_text(&patched, "resourceVersion") == before
            && let Some(Value::Object(metadata)) = patched.get_mut("metadata")
        {
            metadata.remove("resourceVersion");
        }
        Ok(patched)
    })
    .await
}

/// Writes what `wanted` makes of the current object. If it names no version, it is made again when another write came
/// between.
async fn replace(
    at: &At,
    kind: Kind,
    name: &str,
    ask: &Ask,
    (part, how): (Part, How),
    wanted: impl Fn(Option<&Value>) -> Result<Map<String, Value>, Failure>,
) -> Result<Answer, Failure> {
    let form = ask.form(&[Form::Table, Form::Metadata])?;
    let (dry_run, validation) = (ask.query.dry_run()?, ask.query.field_validation()?);
    let verb = if part == Part::Status { "update the status of" } else { "update" };
    let subject = Subject { resource: at.resource, name, verb };
    let write = match (kind, part) {
        (Kind::Event, _) => Write::Create,
        (_, Part::Main) => Write::Update,
        (_, Part::Status) => Write::UpdateStatus,
    };
    let mut attempt = 1;
    loop {
        let current = current(at, kind, name, ask).await.map_err(|status| Failure::of(&status, subject))?;
        let shown_before = current.as_ref().map(|record| object::object(at.resource, kind, record));
        let mut sent = wanted(shown_before.as_ref())?;
        // Leases and budgets must be replaced by version, as in Kubernetes, and the store sees to it. For the others
        // the version is that of the record which was completed here.
        let is_conditional = !body::metadata_text(&sent, "resourceVersion").is_empty();
        let needs_version = how == How::Whole && matches!(kind, Kind::Lease | Kind::DisruptionBudget);
        if let (true, Some(shown), Some(Value::Object(metadata))) =
            (!is_conditional && !needs_version, &shown_before, sent.get_mut("metadata"))
        {
            metadata.insert("resourceVersion".to_owned(), shown["metadata"]["resourceVersion"].clone());
        }
        let sent = object::sent(at.resource, sent);
        let (mut fields, warnings) = body::to_fields(at.resource, kind, sent, validation)?;
        if let Some(current) = &current {
            keep_unseen(kind, &mut fields, &kubernetes::schema_fields(kind, current));
        }
        let record = encoded(at.resource, kind, fields)?;
        match ask.store.write(kind, write, record, dry_run).await {
            Ok(stored) => {
                let document = shown(at.resource, kind, form, &stored, ask)?;
                let created = current.is_none() && kind != Kind::Event;
                return Ok(answer::warn(answer::json(if created { 201 } else { 200 }, &document), &warnings));
            }
            Err(status) if status.code() == Code::Aborted && !is_conditional && attempt < ATTEMPTS => {
                attempt += 1;
            }
            Err(status) => return Err(Failure::of(&status, subject)),
        }
    }
}

/// The current record. Only a lease may be created by replacing it.
async fn current(at: &At, kind: Kind, name: &str, ask: &Ask) -> Result<Option<Bytes>, Status> {
    match ask.store.get(kind, &at.namespace, name).await {
        Ok(record) => Ok(Some(record)),
        Err(status) if status.code() == Code::NotFound && kind == Kind::Lease => Ok(None),
        Err(status) => Err(status),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_is_generated_from_its_beginning() {
        let mut object = Map::new();
        object.insert("metadata".to_owned(), json!({"generateName": "web-"}));
        name_it(&mut object, Kind::Pod).expect("metadata is there");
        let name = body::metadata_text(&object, "name");
        let end = name.strip_prefix("web-").expect("the beginning");
        assert!(end.len() == GENERATED && end.bytes().all(|letter| LETTERS.contains(&letter)), "{name}");
        let kept = name.to_owned();
        name_it(&mut object, Kind::Pod).expect("metadata is there");
        assert_eq!(body::metadata_text(&object, "name"), kept);
    }
}
