//! Statuses of sample machines, table by table.

use muster_proto::condition::{ConditionStatus, types};
use muster_proto::node::{AddressType, NodeAddress, NodeCondition};
use muster_proto::quantity::Quantity;

use super::capacity::{Overreserved, Share, check_reservations};
use super::ready::{ReadyState, ready_state, runtime_errors};
use super::*;
use crate::config::{Cloud, NodeIps};
use crate::machine::HugePages;
use crate::testing::node::{after, at, observed, settings};

#[path = "tests/addresses.rs"]
mod address_tests;
#[path = "tests/capacity.rs"]
mod capacity_tests;

const GIB: u64 = 1 << 30;

fn condition<'a>(status: &'a NodeStatus, kind: &str) -> &'a NodeCondition {
    status.condition(kind).unwrap()
}

fn reasons(computed: &Computed) -> Vec<&str> {
    computed.events.iter().map(|found| found.reason).collect()
}

#[test]
fn s035_a_first_status_is_whole_and_has_ready_last() {
    let first = after(&NodeStatus::default(), &observed(), 100);
    let status = &first.status;
    let kinds: Vec<&str> = status.conditions.iter().map(|condition| condition.kind.as_str()).collect();
    assert_eq!(kinds, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
    for condition in &status.conditions {
        assert_eq!(condition.last_heartbeat_time, Some(at(100)), "{}", condition.kind);
        assert_eq!(condition.last_transition_time, Some(at(100)), "{}", condition.kind);
    }
    assert_eq!(condition(status, types::READY).reason, "KubeletReady");
    assert_eq!(condition(status, types::MEMORY_PRESSURE).reason, "KubeletHasSufficientMemory");
    assert_eq!(status.capacity["cpu"], Quantity::whole(4));
    assert_eq!(status.allocatable, status.capacity);
    assert_eq!((status.agent_port, status.node_info.kubelet_version.as_str()), (7600, "0.1.0"));
    assert_eq!(
        reasons(&first),
        ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"],
        "the first Ready is no change"
    );
    assert!(first.problems.is_empty(), "{:?}", first.problems);
}

#[test]
fn a_second_status_differs_in_heartbeats_alone() {
    let first = after(&NodeStatus::default(), &observed(), 100);
    let second = after(&first.status, &observed(), 110);
    assert!(second.events.is_empty());
    let mut expected = first.status;
    for condition in &mut expected.conditions {
        condition.last_heartbeat_time = Some(at(110));
    }
    assert_eq!(second.status, expected);
}

#[test]
fn s046_another_capacity_is_no_transition() {
    let first = after(&NodeStatus::default(), &observed(), 100);
    let mut more = observed();
    more.hardware.as_mut().unwrap().memory_bytes = 32 * GIB;
    let second = after(&first.status, &more, 110);
    assert_eq!(second.status.capacity["memory"], Quantity::bytes(32 << 30));
    assert!(second.status.conditions.iter().all(|held| held.last_transition_time == Some(at(100))));
}

#[test]
fn s048_unknown_written_by_the_controller_is_overwritten_with_a_transition() {
    let mut lost = after(&NodeStatus::default(), &observed(), 100).status;
    for condition in &mut lost.conditions {
        condition.status = ConditionStatus::Unknown;
        condition.reason = "NodeStatusUnknown".to_owned();
        condition.last_transition_time = Some(at(150));
    }
    let back = after(&lost, &observed(), 160);
    for condition in &back.status.conditions {
        assert_eq!(condition.last_transition_time, Some(at(160)), "{}", condition.kind);
        assert_ne!(condition.reason, "NodeStatusUnknown", "{}", condition.kind);
    }
    assert_eq!(
        reasons(&back),
        ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"]
    );
}

#[test]
fn s060_all_errors_are_in_the_message_of_the_ready_condition() {
    let full = after(&NodeStatus::default(), &observed(), 0).status.capacity;
    let text = |text: &str| text.to_owned();
    let healthy = Health::default();
    let down = Health { runtime: vec![text("container runtime is down")], ..healthy.clone() };
    let both = Health { network: Some(text("network is not ready")), ..down.clone() };
    for (health, capacity, ready, message) in [
        (healthy.clone(), &full, true, "kubelet is posting ready status"),
        (down, &full, false, "container runtime is down"),
        (both.clone(), &full, false, "[container runtime is down, network is not ready]"),
        (Health { shutting_down: true, ..healthy.clone() }, &full, false, "node is shutting down"),
        (
            Health { storage: Some(text("no volumes")), shutting_down: true, ..both },
            &Resources::new(),
            false,
            "[container runtime is down, network is not ready, no volumes, node is shutting down, missing node \
             capacity for resources: cpu, memory, pods, ephemeral-storage]",
        ),
        (
            Health { network: Some(text("same")), storage: Some(text("same")), ..healthy.clone() },
            &full,
            false,
            "same",
        ),
        (
            Health { warnings: vec![text("no cgroup v2"), text("old kernel")], ..healthy.clone() },
            &full,
            true,
            "kubelet is posting ready status. WARNING: no cgroup v2. WARNING: old kernel",
        ),
    ] {
        let reason = if ready { "KubeletReady" } else { "KubeletNotReady" };
        let expected = ReadyState { ready, reason, message: text(message) };
        assert_eq!(ready_state(&health, capacity, true), expected);
    }
    let mut no_disk = full.clone();
    no_disk.remove("ephemeral-storage");
    assert!(!ready_state(&healthy, &no_disk, true).ready && ready_state(&healthy, &no_disk, false).ready);
}

#[test]
fn s060_a_runtime_is_down_when_it_has_not_answered_for_more_than_thirty_seconds() {
    use muster_proto::time::Mono;
    use std::time::Duration;
    let seconds = |count| Mono::since_origin(Duration::from_secs(count));
    for (answered, now, expected) in [
        (None, 5, vec!["container runtime status check may not have completed yet"]),
        (Some(0), 30, vec![]),
        (Some(0), 31, vec!["container runtime is down"]),
    ] {
        assert_eq!(
            runtime_errors(answered.map(seconds), &[], seconds(now)),
            expected,
            "{answered:?} at {now}"
        );
    }
    let error = ["disk full".to_owned()];
    assert_eq!(runtime_errors(Some(seconds(0)), &error, seconds(1)), error);
}

#[test]
fn s061_another_message_is_no_transition() {
    let text = |message: &str| {
        let health = Health { network: Some(message.to_owned()), ..Health::default() };
        Observed { health, ..observed() }
    };
    let first = after(&NodeStatus::default(), &text("a"), 100);
    let second = after(&first.status, &text("b"), 110);
    let ready = condition(&second.status, types::READY);
    assert_eq!((ready.message.as_str(), ready.last_transition_time), ("b", Some(at(100))));
    assert!(second.events.is_empty());
    let third = after(&second.status, &observed(), 120);
    let ready = condition(&third.status, types::READY);
    assert_eq!((ready.status, ready.last_transition_time), (ConditionStatus::True, Some(at(120))));
    assert_eq!(reasons(&third), ["NodeReady"]);
    assert_eq!(reasons(&after(&third.status, &text("a"), 130)), ["NodeNotReady"]);
}

#[test]
fn pressure_conditions_have_events_when_they_change() {
    let squeezed = |pressures| Observed { pressures, ..observed() };
    let calm = after(&NodeStatus::default(), &observed(), 100).status;
    for (pressures, kind, reason, event) in [
        (
            PressureConditions { memory: true, ..PressureConditions::default() },
            types::MEMORY_PRESSURE,
            "KubeletHasInsufficientMemory",
            "NodeHasInsufficientMemory",
        ),
        (
            PressureConditions { disk: true, ..PressureConditions::default() },
            types::DISK_PRESSURE,
            "KubeletHasDiskPressure",
            "NodeHasDiskPressure",
        ),
        (
            PressureConditions { pid: true, ..PressureConditions::default() },
            types::PID_PRESSURE,
            "KubeletHasInsufficientPID",
            "NodeHasInsufficientPID",
        ),
    ] {
        let pressed = after(&calm, &squeezed(pressures), 110);
        let held = condition(&pressed.status, kind);
        assert_eq!((held.status, held.reason.as_str()), (ConditionStatus::True, reason));
        assert_eq!(reasons(&pressed), [event]);
        assert!(pressed.status.condition(types::READY).unwrap().status == ConditionStatus::True);
    }
}

#[test]
fn conditions_of_others_stay_where_they_are() {
    let mut status = after(&NodeStatus::default(), &observed(), 100).status;
    let theirs = NodeCondition { kind: "NetworkUnavailable".to_owned(), ..status.conditions[0].clone() };
    status.conditions.insert(0, theirs.clone());
    assert_eq!(after(&status, &observed(), 110).status.conditions[0], theirs);
}

#[test]
fn s080_swap_is_reported_where_there_is_some() {
    for (swap_bytes, expected) in [(8 * GIB, Some(8_589_934_592)), (0, None)] {
        let mut observed = observed();
        observed.hardware.as_mut().unwrap().swap_bytes = swap_bytes;
        let swap = after(&NodeStatus::default(), &observed, 0).status.node_info.swap;
        assert_eq!(swap.and_then(|swap| swap.capacity), expected);
    }
}

#[test]
fn s081_a_reboot_has_one_event_in_a_process() {
    let mut stored = NodeStatus::default();
    let spec = NodeSpec::default();
    let annotations = Annotations::new();
    let mut emitted = EmittedEvents::default();
    let mut rebooted = |stored: &NodeStatus| {
        let previous = Previous { status: stored, spec: &spec, annotations: &annotations };
        let computed = compute(previous, &settings(), &observed(), &mut emitted, at(0));
        computed.events.iter().filter(|event| event.reason == "Rebooted").count()
    };
    assert_eq!(rebooted(&stored), 0, "a new node was not rebooted");
    stored.node_info.boot_id = "boot-0".to_owned();
    assert_eq!(rebooted(&stored), 1);
    assert_eq!(rebooted(&stored), 0, "the post may have failed, but the event was emitted");
}

#[test]
fn s082_the_largest_images_are_listed_with_five_names_each() {
    let image = |size_bytes: i64, names: usize| pb::ContainerImage {
        names: (0..names).map(|i| format!("image-{size_bytes}:{i}")).collect(),
        size_bytes,
    };
    let found: Vec<_> = (1..=60).map(|size| image(size, 7)).collect();
    let listed = info::images(&found, Some(50));
    assert_eq!(listed.len(), 50);
    assert_eq!((listed[0].size_bytes, listed[49].size_bytes), (60, 11));
    assert!(listed.iter().all(|image| image.names.len() == 5));
    assert_eq!(info::images(&found, None).len(), 60);
    assert!(info::images(&found, Some(0)).is_empty());
}

#[test]
fn s083_cordon_and_uncordon_have_events() {
    let name = settings().name;
    let mut emitted = EmittedEvents::default();
    let mut event = |cordoned| info::schedulable(&name, cordoned, &mut emitted).map(|found| found.reason);
    assert_eq!(
        [event(false), event(true), event(true), event(false)],
        [None, Some("NodeNotSchedulable"), None, Some("NodeSchedulable")]
    );
}
