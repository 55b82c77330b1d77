//! Ports of the node: no two pods may want the same one.

use super::Pod;
use crate::pb;

struct HostPort<'a> {
    port: i32,
    protocol: &'a str,
    ip: &'a str,
}

/// The first port that the pod wants and another one holds.
pub fn conflict(pod: &Pod, others: &[&Pod]) -> Option<i32> {
    let taken: Vec<HostPort<'_>> = others.iter().flat_map(|other| wanted(other)).collect();
    wanted(pod).find(|port| taken.iter().any(|held| held.collides(port))).map(|port| port.port)
}

/// The ports that are held as long as the pod runs: those of ordinary init containers are free again by then.
fn wanted(pod: &Pod) -> impl Iterator<Item = HostPort<'_>> {
    let sidecars = pod.spec.init_containers.iter().filter(|init| init.sidecar);
    let lasting = sidecars.chain(&pod.spec.containers);
    lasting
        .flat_map(|container| &container.ports)
        .filter_map(|port| HostPort::of(pod.spec.host_network, port))
}

impl<'a> HostPort<'a> {
    fn of(host_network: bool, port: &'a pb::ContainerPort) -> Option<Self> {
        // On the node's own network the port inside is the port outside.
        let number = if port.host_port == 0 && host_network { port.container_port } else { port.host_port };
        let named = |text: &'a str, default| if text.is_empty() { default } else { text };
        let (protocol, ip) = (named(&port.protocol, "TCP"), named(&port.host_ip, EVERYWHERE));
        (number > 0).then_some(Self { port: number, protocol, ip })
    }

    fn collides(&self, other: &HostPort<'_>) -> bool {
        let same_place = self.ip == other.ip || is_everywhere(self.ip) || is_everywhere(other.ip);
        self.port == other.port && self.protocol == other.protocol && same_place
    }
}

const EVERYWHERE: &str = "0.0.0.0";

fn is_everywhere(ip: &str) -> bool {
    ip == EVERYWHERE || ip == "::"
}
