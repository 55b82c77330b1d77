//! `muster doctor`: computes the effects of a fleet's settings and warns about unsafe combinations.

mod certificates;
mod checks;
mod forecast;
mod live;
mod report;

use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use muster_rpc::clock::{Clock, SystemClock};
use muster_rpc::config::parse_duration;

use self::checks::Level;
use self::forecast::{Settings, forecast};
use crate::connection::ConnectionFlags;
use crate::failure::{Exit, Failure};
use crate::print::document::{Language, document};
use crate::terminal::Terminal;

/// Checks the settings of a fleet before they are used, or with --live a fleet that runs
///
/// Computes how fast a node failure is detected, how much the store writes and how long a failed zone takes to clear,
/// warns about unsafe settings, and says when the certificates expire that `muster` is configured with. The flags of
/// the settings have the names and defaults of those of the store, the controller and the agent.
///
/// With --live nothing is assumed: the stores, controllers and agents at the configured addresses are asked who they
/// are, who leads, which versions they have, what their clocks say and how full the store's disk is, and the settings
/// of the controller are compared with the leases that the agents hold.
///
/// The exit code is 1 if something is broken or unsafe, and 6 if a server cannot be reached.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Ask the servers and agents of a running fleet instead of computing with the flags
    #[arg(
        long,
        conflicts_with_all = [
            "nodes", "zones", "pods", "node_monitor_grace_period", "node_monitor_period", "node_eviction_rate",
            "secondary_node_eviction_rate", "unhealthy_zone_threshold", "large_cluster_size_threshold",
            "node_lease_duration_seconds", "default_not_ready_toleration_seconds",
            "default_unreachable_toleration_seconds",
        ]
    )]
    live: bool,

    /// With --live: addresses of agents that are asked too
    #[arg(long, value_name = "URL", value_delimiter = ',', requires = "live")]
    agent: Vec<String>,

    /// Print the report as a document
    #[arg(short, long, value_enum)]
    output: Option<Language>,

    /// Number of nodes
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "1000",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..)
    )]
    nodes: u64,

    /// Number of zones that the nodes are spread over
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "3",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..)
    )]
    zones: u64,

    /// Number of pods [default: 30 per node]
    #[arg(long, value_name = "COUNT")]
    pods: Option<u64>,

    /// How long a node may send no heartbeat before it is Unknown
    #[arg(long, value_name = "DURATION", default_value = "40s", value_parser = parse_duration)]
    node_monitor_grace_period: Duration,

    /// How often zone states are computed and nodes are tainted
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    node_monitor_period: Duration,

    /// How many nodes of a zone may be tainted per second
    #[arg(long, value_name = "RATE", default_value = "0.1", value_parser = rate)]
    node_eviction_rate: f64,

    /// The same for a large zone that is partially disrupted
    #[arg(long, value_name = "RATE", default_value = "0.01", value_parser = rate)]
    secondary_node_eviction_rate: f64,

    /// Share of unhealthy nodes from which a zone counts as partially disrupted
    #[arg(long, value_name = "SHARE", default_value = "0.55", value_parser = share)]
    unhealthy_zone_threshold: f64,

    /// Zones with at most this many nodes have no evictions while they are partially disrupted
    #[arg(long, value_name = "COUNT", default_value = "50")]
    large_cluster_size_threshold: u64,

    /// Duration of a node's lease; the agent renews it four times in that time
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "40",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..)
    )]
    node_lease_duration_seconds: u64,

    /// How often an agent reports a status that has not changed
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    node_status_report_frequency: Duration,

    /// How long pods tolerate a node that is not ready, if they do not set it themselves
    #[arg(long, value_name = "SECONDS", default_value = "300")]
    default_not_ready_toleration_seconds: u64,

    /// How long pods tolerate an unreachable node, if they do not set it themselves
    #[arg(long, value_name = "SECONDS", default_value = "300")]
    default_unreachable_toleration_seconds: u64,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// The default number of pods per node.
const PODS_PER_NODE: u64 = 30;

impl From<&Flags> for Settings {
    fn from(flags: &Flags) -> Settings {
        Settings {
            nodes: flags.nodes,
            zones: flags.zones,
            pods: flags.pods.unwrap_or(flags.nodes.saturating_mul(PODS_PER_NODE)),
            grace: flags.node_monitor_grace_period,
            monitor_period: flags.node_monitor_period,
            eviction_rate: flags.node_eviction_rate,
            secondary_rate: flags.secondary_node_eviction_rate,
            unhealthy_threshold: flags.unhealthy_zone_threshold,
            large_zone: flags.large_cluster_size_threshold,
            lease_duration: Duration::from_secs(flags.node_lease_duration_seconds),
            report_frequency: flags.node_status_report_frequency,
            not_ready_toleration: Duration::from_secs(flags.default_not_ready_toleration_seconds),
            unreachable_toleration: Duration::from_secs(flags.default_unreachable_toleration_seconds),
        }
    }
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.resolve()?;
    let certificates = certificates::read(&connection)?;
    let now = SystemClock::new().wall();
    let certificates = certificates::findings(&certificates, now);
    let terminal = Terminal::stdout();
    if flags.live {
        return live::run(&connection, &flags.agent, &(&flags).into(), certificates, flags.output).await;
    }
    let mut forecast = forecast(&(&flags).into());
    forecast.findings.extend(certificates);
    forecast.findings.sort_by_key(|finding| finding.level);
    terminal.print(&match flags.output {
        Some(language) => document(&report::as_document(&forecast), language, true),
        None => report::text(&forecast, terminal.paint, terminal.width),
    })?;
    let unsafe_count = forecast.findings.iter().filter(|finding| finding.level <= Level::Unsafe).count();
    match unsafe_count {
        0 => Ok(()),
        count => Err(Failure::new(Exit::Failed, format!("unsafe combinations of settings: {count}"))
            .hint("the report above says for each of them what to change")),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "expected a number such as 0.1".to_owned())?;
    if rate.is_finite() && rate >= 0.0 { Ok(rate) } else { Err("expected 0 or more".to_owned()) }
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "expected a number such as 0.55".to_owned())?;
    if share > 0.0 && share <= 1.0 { Ok(share) } else { Err("expected more than 0 and at most 1".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use muster_agent_core::renewal_schedule::{RenewalSchedule, jittered};
    use muster_proto::time::Mono;

    #[derive(Debug, Parser)]
    struct DoctorFlags {
        #[command(flatten)]
        flags: Flags,
    }

    /// The default flags of a service. Environment variables of the test run apply to both sides of the comparison.
    fn defaults<F: Parser>() -> F {
        F::try_parse_from(["service"])
            .or_else(|_| F::try_parse_from(["service", "--store=http://a"]))
            .unwrap()
    }

    #[test]
    fn the_defaults_are_those_of_the_services() {
        let doctor = Settings::from(&DoctorFlags::parse_from(["muster"]).flags);
        let store: muster_store::config::Flags = defaults();
        let controller: muster_controller::config::Flags = defaults();
        let agent = muster_agent::Config::try_from(&defaults::<muster_agent::config::Flags>()).unwrap();
        let seconds = |seconds: i64| Duration::from_secs(seconds.try_into().unwrap());
        let services = Settings {
            grace: controller.health.node_monitor_grace_period,
            monitor_period: controller.health.node_monitor_period,
            eviction_rate: controller.health.node_eviction_rate,
            secondary_rate: controller.health.secondary_node_eviction_rate,
            large_zone: controller.health.large_cluster_size_threshold as u64,
            lease_duration: agent.lease_duration,
            report_frequency: agent.status.report_frequency,
            not_ready_toleration: seconds(store.default_not_ready_toleration_seconds),
            unreachable_toleration: seconds(store.default_unreachable_toleration_seconds),
            ..doctor.clone()
        };
        assert_eq!(doctor, services);
        assert_eq!(doctor.unhealthy_threshold as f32, controller.health.unhealthy_zone_threshold);
    }

    #[test]
    fn the_forecast_uses_the_agents_renewal_interval() {
        let settings = Settings::from(&DoctorFlags::parse_from(["muster"]).flags);
        let forecast = forecast(&settings);
        let interval = RenewalSchedule::new(settings.lease_duration, Mono::default()).interval();
        assert_eq!(forecast.renew_interval, interval);
        assert_eq!(forecast.unknown.least, settings.grace - jittered(interval, 1.0));
    }
}
