//! Gets and lists.

use axum::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream;
use http::HeaderValue;
use http::header::{CONTENT_ENCODING, VARY};
use jiff::Timestamp;
use muster_grpc::records::RecordList;
use muster_proto::record::Kind;
use muster_rpc::server::Answer;
use serde_json::{Value, json};
use std::io::Write;

use crate::answer;
use crate::calls::{Selection, Store};
use crate::media::{Form, JSON};
use crate::namespaces;
use crate::object;
use crate::path::At;
use crate::resources::{Resource, Source};
use crate::server::Ask;
use crate::status::{Failure, Subject};
use crate::table::{self, IncludeObject};

/// The records of one page of a list that the client wants whole. It is made page by page, so that its size does not
/// matter.
const PAGE: u32 = 500;

/// One object.
pub(crate) async fn get(at: &At, name: &str, ask: &Ask) -> Result<Answer, Failure> {
    let form = ask.form(&[Form::Table, Form::Metadata])?;
    let subject = Subject { resource: at.resource, name, verb: "get" };
    let kind = match at.resource.source {
        Source::Record(kind) => kind,
        Source::Namespaces => return namespaces::get(at, name, form, ask).await,
        Source::Nothing | Source::Review(_) => return Err(Failure::not_found(subject)),
    };
    let found = ask.store.get(kind, &at.namespace, name).await;
    let record = found.map_err(|status| Failure::of(&status, subject))?;
    shown(at.resource, kind, form, &record, ask).map(|document| answer::large_json(&document, &ask.headers))
}

/// A record in the form that the client accepts.
pub(crate) fn shown(
    resource: &Resource,
    kind: Kind,
    form: Form,
    record: &[u8],
    ask: &Ask,
) -> Result<Value, Failure> {
    Ok(match form {
        Form::Table => {
            let include = IncludeObject::parse(ask.query.get("includeObject"))?;
            let row = table::row(resource, kind, record, include, ask.clock.wall());
            let version = object::metadata(record).resource_version.to_string();
            table::table(&table::columns(resource), &[row], &json!({"resourceVersion": version}))
        }
        Form::Metadata => object::metadata_object(record),
        _ => object::object(resource, kind, record),
    })
}

/// Which records a list or watch is about.
pub(crate) fn selection(at: &At, ask: &Ask, name: Option<&str>) -> Result<Selection, Failure> {
    let mut field_selector = object::field_selector(at.resource, ask.query.get("fieldSelector"));
    if let Some(name) = name {
        field_selector = format!("metadata.name={name}");
    }
    if field_selector.trim().is_empty() {
        field_selector.clear();
    }
    Ok(Selection {
        namespace: at.namespace.clone(),
        label_selector: ask.query.get("labelSelector").to_owned(),
        field_selector,
        resource_version: ask.query.number("resourceVersion")?,
        resource_version_match: ask.query.get("resourceVersionMatch").to_owned(),
    })
}

/// A collection.
pub(crate) async fn list(at: &At, ask: &Ask) -> Result<Answer, Failure> {
    let form = ask.form(&[Form::Table, Form::MetadataList])?;
    let subject = Subject { resource: at.resource, name: "", verb: "list" };
    let kind = match at.resource.source {
        Source::Record(kind) => kind,
        Source::Namespaces => return namespaces::list(at, form, ask).await,
        Source::Nothing | Source::Review(_) => return Ok(empty(at.resource, form)),
    };
    check_list(ask)?;
    let mut selection = selection(at, ask, None)?;
    let limit = u32::try_from(ask.query.number("limit")?).unwrap_or(u32::MAX);
    let token = ask.query.get("continue").to_owned();
    // As in Kubernetes: a version with a limit is meant exactly.
    if selection.resource_version > 0 && selection.resource_version_match.is_empty() && limit > 0 {
        selection.resource_version_match = "Exact".to_owned();
    }
    let size = if limit == 0 { PAGE } else { limit };
    let first = ask.store.list(kind, selection.clone(), size, &token).await;
    let first = first.map_err(|status| Failure::of(&status, subject))?;
    let include = IncludeObject::parse(ask.query.get("includeObject"))?;
    let page = Page { resource: at.resource, kind, form, include, now: ask.clock.wall() };
    let compress = answer::takes_gzip(&ask.headers)
        && (!first.next_page_token.is_empty() || size_of(&first) >= answer::COMPRESS_FROM / 2);
    let state = Some(Rest {
        store: ask.store.clone(),
        selection,
        whole: limit == 0,
        page,
        next: Some(first),
        begun: false,
        items: 0,
    });
    let chunks = stream::unfold((state, Encoder::new(compress)), |(state, mut encoder)| async move {
        let (chunk, state) = state?.chunk().await;
        let encoded = match chunk {
            Ok(text) => encoder.push(&text, state.is_none()),
            Err(error) => Err(std::io::Error::other(error)),
        };
        Some((encoded, (state, encoder)))
    });
    let mut answer = answer::streamed(200, JSON, Body::from_stream(chunks));
    if compress {
        answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        answer.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    Ok(answer)
}

fn size_of(list: &RecordList) -> usize {
    list.records.iter().map(Bytes::len).sum()
}

/// Refuses parameters that contradict each other; the store checks the others.
fn check_list(ask: &Ask) -> Result<(), Failure> {
    let refused = |field: &str, why: &str| {
        Failure::unprocessable(format!("ListOptions.meta.k8s.io \"\" is invalid: {field}: Forbidden: {why}"))
    };
    if ask.query.has("sendInitialEvents") {
        return Err(refused("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    if ask.query.has("resourceVersionMatch") && !ask.query.has("resourceVersion") {
        let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        return Err(refused("resourceVersionMatch", why));
    }
    if ask.query.has("continue")
        && ask.query.has("resourceVersion")
        && ask.query.get("resourceVersion") != "0"
    {
        let message = "specifying resource version is not allowed when using continue";
        return Err(Failure::bad_request(message));
    }
    Ok(())
}

/// How a page is written.
#[derive(Clone, Copy)]
struct Page {
    resource: &'static Resource,
    kind: Kind,
    form: Form,
    include: IncludeObject,
    now: Timestamp,
}

impl Page {
    fn item(&self, record: &[u8]) -> Value {
        match self.form {
            Form::Table => table::row(self.resource, self.kind, record, self.include, self.now),
            Form::MetadataList => object::metadata_object(record),
            _ => object::object(self.resource, self.kind, record),
        }
    }

    /// What comes before the items. The metadata comes last: whether there is more is known only then.
    fn head(&self) -> String {
        let version = self.resource.group_version();
        match self.form {
            Form::Table => format!(
                "{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/v1\",\"columnDefinitions\":{},\"rows\":[",
                table::columns(self.resource)
            ),
            Form::MetadataList => {
                "{\"kind\":\"PartialObjectMetadataList\",\"apiVersion\":\"meta.k8s.io/v1\",\"items\":["
                    .to_owned()
            }
            _ => {
                format!("{{\"kind\":\"{}List\",\"apiVersion\":\"{version}\",\"items\":[", self.resource.kind)
            }
        }
    }
}

/// What of a list is still to be sent.
struct Rest {
    store: Store,
    selection: Selection,
    /// Whether the client wants all pages in one answer.
    whole: bool,
    page: Page,
    next: Option<RecordList>,
    /// Whether the head is sent, and how many items.
    begun: bool,
    items: usize,
}

impl Rest {
    /// The next part of the text, and what remains.
    async fn chunk(mut self) -> (Result<String, String>, Option<Rest>) {
        let mut text = String::new();
        let Some(list) = self.next.take() else { return (Ok(text), None) };
        if !std::mem::replace(&mut self.begun, true) {
            text.push_str(&self.page.head());
        }
        for record in &list.records {
            if self.items > 0 {
                text.push(',');
            }
            self.items += 1;
            text.push_str(&self.page.item(record).to_string());
        }
        if self.whole && !list.next_page_token.is_empty() {
            // The token has the version of the first page, so the list is of one version.
            let selection = Selection {
                resource_version: 0,
                resource_version_match: String::new(),
                ..self.selection.clone()
            };
            match self.store.list(self.page.kind, selection, PAGE, &list.next_page_token).await {
                Ok(next) => self.next = Some(next),
                // The head is sent: the client sees that the answer is cut off.
                Err(status) => return (Err(status.message().to_owned()), None),
            }
            return (Ok(text), Some(self));
        }
        let mut metadata = json!({"resourceVersion": list.resource_version.to_string()});
        if !list.next_page_token.is_empty() {
            metadata["continue"] = list.next_page_token.into();
        }
        text.push_str(&format!("],\"metadata\":{metadata}}}\n"));
        (Ok(text), None)
    }
}

/// Compresses chunks, if that was agreed on.
struct Encoder(Option<GzEncoder<Vec<u8>>>);

impl Encoder {
    fn new(compress: bool) -> Encoder {
        Encoder(compress.then(|| GzEncoder::new(Vec::new(), Compression::fast())))
    }

    fn push(&mut self, text: &str, is_last: bool) -> Result<Bytes, std::io::Error> {
        let Some(encoder) = &mut self.0 else { return Ok(Bytes::from(text.to_owned())) };
        encoder.write_all(text.as_bytes())?;
        if is_last {
            encoder.try_finish()?;
        } else {
            encoder.flush()?;
        }
        Ok(std::mem::take(encoder.get_mut()).into())
    }
}

fn empty(resource: &Resource, form: Form) -> Answer {
    let metadata = json!({"resourceVersion": "1"});
    let document = match form {
        Form::Table => table::table(&table::columns(resource), &[], &metadata),
        Form::MetadataList => {
            json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": []})
        }
        _ => json!({
            "kind": format!("{}List", resource.kind), "apiVersion": resource.group_version(), "metadata": metadata, "items": [],
        }),
    };
    answer::json(200, &document)
}
