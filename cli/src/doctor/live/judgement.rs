//! What is wrong with a running fleet. Pure.
//!
//! Each function judges one thing. What a server says and what the store's records say may be of slightly different
//! times, so nothing here depends on that they agree to the second.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::SignedDuration;
use muster_proto::pb;

use super::observation::{AgentRecord, Hello, Observation, Server, StoreState, Trouble, time};
use crate::doctor::checks::{Finding, Level, check};
use crate::doctor::forecast::{Settings, forecast};
use crate::print::{Word, age};

/// Clocks that differ by more than this are reported. NTP keeps them within a few milliseconds.
const TOLERATED_SKEW: SignedDuration = SignedDuration::from_secs(2);
/// A disk with less than this share free is reported before the store refuses writes.
const LOW_SPACE: f64 = 0.1;
/// How many names a finding lists.
const NAMES: usize = 3;

/// All findings, in no order.
pub(super) fn judge(observation: &Observation, settings: Option<&Settings>) -> Vec<Finding> {
    let mut findings = servers(observation);
    findings.extend(stores(observation));
    findings.extend(disks(observation));
    findings.extend(controllers(observation));
    findings.extend(zones(observation));
    findings.extend(controller_settings(observation));
    findings.extend(versions(observation));
    findings.extend(clocks(observation));
    findings.extend(agents(observation));
    if let Some(settings) = settings {
        findings.extend(leases(observation, settings));
    }
    findings
}

/// Addresses that cannot be reached, that belong to another part, or that refuse to answer us.
fn servers(observation: &Observation) -> Vec<Finding> {
    fn broken<S>(server: &Server<S>) -> Option<Finding> {
        let trouble = server.hello.as_ref().err().or(server.state.as_ref().err())?;
        Some(Finding::new(Level::Broken, &trouble.message, &trouble.hint))
    }
    let Observation { stores, controllers, agents, records, .. } = observation;
    let mut findings: Vec<Finding> = stores.iter().filter_map(broken).collect();
    findings.extend(controllers.iter().filter_map(broken));
    findings.extend(agents.iter().filter_map(broken));
    if let Some(Err(Trouble { message, hint })) = records {
        findings.push(Finding::new(Level::Broken, format!("the records cannot be read: {message}"), hint));
    }
    findings
}

/// Whether the stores are one store, and whether it leads and writes.
fn stores(observation: &Observation) -> Vec<Finding> {
    let mut findings = Vec::new();
    let ids = |server: &Server<StoreState>| server.hello.as_ref().ok()?.store_id.clone();
    let distinct: BTreeSet<String> = observation.stores.iter().filter_map(ids).collect();
    if distinct.len() > 1 {
        let problem = format!(
            "the addresses of the stores belong to {} different stores, each with records of its own",
            distinct.len()
        );
        findings.push(Finding::new(Level::Broken, problem, "give the addresses of one store to --store"));
    }
    let answering = observation.stores.iter().filter(|server| server.state.is_ok()).count();
    match observation.leading_store() {
        None if answering > 0 => findings.push(Finding::new(
            Level::Broken,
            "no store leads: nothing can be read or written",
            "a store takes over within seconds; if none does, look at their logs and at etcd",
        )),
        Some((_, status)) if !status.write_problem.is_empty() => findings.push(Finding::new(
            Level::Broken,
            format!("the store refuses writes: {}", status.write_problem),
            "free space or repair the disk: the store goes on by itself",
        )),
        _ => {}
    }
    findings
}

/// A disk that is nearly full.
fn disks(observation: &Observation) -> Vec<Finding> {
    let low = |(server, status): (&Server<StoreState>, &pb::GetStoreStatusResponse)| {
        let disk = status.disk?;
        let free = disk.available_bytes.saturating_sub(disk.reserve_bytes);
        let is_low = (free as f64) < disk.total_bytes as f64 * LOW_SPACE;
        let problem = format!(
            "the disk of the store at {} is nearly full: {} of {} can still be used",
            server.address,
            bytes(free),
            bytes(disk.total_bytes)
        );
        let remedy =
            "at 0 the store refuses writes and nodes become silent: free space, or lower --history-max-bytes";
        is_low.then(|| Finding::new(Level::Warning, problem, remedy))
    };
    observation.leading_store().and_then(low).into_iter().collect()
}

/// Who leads, and what keeps it from acting.
fn controllers(observation: &Observation) -> Vec<Finding> {
    let Some(state) = observation.controller() else { return Vec::new() };
    let pb::Fleet { leader, reason, .. } = &state.fleet;
    let mut findings = Vec::new();
    if leader.is_empty() {
        findings.push(Finding::new(
            Level::Broken,
            "no controller leads: silent nodes are not noticed and nothing is scheduled",
            "another one takes over when the lease expires; if none does, look at the controllers' logs",
        ));
    } else if !state.leads() {
        findings.push(Finding::new(
            Level::Warning,
            format!("the controller that leads, {leader}, is at none of the configured addresses"),
            "add its address to --controller: drains are accepted by the leader only",
        ));
    }
    let finding = match state.fleet.state() {
        pb::FleetState::Syncing => Some((Level::Warning, "the controller decides nothing")),
        pb::FleetState::FullDisruption => Some((Level::Broken, "the controller evicts nobody")),
        pb::FleetState::Holding => Some((Level::Note, "the controller evicts nobody yet")),
        _ => None,
    };
    if let Some((level, problem)) = finding {
        let remedy = "`muster fleet` shows the state of each zone";
        findings.push(Finding::new(level, format!("{problem}: {reason}"), remedy));
    }
    findings
}

/// Zones and nodes that have failed. `muster fleet` says more; here they keep the report from claiming that all is well.
fn zones(observation: &Observation) -> Vec<Finding> {
    use pb::ZoneState::{FullDisruption, PartialDisruption};
    let Some(state) = observation.controller() else { return Vec::new() };
    let fleet = &state.fleet;
    let failed = fleet.zones.iter().filter(|zone| matches!(zone.state(), FullDisruption | PartialDisruption));
    let mut findings: Vec<Finding> = failed
        .map(|zone| {
            let problem = format!("zone {} is in {}: {}", zone.name, zone.state().word(), zone.reason);
            Finding::new(
                Level::Warning,
                problem,
                "`muster top` shows its nodes, `muster explain node` their future",
            )
        })
        .collect();
    let failed = fleet.not_ready_nodes + fleet.unknown_nodes;
    if failed > 0 {
        let (not_ready, unknown) = (fleet.not_ready_nodes, fleet.unknown_nodes);
        findings.push(Finding::new(
            Level::Note,
            format!(
                "{failed} of {} nodes are not Ready: {unknown} Unknown, {not_ready} NotReady",
                fleet.nodes
            ),
            "`muster get nodes --status Unknown,NotReady` lists them",
        ));
    }
    findings
}

/// Controllers that would decide differently after a change of the leader.
fn controller_settings(observation: &Observation) -> Vec<Finding> {
    let settings = |server: &Server<_>| {
        let state: &super::observation::ControllerState = server.state.as_ref().ok()?;
        Some((server.address.clone(), state.settings?))
    };
    let all: Vec<(String, pb::ControllerSettings)> =
        observation.controllers.iter().filter_map(settings).collect();
    let mut findings = Vec::new();
    let alone = all.iter().filter(|(_, settings)| !settings.leader_elect).count();
    if all.len() > 1 && alone > 0 {
        findings.push(Finding::new(
            Level::Unsafe,
            format!("{alone} of {} controllers act without an election, beside others", all.len()),
            "set --leader-elect of each controller, or run only one",
        ));
    }
    let Some(((first, own), others)) = all.split_first() else { return findings };
    for (address, other) in others {
        let differing = differing_flags(own, other);
        if !differing.is_empty() {
            findings.push(Finding::new(
                Level::Warning,
                format!("the controllers at {first} and {address} differ in {}", differing.join(", ")),
                "give all controllers the same settings: a change of the leader would change how nodes are judged",
            ));
        }
    }
    findings
}

/// The flags that differ, each with both values.
fn differing_flags(one: &pb::ControllerSettings, other: &pb::ControllerSettings) -> Vec<String> {
    let (one, other) = (flags(one), flags(other));
    let pairs = one.into_iter().zip(other).filter(|((_, a), (_, b))| a != b);
    pairs.map(|((flag, a), (_, b))| format!("--{flag} ({a} and {b})")).collect()
}

/// The settings of a controller as flags, for people.
pub(super) fn flags(settings: &pb::ControllerSettings) -> [(&'static str, String); 12] {
    let seconds = |wire: &Option<prost_types::Duration>| format!("{}s", time(wire.as_ref()).as_secs_f64());
    [
        ("node-monitor-grace-period", seconds(&settings.node_monitor_grace_period)),
        ("node-startup-grace-period", seconds(&settings.node_startup_grace_period)),
        ("node-monitor-period", seconds(&settings.node_monitor_period)),
        ("node-eviction-rate", settings.node_eviction_rate.to_string()),
        ("secondary-node-eviction-rate", settings.secondary_node_eviction_rate.to_string()),
        ("unhealthy-zone-threshold", settings.unhealthy_zone_threshold.to_string()),
        ("large-cluster-size-threshold", settings.large_cluster_size_threshold.to_string()),
        ("eviction-hold", seconds(&settings.eviction_hold)),
        ("trust-unreported-nodes", settings.trust_unreported_nodes.to_string()),
        ("leader-elect", settings.leader_elect.to_string()),
        ("pod-gc-period", seconds(&settings.pod_gc_period)),
        ("pod-gc-quarantine", seconds(&settings.pod_gc_quarantine)),
    ]
}

/// Parts of several releases.
fn versions(observation: &Observation) -> Vec<Finding> {
    let by_version = parts_by_version(observation);
    if by_version.len() < 2 {
        return Vec::new();
    }
    let parts: Vec<String> =
        by_version.iter().map(|(version, parts)| format!("{version} ({})", parts.join(", "))).collect();
    vec![Finding::new(
        Level::Warning,
        format!("the parts have different versions: {}", parts.join("; ")),
        "finish the upgrade: first the stores, then the controllers, then the agents (deploy/operations.md)",
    )]
}

/// Which parts have which version. Agents of one version are counted together.
pub(super) fn parts_by_version(observation: &Observation) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    found.entry(observation.client_version.clone()).or_default().push("muster".to_owned());
    for (role, hello) in hellos(observation) {
        if let Some(version) = &hello.version {
            found.entry(version.clone()).or_default().push(role.to_owned());
        }
    }
    let mut agents: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for agent in observation.known_records().into_iter().flat_map(|records| &records.agents) {
        if !agent.version.is_empty() {
            agents.entry(&agent.version).or_default().push(&agent.name);
        }
    }
    for (version, names) in agents {
        let text = match names.len() {
            1..=NAMES => format!("the agents of {}", names.join(", ")),
            count => format!("{count} agents"),
        };
        found.entry(version.to_owned()).or_default().push(text);
    }
    found
}

/// The answers of all servers, with a name for each. Agents are left out: their nodes' records say their versions.
fn hellos(observation: &Observation) -> Vec<(String, &Hello)> {
    fn named<'a, S>(role: &str, servers: &'a [Server<S>]) -> Vec<(String, &'a Hello)> {
        let named = |server: &'a Server<S>| {
            Some((format!("the {role} at {}", server.address), server.hello.as_ref().ok()?))
        };
        servers.iter().filter_map(named).collect()
    }
    [named("store", &observation.stores), named("controller", &observation.controllers)].concat()
}

/// Clocks that differ from this machine's, and agents whose reports come from the future or from long ago.
fn clocks(observation: &Observation) -> Vec<Finding> {
    const WHY: &str = "silence is not judged by it, but certificates, cordons that end, and every time that is shown are: \
                       synchronise the clocks";
    let named_agents = observation.agents.iter();
    let named_agents = named_agents
        .filter_map(|server| Some((format!("the agent at {}", server.address), server.hello.as_ref().ok()?)));
    let mut findings = Vec::new();
    for (name, hello) in hellos(observation).into_iter().chain(named_agents) {
        let offset = hello.offset.map_or(SignedDuration::ZERO, super::observation::Offset::certain);
        if offset.abs() > TOLERATED_SKEW {
            findings.push(Finding::new(
                Level::Warning,
                format!("the clock of {name} is {} that of this machine", ahead_of(offset)),
                WHY,
            ));
        }
    }
    let now = observation.store_now();
    let records = observation.known_records();
    let from_the_future = |agent: &AgentRecord| {
        let ahead = agent.reported_at?.duration_since(now);
        (ahead > TOLERATED_SKEW).then(|| (agent.name.clone(), ahead))
    };
    let fast: Vec<(String, SignedDuration)> =
        records.into_iter().flat_map(|records| &records.agents).filter_map(from_the_future).collect();
    if let Some(most) = fast.iter().map(|(_, ahead)| *ahead).max() {
        let names: Vec<&str> = fast.iter().map(|(name, _)| name.as_str()).collect();
        findings.push(Finding::new(
            Level::Warning,
            format!("the clocks of {} are {} the store's, by their reports", list(&names), ahead_of(most)),
            WHY,
        ));
    }
    findings
}

fn ahead_of(offset: SignedDuration) -> String {
    let text = format!("{:.0}s", offset.abs().as_secs_f64());
    if offset.is_negative() { format!("{text} behind") } else { format!("up to {text} ahead of") }
}

/// Agents that were named, and nodes without a lease or with a status from long ago.
fn agents(observation: &Observation) -> Vec<Finding> {
    let mut findings = Vec::new();
    for server in &observation.agents {
        if let Ok(state) = &server.state
            && !state.registered
        {
            findings.push(Finding::new(
                Level::Broken,
                format!("the agent at {} is not registered as node {}", server.address, state.node_name),
                format!("its store: {}", state.store),
            ));
        }
    }
    let Some(records) = observation.known_records() else { return findings };
    let without = names(&records.agents, |agent| agent.lease.is_none());
    if !without.is_empty() {
        findings.push(Finding::new(
            Level::Warning,
            format!("no agent has ever renewed a lease for {}", list(&without)),
            "start its agent, or delete the node: it gets no pods",
        ));
    }
    let now = observation.store_now();
    let stale = |agent: &AgentRecord| {
        let reported = agent.reported_at.map(|reported| now.duration_since(reported));
        agent.lease.is_some_and(|lease| lease.is_live(now)) && reported.is_some_and(|age| age > STALE)
    };
    let stale = names(&records.agents, stale);
    if !stale.is_empty() {
        findings.push(Finding::new(
            Level::Warning,
            format!(
                "{} renewed a lease but reported no status for more than {}, or has a clock that is behind",
                list(&stale),
                age::short(STALE.unsigned_abs())
            ),
            "see --node-status-report-frequency and the log of the agent",
        ));
    }
    findings
}

/// Three times the interval in which an agent reports a status that has not changed.
const STALE: SignedDuration = SignedDuration::from_mins(15);

/// What the fleet's settings lead to, with the longest lease that an agent holds; and leases of several durations.
fn leases(observation: &Observation, settings: &Settings) -> Vec<Finding> {
    let mut findings = check(settings, &forecast(settings));
    let Some(records) = observation.known_records() else { return findings };
    let durations = records.lease_durations();
    // The longest lease is what the settings above were checked with; each other one needs its own check of the times.
    for (duration, names) in &durations {
        let own = Settings { lease_duration: *duration, ..settings.clone() };
        let more = check(&own, &forecast(&own)).into_iter().filter(|finding| finding.level == Level::Unsafe);
        let more: Vec<Finding> = more.filter(|finding| !findings.contains(finding)).collect();
        findings.extend(more.into_iter().map(|finding| Finding {
            problem: format!("{} (the lease of {})", finding.problem, list(names)),
            ..finding
        }));
    }
    if durations.len() > 1 {
        let parts: Vec<String> = durations
            .iter()
            .map(|(duration, names)| format!("{}s for {}", duration.as_secs(), list(names)))
            .collect();
        findings.push(Finding::new(
            Level::Note,
            format!("the agents' leases have different durations: {}", parts.join("; ")),
            "give all agents the same --node-lease-duration-seconds",
        ));
    }
    findings
}

/// The settings that the fleet runs with; `None` if no controller gives its own. What no server gives is assumed.
pub(super) fn effective_settings(observation: &Observation, assumed: &Settings) -> Option<Settings> {
    let state = observation.controller()?;
    let controller = state.settings?;
    let records = observation.known_records();
    let longest = records.and_then(|records| records.lease_durations().into_keys().next_back());
    let tolerations = observation.leading_store().map(|(_, status)| {
        let seconds = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        (
            seconds(status.default_not_ready_toleration_seconds),
            seconds(status.default_unreachable_toleration_seconds),
        )
    });
    let (not_ready, unreachable) =
        tolerations.unwrap_or((assumed.not_ready_toleration, assumed.unreachable_toleration));
    let count = |number: i64| u64::try_from(number).unwrap_or_default();
    Some(Settings {
        nodes: count(state.fleet.nodes).max(1),
        zones: (state.fleet.zones.len() as u64).max(1),
        pods: count(state.fleet.pods),
        grace: time(controller.node_monitor_grace_period.as_ref()),
        monitor_period: time(controller.node_monitor_period.as_ref()),
        eviction_rate: controller.node_eviction_rate,
        secondary_rate: controller.secondary_node_eviction_rate,
        unhealthy_threshold: controller.unhealthy_zone_threshold,
        large_zone: count(controller.large_cluster_size_threshold),
        lease_duration: longest.unwrap_or(assumed.lease_duration),
        report_frequency: assumed.report_frequency,
        not_ready_toleration: not_ready,
        unreachable_toleration: unreachable,
    })
}

fn names(agents: &[AgentRecord], matches: impl Fn(&AgentRecord) -> bool) -> Vec<&str> {
    agents.iter().filter(|agent| matches(agent)).map(|agent| agent.name.as_str()).collect()
}

/// `a, b and 7 more`.
fn list(names: &[&str]) -> String {
    match names {
        [] => "nobody".to_owned(),
        [one] => format!("node {one}"),
        few if few.len() <= NAMES => format!("nodes {}", few.join(", ")),
        many => format!("nodes {} and {} more", many[..NAMES].join(", "), many.len() - NAMES),
    }
}

/// A size with a unit of 1024.
pub(super) fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut size = bytes as f64 / 1024.0;
    let mut unit = units[0];
    for larger in &units[1..] {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, larger);
    }
    if size < 10.0 { format!("{size:.1} {unit}") } else { format!("{size:.0} {unit}") }
}

#[cfg(test)]
pub(super) mod tests;
