//! Ends of objects and actions on pods: delete, evict, bind.

use muster_proto::record::Kind;
use muster_rpc::server::Answer;
use serde_json::{Map, Value, json};
use tonic::Code;

use crate::answer;
use crate::body;
use crate::calls::Conditions;
use crate::media::Form;
use crate::object;
use crate::path::At;
use crate::query::is_dry_run;
use crate::read::{selection, shown};
use crate::server::Ask;
use crate::status::{Failure, Subject, done, success};
use crate::write::kind_of;

const PAGE: u32 = 500;

/// How something is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DeleteOptions {
    grace_period_seconds: Option<i64>,
    conditions: Conditions,
    dry_run: bool,
}

impl DeleteOptions {
    /// From the body, which may be empty, and from the parameters.
    fn read(ask: &Ask) -> Result<DeleteOptions, Failure> {
        let sent = body::read(ask.content_type(), &ask.body)?;
        let by_query = DeleteOptions {
            grace_period_seconds: match ask.query.get("gracePeriodSeconds") {
                "" => None,
                text => Some(
                    text.parse().map_err(|_| Failure::bad_request("gracePeriodSeconds: must be a number"))?,
                ),
            },
            conditions: Conditions::default(),
            dry_run: ask.query.dry_run()?,
        };
        check_policy(ask.query.get("propagationPolicy"))?;
        Ok(if sent.is_empty() { by_query } else { DeleteOptions::of(&sent, &by_query)? })
    }

    /// From an object; what it does not say is as in `otherwise`.
    fn of(sent: &Map<String, Value>, otherwise: &DeleteOptions) -> Result<DeleteOptions, Failure> {
        let kind = sent.get("kind").and_then(Value::as_str).unwrap_or_default();
        if !matches!(kind, "" | "DeleteOptions") {
            return Err(Failure::bad_request(format!("the body is a {kind}, expected DeleteOptions")));
        }
        check_policy(sent.get("propagationPolicy").and_then(Value::as_str).unwrap_or_default())?;
        if sent.get("orphanDependents").and_then(Value::as_bool) == Some(true) {
            check_policy("Orphan")?;
        }
        let grace = match sent.get("gracePeriodSeconds") {
            None | Some(Value::Null) => otherwise.grace_period_seconds,
            Some(seconds) => Some(
                seconds
                    .as_i64()
                    .ok_or_else(|| Failure::bad_request("gracePeriodSeconds: must be a number"))?,
            ),
        };
        let condition = |field: &str| {
            let found = sent.get("preconditions").and_then(|conditions| conditions.get(field));
            found.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let version = condition("resourceVersion");
        let resource_version = match version.as_str() {
            "" => 0,
            text => text
                .parse()
                .map_err(|_| Failure::bad_request("preconditions.resourceVersion: must be a number"))?,
        };
        let values = sent.get("dryRun").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        Ok(DeleteOptions {
            grace_period_seconds: grace,
            conditions: Conditions { uid: condition("uid"), resource_version },
            dry_run: otherwise.dry_run || is_dry_run(values.iter().filter_map(Value::as_str))?,
        })
    }
}

/// What an object owns is deleted after it, whatever the policy; it cannot be left without an owner.
fn check_policy(policy: &str) -> Result<(), Failure> {
    match policy {
        "" | "Background" | "Foreground" => Ok(()),
        "Orphan" => Err(Failure::unprocessable(
            "propagationPolicy: Orphan is not supported: the store deletes what a deleted object owns",
        )),
        other => Err(Failure::unprocessable(format!(
            "propagationPolicy: Unsupported value: {other:?}: supported values: \"Background\", \"Foreground\""
        ))),
    }
}

/// Deletes an object.
pub(crate) async fn delete(at: &At, name: &str, ask: &Ask) -> Result<Answer, Failure> {
    let kind = kind_of(at)?;
    let form = ask.form(&[Form::Table, Form::Metadata])?;
    let DeleteOptions { grace_period_seconds, conditions, dry_run } = DeleteOptions::read(ask)?;
    let subject = Subject { resource: at.resource, name, verb: "delete" };
    let deleted =
        ask.store.delete(kind, (&at.namespace, name), conditions, grace_period_seconds, dry_run).await;
    let last = deleted.map_err(|status| Failure::of(&status, subject))?;
    let metadata = object::metadata(&last);
    let remains = !metadata.finalizers.is_empty();
    let document = match kind == Kind::Pod || remains {
        true => shown(at.resource, kind, form, &last, ask)?,
        false => success(subject, &metadata.uid),
    };
    Ok(answer::json(200, &document))
}

/// Deletes what matches the selectors.
pub(crate) async fn delete_collection(at: &At, ask: &Ask) -> Result<Answer, Failure> {
    let kind = kind_of(at)?;
    if at.resource.namespaced && at.namespace.is_empty() {
        return Err(Failure::method_not_allowed());
    }
    let options = DeleteOptions::read(ask)?;
    let subject = Subject { resource: at.resource, name: "", verb: "list" };
    let (mut items, mut token) = (Vec::new(), String::new());
    let mut selection = selection(at, ask, None)?;
    loop {
        let page = ask.store.list(kind, selection.clone(), PAGE, &token).await;
        let page = page.map_err(|status| Failure::of(&status, subject))?;
        for record in page.records {
            let metadata = object::metadata(&record);
            let key = (metadata.namespace.as_str(), metadata.name.as_str());
            // Only the very record that was selected: one of the same name may have come since.
            let conditions = Conditions { uid: metadata.uid.clone(), ..options.conditions.clone() };
            let deleted =
                ask.store.delete(kind, key, conditions, options.grace_period_seconds, options.dry_run).await;
            match deleted {
                Ok(last) => items.push(object::object(at.resource, kind, &last)),
                Err(status) if status.code() == Code::NotFound => {}
                Err(status) => {
                    let subject = Subject { resource: at.resource, name: &metadata.name, verb: "delete" };
                    return Err(Failure::of(&status, subject));
                }
            }
        }
        token = page.next_page_token;
        (selection.resource_version, selection.resource_version_match) = (0, String::new());
        if token.is_empty() {
            break;
        }
    }
    let (kind, version) = (format!("{}List", at.resource.kind), at.resource.group_version());
    Ok(answer::json(200, &json!({"kind": kind, "apiVersion": version, "metadata": {}, "items": items})))
}

/// Evicts a pod if its budgets allow it.
pub(crate) async fn evict(at: &At, name: &str, ask: &Ask) -> Result<Answer, Failure> {
    let sent = body::read(ask.content_type(), &ask.body)?;
    let version = sent.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    // The old version has the same fields.
    body::check_kind(&sent, if version == "policy/v1beta1" { version } else { "policy/v1" }, "Eviction")?;
    check_name(&sent, at, name)?;
    let by_query = DeleteOptions { dry_run: ask.query.dry_run()?, ..DeleteOptions::default() };
    let options = match sent.get("deleteOptions") {
        Some(Value::Object(options)) => DeleteOptions::of(options, &by_query)?,
        _ => by_query,
    };
    let subject = Subject { resource: at.resource, name, verb: "create" };
    let DeleteOptions { grace_period_seconds, conditions, dry_run } = options;
    let evicted = ask.store.evict((&at.namespace, name), conditions, grace_period_seconds, dry_run).await;
    evicted.map_err(|status| Failure::of(&status, subject))?;
    Ok(answer::json(201, &done(201)))
}

/// Assigns a pod to a node.
pub(crate) async fn bind(at: &At, name: &str, ask: &Ask) -> Result<Answer, Failure> {
    let sent = body::read(ask.content_type(), &ask.body)?;
    body::check_kind(&sent, "v1", "Binding")?;
    check_name(&sent, at, name)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let target = sent.get("target").cloned().unwrap_or_default();
    if !matches!(target["kind"].as_str(), None | Some("" | "Node")) {
        return Err(Failure::unprocessable("target.kind: Unsupported value: supported values: \"Node\""));
    }
    let conditions = Conditions {
        uid: body::metadata_text(&sent, "uid").to_owned(),
        resource_version: body::metadata_text(&sent, "resourceVersion").parse().unwrap_or_default(),
    };
    let subject = Subject { resource: at.resource, name, verb: "create" };
    let dry_run = ask.query.dry_run()?;
    let bound = ask.store.bind((&at.namespace, name), text(&target["name"]), conditions, dry_run).await;
    bound.map_err(|status| Failure::of(&status, subject))?;
    Ok(answer::json(201, &done(201)))
}

fn check_name(sent: &Map<String, Value>, at: &At, name: &str) -> Result<(), Failure> {
    for (field, expected) in [("name", name), ("namespace", at.namespace.as_str())] {
        let found = body::metadata_text(sent, field);
        if !found.is_empty() && found != expected {
            return Err(Failure::bad_request(format!(
                "metadata.{field} is {found}, but the URL says {expected}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(sent: Value) -> Result<DeleteOptions, u16> {
        let Value::Object(sent) = sent else { unreachable!() };
        DeleteOptions::of(&sent, &DeleteOptions::default()).map_err(|failure| failure.code)
    }

    #[test]
    fn options_of_deletions_are_read_and_what_cannot_be_done_is_refused() {
        let read = options(
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
            "gracePeriodSeconds": 0, "preconditions": {"uid": "u", "resourceVersion": "7"}, "dryRun": ["All"]}),
        );
        let conditions = Conditions { uid: "u".to_owned(), resource_version: 7 };
        assert_eq!(read, Ok(DeleteOptions { grace_period_seconds: Some(0), conditions, dry_run: true }));
        assert_eq!(options(json!({})), Ok(DeleteOptions::default()));
        for (sent, code) in [
            (json!({"propagationPolicy": "Orphan"}), 422),
            (json!({"orphanDependents": true}), 422),
            (json!({"propagationPolicy": "Sideways"}), 422),
            (json!({"gracePeriodSeconds": "1"}), 400),
            (json!({"preconditions": {"resourceVersion": "x"}}), 400),
            (json!({"kind": "Pod"}), 400),
            (json!({"dryRun": ["Some"]}), 422),
        ] {
            assert_eq!(options(sent.clone()), Err(code), "{sent}");
        }
    }
}
