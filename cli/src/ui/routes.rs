//! The page over HTTP: its files, its feed, the answers about one node, and actions.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, RawQuery, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::StreamExt;
use muster_proto::node::Node;
use muster_store_client::ListOptions;
use serde_json::{Value, json};

use super::actions::{self, Action};
use super::assets::Asset;
use super::node_answer::node_answer;
use super::{Pages, TraceUrl};
use crate::connection::OrFailure;
use crate::failure::{Exit, Failure};
use crate::same_origin::{check_origin, single};

/// Everything from this origin, and no script, style or handler inside of the page itself. A text can nowhere become
/// markup or script: names, labels and reasons come from others.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// The largest action; a reason is a sentence.
const MAX_ACTION: usize = 16 * 1024;
/// Nodes that a search by labels names.
const MAX_FOUND: usize = 100_000;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// The routes of the page.
pub(super) fn routes(pages: Arc<Pages>) -> Router {
    Router::new()
        .route("/", get(|| async { asset("") }))
        .route("/{file}", get(|Path(file): Path<String>| async move { asset(&file) }))
        .route("/api/settings", get(settings))
        .route("/api/feed", get(feed))
        .route("/api/nodes", get(search))
        .route("/api/nodes/{name}", get(node).post(act))
        .layer(DefaultBodyLimit::max(MAX_ACTION))
        .layer(middleware::from_fn(guard))
        .with_state(pages)
}

/// Refuses what another site asks for, and adds the headers that every answer has.
async fn guard(request: Request, next: Next) -> Response {
    let mut answer = match check_request(&request) {
        Ok(()) => next.run(request).await,
        Err(reason) => (StatusCode::FORBIDDEN, format!("{reason}\n")).into_response(),
    };
    let same_origin = HeaderValue::from_static("same-origin");
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (HeaderName::from_static("cross-origin-resource-policy"), same_origin.clone()),
        (HeaderName::from_static("cross-origin-opener-policy"), same_origin),
    ] {
        answer.headers_mut().insert(name, value);
    }
    answer
}

fn check_request(request: &Request) -> Result<(), String> {
    check_origin(request.headers())?;
    check_site(request.method(), request.uri().path(), request.headers())
}

/// Refuses what a page of another site loads, as far as its browser says so. Such a request has no Origin if it is a
/// plain GET. A link to the page is allowed.
fn check_site(method: &Method, path: &str, headers: &HeaderMap) -> Result<(), String> {
    let site = single(headers, &FETCH_SITE)?.unwrap_or("none");
    let is_link = method == Method::GET && path == "/" && single(headers, &FETCH_MODE)? == Some("navigate");
    if is_link || ["none", "same-origin"].contains(&site) {
        return Ok(());
    }
    Err(format!("the request comes from another site ({site})"))
}

fn asset(path: &str) -> Response {
    match Asset::find(path) {
        Some(asset) => ([(CONTENT_TYPE, asset.content_type())], asset.content).into_response(),
        None => (StatusCode::NOT_FOUND, "there is no such file\n").into_response(),
    }
}

async fn settings(State(pages): State<Arc<Pages>>) -> Response {
    answer(Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "allowActions": pages.token.is_some(),
        "traceUrl": pages.trace_url.as_ref().map(TraceUrl::as_str),
    })))
}

/// The feed. It ends when this process stops, or else it would hold the stop up.
async fn feed(State(pages): State<Arc<Pages>>) -> Response {
    let frames =
        pages.feed.frames().map(|frame| Ok::<_, Infallible>(Bytes::copy_from_slice(frame.as_bytes())));
    let frames = frames.take_until(Box::pin(pages.shutdown.requested()));
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(frames)).into_response()
}

async fn node(State(pages): State<Arc<Pages>>, Path(name): Path<String>) -> Response {
    answer(node_answer(&pages, &name).await)
}

/// The names of the nodes that match a label selector. The store selects: this process keeps no labels.
async fn search(State(pages): State<Arc<Pages>>, RawQuery(query): RawQuery) -> Response {
    answer(names(&pages, &query.unwrap_or_default()).await)
}

async fn names(pages: &Pages, query: &str) -> Result<Value, Failure> {
    let selector = query.strip_prefix("selector=").and_then(percent_decoded);
    let selector = selector.ok_or_else(|| Failure::usage("the query must be selector=LABELS"))?;
    let store = pages.connection.store()?;
    let mut options = ListOptions { label_selector: selector, ..ListOptions::default() };
    let mut names: Vec<String> = Vec::new();
    loop {
        let page = store.client.list_page::<Node>(options.clone()).await.or_failure(&store.peer)?;
        names.extend(page.records.into_iter().map(|node| node.meta.name.to_string()));
        if page.next_page_token.is_empty() || names.len() >= MAX_FOUND {
            return Ok(json!({ "names": names }));
        }
        options.page_token = page.next_page_token;
    }
}

/// The text of a percent-encoded value.
fn percent_decoded(value: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let hex = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

async fn act(
    State(pages): State<Arc<Pages>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    content: Bytes,
) -> Response {
    if let Err(reason) = actions::check(&headers, pages.token.as_ref()) {
        return answer(Err(Failure::new(Exit::Refused, reason)));
    }
    let outcome = match Action::parse(&content) {
        Ok(action) => action.perform(&pages.connection, &name).await,
        Err(failure) => Err(failure),
    };
    answer(outcome)
}

/// An answer in JSON; a failure is `{"failure": MESSAGE}`.
fn answer(outcome: Result<Value, Failure>) -> Response {
    let (status, content) = match outcome {
        Ok(content) => (StatusCode::OK, content),
        Err(failure) => (status_of(&failure), json!({ "failure": failure.into_text().0 })),
    };
    (status, [(CONTENT_TYPE, "application/json")], content.to_string()).into_response()
}

fn status_of(failure: &Failure) -> StatusCode {
    match failure.exit() {
        Some(Exit::Usage) => StatusCode::BAD_REQUEST,
        Some(Exit::NotFound) => StatusCode::NOT_FOUND,
        Some(Exit::Refused) => StatusCode::FORBIDDEN,
        Some(Exit::Conflict) => StatusCode::CONFLICT,
        Some(Exit::Unreachable) => StatusCode::BAD_GATEWAY,
        Some(Exit::Failed) | None => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_site_may_only_link_to_the_page() {
        let check = |method: Method, path: &str, site: Option<&str>, mode: &str| {
            let mut headers = HeaderMap::new();
            headers.extend(site.map(|site| (FETCH_SITE, site.parse().unwrap())));
            headers.insert(FETCH_MODE, mode.parse().unwrap());
            check_site(&method, path, &headers).is_ok()
        };
        for (method, path, site, mode, allowed) in [
            (Method::GET, "/api/feed", None, "cors", true),
            (Method::GET, "/api/feed", Some("same-origin"), "cors", true),
            (Method::GET, "/", Some("none"), "navigate", true),
            (Method::GET, "/", Some("cross-site"), "navigate", true),
            (Method::GET, "/", Some("cross-site"), "no-cors", false),
            (Method::GET, "/main.js", Some("cross-site"), "no-cors", false),
            (Method::GET, "/api/settings", Some("cross-site"), "navigate", false),
            (Method::GET, "/api/nodes/a", Some("same-site"), "cors", false),
            (Method::POST, "/", Some("cross-site"), "navigate", false),
        ] {
            assert_eq!(check(method.clone(), path, site, mode), allowed, "{method} {path} {site:?} {mode}");
        }
    }

    #[test]
    fn a_selector_is_decoded_or_refused() {
        for (text, expected) in [
            ("zone%3Da%2C!old", Some("zone=a,!old")),
            ("", Some("")),
            ("%C3%A4", Some("\u{e4}")),
            ("%4", None),
            ("%zz", None),
            ("%FF", None),
        ] {
            assert_eq!(percent_decoded(text).as_deref(), expected, "{text}");
        }
    }
}
