//! The config of each component: its own defaults and environment variables, overridden by the flags of `muster up`,
//! with times and rates scaled by `--speed`.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::Parser;
use muster_proto::wellknown::label;
use muster_store_client::StoreEndpoints;

use super::data_dir::DataDir;
use super::{Flags, UpError};
use crate::simulation;
use crate::simulation::fleet_spec::{FleetSpec, REGION};

/// How long a simulated container takes to start or to stop.
const CONTAINER_DELAY: Duration = Duration::from_secs(1);
/// How long this machine's pods may take to terminate before the temporary data directory is removed.
const POD_SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

pub(super) fn store(flags: &Flags, data_dir: &DataDir) -> Result<muster_store::Config, UpError> {
    let mut store = muster_store::config::Flags::try_parse_from([OsString::from("muster-store")])?;
    store.data_dir = data_dir.store();
    store.listen = flags.listen;
    store.http_listen = flags.http_listen;
    store.kubernetes_listen = Some(flags.kubernetes_listen);
    store.audit = flags.audit.clone();
    store.tls = flags.tls.clone();
    for seconds in
        [&mut store.default_not_ready_toleration_seconds, &mut store.default_unreachable_toleration_seconds]
    {
        *seconds = flags.speed().shorten_seconds(*seconds);
    }
    store.pod_eviction_timeout = store.pod_eviction_timeout.map(|timeout| flags.speed().shorten(timeout));
    muster_store::Config::try_from(&store).map_err(|error| UpError::Store(error.into()))
}

pub(super) fn controller(flags: &Flags, store: &str) -> Result<muster_controller::config::Config, UpError> {
    let arguments = ["muster-controller", "--store", store];
    let mut controller = muster_controller::config::Flags::try_parse_from(arguments)?;
    controller.listen = flags.controller_listen;
    controller.http_listen = flags.controller_http_listen;
    controller.audit = flags.audit.clone();
    controller.tls = flags.tls.clone();
    let speed = flags.speed();
    let health = &mut controller.health;
    for duration in [
        &mut health.node_monitor_period,
        &mut health.node_monitor_grace_period,
        &mut health.node_startup_grace_period,
        &mut controller.pod_gc.pod_gc_period,
        &mut controller.pod_gc.pod_gc_quarantine,
    ] {
        *duration = speed.shorten(*duration);
    }
    health.eviction_hold = health.eviction_hold.map(|hold| speed.shorten(hold));
    for rate in [&mut health.node_eviction_rate, &mut health.secondary_node_eviction_rate] {
        *rate = speed.raise(*rate);
    }
    muster_controller::config::Config::try_from(&controller)
        .map_err(|error| UpError::Controller(error.into()))
}

pub(super) fn agent(flags: &Flags, data_dir: &DataDir, store: &str) -> Result<muster_agent::Config, UpError> {
    let arguments = ["muster-agent", "--store", store];
    let mut agent = muster_agent::config::Flags::try_parse_from(arguments)?;
    agent.listen = flags.agent_listen;
    agent.http_listen = flags.agent_http_listen;
    agent.tls = flags.tls.clone();
    agent.state_dir = data_dir.agent();
    // `muster up` must run on any machine, also one with swap.
    agent.work.fail_swap_on = false;
    if flags.nodes > 0 {
        // The health of the real node says nothing about the simulated nodes of its zone.
        let zone = FleetSpec::zone_name(1);
        agent.node.node_labels.extend([
            format!("{}={REGION}", label::REGION),
            format!("{}={zone}", label::ZONE),
            format!("{}=", label::EXCLUDE_DISRUPTION),
        ]);
    }
    if data_dir.is_temporary() {
        // Pods that outlive their records could never be found again.
        agent.work.shutdown_on_sigterm = true;
        agent.work.shutdown_grace_period = POD_SHUTDOWN_GRACE;
    }
    let (speed, status) = (flags.speed(), &mut agent.status);
    status.node_lease_duration_seconds = speed.shorten_seconds(status.node_lease_duration_seconds);
    let mut config = muster_agent::Config::try_from(&agent).map_err(|error| UpError::Agent(error.into()))?;
    config.status.update_frequency = speed.shorten(config.status.update_frequency);
    config.status.report_frequency = speed.shorten(config.status.report_frequency);
    Ok(config)
}

pub(super) fn simulation(flags: &Flags, store: &str) -> Result<simulation::Settings, UpError> {
    let tls = flags
        .tls
        .client()
        .map_err(|error| UpError::Store(muster_store::config::ConfigError::from(error).into()))?;
    // Simulated agents have the lease duration that a real agent would have.
    let agent = muster_agent::config::Flags::try_parse_from(["muster-agent", "--store", store])?;
    let lease =
        muster_agent::Config::try_from(&agent).map_err(|error| UpError::Agent(error.into()))?.lease_duration;
    let speed = flags.speed();
    Ok(simulation::Settings {
        spec: FleetSpec { nodes: flags.nodes as usize, zones: flags.zones as usize },
        endpoints: StoreEndpoints::new([store]).with_tls(tls),
        listen: flags.simulation_listen,
        lease_duration: speed.shorten(lease),
        container_delay: speed.shorten(CONTAINER_DELAY),
    })
}

/// The URL under which components in this process reach a listener.
pub(super) fn url(flags: &Flags, address: SocketAddr) -> String {
    let scheme = if flags.tls.tls_cert.is_some() { "https" } else { "http" };
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("{scheme}://{}", SocketAddr::new(host, address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    struct Up {
        #[command(flatten)]
        flags: Flags,
    }

    #[test]
    fn store_and_controller_append_to_the_same_audit_log() {
        let up = Up::parse_from(["up", "--ephemeral", "--audit-log", "/var/log/muster/audit.log"]);
        let data_dir = DataDir::choose(true, None).unwrap();
        let expected = Some("/var/log/muster/audit.log".into());
        assert_eq!(store(&up.flags, &data_dir).unwrap().audit.audit_log, expected);
        assert_eq!(controller(&up.flags, "http://127.0.0.1:1").unwrap().audit.audit_log, expected);
    }
}
