//! The HTTP API that kills and revives simulated nodes. It listens on a loopback address only.
//!
//! `POST /simulation/kill?node=sim-1`, `?zone=zone-1` or `?all`, and the same for `/simulation/revive`;
//! `GET /simulation` lists the nodes that are off.
//!
//! A page in a browser on this machine can reach loopback addresses, too. So a request must name this machine as its host,
//! which a page of another name cannot make the browser do, and come from no other origin.

use std::net::IpAddr;

use axum::Router;
use axum::extract::{RawQuery, Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::machines::{Machines, Selection};

/// The routes of the API.
pub(super) fn routes(machines: Machines) -> Router {
    let kill = |State(machines): State<Machines>, RawQuery(query): RawQuery| async move {
        set_power(&machines, query, false)
    };
    let revive = |State(machines): State<Machines>, RawQuery(query): RawQuery| async move {
        set_power(&machines, query, true)
    };
    Router::new()
        .route("/simulation", get(|State(machines): State<Machines>| async move { status(&machines) }))
        .route("/simulation/kill", post(kill))
        .route("/simulation/revive", post(revive))
        .layer(middleware::from_fn(from_this_machine))
        .with_state(machines)
}

/// Refuses requests that a web page of another site made.
async fn from_this_machine(request: Request, next: Next) -> Response {
    match check_origin(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(reason) => (StatusCode::FORBIDDEN, format!("{reason}\n")).into_response(),
    }
}

/// Checks that a request names this machine as its host, and comes from no other origin.
fn check_origin(headers: &HeaderMap) -> Result<(), String> {
    let host =
        single(headers, &HOST)?.ok_or("the request has no Host header: name this machine, as localhost")?;
    let authority = host.parse::<Authority>().ok().filter(is_loopback);
    let authority = authority
        .ok_or_else(|| format!("the Host {host:?} is not this machine: call localhost or 127.0.0.1"))?;
    match single(headers, &ORIGIN)? {
        None => Ok(()),
        Some(origin) if is_same_origin(origin, &authority) => Ok(()),
        Some(origin) => {
            Err(format!("the Origin {origin:?} is another site, which may not call the simulation"))
        }
    }
}

/// The value of a header that may be given once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, String> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| format!("{name} is not text")),
        (Some(_), Some(_)) => Err(format!("{name} is given more than once")),
    }
}

fn is_loopback(authority: &Authority) -> bool {
    let host = authority.host();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_named = host.eq_ignore_ascii_case("localhost");
    let is_address = address.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    (is_named || is_address) && !authority.as_str().contains('@')
}

fn is_same_origin(origin: &str, host: &Authority) -> bool {
    origin.strip_prefix("http://").is_some_and(|origin| origin.eq_ignore_ascii_case(host.as_str()))
}

fn status(machines: &Machines) -> String {
    let off = machines.off();
    let mut text =
        format!("nodes {}\nzones {}\noff {}\n", machines.spec.nodes, machines.spec.zones, off.len());
    off.iter().for_each(|name| text.push_str(&format!("{name}\n")));
    text
}

fn set_power(machines: &Machines, query: Option<String>, on: bool) -> (StatusCode, String) {
    let query = query.unwrap_or_default();
    let selection = match selection(&query) {
        Ok(selection) => selection,
        Err(reason) => return (StatusCode::BAD_REQUEST, reason),
    };
    match machines.set_power(&selection, on) {
        Some(names) => (StatusCode::OK, names.iter().map(|name| format!("{name}\n")).collect()),
        None => (StatusCode::NOT_FOUND, format!("{query} matches no simulated node\n")),
    }
}

/// Parses the query. Names of nodes and zones need no URL escapes.
fn selection(query: &str) -> Result<Selection, String> {
    match query.split_once('=').unwrap_or((query, "")) {
        ("all", "" | "true") => Ok(Selection::All),
        ("zone", name) if !name.is_empty() => Ok(Selection::Zone(name.to_owned())),
        ("node", name) if !name.is_empty() => Ok(Selection::Node(name.to_owned())),
        _ => Err(format!("the query {query:?} is not node=NAME, zone=NAME or all\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::fleet_spec::FleetSpec;

    #[test]
    fn a_query_selects_nodes_or_is_refused() {
        for (query, expected) in [
            ("all", Ok(Selection::All)),
            ("all=true", Ok(Selection::All)),
            ("zone=zone-1", Ok(Selection::Zone("zone-1".to_owned()))),
            ("node=sim-1", Ok(Selection::Node("sim-1".to_owned()))),
            ("", Err(())),
            ("node=", Err(())),
            ("zone", Err(())),
            ("rack=1", Err(())),
        ] {
            assert_eq!(selection(query).map_err(drop), expected, "{query}");
        }
    }

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_this_machine_and_no_other_site_may_call() {
        for (host, origin, allowed) in [
            ("localhost", None, true),
            ("LOCALHOST:7701", None, true),
            ("127.0.0.1:7701", None, true),
            ("127.8.0.1", None, true),
            ("[::1]:7701", None, true),
            ("[::ffff:127.0.0.1]:7701", None, true),
            ("muster.example:7701", None, false),
            ("localhost.evil.example", None, false),
            ("127.0.0.1.evil.example", None, false),
            ("10.0.0.1:7701", None, false),
            ("[::2]:7701", None, false),
            ("evil.example@localhost", None, false),
            ("", None, false),
            ("a b", None, false),
            ("localhost:7701", Some("http://localhost:7701"), true),
            ("localhost:7701", Some("http://LocalHost:7701"), true),
            ("localhost:7701", Some("http://localhost:8000"), false),
            ("localhost:7701", Some("http://127.0.0.1:7701"), false),
            ("localhost:7701", Some("https://localhost:7701"), false),
            ("localhost:7701", Some("https://evil.example"), false),
            ("localhost:7701", Some("null"), false),
            ("localhost:7701", Some(""), false),
        ] {
            let mut given = headers(&[(HOST, host)]);
            given.extend(origin.map(|origin| (ORIGIN, origin.parse().unwrap())));
            let checked = check_origin(&given);
            assert_eq!(checked.is_ok(), allowed, "{host} from {origin:?}: {checked:?}");
        }
        assert!(check_origin(&HeaderMap::new()).unwrap_err().contains("no Host"));
        let mut twice = headers(&[(HOST, "localhost")]);
        twice.append(HOST, "evil.example".parse().unwrap());
        assert!(check_origin(&twice).unwrap_err().contains("more than once"));
    }

    #[test]
    fn an_answer_lists_the_nodes_that_changed() {
        let machines = Machines::new(FleetSpec { nodes: 4, zones: 2 });
        let query = |text: &str| Some(text.to_owned());
        assert_eq!(
            set_power(&machines, query("zone=zone-2"), false),
            (StatusCode::OK, "sim-2\nsim-4\n".to_owned())
        );
        assert_eq!(status(&machines), "nodes 4\nzones 2\noff 2\nsim-2\nsim-4\n");
        assert_eq!(set_power(&machines, query("node=sim-9"), false).0, StatusCode::NOT_FOUND);
        assert_eq!(set_power(&machines, None, false).0, StatusCode::BAD_REQUEST);
    }
}
