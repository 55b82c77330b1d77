//! A digest of a node status, by which two statuses are compared.
//!
//! 64-bit FNV-1a over every field, each text preceded by its length, so that no two statuses run together. The
//! heartbeat time is left out: by itself it is not a change. Structures are destructured by field name, so that a new
//! field cannot be forgotten here.

use std::hash::{Hash, Hasher};

use jiff::Timestamp;
use muster_proto::node::{NodeAddress, NodeCondition, NodeStatus};
use muster_proto::pb;
use muster_proto::quantity::Resources;

/// The digest of a status. The order of conditions does not matter; the order of everything else does.
pub fn digest(status: &NodeStatus) -> u64 {
    let NodeStatus {
        addresses,
        conditions,
        capacity,
        allocatable,
        node_info,
        images,
        agent_port,
        agent_address,
        volumes_in_use,
        phase,
    } = status;
    let mut sum = Sum::new();
    sum.count(addresses.len());
    for NodeAddress { kind, address } in addresses {
        sum.text(&kind.to_string());
        sum.text(address);
    }
    sum.conditions(conditions);
    sum.resources(capacity);
    sum.resources(allocatable);
    sum.info(node_info);
    sum.count(images.len());
    for pb::ContainerImage { names, size_bytes } in images {
        sum.texts(names);
        sum.write(&size_bytes.to_le_bytes());
    }
    sum.write(&agent_port.to_le_bytes());
    sum.texts(volumes_in_use);
    sum.text(phase);
    // The last field, and only if it is set: a status without it has the digest that it always had.
    if !agent_address.is_empty() {
        sum.text(agent_address);
    }
    sum.finish()
}

/// An FNV-1a hash in progress.
struct Sum(u64);

impl Sum {
    const fn new() -> Sum {
        Sum(0xcbf2_9ce4_8422_2325)
    }

    fn count(&mut self, count: usize) {
        self.write(&(count as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.write(text.as_bytes());
    }

    fn texts(&mut self, texts: &[String]) {
        self.count(texts.len());
        texts.iter().for_each(|text| self.text(text));
    }

    fn resources(&mut self, resources: &Resources) {
        self.count(resources.len());
        for (name, amount) in resources {
            self.text(name);
            // By value: `1000m` and `1` are the same amount.
            amount.hash(self);
        }
    }

    fn conditions(&mut self, conditions: &[NodeCondition]) {
        let mut sorted: Vec<&NodeCondition> = conditions.iter().collect();
        sorted.sort_by(|a, b| a.kind.cmp(&b.kind));
        self.count(sorted.len());
        for condition in sorted {
            let NodeCondition { kind, status, reason, message, last_heartbeat_time: _, last_transition_time } =
                condition;
            self.text(kind);
            self.text(&status.to_string());
            self.text(reason);
            self.text(message);
            let transition = last_transition_time.map_or(i128::MIN, Timestamp::as_nanosecond);
            self.write(&transition.to_le_bytes());
        }
    }

    fn info(&mut self, info: &pb::NodeSystemInfo) {
        let pb::NodeSystemInfo {
            machine_id,
            system_uuid,
            boot_id,
            kernel_version,
            os_image,
            container_runtime_version,
            kubelet_version,
            kube_proxy_version,
            operating_system,
            architecture,
            swap,
        } = info;
        for text in [
            machine_id,
            system_uuid,
            boot_id,
            kernel_version,
            os_image,
            container_runtime_version,
            kubelet_version,
            kube_proxy_version,
            operating_system,
            architecture,
        ] {
            self.text(text);
        }
        let swap = swap.and_then(|pb::NodeSwapStatus { capacity }| capacity);
        self.write(&swap.unwrap_or(-1).to_le_bytes());
    }
}

impl Hasher for Sum {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Quantities hash as one i128, in the same byte order on every machine.
    fn write_i128(&mut self, number: i128) {
        self.write(&number.to_le_bytes());
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node::{after, at, observed};

    fn status() -> NodeStatus {
        let mut status = after(&NodeStatus::default(), &observed(), 100).status;
        status.images = vec![pb::ContainerImage { names: vec!["i".to_owned()], size_bytes: 1 }];
        status.volumes_in_use = vec!["v".to_owned()];
        status
    }

    #[test]
    fn every_field_but_the_heartbeat_counts() {
        let text = || "x".to_owned();
        type Change = fn(&mut NodeStatus);
        let changes: [(&str, Change); 21] = [
            ("address", |s| s.addresses[0].address.push('1')),
            ("fewer addresses", |s| drop(s.addresses.pop())),
            ("order of addresses", |s| s.addresses.reverse()),
            ("condition's status", |s| {
                s.conditions[0].status = muster_proto::condition::ConditionStatus::Unknown;
            }),
            ("condition's reason", |s| s.conditions[0].reason.push('x')),
            ("condition's message", |s| s.conditions[0].message.push('x')),
            ("transition", |s| s.conditions[0].last_transition_time = Some(at(101))),
            ("no transition", |s| s.conditions[0].last_transition_time = None),
            ("fewer conditions", |s| drop(s.conditions.pop())),
            ("capacity", |s| s.capacity.clear()),
            ("allocatable", |s| s.allocatable.clear()),
            ("boot id", |s| s.node_info.boot_id.push('x')),
            ("version", |s| s.node_info.kubelet_version.push('x')),
            ("swap", |s| s.node_info.swap = Some(pb::NodeSwapStatus { capacity: Some(0) })),
            ("image's name", |s| s.images[0].names[0].push('x')),
            ("image's size", |s| s.images[0].size_bytes = 2),
            ("no images", |s| s.images.clear()),
            ("port", |s| s.agent_port = 1),
            ("agent's address", |s| s.agent_address.push('1')),
            ("volumes", |s| s.volumes_in_use.clear()),
            ("phase", |s| s.phase.push('x')),
        ];
        let before = digest(&status());
        for (what, change) in changes {
            let mut changed = status();
            change(&mut changed);
            assert_ne!(digest(&changed), before, "{what}");
        }
        let mut moved = status();
        moved.node_info.machine_id = text();
        let mut elsewhere = status();
        elsewhere.node_info.system_uuid = text();
        assert_ne!(digest(&moved), digest(&elsewhere), "the same text in another field is another status");
    }

    #[test]
    fn heartbeats_order_of_conditions_and_spelling_of_amounts_do_not_count() {
        let before = digest(&status());
        let mut same = status();
        same.conditions.reverse();
        for condition in &mut same.conditions {
            condition.last_heartbeat_time = Some(at(999));
        }
        same.capacity.insert("cpu".to_owned(), "4000m".parse().unwrap());
        assert_eq!(digest(&same), before);
    }

    #[test]
    fn the_digest_of_an_empty_status_is_the_same_on_every_machine() {
        // Computed by hand from the definition of FNV-1a, not by this code.
        assert_eq!(digest(&NodeStatus::default()), 0xff59_e2ac_500e_6b65);
    }
}
