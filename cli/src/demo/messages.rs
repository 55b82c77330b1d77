//! The demonstration's sentences, out of what the store and the controller say. Pure.

use std::time::Duration;

use muster_proto::event::Event;
use muster_proto::pb;
use muster_proto::record::Kind;

use crate::print::fleet::rate;

/// Events that tell the story; others happen beside it.
const STORY: [&str; 5] =
    ["NodeNotReady", "NodeReady", "TaintManagerEviction", "Scheduled", "FailedScheduling"];

/// An event in a line, if it belongs to the story.
pub(super) fn event(event: &Event) -> Option<String> {
    let kind = match event.involved.kind {
        Kind::Node => "node",
        Kind::Pod => "pod",
        _ => return None,
    };
    let Event { reason, message, involved, .. } = event;
    STORY.contains(&reason.as_str()).then(|| format!("event {reason} of {kind} {}: {message}", involved.name))
}

/// Why a node is as it is: what is done or waits for it, and when its pods have to go.
pub(super) fn explanation(told: &pb::ExplainNodeResponse) -> Vec<String> {
    let mut lines = vec![format!("explain {}: {}", told.name, told.summary.trim())];
    let pending = told.explanations.iter().filter(|it| !["None", "Done"].contains(&it.state.as_str()));
    // The summary is made of such reasons and may have said it already.
    let pending = pending.filter(|it| !told.summary.contains(it.reason.as_str()));
    lines.extend(
        pending.map(|it| format!("explain {}: {} {}: {}", told.name, it.action, it.state, it.reason)),
    );
    let leaving = told.pods.iter().filter(|pod| pod.decision != "Stays");
    lines.extend(
        leaving
            .map(|pod| format!("explain {}: pod {} {}: {}", told.name, pod.name, pod.decision, pod.reason)),
    );
    lines
}

/// The fleet in a line, and each of its zones in one.
pub(super) fn fleet(fleet: &pb::Fleet) -> Vec<String> {
    let pb::Fleet { state, reason, nodes, ready_nodes, unknown_nodes, .. } = fleet;
    let mut lines = vec![format!(
        "fleet {state}: {ready_nodes} of {nodes} nodes Ready, {unknown_nodes} Unknown. {reason}"
    )];
    lines.extend(fleet.zones.iter().filter(|zone| zone.nodes > 0).map(|zone| {
        let pb::FleetZone { name, state, unhealthy, nodes, reason, .. } = zone;
        format!("zone {name} {state}: {unhealthy} of {nodes} lost, evictions {}. {reason}", rate(zone.rate))
    }));
    lines
}

/// A time that was measured.
pub(super) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_proto::event::{EventType, ObjectReference};

    #[test]
    fn only_events_of_the_story_are_told() {
        for (kind, reason, expected) in [
            (Kind::Node, "NodeNotReady", Some("event NodeNotReady of node a: why")),
            (Kind::Pod, "Scheduled", Some("event Scheduled of pod a: why")),
            (Kind::Node, "RegisteredNode", None),
            (Kind::Lease, "NodeNotReady", None),
        ] {
            let namespace = kind.is_namespaced().then(|| "default".parse().unwrap());
            let involved = ObjectReference { kind, namespace, name: "a".parse().unwrap(), uid: None };
            let happened = Event::about(involved, EventType::Normal, reason, "why", "controller");
            assert_eq!(event(&happened).as_deref(), expected, "{reason}");
        }
    }

    #[test]
    fn a_fleet_is_told_with_the_zones_that_count() {
        let zone = |name: &str, nodes| pb::FleetZone {
            name: name.to_owned(),
            state: "Normal".to_owned(),
            nodes,
            rate: 1.0,
            reason: "All is well.".to_owned(),
            ..pb::FleetZone::default()
        };
        let told = pb::Fleet {
            state: "Judging".to_owned(),
            reason: "So it is.".to_owned(),
            nodes: 3,
            ready_nodes: 2,
            unknown_nodes: 1,
            zones: vec![zone("r/a", 3), zone("r/b", 0)],
            ..pb::Fleet::default()
        };
        assert_eq!(
            fleet(&told),
            [
                "fleet Judging: 2 of 3 nodes Ready, 1 Unknown. So it is.",
                "zone r/a Normal: 0 of 3 lost, evictions 1/s. All is well.",
            ]
        );
    }
}
