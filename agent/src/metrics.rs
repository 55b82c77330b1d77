//! All metrics of the agent: their names and what they count.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The agent's metrics. Clones share their values.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub renewals: Counter,
    pub status_posts: Counter,
    pub started: Counter,
    pub killed: Counter,
    pub evictions: Counter,
    pub pods: Gauge,
    pub broken_manifests: Gauge,
}

impl Metrics {
    /// Registers everything below `muster_agent_`.
    pub fn register(&self, registry: &mut Registry) {
        let agent = registry.sub_registry_with_prefix("muster_agent");
        agent.register("renewals", "Lease renewals that the store acknowledged", self.renewals.clone());
        agent.register("status_posts", "Node statuses that the store took", self.status_posts.clone());
        agent.register("containers_started", "Containers started, restarts included", self.started.clone());
        agent.register("containers_killed", "Containers that did not stop in time", self.killed.clone());
        agent.register("evictions", "Pods ended because the machine ran short", self.evictions.clone());
        agent.register("pods_running", "Pods with a container that runs", self.pods.clone());
        agent.register(
            "static_pod_files_broken",
            "Files of --pod-manifest-path that cannot be used",
            self.broken_manifests.clone(),
        );
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn metrics_are_encoded_under_their_names() {
        let (metrics, mut registry) = (Metrics::default(), Registry::default());
        metrics.register(&mut registry);
        let counters =
            [&metrics.renewals, &metrics.status_posts, &metrics.started, &metrics.killed, &metrics.evictions];
        for (counter, count) in counters.into_iter().zip(1..) {
            counter.inc_by(count);
        }
        metrics.pods.set(6);
        metrics.broken_manifests.set(7);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "muster_agent_renewals_total 1",
            "muster_agent_status_posts_total 2",
            "muster_agent_containers_started_total 3",
            "muster_agent_containers_killed_total 4",
            "muster_agent_evictions_total 5",
            "muster_agent_pods_running 6",
            "muster_agent_static_pod_files_broken 7",
        ] {
            assert!(text.lines().any(|each| each == line), "{line} is not in\n{text}");
        }
    }
}
