//! Host ports: two pods on a node cannot use the same one.

use super::{Pod, PodSpec};
use crate::pb;

/// A port of the node that a pod uses while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    port: i32,
    protocol: String,
    ip: String,
}

/// The first port that the pod needs and another pod uses.
pub fn conflict(pod: &Pod, others: &[&Pod]) -> Option<i32> {
    let taken: Vec<HostPort> = others.iter().flat_map(|other| wanted(&other.spec)).collect();
    wanted(&pod.spec).find(|port| taken.iter().any(|held| held.collides(port))).map(|port| port.port)
}

/// The ports that are in use while the pod runs. Ordinary init containers have exited by then, so theirs do not count.
pub fn wanted(spec: &PodSpec) -> impl Iterator<Item = HostPort> {
    let sidecars = spec.init_containers.iter().filter(|init| init.sidecar);
    let lasting = sidecars.chain(&spec.containers);
    lasting.flat_map(|container| &container.ports).filter_map(|port| HostPort::of(spec.host_network, port))
}

impl HostPort {
    fn of(host_network: bool, port: &pb::ContainerPort) -> Option<Self> {
        // In the host network, the container's port is the host port.
        let number = if port.host_port == 0 && host_network { port.container_port } else { port.host_port };
        let named = |text: &str, default: &str| if text.is_empty() { default } else { text }.to_owned();
        let (protocol, ip) = (named(&port.protocol, "TCP"), named(&port.host_ip, EVERYWHERE));
        (number > 0).then_some(Self { port: number, protocol, ip })
    }

    /// Whether the two cannot be used at the same time.
    pub fn collides(&self, other: &HostPort) -> bool {
        let same_place = self.ip == other.ip || is_everywhere(&self.ip) || is_everywhere(&other.ip);
        self.port == other.port && self.protocol == other.protocol && same_place
    }
}

const EVERYWHERE: &str = "0.0.0.0";

fn is_everywhere(ip: &str) -> bool {
    ip == EVERYWHERE || ip == "::"
}
