//! Formats events and the controller's answers as lines of the demo. Pure.

use std::time::Duration;

use muster_proto::event::Event;
use muster_proto::pb;
use muster_proto::record::Kind;

use crate::print::Word;
use crate::print::fleet::rate;

/// The reasons of the events that the demo shows.
const SHOWN_REASONS: [&str; 5] =
    ["NodeNotReady", "NodeReady", "TaintManagerEviction", "Scheduled", "FailedScheduling"];

/// The line for an event; `None` if the demo does not show it.
pub(super) fn event(event: &Event) -> Option<String> {
    let kind = match event.involved.kind {
        Kind::Node => "node",
        Kind::Pod => "pod",
        _ => return None,
    };
    let Event { reason, message, involved, .. } = event;
    let is_shown = SHOWN_REASONS.contains(&reason.as_str());
    is_shown.then(|| format!("event {reason} of {kind} {}: {message}", involved.name))
}

/// The explanation of a node: its summary, its pending actions, and the pods that will be evicted.
pub(super) fn explanation(answer: &pb::ExplainNodeResponse) -> Vec<String> {
    let mut lines = vec![format!("explain {}: {}", answer.name, answer.summary.trim())];
    let pending = answer.explanations.iter().filter(|it| !is_settled(it));
    // The summary consists of such reasons, so it may contain this one already.
    let pending = pending.filter(|it| !answer.summary.contains(it.reason.as_str()));
    lines.extend(pending.map(|it| {
        format!("explain {}: {} {}: {}", answer.name, it.action().word(), it.state().word(), it.reason)
    }));
    let leaving = answer.pods.iter().filter(|pod| pod.decision() != pb::EvictionDecision::Keep);
    lines.extend(leaving.map(|pod| {
        format!("explain {}: pod {} {}: {}", answer.name, pod.name, pod.decision().word(), pod.reason)
    }));
    lines
}

/// Whether nothing more is done for the action.
fn is_settled(explanation: &pb::Explanation) -> bool {
    matches!(explanation.state(), pb::ExplanationState::None | pb::ExplanationState::Done)
}

/// One line for the fleet, and one for each zone with nodes.
pub(super) fn fleet(fleet: &pb::Fleet) -> Vec<String> {
    let pb::Fleet { reason, nodes, ready_nodes, unknown_nodes, .. } = fleet;
    let mut lines = vec![format!(
        "fleet {}: {ready_nodes} of {nodes} nodes Ready, {unknown_nodes} Unknown. {reason}",
        fleet.state().word()
    )];
    lines.extend(fleet.zones.iter().filter(|zone| zone.nodes > 0).map(|zone| {
        let state = zone.state().word();
        let pb::FleetZone { name, unhealthy, nodes, reason, .. } = zone;
        format!(
            "zone {name} {state}: {unhealthy} of {nodes} nodes unhealthy, evictions {}. {reason}",
            rate(zone.rate)
        )
    }));
    lines
}

/// A measured time.
pub(super) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_proto::event::{EventType, ObjectReference};

    #[test]
    fn only_events_with_shown_reasons_have_a_line() {
        for (kind, reason, expected) in [
            (Kind::Node, "NodeNotReady", Some("event NodeNotReady of node a: why")),
            (Kind::Pod, "Scheduled", Some("event Scheduled of pod a: why")),
            (Kind::Node, "RegisteredNode", None),
            (Kind::Lease, "NodeNotReady", None),
        ] {
            let namespace = kind.is_namespaced().then(|| "default".parse().unwrap());
            let involved = ObjectReference { kind, namespace, name: "a".parse().unwrap(), uid: None };
            let record = Event::about(involved, EventType::Normal, reason, "why", "controller");
            assert_eq!(event(&record).as_deref(), expected, "{reason}");
        }
    }

    #[test]
    fn a_fleet_is_shown_with_the_zones_that_have_nodes() {
        let zone = |name: &str, nodes| pb::FleetZone {
            name: name.to_owned(),
            state: pb::ZoneState::Normal.into(),
            nodes,
            rate: 1.0,
            reason: "All is well.".to_owned(),
            ..pb::FleetZone::default()
        };
        let response = pb::Fleet {
            state: pb::FleetState::Normal.into(),
            reason: "All zones are healthy.".to_owned(),
            nodes: 3,
            ready_nodes: 2,
            unknown_nodes: 1,
            zones: vec![zone("r/a", 3), zone("r/b", 0)],
            ..pb::Fleet::default()
        };
        assert_eq!(
            fleet(&response),
            [
                "fleet Normal: 2 of 3 nodes Ready, 1 Unknown. All zones are healthy.",
                "zone r/a Normal: 0 of 3 nodes unhealthy, evictions 1/s. All is well.",
            ]
        );
    }
}
