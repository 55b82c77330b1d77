//! The HTTP API that kills and revives simulated nodes. It listens on a loopback address only.
//!
//! `POST /simulation/kill?node=sim-1`, `?zone=zone-1` or `?all`, and the same for `/simulation/revive`;
//! `GET /simulation` lists the nodes that are off.
//! Pages of other sites are refused: see [`crate::same_origin`].

use axum::Router;
use axum::extract::{RawQuery, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::machines::{Machines, Selection};
use crate::same_origin::check_origin;

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
