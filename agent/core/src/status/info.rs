//! The machine's versions and images, and the events about reboots and cordons.

use std::cmp::Reverse;

use muster_proto::event::EventType;
use muster_proto::name::Name;
use muster_proto::pb;

use super::{EmittedEvents, NodeEvent, Observed, Settings};
use crate::machine::System;

/// Names listed for one image; some have hundreds.
const MAX_IMAGE_NAMES: usize = 5;

/// The machine and its software.
pub fn node_info(
    previous: &pb::NodeSystemInfo,
    settings: &Settings,
    observed: &Observed,
) -> pb::NodeSystemInfo {
    let system = &observed.system;
    // If the hardware cannot be read, the swap of the last status is kept.
    let swap = match &observed.hardware {
        Some(hardware) => (hardware.swap_bytes > 0).then(|| pb::NodeSwapStatus {
            capacity: Some(hardware.swap_bytes.try_into().unwrap_or(i64::MAX)),
        }),
        None => previous.swap,
    };
    pb::NodeSystemInfo {
        machine_id: system.machine_id.clone(),
        system_uuid: system.system_uuid.clone(),
        boot_id: system.boot_id.clone(),
        kernel_version: system.kernel_version.clone(),
        os_image: system.os_image.clone(),
        container_runtime_version: observed.runtime_version.clone(),
        kubelet_version: settings.version.clone(),
        kube_proxy_version: String::new(),
        operating_system: system.operating_system.clone(),
        architecture: system.architecture.clone(),
        swap,
    }
}

/// The largest images, with a few of their names each.
pub fn images(found: &[pb::ContainerImage], limit: Option<usize>) -> Vec<pb::ContainerImage> {
    let mut images = found.to_vec();
    // By name too, so that two readings of one machine give the same status.
    images.sort_by(|a, b| (Reverse(a.size_bytes), &a.names).cmp(&(Reverse(b.size_bytes), &b.names)));
    images.truncate(limit.unwrap_or(usize::MAX));
    for image in &mut images {
        image.names.truncate(MAX_IMAGE_NAMES);
    }
    images
}

/// Emits, once in a process, that the machine was rebooted since its last status.
pub fn rebooted(
    name: &Name,
    previous: &pb::NodeSystemInfo,
    system: &System,
    emitted: &mut EmittedEvents,
) -> Option<NodeEvent> {
    let changed =
        !previous.boot_id.is_empty() && !system.boot_id.is_empty() && previous.boot_id != system.boot_id;
    if !changed || emitted.rebooted {
        return None;
    }
    emitted.rebooted = true;
    let message = format!("Node {name} has been rebooted, boot id: {}", system.boot_id);
    Some(NodeEvent { kind: EventType::Warning, reason: "Rebooted", message })
}

/// Emits that the node was cordoned or uncordoned. A process starts with the node uncordoned.
pub fn schedulable(name: &Name, unschedulable: bool, emitted: &mut EmittedEvents) -> Option<NodeEvent> {
    if emitted.unschedulable == unschedulable {
        return None;
    }
    emitted.unschedulable = unschedulable;
    Some(NodeEvent::node_status(name, if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" }))
}
