//! Every metric of the controller: its name and labels. What zones and pools are like is read off the core when asked.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use muster_proto::pb;

use crate::event_loop::Shared;
use muster_controller_core::explain::fleet::fleet;

/// Registers everything below `muster_controller_`.
pub fn register(registry: &mut Registry, shared: Shared) {
    registry.register_collector(Box::new(FleetCollector { shared }));
}

/// Reads the fleet when metrics are asked for, so that nothing is counted twice and no zone outlives its nodes.
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
        let fleet = fleet(&self.shared.reconciler(), self.shared.now());
        let judges = i64::from(!matches!(fleet.state(), pb::FleetState::Standby | pb::FleetState::Syncing));
        let held = i64::from(fleet.hold.is_some());
        let disrupted = i64::from(fleet.state() == pb::FleetState::FullDisruption);
        for (name, help, value) in [
            ("judging", "1 while this controller leads and hears the store", judges),
            ("holding", "1 while nobody is evicted yet", held),
            ("full_disruption", "1 while every zone is lost", disrupted),
            ("nodes_ready", "Nodes whose Ready is True", fleet.ready_nodes),
            ("nodes_not_ready", "Nodes whose Ready is False", fleet.not_ready_nodes),
            ("nodes_unknown", "Nodes whose Ready is Unknown or absent", fleet.unknown_nodes),
            ("pods", "Pods in the store", fleet.pods),
            ("pods_pending", "Pods that wait for a node", fleet.pending_pods),
            ("evictions_armed", "Pods with a time at which a taint drives them off", fleet.armed_evictions),
        ] {
            let gauge = ConstGauge::new(value);
            let named = format!("muster_controller_{name}");
            gauge.encode(encoder.encode_descriptor(&named, help, None, gauge.metric_type())?)?;
        }
        let mut each = |name: &str, help: &str, of: &dyn Fn(&pb::FleetZone) -> f64| {
            let named = format!("muster_controller_zone_{name}");
            let kind = prometheus_client::metrics::MetricType::Gauge;
            let mut family = encoder.encode_descriptor(&named, help, None, kind)?;
            for zone in &fleet.zones {
                let labels = [("zone", zone.name.as_str())];
                ConstGauge::new(of(zone)).encode(family.encode_family(&labels)?)?;
            }
            Ok::<(), std::fmt::Error>(())
        };
        each("size", "Nodes that count in the zone", &|zone| zone.nodes as f64)?;
        each("unhealthy_nodes", "Those of them that are not Ready", &|zone| zone.unhealthy as f64)?;
        each("health_percent", "Share of healthy nodes", &|zone| zone.health_percent)?;
        each("rate", "Nodes that may be given up per second", &|zone| zone.rate)?;
        each("queue_length", "Nodes that wait to be given up", &|zone| zone.queue_length as f64)?;
        each(
            "state",
            "0 Initial, 1 Normal, 2 PartialDisruption, 3 FullDisruption",
            &|zone| match zone.state() {
                pb::ZoneState::Normal => 1.0,
                pb::ZoneState::PartialDisruption => 2.0,
                pb::ZoneState::FullDisruption => 3.0,
                pb::ZoneState::Initial | pb::ZoneState::Unspecified => 0.0,
            },
        )?;
        let kind = prometheus_client::metrics::MetricType::Counter;
        let help = "Nodes given up since the controller began";
        let mut family = encoder.encode_descriptor("muster_controller_zone_evictions", help, None, kind)?;
        for zone in &fleet.zones {
            let labels = [("zone", zone.name.as_str())];
            ConstCounter::new(u64::try_from(zone.evictions).unwrap_or(0))
                .encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
