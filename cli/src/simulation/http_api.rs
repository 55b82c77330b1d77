//! Switching simulated machines off and on over HTTP, from this machine only.
//!
//! `POST /simulation/kill?node=sim-1`, `?zone=zone-1` or `?all`, the same for `/simulation/revive`; `GET /simulation`
//! tells who is off.

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::{get, post};

use super::machines::{Roll, Selection};

/// The pages.
pub(super) fn routes(roll: Roll) -> Router {
    let kill =
        |State(roll): State<Roll>, RawQuery(query): RawQuery| async move { switch(&roll, query, false) };
    let revive =
        |State(roll): State<Roll>, RawQuery(query): RawQuery| async move { switch(&roll, query, true) };
    Router::new()
        .route("/simulation", get(|State(roll): State<Roll>| async move { standing(&roll) }))
        .route("/simulation/kill", post(kill))
        .route("/simulation/revive", post(revive))
        .with_state(roll)
}

fn standing(roll: &Roll) -> String {
    let down = roll.down();
    let mut text =
        format!("nodes {}\nzones {}\noff {}\n", roll.blueprint.nodes, roll.blueprint.zones, down.len());
    down.iter().for_each(|name| text.push_str(&format!("{name}\n")));
    text
}

fn switch(roll: &Roll, query: Option<String>, up: bool) -> (StatusCode, String) {
    let query = query.unwrap_or_default();
    let selection = match selection(&query) {
        Ok(selection) => selection,
        Err(reason) => return (StatusCode::BAD_REQUEST, reason),
    };
    match roll.switch(&selection, up) {
        Some(names) => (StatusCode::OK, names.iter().map(|name| format!("{name}\n")).collect()),
        None => (StatusCode::NOT_FOUND, format!("no simulated node is meant by {query}\n")),
    }
}

/// Who is meant. Names of nodes and zones need no escapes in an address.
fn selection(query: &str) -> Result<Selection, String> {
    match query.split_once('=').unwrap_or((query, "")) {
        ("all", "" | "true") => Ok(Selection::All),
        ("zone", name) if !name.is_empty() => Ok(Selection::Zone(name.to_owned())),
        ("node", name) if !name.is_empty() => Ok(Selection::Node(name.to_owned())),
        _ => Err(format!("{query:?} says not who: node=NAME, zone=NAME or all\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::fleet_spec::Blueprint;

    #[test]
    fn a_query_says_who_is_meant_or_is_refused() {
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
    fn an_answer_names_who_was_switched() {
        let roll = Roll::new(Blueprint { nodes: 4, zones: 2 });
        let query = |text: &str| Some(text.to_owned());
        assert_eq!(switch(&roll, query("zone=zone-2"), false), (StatusCode::OK, "sim-2\nsim-4\n".to_owned()));
        assert_eq!(standing(&roll), "nodes 4\nzones 2\noff 2\nsim-2\nsim-4\n");
        assert_eq!(switch(&roll, query("node=sim-9"), false).0, StatusCode::NOT_FOUND);
        assert_eq!(switch(&roll, None, false).0, StatusCode::BAD_REQUEST);
    }
}
