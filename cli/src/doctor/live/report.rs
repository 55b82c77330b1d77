//! The report of a running fleet, for people and for programs. Pure.

use jiff::{SignedDuration, Timestamp};
use muster_proto::pb;
use serde_json::{Value, json};

use super::judgement::{bytes, flags, parts_by_version};
use super::observation::{
    AgentState, ControllerState, Hello, Observation, Offset, Server, StoreState, Trouble,
};
use crate::doctor::checks::Finding;
use crate::doctor::forecast::Forecast;
use crate::doctor::report::{effects, effects_as_document, findings_as_document};
use crate::print::rows::pod_status::moment;
use crate::print::{Cell, Paint, Table, UNKNOWN, Word, age};

pub(super) fn text(
    observation: &Observation,
    forecast: Option<&Forecast>,
    findings: &[Finding],
    paint: Paint,
    width: usize,
) -> String {
    let mut parts = vec![servers(observation, paint, width), facts(observation, paint, width)];
    parts.extend(forecast.map(|forecast| effects(forecast, paint, width)));
    parts.push(crate::doctor::report::findings(findings, paint, width));
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

/// One row for each address. The last column is broken into lines where it is too long.
fn servers(observation: &Observation, paint: Paint, width: usize) -> String {
    let mut table = Table::new(["COMPONENT", "ADDRESS", "STATE"]);
    for server in &observation.stores {
        table.push(row("store", server, server.state.as_ref().map(|state| store(observation, state))));
    }
    for server in &observation.controllers {
        table.push(row(
            "controller",
            server,
            server.state.as_ref().map(|state| controller(observation, state)),
        ));
    }
    for server in &observation.agents {
        table.push(row("agent", server, server.state.as_ref().map(agent)));
    }
    table.take_within(paint, width)
}

fn row<S>(role: &str, server: &Server<S>, state: Result<Cell, &Trouble>) -> Vec<Cell> {
    let state = match (state, &server.hello) {
        (Ok(state), Ok(hello)) => state.followed_by(&hello_text(hello)),
        // The finding says why.
        (_, Ok(hello)) => Cell::new("answers, but not as expected").bad().followed_by(&hello_text(hello)),
        (_, Err(_)) => Cell::new("unreachable").bad(),
    };
    vec![Cell::new(role), Cell::new(&server.address), state]
}

fn hello_text(hello: &Hello) -> String {
    let version = hello.version.as_deref().unwrap_or(UNKNOWN);
    let clock = match hello.offset.map(Offset::certain) {
        None => UNKNOWN.to_owned(),
        Some(SignedDuration::ZERO) => "in step".to_owned(),
        Some(offset) => format!("{:+.0}s", offset.as_secs_f64()),
    };
    format!("; version {version}, clock {clock}")
}

fn store(observation: &Observation, state: &StoreState) -> Cell {
    match state {
        StoreState::StandsBy(reason) => Cell::new(reason),
        StoreState::Leads(status) => {
            let leads = leads_for(moment(status.leading_since.as_ref()), observation.store_now());
            let cell = Cell::new(format!("{leads} ({}), revision {}", status.engine, status.revision));
            if status.write_problem.is_empty() { cell.good() } else { cell.bad() }
        }
    }
}

fn controller(observation: &Observation, state: &ControllerState) -> Cell {
    let word = state.fleet.state().word();
    if !state.leads() {
        return Cell::new(format!("{word}, the leader is {}", leader_name(&state.fleet)));
    }
    // The lease names the leader for longer than this answer proves, so both must agree.
    let lease = observation.known_records().and_then(|records| records.leader.as_ref());
    let since = lease.filter(|leader| leader.holder == state.fleet.leader).and_then(|leader| leader.since);
    let cell = Cell::new(format!("{}: {word}", leads_for(since, observation.store_now())));
    if state.fleet.state() == pb::FleetState::Normal { cell.good() } else { cell.doubtful() }
}

fn leader_name(fleet: &pb::Fleet) -> &str {
    if fleet.leader.is_empty() { "none" } else { &fleet.leader }
}

fn leads_for(since: Option<Timestamp>, now: Timestamp) -> String {
    match since {
        Some(since) => format!("leads for {}", age::since(Some(since), now)),
        None => "leads".to_owned(),
    }
}

fn agent(state: &AgentState) -> Cell {
    let cell = Cell::new(format!("node {}", state.node_name));
    if state.registered { cell.good() } else { cell.bad() }
}

/// What the servers say about themselves and the fleet, a line each.
fn facts(observation: &Observation, paint: Paint, width: usize) -> String {
    let mut table = Table::without_headers();
    if let Some((_, status)) = observation.leading_store()
        && let Some(disk) = &status.disk
    {
        let (free, total) = (bytes(disk.available_bytes), bytes(disk.total_bytes));
        let text = format!("{free} of {total} free, {} kept in reserve", bytes(disk.reserve_bytes));
        table.push(["Disk of the store".to_owned(), text]);
    }
    if let Some(ControllerState { fleet, .. }) = observation.controller() {
        let nodes = format!("{} of {} Ready, in {} zones", fleet.ready_nodes, fleet.nodes, fleet.zones.len());
        table.push(["Nodes".to_owned(), nodes]);
    }
    if let Some(records) = observation.known_records() {
        let durations = records.lease_durations();
        let durations: Vec<String> =
            durations.iter().map(|(time, names)| format!("{}s ({})", time.as_secs(), names.len())).collect();
        if !durations.is_empty() {
            table.push(["Leases of agents".to_owned(), durations.join(", ")]);
        }
    }
    let versions = parts_by_version(observation);
    if let [version] = &versions.into_keys().collect::<Vec<_>>()[..] {
        table.push(["Version of all parts", version]);
    }
    let settings = observation.controller().and_then(|state| state.settings.as_ref());
    if let Some(settings) = settings {
        let flags: Vec<String> =
            flags(settings).into_iter().map(|(flag, value)| format!("--{flag}={value}")).collect();
        table.push(["Controller's flags".to_owned(), flags.join(" ")]);
    }
    table.take_within(paint, width)
}

/// The same for programs. Times are in seconds.
pub(super) fn as_document(
    observation: &Observation,
    forecast: Option<&Forecast>,
    findings: &[Finding],
) -> Value {
    let stores = observation.stores.iter().map(|server| {
        let state = match &server.state {
            Ok(StoreState::Leads(status)) => json!({
                "leads": true,
                "leadingSince": moment(status.leading_since.as_ref()).map(|since| since.to_string()),
                "engine": status.engine,
                "revision": status.revision,
                "writeProblem": status.write_problem,
                "disk": status.disk.as_ref().map(|disk| json!({
                    "totalBytes": disk.total_bytes,
                    "availableBytes": disk.available_bytes,
                    "reserveBytes": disk.reserve_bytes,
                })),
            }),
            Ok(StoreState::StandsBy(_)) => json!({ "leads": false }),
            Err(trouble) => json!({ "error": trouble.message }),
        };
        with_server("store", server, state)
    });
    let controllers = observation.controllers.iter().map(|server| {
        let state = match &server.state {
            Ok(state) => json!({
                "leads": state.leads(),
                "leader": state.fleet.leader,
                "state": state.fleet.state().word(),
                "settings": state.settings.as_ref().map(|settings| {
                    let flags = flags(settings).into_iter();
                    flags.map(|(flag, value)| (flag.to_owned(), Value::from(value))).collect::<Value>()
                }),
            }),
            Err(trouble) => json!({ "error": trouble.message }),
        };
        with_server("controller", server, state)
    });
    let agents = observation.agents.iter().map(|server| {
        let state = match &server.state {
            Ok(state) => json!({ "node": state.node_name, "registered": state.registered }),
            Err(trouble) => json!({ "error": trouble.message }),
        };
        with_server("agent", server, state)
    });
    let leader = observation.known_records().and_then(|records| records.leader.as_ref());
    json!({
        "servers": stores.chain(controllers).chain(agents).collect::<Vec<_>>(),
        "leader": leader.map(|leader| json!({
            "identity": leader.holder,
            "since": leader.since.map(|since| since.to_string()),
        })),
        "versions": parts_by_version(observation),
        "effects": forecast.map(effects_as_document),
        "findings": findings_as_document(findings),
    })
}

/// What all servers have, and what is of this kind.
fn with_server<S>(role: &str, server: &Server<S>, mut state: Value) -> Value {
    let hello: Option<&Hello> = server.hello.as_ref().ok();
    let offset = hello.and_then(|hello| hello.offset).map(|offset| offset.certain().as_secs_f64());
    let fields = [
        ("component", json!(role)),
        ("address", json!(server.address)),
        ("reachable", json!(hello.is_some())),
        ("version", json!(hello.and_then(|hello| hello.version.as_ref()))),
        ("clockOffset", json!(offset)),
    ];
    for (key, value) in fields {
        state[key] = value;
    }
    state
}

#[cfg(test)]
mod tests;
