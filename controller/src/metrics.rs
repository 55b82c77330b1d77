//! Every metric of the controller: its name and labels. The values are read from the reconciler when they are scraped.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::event_loop::Shared;
use muster_controller_core::explain::fleet::{FleetReport, FleetState, health_ratio, report};
use muster_controller_core::node_lifecycle::zone_report::ZoneReport;
use muster_controller_core::node_lifecycle::zone_state::ZoneState;

/// Registers everything below `muster_controller_`.
pub fn register(registry: &mut Registry, shared: Shared) {
    registry.register_collector(Box::new(FleetCollector { shared }));
}

/// Reads the fleet at each scrape, so that no value is counted in two places and no zone outlives its nodes.
struct FleetCollector {
    shared: Shared,
}

impl std::fmt::Debug for FleetCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetCollector").finish_non_exhaustive()
    }
}

impl Collector for FleetCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let fleet = report(&self.shared.reconciler(), self.shared.now());
        encode_counts(&fleet, &mut encoder)?;
        encode_zones(&fleet.zones, &mut encoder)
    }
}

fn encode_counts(fleet: &FleetReport, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    let decides = !matches!(fleet.state, FleetState::Standby | FleetState::Syncing);
    let is_disrupted = fleet.state == FleetState::FullDisruption;
    for (name, help, value) in [
        ("judging", "1 while this controller leads and its watches are synced", usize::from(decides)),
        ("holding", "1 while no pod is evicted because of node health yet", usize::from(fleet.is_holding)),
        ("full_disruption", "1 while all nodes of all zones have failed", usize::from(is_disrupted)),
        ("nodes_ready", "Nodes whose Ready is True", fleet.nodes.ready),
        ("nodes_not_ready", "Nodes whose Ready is False", fleet.nodes.not_ready),
        ("nodes_unknown", "Nodes whose Ready is Unknown or absent", fleet.nodes.unknown),
        ("pods", "Pods in the store", fleet.pods),
        ("pods_pending", "Pods that wait to be scheduled", fleet.pending_pods),
        ("evictions_armed", "Pods that a taint will evict at a known time", fleet.armed_evictions),
    ] {
        let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        let name = format!("muster_controller_{name}");
        gauge.encode(encoder.encode_descriptor(&name, help, None, gauge.metric_type())?)?;
    }
    Ok(())
}

fn encode_zones(zones: &[ZoneReport], encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&ZoneReport) -> f64| {
        let name = format!("muster_controller_zone_{name}");
        let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
        for zone in zones {
            let labels = [("zone", zone.key.to_string())];
            ConstGauge::new(value(zone)).encode(family.encode_family(&labels)?)?;
        }
        Ok::<(), std::fmt::Error>(())
    };
    gauge("size", "Nodes that count for the zone's health", &|zone| zone.nodes as f64)?;
    gauge("unhealthy_nodes", "Nodes of these that are not Ready", &|zone| zone.unhealthy as f64)?;
    gauge("health_ratio", "Share of Ready nodes, from 0 to 1", &health_ratio)?;
    gauge("rate", "Nodes that may be tainted NoExecute per second", &|zone| zone.rate)?;
    gauge("queue_length", "Nodes that wait to be tainted NoExecute", &|zone| zone.queue_length as f64)?;
    let help = "0 Initial, 1 Normal, 2 PartialDisruption, 3 FullDisruption";
    gauge("state", help, &|zone| match zone.state {
        ZoneState::Initial => 0.0,
        ZoneState::Normal => 1.0,
        ZoneState::PartialDisruption => 2.0,
        ZoneState::FullDisruption => 3.0,
    })?;
    let help = "Nodes tainted NoExecute since the controller became the leader";
    let name = "muster_controller_zone_evictions";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for zone in zones {
        let labels = [("zone", zone.key.to_string())];
        ConstCounter::new(zone.evictions).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
