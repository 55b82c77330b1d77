//! The settings of each part: its own defaults and variables, our flags over them, and time as fast as was asked for.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::Parser;
use muster_proto::wellknown::label;
use muster_store_client::StoreEndpoints;

use super::data_dir::Place;
use super::{Failure, Flags};
use crate::simulation;
use crate::simulation::fleet_spec::{Blueprint, REGION};

/// How long a simulated program takes to start or to stop.
const MOMENT: Duration = Duration::from_secs(1);
/// How long this machine's pods may take to end when their records are about to be removed.
const LAST_MOMENTS: Duration = Duration::from_secs(5);

pub(super) fn store(flags: &Flags, place: &Place) -> Result<muster_store::Config, Failure> {
    let mut store = muster_store::config::Flags::try_parse_from([OsString::from("muster-store")])?;
    store.data_dir = place.store();
    store.listen = flags.listen;
    store.http_listen = flags.http_listen;
    store.tls = flags.tls.clone();
    for seconds in
        [&mut store.default_not_ready_toleration_seconds, &mut store.default_unreachable_toleration_seconds]
    {
        *seconds = flags.speed().shorten_seconds(*seconds);
    }
    muster_store::Config::try_from(&store).map_err(|error| Failure::Store(error.into()))
}

pub(super) fn controller(flags: &Flags, store: &str) -> Result<muster_controller::config::Config, Failure> {
    let arguments = ["muster-controller", "--store", store];
    let mut controller = muster_controller::config::Flags::try_parse_from(arguments)?;
    controller.listen = flags.controller_listen;
    controller.http_listen = flags.controller_http_listen;
    controller.tls = flags.tls.clone();
    let speed = flags.speed();
    let health = &mut controller.health;
    for duration in [
        &mut health.node_monitor_period,
        &mut health.node_monitor_grace_period,
        &mut health.node_startup_grace_period,
        &mut controller.collection.pod_gc_period,
        &mut controller.collection.pod_gc_quarantine,
    ] {
        *duration = speed.shorten(*duration);
    }
    health.eviction_hold = health.eviction_hold.map(|hold| speed.shorten(hold));
    for rate in [&mut health.node_eviction_rate, &mut health.secondary_node_eviction_rate] {
        *rate = speed.raise(*rate);
    }
    muster_controller::config::Config::try_from(&controller)
        .map_err(|error| Failure::Controller(error.into()))
}

pub(super) fn agent(flags: &Flags, place: &Place, store: &str) -> Result<muster_agent::Config, Failure> {
    let arguments = ["muster-agent", "--store", store];
    let mut agent = muster_agent::config::Flags::try_parse_from(arguments)?;
    agent.listen = flags.agent_listen;
    agent.http_listen = flags.agent_http_listen;
    agent.tls = flags.tls.clone();
    agent.state_dir = place.agent();
    // Who tries Muster out wants to see it run, on any machine.
    agent.work.fail_swap_on = false;
    if flags.nodes > 0 {
        // Its health says nothing about that of its imagined neighbours.
        let zone = Blueprint::zone_name(1);
        agent.node.node_labels.extend([
            format!("{}={REGION}", label::REGION),
            format!("{}={zone}", label::ZONE),
            format!("{}=", label::EXCLUDE_DISRUPTION),
        ]);
    }
    if place.is_temporary() {
        // What outlived its records would never be found again.
        agent.work.shutdown_on_sigterm = true;
        agent.work.shutdown_grace_period = LAST_MOMENTS;
    }
    let (speed, status) = (flags.speed(), &mut agent.status);
    status.node_lease_duration_seconds = speed.shorten_seconds(status.node_lease_duration_seconds);
    let mut config = muster_agent::Config::try_from(&agent).map_err(|error| Failure::Agent(error.into()))?;
    config.status.update_frequency = speed.shorten(config.status.update_frequency);
    config.status.report_frequency = speed.shorten(config.status.report_frequency);
    Ok(config)
}

pub(super) fn simulation(flags: &Flags, store: &str) -> Result<simulation::Settings, Failure> {
    let tls = flags
        .tls
        .client()
        .map_err(|error| Failure::Store(muster_store::config::ConfigError::from(error).into()))?;
    // What a renewal lasts is what it would last for a real machine.
    let agent = muster_agent::config::Flags::try_parse_from(["muster-agent", "--store", store])?;
    let lease =
        muster_agent::Config::try_from(&agent).map_err(|error| Failure::Agent(error.into()))?.lease_duration;
    let speed = flags.speed();
    Ok(simulation::Settings {
        blueprint: Blueprint { nodes: flags.nodes as usize, zones: flags.zones as usize },
        endpoints: StoreEndpoints::new([store]).with_tls(tls),
        listen: flags.simulation_listen,
        lease_duration: speed.shorten(lease),
        moment: speed.shorten(MOMENT),
    })
}

/// How a part of this process calls another one that listens there.
pub(super) fn url(flags: &Flags, address: SocketAddr) -> String {
    let scheme = if flags.tls.tls_cert.is_some() { "https" } else { "http" };
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("{scheme}://{}", SocketAddr::new(host, address.port()))
}
