use jiff::Timestamp;

use super::*;
use crate::doctor::forecast::tests::defaults;
use crate::doctor::live::observation::{AgentLease, AgentState, ControllerState, Leader, Offset, Records};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn wire(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

pub(in crate::doctor::live) fn settings() -> pb::ControllerSettings {
    pb::ControllerSettings {
        node_monitor_period: wire(5),
        node_monitor_grace_period: wire(40),
        node_startup_grace_period: wire(60),
        node_eviction_rate: 0.1,
        secondary_node_eviction_rate: 0.01,
        unhealthy_zone_threshold: 0.55,
        large_cluster_size_threshold: 50,
        eviction_hold: wire(40),
        trust_unreported_nodes: false,
        leader_elect: true,
        pod_gc_period: wire(20),
        pod_gc_quarantine: wire(40),
    }
}

/// An answer whose clock is that far ahead of ours.
fn hello(store_id: Option<&str>, ahead: i64) -> Result<Hello, Trouble> {
    Ok(Hello {
        version: Some("0.1.0".to_owned()),
        store_id: store_id.map(str::to_owned),
        offset: Some(Offset::of(at(ahead), at(0), at(0))),
    })
}

fn trouble(message: &str) -> Trouble {
    Trouble { message: message.to_owned(), hint: "hint".to_owned() }
}

pub(in crate::doctor::live) fn unreachable<S>(address: &str) -> Server<S> {
    let message = format!("{address} cannot be reached");
    Server { address: address.to_owned(), hello: Err(trouble(&message)), state: Err(trouble(&message)) }
}

fn store(address: &str, id: &str) -> Server<StoreState> {
    let gib = 1 << 30;
    let status = pb::GetStoreStatusResponse {
        engine: "embedded".to_owned(),
        revision: 31_337,
        leading_since: Some(prost_types::Timestamp { seconds: at(-7200).as_second(), nanos: 0 }),
        disk: Some(pb::StoreDisk {
            total_bytes: 40 * gib,
            available_bytes: 12 * gib,
            reserve_bytes: 20 << 20,
        }),
        default_not_ready_toleration_seconds: 300,
        default_unreachable_toleration_seconds: 300,
        ..Default::default()
    };
    Server { address: address.to_owned(), hello: hello(Some(id), 0), state: Ok(StoreState::Leads(status)) }
}

fn controller(address: &str, identity: &str, leader: &str) -> Server<ControllerState> {
    let leads = identity == leader;
    let fleet = pb::Fleet {
        controller: identity.to_owned(),
        leader: leader.to_owned(),
        state: if leads { pb::FleetState::Normal } else { pb::FleetState::Standby }.into(),
        nodes: 1000,
        ready_nodes: 1000,
        pods: 30_000,
        zones: vec![pb::FleetZone::default(); 3],
        ..Default::default()
    };
    let state = ControllerState { fleet, settings: Some(settings()) };
    Server { address: address.to_owned(), hello: hello(None, 0), state: Ok(state) }
}

fn record(name: &str) -> AgentRecord {
    AgentRecord {
        name: name.to_owned(),
        version: "0.1.0".to_owned(),
        reported_at: Some(at(-200)),
        lease: Some(AgentLease { duration: Duration::from_secs(40), renewed_at: Some(at(-3)) }),
    }
}

/// A fleet with nothing to complain about: one store, the controller c1 that leads, and the agents of n1 to n5.
pub(in crate::doctor::live) fn healthy() -> Observation {
    Observation {
        client_version: "0.1.0".to_owned(),
        stores: vec![store("http://s1", "one")],
        controllers: vec![controller("http://c1", "c1", "c1")],
        agents: vec![Server {
            address: "http://a1".to_owned(),
            hello: hello(None, 0),
            state: Ok(AgentState {
                node_name: "n1".to_owned(),
                registered: true,
                store: "http://s1".to_owned(),
            }),
        }],
        records: Some(Ok(Records {
            agents: ["n1", "n2", "n3", "n4", "n5"].map(record).into(),
            leader: Some(Leader { holder: "c1".to_owned(), since: Some(at(-3600)) }),
        })),
        now: at(0),
    }
}

fn judged(observation: &Observation) -> Vec<(Level, String)> {
    let settings = effective_settings(observation, &defaults());
    let mut findings = judge(observation, settings.as_ref());
    findings.sort_by_key(|finding| finding.level);
    findings.into_iter().map(|finding| (finding.level, finding.problem)).collect()
}

fn status(observation: &mut Observation) -> &mut pb::GetStoreStatusResponse {
    match &mut observation.stores[0].state {
        Ok(StoreState::Leads(status)) => status,
        _ => panic!("the store of a healthy fleet leads"),
    }
}

fn fleet(observation: &mut Observation) -> &mut pb::Fleet {
    &mut observation.controllers[0].state.as_mut().unwrap().fleet
}

fn own_settings(observation: &mut Observation) -> &mut pb::ControllerSettings {
    observation.controllers[0].state.as_mut().unwrap().settings.as_mut().unwrap()
}

fn records(observation: &mut Observation) -> &mut Vec<AgentRecord> {
    &mut observation.records.as_mut().unwrap().as_mut().unwrap().agents
}

type Change = fn(&mut Observation);

#[test]
fn a_healthy_fleet_has_no_findings() {
    assert_eq!(judged(&healthy()), []);
}

#[test]
fn each_problem_is_found_once_and_named() {
    use Level::{Broken, Note, Unsafe, Warning};
    let cases: [(&str, Change, Level, &[&str]); 24] = [
        ("a store is down", |it| it.stores.push(unreachable("http://s2")), Broken, &["http://s2 cannot be"]),
        ("an agent is down", |it| it.agents.push(unreachable("http://a2")), Broken, &["http://a2 cannot be"]),
        (
            "a server refuses to say",
            |it| it.agents[0].state = Err(trouble("viewer may not read the agent")),
            Broken,
            &["viewer may not read the agent"],
        ),
        (
            "the records cannot be read",
            |it| it.records = Some(Err(trouble("denied"))),
            Broken,
            &["the records cannot be read: denied"],
        ),
        (
            "two stores",
            |it| it.stores.push(store("http://s2", "two")),
            Broken,
            &["belong to 2 different stores"],
        ),
        (
            "all stores stand by",
            |it| it.stores[0].state = Ok(StoreState::StandsBy("it stands by".to_owned())),
            Broken,
            &["no store leads"],
        ),
        (
            "the disk is full",
            |it| status(it).write_problem = "the disk is full".to_owned(),
            Broken,
            &["the store refuses writes: the disk is full"],
        ),
        (
            "little space",
            |it| status(it).disk.as_mut().unwrap().available_bytes = (3 << 30) + (20 << 20),
            Warning,
            &["the disk of the store at http://s1 is nearly full", "3.0 GiB of 40 GiB"],
        ),
        ("nobody leads", |it| fleet(it).leader.clear(), Broken, &["no controller leads"]),
        (
            "the leader is elsewhere",
            |it| it.controllers = vec![controller("http://c1", "c1", "c9")],
            Warning,
            &["the controller that leads, c9, is at none"],
        ),
        (
            "full disruption",
            |it| {
                fleet(it).state = pb::FleetState::FullDisruption.into();
                fleet(it).reason = "all nodes failed".to_owned();
            },
            Broken,
            &["evicts nobody: all nodes failed"],
        ),
        (
            "a hold",
            |it| fleet(it).state = pb::FleetState::Holding.into(),
            Note,
            &["the controller evicts nobody yet"],
        ),
        (
            "a zone that has failed",
            |it| {
                fleet(it).zones[1] = pb::FleetZone {
                    name: "eu/b".to_owned(),
                    state: pb::ZoneState::FullDisruption.into(),
                    reason: "All 333 nodes have failed".to_owned(),
                    ..Default::default()
                }
            },
            Warning,
            &["zone eu/b is in FullDisruption: All 333 nodes have failed"],
        ),
        (
            "nodes that have failed",
            |it| fleet(it).unknown_nodes = 7,
            Note,
            &["7 of 1000 nodes are not Ready: 7 Unknown, 0 NotReady"],
        ),
        (
            "controllers that differ",
            |it| {
                it.controllers.push(controller("http://c2", "c2", "c1"));
                own_settings(it).node_monitor_grace_period = wire(50);
            },
            Warning,
            &["http://c1 and http://c2 differ in --node-monitor-grace-period (50s and 40s)"],
        ),
        (
            "a controller of another version",
            |it| it.controllers[0].hello.as_mut().unwrap().version = Some("0.2.0".to_owned()),
            Warning,
            &["0.1.0 (muster, the store at http://s1, 5 agents)", "0.2.0 (the controller at http://c1)"],
        ),
        (
            "an agent of another version",
            |it| records(it)[2].version = "0.0.9".to_owned(),
            Warning,
            &["0.0.9 (the agents of n3)", "4 agents"],
        ),
        (
            "a store whose clock is ahead",
            |it| {
                it.stores[0].hello = hello(Some("one"), 60);
                // Its leases have its time.
                let renewed_at = Some(at(57));
                records(it)
                    .iter_mut()
                    .for_each(|agent| agent.lease.as_mut().unwrap().renewed_at = renewed_at);
            },
            Warning,
            &["the clock of the store at http://s1 is up to 60s ahead of that of this machine"],
        ),
        (
            "an agent whose clock is behind",
            |it| it.agents[0].hello = hello(None, -60),
            Warning,
            &["the clock of the agent at http://a1 is 58s behind that of this machine"],
        ),
        (
            "reports from the future",
            |it| records(it)[..4].iter_mut().for_each(|agent| agent.reported_at = Some(at(30))),
            Warning,
            &["the clocks of nodes n1, n2, n3 and 1 more are up to 30s ahead of the store's"],
        ),
        (
            "a live agent that reports nothing",
            |it| records(it)[0].reported_at = Some(at(-1000)),
            Warning,
            &["node n1 renewed a lease but reported no status for more than 15m"],
        ),
        (
            "a node without a lease",
            |it| records(it)[4].lease = None,
            Warning,
            &["no agent has ever renewed a lease for node n5"],
        ),
        (
            "leases of two durations",
            |it| records(it)[4].lease.as_mut().unwrap().duration = Duration::from_secs(20),
            Note,
            &["20s for node n5", "40s for nodes n1, n2, n3 and 1 more"],
        ),
        (
            "a lease that outlives the grace period",
            |it| own_settings(it).node_monitor_grace_period = wire(35),
            Unsafe,
            &["a node is Unknown after 35s although its lease is valid for 40s"],
        ),
    ];
    for (what, change, level, expected) in cases {
        let mut observation = healthy();
        change(&mut observation);
        let found = judged(&observation);
        let of_level: Vec<&String> =
            found.iter().filter(|(found, _)| *found == level).map(|(_, problem)| problem).collect();
        let fits = |problem: &&&String| expected.iter().all(|part| problem.contains(part));
        assert_eq!(of_level.iter().filter(fits).count(), 1, "{what}: {found:#?}");
        assert!(found.iter().all(|(found, _)| *found >= level), "{what}: nothing worse: {found:#?}");
    }
}

#[test]
fn an_agent_that_is_not_registered_names_its_store() {
    let mut observation = healthy();
    observation.agents[0].state = Ok(AgentState {
        node_name: "n1".to_owned(),
        registered: false,
        store: "cannot be reached".to_owned(),
    });
    let [found] = &judge(&observation, None)[..] else { panic!("one finding") };
    assert_eq!(found.problem, "the agent at http://a1 is not registered as node n1");
    assert_eq!(found.remedy, "its store: cannot be reached");
}

#[test]
fn each_lease_is_compared_with_the_grace_period_and_not_only_the_longest() {
    let mut observation = healthy();
    own_settings(&mut observation).node_monitor_grace_period = wire(35);
    records(&mut observation)[0].lease.as_mut().unwrap().duration = Duration::from_secs(100);
    let found = judged(&observation);
    let unsafe_ones: Vec<&str> = found
        .iter()
        .filter(|(level, _)| *level == Level::Unsafe)
        .map(|(_, problem)| problem.as_str())
        .collect();
    assert!(unsafe_ones.iter().any(|problem| problem.contains("valid for 100s")), "{unsafe_ones:#?}");
    let others =
        |problem: &&str| problem.contains("valid for 40s") && problem.contains("n2, n3, n4 and 1 more");
    assert!(unsafe_ones.iter().any(others), "{unsafe_ones:#?}");
}

#[test]
fn the_settings_are_those_of_the_fleet_and_not_the_flags() {
    let mut observation = healthy();
    own_settings(&mut observation).node_eviction_rate = 7.0;
    status(&mut observation).default_unreachable_toleration_seconds = 12;
    records(&mut observation)[0].lease.as_mut().unwrap().duration = Duration::from_secs(44);
    let assumed = Settings { report_frequency: Duration::from_secs(77), nodes: 3, ..defaults() };
    let effective = effective_settings(&observation, &assumed).unwrap();
    let expected = Settings {
        nodes: 1000,
        eviction_rate: 7.0,
        unreachable_toleration: Duration::from_secs(12),
        lease_duration: Duration::from_secs(44),
        report_frequency: Duration::from_secs(77),
        ..defaults()
    };
    assert_eq!(effective, expected);
    observation.controllers.clear();
    assert_eq!(effective_settings(&observation, &defaults()), None, "nothing is assumed for a controller");
}

#[test]
fn sizes_have_a_unit() {
    for (size, expected) in [
        (0, "0.0 KiB"),
        (2048, "2.0 KiB"),
        (20 << 20, "20 MiB"),
        (3 << 30, "3.0 GiB"),
        (12 << 30, "12 GiB"),
        (5 << 50, "5120 TiB"),
    ] {
        assert_eq!(bytes(size), expected);
    }
}
