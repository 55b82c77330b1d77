//! Node conditions: how they are set, and the three pressure conditions.

use jiff::Timestamp;
use muster_proto::condition::{ConditionStatus, types};
use muster_proto::name::Name;
use muster_proto::node::NodeCondition;

use super::NodeEvent;
use crate::pressure::PressureConditions;

/// The texts of a condition in one of its two states.
struct ConditionText {
    reason: &'static str,
    message: &'static str,
    event: &'static str,
}

/// One kind of pressure, and its texts with and without it.
struct Pressure {
    kind: &'static str,
    present: ConditionText,
    absent: ConditionText,
}

const MEMORY: Pressure = Pressure {
    kind: types::MEMORY_PRESSURE,
    present: ConditionText {
        reason: "KubeletHasInsufficientMemory",
        message: "kubelet has insufficient memory available",
        event: "NodeHasInsufficientMemory",
    },
    absent: ConditionText {
        reason: "KubeletHasSufficientMemory",
        message: "kubelet has sufficient memory available",
        event: "NodeHasSufficientMemory",
    },
};

const DISK: Pressure = Pressure {
    kind: types::DISK_PRESSURE,
    present: ConditionText {
        reason: "KubeletHasDiskPressure",
        message: "kubelet has disk pressure",
        event: "NodeHasDiskPressure",
    },
    absent: ConditionText {
        reason: "KubeletHasNoDiskPressure",
        message: "kubelet has no disk pressure",
        event: "NodeHasNoDiskPressure",
    },
};

const PID: Pressure = Pressure {
    kind: types::PID_PRESSURE,
    present: ConditionText {
        reason: "KubeletHasInsufficientPID",
        message: "kubelet has insufficient PID available",
        event: "NodeHasInsufficientPID",
    },
    absent: ConditionText {
        reason: "KubeletHasSufficientPID",
        message: "kubelet has sufficient PID available",
        event: "NodeHasSufficientPID",
    },
};

/// What the first releases of Kubernetes reported instead of DiskPressure.
pub const OUT_OF_DISK: &str = "OutOfDisk";
const NO_DISK: Pressure = Pressure {
    kind: OUT_OF_DISK,
    present: ConditionText {
        reason: "KubeletOutOfDisk",
        message: "out of disk space",
        event: "NodeOutOfDisk",
    },
    absent: ConditionText {
        reason: "KubeletHasSufficientDisk",
        message: "kubelet has sufficient disk space available",
        event: "NodeHasSufficientDisk",
    },
};

/// Sets OutOfDisk: the node has too little free space for further pods, as under DiskPressure, when it admits none.
pub fn set_out_of_disk(
    conditions: &mut Vec<NodeCondition>,
    name: &Name,
    pressures: PressureConditions,
    now: Timestamp,
) -> Vec<NodeEvent> {
    set(conditions, name, [(NO_DISK, pressures.disk)], now)
}

/// Sets the three pressure conditions. Reason and message change only with the status.
pub fn set_pressures(
    conditions: &mut Vec<NodeCondition>,
    name: &Name,
    pressures: PressureConditions,
    now: Timestamp,
) -> Vec<NodeEvent> {
    let observed = [(MEMORY, pressures.memory), (DISK, pressures.disk), (PID, pressures.pid)];
    set(conditions, name, observed, now)
}

fn set<const COUNT: usize>(
    conditions: &mut Vec<NodeCondition>,
    name: &Name,
    observed: [(Pressure, bool); COUNT],
    now: Timestamp,
) -> Vec<NodeEvent> {
    let mut events = Vec::new();
    for (pressure, observed) in observed {
        let status = if observed { ConditionStatus::True } else { ConditionStatus::False };
        let text = if observed { pressure.present } else { pressure.absent };
        let condition = entry(conditions, pressure.kind);
        if stamp(condition, status, now) {
            condition.reason = text.reason.to_owned();
            condition.message = text.message.to_owned();
            events.push(NodeEvent::node_status(name, text.event));
        }
    }
    events
}

/// The condition of that type; if there is none, a new one at the end of the list, with status Unknown.
pub(super) fn entry<'a>(conditions: &'a mut Vec<NodeCondition>, kind: &str) -> &'a mut NodeCondition {
    let found = conditions.iter().position(|condition| condition.kind == kind);
    let place = found.unwrap_or_else(|| {
        conditions.push(NodeCondition {
            kind: kind.to_owned(),
            status: ConditionStatus::Unknown,
            reason: String::new(),
            message: String::new(),
            last_heartbeat_time: None,
            last_transition_time: None,
        });
        conditions.len() - 1
    });
    &mut conditions[place]
}

/// Sets the status and the heartbeat time. Returns whether the status changed, which alone is a transition.
pub(super) fn stamp(condition: &mut NodeCondition, status: ConditionStatus, now: Timestamp) -> bool {
    let changed = condition.status != status;
    condition.status = status;
    condition.last_heartbeat_time = Some(now);
    if changed || condition.last_transition_time.is_none() {
        condition.last_transition_time = Some(now);
    }
    changed
}
