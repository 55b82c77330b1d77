//! Answers requests: finds out what is asked for, and lets `read`, `watch`, `write` or `delete` answer it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request};
use muster_proto::identity::Caller;
use muster_rpc::clock::SharedClock;
use muster_rpc::server::{Answer, Calls, Pages};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::body::Body;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::calls::Store;
use crate::media::{Form, accepted};
use crate::openapi::OpenApi;
use crate::path::{At, Target, Unknown};
use crate::query::Query;
use crate::resources::Source;
use crate::status::{Failure, Subject};
use crate::{answer, delete, discovery, path, read, review, watch, write};

/// The largest body, as in Kubernetes.
const MAX_BODY: usize = 3 << 20;
/// Bodies that may be on their way at once.
const BODIES: usize = 128;
/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// What a client must send to be somebody else. It is refused: rights come from certificates alone.
const IMPERSONATE: &str = "impersonate-";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The Kubernetes API of a store.
pub struct Kubernetes {
    clock: SharedClock,
    /// Whether only this machine can reach it, without TLS.
    is_local: bool,
    openapi: OpenApi,
    bodies: Semaphore,
    /// Of discovery.
    tag: String,
}

/// One request, with its body.
pub(crate) struct Ask {
    pub(crate) store: Store,
    pub(crate) headers: HeaderMap,
    pub(crate) query: Query,
    pub(crate) body: Bytes,
    pub(crate) clock: SharedClock,
}

impl Ask {
    pub(crate) fn header(&self, name: &http::HeaderName) -> &str {
        text(&self.headers, name)
    }

    /// The form of the answer.
    pub(crate) fn form(&self, offered: &[Form]) -> Result<Form, Failure> {
        accepted(self.header(&ACCEPT), offered)
    }

    pub(crate) fn content_type(&self) -> &str {
        self.header(&CONTENT_TYPE)
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

impl Pages for Kubernetes {
    fn answer(self: Arc<Self>, request: Request<Body>, calls: Calls) -> BoxFuture<'static, Answer> {
        async move {
            let (parts, body) = request.into_parts();
            match self.answer_to(&parts, body, calls).await {
                Ok(answer) => answer,
                Err(failure) => answer::failure(&failure),
            }
        }
        .boxed()
    }
}

impl Kubernetes {
    /// `is_local`: it is served without TLS, and to this machine only.
    pub fn new(clock: SharedClock, is_local: bool) -> Kubernetes {
        Kubernetes {
            clock,
            is_local,
            openapi: OpenApi::new(),
            bodies: Semaphore::new(BODIES),
            tag: discovery::tag(),
        }
    }

    async fn answer_to(&self, parts: &Parts, body: Body, calls: Calls) -> Result<Answer, Failure> {
        check_origin(&parts.headers, parts.uri.host(), self.is_local)?;
        let target = match path::parse(parts.uri.path()) {
            Ok(target) => target,
            Err(Unknown::Resource) => return Err(Failure::unknown_resource()),
            Err(Unknown::Page) => return Ok(answer::text(404, "404 page not found\n")),
        };
        let is_get = parts.method == Method::GET;
        match (&target, is_get) {
            (Target::Version, true) => return Ok(answer::json(200, &version())),
            (Target::Health, true) => return Ok(answer::text(200, "ok")),
            (Target::Ready, true) => return Ok(ready(calls).await),
            _ => {}
        }
        check_caller(&calls, &parts.headers)?;
        if let Some(page) = self.page(&target, parts)? {
            return if is_get { Ok(page) } else { Err(Failure::method_not_allowed()) };
        }
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let store = Store::new(calls, parts.headers.get("traceparent"));
        let body = self.body(parts, body).await?;
        let ask = Ask { store, headers: parts.headers.clone(), query, body, clock: Arc::clone(&self.clock) };
        dispatch(&parts.method, target, &ask).await
    }

    /// The pages about the server itself.
    fn page(&self, target: &Target, parts: &Parts) -> Result<Option<Answer>, Failure> {
        let host = parts
            .uri
            .authority()
            .map_or_else(|| text(&parts.headers, &http::header::HOST), Authority::as_str);
        let document = match target {
            Target::Root => discovery::paths(),
            Target::Versions | Target::Groups => {
                let is_named = *target == Target::Groups;
                if accepted(text(&parts.headers, &ACCEPT), &[Form::Aggregated])? == Form::Aggregated {
                    return Ok(Some(self.aggregated(is_named, parts)));
                }
                if is_named { discovery::group_list() } else { discovery::versions(host) }
            }
            Target::Group(group) => discovery::group(group),
            Target::Resources(group) => discovery::resource_list(group),
            Target::OpenApiIndex => self.openapi.index().clone(),
            Target::OpenApi(group) => return Ok(Some(self.openapi.answer(group, &parts.headers))),
            Target::OpenApiV2 => {
                // Clients ask for it as Protobuf, and read JSON as well by its type.
                return Ok(Some(answer::large_json(self.openapi.v2(), &parts.headers)));
            }
            _ => return Ok(None),
        };
        Ok(Some(answer::json(200, &document)))
    }

    fn aggregated(&self, is_named: bool, parts: &Parts) -> Answer {
        let mut answer = if text(&parts.headers, &IF_NONE_MATCH) == self.tag {
            answer::with_type(304, AGGREGATED, Bytes::new())
        } else {
            let document = discovery::aggregated(is_named).to_string();
            answer::with_type(200, AGGREGATED, document.into())
        };
        let headers = answer.headers_mut();
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        if let Ok(tag) = HeaderValue::try_from(&self.tag) {
            headers.insert(ETAG, tag);
        }
        answer
    }

    /// The whole body of a request that may have one.
    async fn body(&self, parts: &Parts, body: Body) -> Result<Bytes, Failure> {
        if parts.method == Method::GET {
            return Ok(Bytes::new());
        }
        let busy = || Failure::new(429, "TooManyRequests", "too many requests are being sent: try again");
        let _place = self.bodies.try_acquire().map_err(|_| busy())?;
        let whole = axum::body::to_bytes(axum::body::Body::new(body), MAX_BODY);
        match timeout(BODY_TIMEOUT, whole).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(_)) => Err(Failure::too_large(MAX_BODY)),
            Err(_) => Err(Failure::new(408, "Timeout", "the body did not arrive in time")),
        }
    }
}

/// Whether the store serves: one that stands by for another does not.
async fn ready(calls: Calls) -> Answer {
    let service = "muster.v1.NodeService".to_owned();
    let asked = HealthClient::new(calls).check(HealthCheckRequest { service }).await;
    match asked.map(|answer| answer.into_inner().status()) {
        Ok(ServingStatus::Serving) => answer::text(200, "ok"),
        _ => answer::text(503, "the store does not serve at the moment\n"),
    }
}

/// Refuses web pages. A browser sends their requests from its user's machine, where no certificate is needed: a page
/// of another site names itself as the origin, and one whose name was made to lead here has that name as the host.
fn check_origin(headers: &HeaderMap, host: Option<&str>, is_local: bool) -> Result<(), Failure> {
    let refused =
        |why: &str| Err(Failure::new(403, "Forbidden", format!("requests of web pages are refused: {why}")));
    if headers.contains_key(http::header::ORIGIN) {
        return refused("the request has an Origin");
    }
    let host = host.unwrap_or_else(|| text(headers, &http::header::HOST));
    if is_local && !is_of_this_machine(host) {
        return refused("without TLS the host must be an address of this machine or localhost");
    }
    Ok(())
}

/// Whether a host, with or without a port, is an address or `localhost`.
fn is_of_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let is_address = |text: &str| text.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    name.is_empty() || name.eq_ignore_ascii_case("localhost") || is_address(name) || is_address(host)
}

/// Refuses callers without a role, and those who want to be somebody else.
fn check_caller(calls: &Calls, headers: &HeaderMap) -> Result<(), Failure> {
    if headers.keys().any(|name| name.as_str().starts_with(IMPERSONATE)) {
        let message = "impersonation is not supported: rights come from the certificate of the caller alone";
        return Err(Failure::new(403, "Forbidden", message));
    }
    match calls.caller() {
        Caller::Unknown(_) if headers.contains_key(http::header::AUTHORIZATION) => {
            Err(Failure::new(401, "Unauthorized", "Unauthorized"))
        }
        caller @ Caller::Unknown(_) => {
            let message =
                format!("{caller} has no rights: use a certificate with a role (O=muster:admins or another)");
            Err(Failure::new(403, "Forbidden", message))
        }
        _ => Ok(()),
    }
}

fn version() -> serde_json::Value {
    // Clients compare it with their own: it is the version of Kubernetes whose API this is.
    json!({
        "major": "1", "minor": "35", "gitVersion": format!("v1.35.0+muster-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }),
    })
}

async fn dispatch(method: &Method, target: Target, ask: &Ask) -> Result<Answer, Failure> {
    let is_watch = ask.query.flag("watch");
    match (method, target) {
        (&Method::GET, Target::Collection { at, watch: by_path }) if by_path || is_watch => {
            allowed(&at, "watch")?;
            watch::watch(&at, ask, None).await
        }
        (&Method::GET, Target::Object { at, name, watch: true }) => {
            allowed(&at, "watch")?;
            watch::watch(&at, ask, Some(&name)).await
        }
        (&Method::GET, Target::Collection { at, .. }) => {
            allowed(&at, "list")?;
            read::list(&at, ask).await
        }
        (&Method::GET, Target::Object { at, name, .. }) => {
            allowed(&at, "get")?;
            read::get(&at, &name, ask).await
        }
        (&Method::POST, Target::Collection { at, .. }) => {
            allowed(&at, "create")?;
            write::create(&at, ask).await
        }
        (&Method::PUT, Target::Object { at, name, .. }) => {
            allowed(&at, "update")?;
            write::update(&at, &name, ask, write::Part::Main).await
        }
        (&Method::PATCH, Target::Object { at, name, .. }) => {
            allowed(&at, "patch")?;
            write::patch(&at, &name, ask, write::Part::Main).await
        }
        (&Method::DELETE, Target::Object { at, name, .. }) => {
            allowed(&at, "delete")?;
            delete::delete(&at, &name, ask).await
        }
        (&Method::DELETE, Target::Collection { at, .. }) => {
            allowed(&at, "deletecollection")?;
            delete::delete_collection(&at, ask).await
        }
        (&Method::POST, Target::Review(resource, review)) => review::answer(resource, review, ask),
        (method, Target::Subresource { at, name, subresource }) => {
            of_object(method, &at, &name, &subresource, ask).await
        }
        _ => Err(Failure::method_not_allowed()),
    }
}

/// Requests for a part or an action of an object.
async fn of_object(
    method: &Method,
    at: &At,
    name: &str,
    subresource: &str,
    ask: &Ask,
) -> Result<Answer, Failure> {
    if let Some(refused) = not_served(at, name, subresource) {
        return Err(refused);
    }
    let served = at.resource.subresource(subresource).ok_or_else(Failure::unknown_resource)?;
    let verb = match *method {
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        _ => return Err(Failure::method_not_allowed()),
    };
    if !served.verbs.contains(&verb) {
        return Err(Failure::method_not_allowed());
    }
    match (subresource, verb) {
        ("status", "get") => read::get(at, name, ask).await,
        ("status", "update") => write::update(at, name, ask, write::Part::Status).await,
        ("status", "patch") => write::patch(at, name, ask, write::Part::Status).await,
        ("eviction", "create") => delete::evict(at, name, ask).await,
        ("binding", "create") => delete::bind(at, name, ask).await,
        _ => Err(Failure::method_not_allowed()),
    }
}

/// What Kubernetes has and Muster has not, with what to do instead.
fn not_served(at: &At, name: &str, subresource: &str) -> Option<Failure> {
    let instead = match (at.resource.plural, subresource) {
        ("pods", "log") => "logs are with the agent of the pod's node, in its state directory",
        ("pods", "exec" | "attach" | "portforward" | "proxy") => "use ssh to the pod's node",
        ("nodes", "proxy") => "call the node's agent itself",
        ("pods", "resize" | "ephemeralcontainers") => "create a new pod instead",
        _ => return None,
    };
    let subject = Subject { resource: at.resource, name, verb: "get" };
    let plural = subject.resource.plural;
    Some(Failure::not_implemented(format!("Muster does not serve {plural}/{subresource}: {instead}")))
}

/// Refuses verbs that a resource has not.
fn allowed(at: &At, verb: &str) -> Result<(), Failure> {
    if at.resource.allows(verb) {
        return Ok(());
    }
    let mut refused = Failure::method_not_allowed();
    let why = match at.resource.source {
        Source::Namespaces => "a namespace exists while a record is in it: create the record",
        Source::Record(_) => "the store counts events and deletes them when they are old",
        Source::Nothing | Source::Review(_) => return Err(refused),
    };
    refused.message = format!("{}: {why}", refused.message);
    Err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn web_pages_cannot_use_the_rights_of_this_machine() {
        let with = |name: http::HeaderName, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            headers
        };
        for (host, is_local, expected) in [
            ("localhost:7480", true, true),
            ("127.0.0.1:7480", true, true),
            ("[::1]:7480", true, true),
            ("::1", true, true),
            ("", true, true),
            ("evil.example:7480", true, false),
            ("localhost.evil.example", true, false),
            ("store.example:7480", false, true),
        ] {
            let headers = with(http::header::HOST, host);
            assert_eq!(check_origin(&headers, None, is_local).is_ok(), expected, "{host}");
            assert_eq!(check_origin(&HeaderMap::new(), Some(host), is_local).is_ok(), expected, "{host}");
        }
        let headers = with(http::header::ORIGIN, "http://evil.example");
        assert!(check_origin(&headers, Some("localhost"), false).is_err());
    }
}
